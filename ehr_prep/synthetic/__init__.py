"""Synthetic cohorts: made-up patients, medication records and laboratory values."""

from ehr_prep.synthetic.cohort import SyntheticCohort, ra_cohort
from ehr_prep.synthetic.diabetes import DiabetesCohort, diabetes_cohort
from ehr_prep.synthetic.omop import write_omop

__all__ = ["DiabetesCohort", "SyntheticCohort", "diabetes_cohort", "ra_cohort", "write_omop"]
