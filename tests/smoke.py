"""What an installed package must be able to do within a minute; `make dist` runs it.

    python tests/smoke.py FOLDER

writes a small synthetic cohort into the folder and runs a study of three classes with the command
that belongs to the interpreter.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import ehr_prep
import font
import mmlca
from mmlca.study.study_file import write_study_file

folder = Path(sys.argv[1]).resolve()
checkout = Path(__file__).resolve().parents[1]
for package in (mmlca, font, ehr_prep):
    place = Path(str(package.__file__)).resolve()
    if place.is_relative_to(checkout) and "site-packages" not in place.parts:
        sys.exit(f"{place} is the checkout, not the installed package")

cohort = ehr_prep.ra_cohort(seed=1, scale=0.05)
cohort.write(folder)
study = folder / "study.toml"
write_study_file(study, tuple(cohort), name="Smoke", seed=1, synthetic=True, preset="ra")
text = study.read_text(encoding="utf-8")
study.write_text(text.replace('number = "vote"', "number = 3"), encoding="utf-8")
command = Path(sys.executable).with_name("mmlca")
subprocess.run([command, "study", "run", study, "--out", folder / "results"], check=True)
if not (folder / "results/report.html").exists():
    sys.exit("the study wrote no report")
