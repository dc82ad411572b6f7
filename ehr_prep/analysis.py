"""Analyses and figures of `mmlca` under the names that they have in this package."""

from mmlca.figures.flow import plot_flow as plot_flow
from mmlca.figures.lab_trends import plot_trend as plot_trend
from mmlca.tables.lab_trends import Trend as Trend
from mmlca.tables.table_one import TableOne as TableOne
from mmlca.tables.table_one import table_one as table_one
