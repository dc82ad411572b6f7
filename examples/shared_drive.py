"""A study between hospitals over a shared drive: everyone runs this every hour, say.

    python shared_drive.py /mnt/drive study.toml site.toml     (at each hospital)
    python shared_drive.py /mnt/drive study.toml               (at the centre)

The drive has a folder for each hospital's outbox and one for the centre's. Patients' files and
the ledger are in the folder `mmlca` of this machine and never on the drive. Nobody is asked before
files leave; `approve` of `run_site` would.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from mmlca.federation.centre_run import run_centre
from mmlca.federation.site_run import run_site

HERE = Path("mmlca")


def copy(source: Path, target: Path) -> None:
    """Copy a folder, each file under another name first: nobody reads half of one."""
    for path in sorted(source.rglob("[!.]*.*")):
        place = target / path.relative_to(source)
        if not place.exists() or place.read_bytes() != path.read_bytes():
            place.parent.mkdir(parents=True, exist_ok=True)
            unfinished = place.with_name(f".{place.name}")
            shutil.copyfile(path, unfinished)
            unfinished.replace(place)


def main(drive: Path, study: Path, site_file: Path | None = None) -> None:
    if site_file is not None:
        copy(drive / "centre", HERE / "inbox")
        turn = run_site(study, site_file, HERE)
        copy(HERE / "outbox", drive / "sites" / turn.site)
        print(*turn.done, f"Waiting for {turn.waiting}." if turn.waiting else "")
    else:
        copy(drive / "sites", HERE / "inbox")
        turn_of_centre = run_centre(study, HERE)
        copy(HERE / "outbox", drive / "centre")
        print(f"Waiting for {sorted(turn_of_centre.missing)}.")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        main(*map(Path, sys.argv[1:]))
    else:
        print(__doc__)
