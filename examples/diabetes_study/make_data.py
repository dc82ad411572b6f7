"""Simulate the data of the diabetes study: three sites with differently formatted files.

python examples/diabetes_study/make_data.py
mmlca study run examples/diabetes_study/study.toml --out results
"""

import sys
from pathlib import Path

import ehr_prep

folder = Path(__file__).parent / "data"
scale = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
for path in ehr_prep.diabetes_cohort(seed=1, scale=scale).write(folder):
    print(path.relative_to(folder.parent))
