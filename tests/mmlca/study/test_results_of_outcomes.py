"""Effects, outcomes and survival in the results of sites: exact, rounded, and put together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import mmlca
from mmlca.sequences.type import Account, Sequences
from mmlca.study import site_data
from mmlca.study.outcomes import Outcomes, outcomes_of
from mmlca.study.results import effects, survival, table_one
from mmlca.study.results.patients import ENSEMBLE, SitePatients
from mmlca.study.results.registry import TABLES
from mmlca.study.results.site import SiteResults, typed
from mmlca.study.settings import Study
from mmlca.tables.cluster_effects import ERRORS
from mmlca.tables.disclosure import Rounding, few_digits
from mmlca.tables.survival import survival_by_cluster

pytest.importorskip("lifelines")
UNIT, SITES = 11, ("X", "Y", "Z")
NAMES = {1: "1: stay", 2: "2: switch", 3: "3: leave"}
PARTS = (effects.PART, survival.PART, table_one.PART)
