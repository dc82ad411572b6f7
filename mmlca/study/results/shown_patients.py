"""What the report shows of the patients and their data, put together from the results of sites."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from mmlca.study.results import table_one
from mmlca.study.results.site import is_rounded
from mmlca.tables.table_one import TableOne, put_together

if TYPE_CHECKING:
    from mmlca.study.results.site import SiteResults
    from mmlca.study.settings import Study


def table_one_of(
    study: Study,
    results: Mapping[str, SiteResults],
    names: Mapping[Any, str],
    descriptions: Mapping[str, str],
) -> TableOne:
    """Table 1 of all sites.

    Parameters
    ----------
    names : {cluster: name}
    descriptions : {name: what the cluster is}
    """
    several = len(results) > 1
    return put_together(
        {site if several else "": _numbers_of(result) for site, result in results.items()},
        study.table_one,
        names=names,
        descriptions=descriptions,
        min_count=study.privacy.min_count,
        together=study.outcomes.columns,
        rounded=is_rounded(results),
        all_sites=True,
    )


def _numbers_of(result: SiteResults) -> dict[str, pd.DataFrame]:
    """The tables of a site as they are computed, without their prefix; clusters are whole."""
    tables = {
        name.removeprefix(table_one.PREFIX): result.tables[name] for name in table_one.PART.tables
    }
    for name in ("counts", "summaries"):
        groups = [None if pd.isna(g) else int(g) for g in tables[name]["group"]]
        tables[name] = tables[name].assign(group=pd.Series(groups, dtype=object))
    return tables
