"""From medication records to treatment sequences, with every dropped record counted.

Names are loaded on first use, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "RA_DRUGS": "drugs",
    "DrugMap": "drugs",
    "Records": "records",
    "SyntheticCohort": "synthetic",
    "TableOne": "tables",
    "Trend": "labs",
    "TreatmentSequences": "build",
    "build_sequences": "build",
    "drug_map": "drugs",
    "drug_report": "drugs",
    "plot_flow": "plots",
    "plot_trend": "plots",
    "pseudo_sites": "bootstrap",
    "ra_cohort": "synthetic",
    "read_patients": "patients",
    "read_records": "records",
    "read_sites": "records",
    "table_one": "tables",
    "trend": "labs",
}
_MODULES = ("labs", "synthetic")
__all__ = [*_HOME, *_MODULES]

if TYPE_CHECKING:
    from ehr_prep import labs, synthetic
    from ehr_prep.bootstrap import pseudo_sites
    from ehr_prep.build import TreatmentSequences, build_sequences
    from ehr_prep.drugs import RA_DRUGS, DrugMap, drug_map, drug_report
    from ehr_prep.labs import Trend, trend
    from ehr_prep.patients import read_patients
    from ehr_prep.plots import plot_flow, plot_trend
    from ehr_prep.records import Records, read_records, read_sites
    from ehr_prep.synthetic import SyntheticCohort, ra_cohort
    from ehr_prep.tables import TableOne, table_one


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
