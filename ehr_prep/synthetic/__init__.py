"""Synthetic cohorts: made-up patients, medication records and laboratory values."""

from ehr_prep.synthetic.omop import write_omop
from ehr_prep.synthetic.ra import SyntheticCohort, ra_cohort

__all__ = ["SyntheticCohort", "ra_cohort", "write_omop"]
