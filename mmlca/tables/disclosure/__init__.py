"""What tables and figures may show, decided in this one place.

There are two kinds of release. *Inside* the hospital numbers are exact; small ones, and those from
which they would follow in the same table, are hidden (`small`, with the arithmetic of `sums`). In a
*public* release every count is rounded at random (`Rounding`), so that nothing more needs to be
hidden. A function that makes a table for people takes `min_count` and an optional `rounding`, and
does one or the other; `show_counts` does it for a table of counts.
"""

from mmlca.tables.disclosure.release import count_note as count_note
from mmlca.tables.disclosure.release import show_counts as show_counts
from mmlca.tables.disclosure.rounding import EVERYONE as EVERYONE
from mmlca.tables.disclosure.rounding import Key as Key
from mmlca.tables.disclosure.rounding import Rounding as Rounding
from mmlca.tables.disclosure.rounding import shares_of as shares_of
from mmlca.tables.disclosure.small import HIDDEN as HIDDEN
from mmlca.tables.disclosure.small import Guarded as Guarded
from mmlca.tables.disclosure.small import Parts as Parts
from mmlca.tables.disclosure.small import add_totals as add_totals
from mmlca.tables.disclosure.small import bounded_parts as bounded_parts
from mmlca.tables.disclosure.small import check_min_count as check_min_count
from mmlca.tables.disclosure.small import coarse_times as coarse_times
from mmlca.tables.disclosure.small import count_text as count_text
from mmlca.tables.disclosure.small import few_digits as few_digits
from mmlca.tables.disclosure.small import few_patients as few_patients
from mmlca.tables.disclosure.small import few_text as few_text
from mmlca.tables.disclosure.small import fewest_patients as fewest_patients
from mmlca.tables.disclosure.small import guarded_share as guarded_share
from mmlca.tables.disclosure.small import hidden_cells as hidden_cells
from mmlca.tables.disclosure.small import hidden_grid as hidden_grid
from mmlca.tables.disclosure.small import hidden_note as hidden_note
from mmlca.tables.disclosure.small import hidden_parts as hidden_parts
from mmlca.tables.disclosure.small import hide as hide
from mmlca.tables.disclosure.small import hide_parts as hide_parts
from mmlca.tables.disclosure.small import hide_rows as hide_rows
from mmlca.tables.disclosure.small import hides as hides
from mmlca.tables.disclosure.small import is_small as is_small
from mmlca.tables.disclosure.small import not_shown as not_shown
from mmlca.tables.disclosure.small import printable as printable
