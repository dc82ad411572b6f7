"""The sequence type: patients' states over time, how it is built, checked, reduced and stored."""
