"""Medication records in databases: OMOP, claims and other tables, through Ibis."""
