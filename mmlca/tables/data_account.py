"""How sequences came about, as people may see it: the flow of patients, and unknown drugs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mmlca.sequences.type import Sequences, Step, flow_table
from mmlca.tables.disclosure import Rounding, hidden_parts, is_small, show_counts

_OTHER_TEXTS = "other texts"


def show_flow(
    flow: pd.DataFrame, site: str, min_count: int, rounding: Rounding | None = None
) -> pd.DataFrame:
    """The flow with small numbers pooled, or with all numbers rounded.

    Those who are left at the end are the patients of the site, and are rounded as these are.
    """
    if rounding is None:
        return hide_flow(flow, min_count)
    flow, left = flow.assign(site=site), {"patients_left": (), "records_left": ("records",)}
    rounded = {
        "patients": rounding.column(flow, "patients", ["reason"], "patients dropped"),
        "records": rounding.column(flow, "records", ["reason"], "records dropped"),
    }
    rounded |= {name: rounding.column(flow, name, [], *what) for name, what in left.items()}
    return flow.drop(columns="site").assign(**rounded).astype(dict.fromkeys(rounded, int))


def show_issues(
    data: Sequences,
    flow: pd.DataFrame,
    site: str,
    min_count: int,
    rounding: Rounding | None = None,
) -> pd.DataFrame:
    """Invalid records by kind, without small numbers and those that the flow pools, or rounded."""
    table = data.issues.drop(columns="examples").assign(site=site)
    table = show_counts(table, {"n": ["records dropped"]}, min_count, rounding, cells=["issue"])
    if rounding is None:
        pooled = table["issue"].isin(set(data.flow["reason"]) - set(flow["reason"]))
        table = table.assign(n=table["n"].mask(pooled))
    return table.drop(columns="site")


def show_unmapped(
    table: pd.DataFrame, site: str, min_count: int, rounding: Rounding | None = None
) -> pd.DataFrame:
    """Drug texts without a class; those of few patients are one row."""
    if rounding is None:
        return hide_unmapped(table, min_count)
    table = pool_rare(table, min_count).assign(site=site)
    rounded = {
        name: rounding.column(table, name, ["drug"], "unmapped", name)
        for name in ("records", "patients")
    }
    return table.drop(columns="site").assign(**rounded)


def hide_flow(flow: pd.DataFrame, min_count: int) -> pd.DataFrame:
    """The flow with small numbers pooled, so that none shows or follows from what is left.

    Reasons that dropped at least one and fewer than `min_count` patients or records become
    "other reasons", together with the next larger ones until neither number is small. A stage
    whose numbers are still small is joined with the next one, the last with the one before
    it. What was left at the end stays as it is.

    Examples
    --------
    >>> steps = [Step("usable", "no date", 30, 90), Step("usable", "no drug", 2, 7)]
    >>> steps += [Step("eligible", "late", 20, 60), Step("sequences", "after the end", 0, 50)]
    >>> hide_flow(flow_table(300, 900, steps), 11)[["stage", "reason", "patients"]]
           stage         reason  patients
    0       read   in the input         0
    1     usable  other reasons        32
    2   eligible           late        20
    3  sequences  after the end         0
    """
    before = [Step(*row) for row in flow[list(Step._fields)].itertuples(index=False)]
    stages = [(name, [s for s in before if s.stage == name]) for name in flow["stage"].unique()]
    pooled = [_pool(steps, min_count) for _, steps in stages]
    while None in pooled:
        at = min(pooled.index(None), len(stages) - 2)
        if at == 0:  # even the input would reveal how few were dropped
            return flow.iloc[[-1]].assign(reason="at the end", patients=0, records=0)
        (_, one), (name, two) = stages[at : at + 2]
        stages[at : at + 2] = [(name, [*one, *two])]
        pooled = [_pool(steps, min_count) for _, steps in stages]
    steps = [
        step._replace(stage=name)
        for (name, _), kept in zip(stages, pooled, strict=True)
        for step in kept or []
    ]
    start = flow.iloc[0]
    return flow_table(int(start["patients_left"]), int(start["records_left"]), steps[1:])


def _pool(steps: Sequence[Step], min_count: int) -> list[Step] | None:
    """The steps of a stage without small numbers; None if they are small all together."""

    def small(some: Sequence[Step]) -> bool:
        totals = [sum(s.patients for s in some), sum(s.records for s in some)]
        return bool(is_small(totals, min_count).any())

    others = [step for step in steps if small([step])]
    larger = sorted((s for s in steps if s not in others and any(s[2:])), key=lambda s: s[2:])
    while small(others) and larger:
        lacks_patients = is_small(sum(s.patients for s in others), min_count)
        useful = [s for s in larger if s.patients or not lacks_patients]
        if not useful:
            return None
        larger.remove(useful[0])
        others.append(useful[0])
    if small(others):
        return None
    kept = [step for step in steps if step not in others]
    if others:
        totals = (sum(s.patients for s in others), sum(s.records for s in others))
        kept.append(Step(others[0].stage, "other reasons", *totals))
    return kept


def hide_unmapped(table: pd.DataFrame, min_count: int) -> pd.DataFrame:
    """The table as it may be shown: rare texts pooled, small numbers blank.

    A text of fewer than `min_count` patients may say more than a drug, so that neither it nor its
    numbers are shown; all of them together are one row. `patients` of that row is blank: patients
    may have several of these texts.

    Examples
    --------
    >>> table = pd.DataFrame({"drug": ["aspirin", "for Mr X"], "records": [90, 2],
    ...                       "patients": [40, 1], "did_you_mean": [None, None]})
    >>> hide_unmapped(table, 11)["drug"].to_list()
    ['aspirin', 'other texts']
    >>> hide_unmapped(table, 11)["records"].isna().to_list()
    [True, True]
    """
    result = pool_rare(table, min_count)
    if not is_small(table["patients"], min_count).any():
        return result
    # all records of unknown drugs together are in the flow, so that others hide with these
    few = np.arange(len(result)) == len(result) - 1
    hidden, _ = hidden_parts(result["records"].to_numpy(), min_count, few)
    return result.assign(records=result["records"].mask(hidden))


def pool_rare(table: pd.DataFrame, min_count: int) -> pd.DataFrame:
    """The table with all texts of fewer than `min_count` patients in one row, the last."""
    rare = is_small(table["patients"], min_count)
    shown = table[~rare].astype({"records": float, "patients": float})
    if not rare.any():
        return shown.reset_index(drop=True)
    other = table[rare]
    pooled = {
        "drug": _OTHER_TEXTS,
        "records": float(other["records"].sum()),
        "patients": np.nan,
        "did_you_mean": None,
    }
    columns = {name: [*shown[name], pooled[name]] for name in table}
    return pd.DataFrame(columns).astype({"drug": object, "did_you_mean": object})
