"""Figures, each drawn from a table of `mmlca.tables`."""
