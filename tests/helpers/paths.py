"""Where the checkout is, and the reference data beside it."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
PEERS = SHARED / "peers"
