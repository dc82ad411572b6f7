"""A network whose counts are exact finds what a study in one place finds by the same method."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import mmlca_does

import ehr_prep
from mmlca.federation.results import read_results
from mmlca.study import read_study, run_study
from mmlca.study.results.site import site_results

SITES = ("MGB", "VA")
STUDY = """
name = "Both ways"
seed = 3
synthetic = true
[records]
drugs = "ra"
[rules]
first_on_or_after = 2008-01-01
[classes]
number = 3
[model]
n_init = 6
prior = 1e-4
[pseudo_sites]
per_site = 0
[ensemble]
method = "{method}"
refine = 1
[inference]
simulations = 19
[outputs]
figures = false
bootstrap = 20
[privacy]
min_count = 1
"""
