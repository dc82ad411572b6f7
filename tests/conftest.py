"""What all tests share."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
from hypothesis import settings

mpl.use("Agg")
settings.register_profile("mmlca", deadline=None, derandomize=True)
settings.load_profile("mmlca")
for folder in ("mmlca", "bench"):
    sys.path.insert(0, str(Path(__file__).parent / folder))
