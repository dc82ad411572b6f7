"""Which form of chains describes the courses best, and what the other one would give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from mmlca.model.selection import sum_by_form, vote
from mmlca.sequences.checks import listed
from mmlca.sequences.forms import PLAIN
from mmlca.study.report.content import Item
from mmlca.study.report.tables import Plain
from mmlca.study.results.site import ALL_SITES
from mmlca.study.words import counted, sentences
from mmlca.tables.disclosure import hides

if TYPE_CHECKING:
    from mmlca.study.findings import Findings
    from mmlca.study.settings import Study

_CLEAR = 10.0  # a difference in BIC that is called very strong evidence (Raftery 1995)


class Other(NamedTuple):
    """A form that was compared with the one that is used.

    `number` is the number of classes that it would have; `larger` is how much larger its criterion
    is, summed over the sites, each with its own best number; `better` are the sites at which it is
    smaller.
    """

    form: str
    number: int
    larger: float
    better: list[str]


def of_sites(study: Study, choice: pd.DataFrame) -> pd.DataFrame:
    """The models compared at whole sites, without those of resamples."""
    return choice[choice["site"].isin(list(study.sites))]


def others(study: Study, findings: Findings) -> list[Other]:
    """The forms that were compared with the one that is used."""
    choice, criterion, used = findings.fits.choice, study.classes.criterion, findings.fits.form
    if choice is None:
        return []
    table = of_sites(study, choice)
    sums = sum_by_form(table, criterion)
    best = table.groupby(["form", "site"], sort=False)[criterion].min()
    found = []
    for form in sums.index.drop(used, errors="ignore"):
        rows = table[table["form"] == form]
        first = rows.groupby("site", sort=False)[criterion].idxmin()
        number = vote(rows.assign(chosen=rows.index.isin(first)))
        apart = best[form] - best[used]
        better = apart.index[apart < 0].tolist()
        found.append(Other(str(form), number, float(sums[form] - sums[used]), better))
    return found


def chains(form: str) -> str:
    """Chains of a form, in words: "plain chains", "chains by time in state (1, 2–3, 4+)"."""
    return "plain chains" if form == PLAIN.title else f"chains {form}"


def form_sentence(study: Study, findings: Findings) -> str:
    """Which form was chosen or given, and what the other would have given; "" if none was."""
    several, criterion = len(study.sites) > 1, study.classes.criterion.upper()
    used, k = chains(findings.fits.form), findings.combined.n_groups
    parts = []
    for other in others(study, findings):
        size = _amount(study, abs(other.larger))
        apart = f"a {criterion} {'larger' if other.larger > 0 else 'smaller'} by {size}"
        if abs(other.larger) < 0.5:
            apart = f"about the same {criterion}"
        number = counted(other.number, "class")
        if other.number == k:
            number = f"as many classes ({k})" if k > 1 else "one class as well"
        parts.append(f"{chains(other.form)} would have {number} and {apart}")
    if not parts:
        return ""
    summed = ", summed over the sites" if several else ""
    given = study.form_rule != "compare"
    first = f"The study file asks for {used}" if given else f"{criterion} chose {used}"
    return f"{first}, with {counted(k, 'class')}; {listed(parts)}{summed}."


def _amount(study: Study, value: float) -> str:
    return f"{value:,.0f}" if hides(study.privacy.min_count) else f"{value:,.1f}"


def what_counts(study: Study) -> str:
    """The parameters that criteria count, in words."""
    least = study.fit_settings["min_patients"]
    who = "that occur" if least == 1 else f"that at least {least} patients of a site make"
    return f"the parameters of first states and transitions {who}"


def items(study: Study, findings: Findings) -> Iterator[Item]:
    """The criterion by form and number of classes."""
    choice, criterion = findings.fits.choice, study.classes.criterion
    if choice is None or choice["form"].nunique() == 1:
        return
    table = of_sites(study, choice)
    lowest = table.groupby("site")[criterion].transform("min")
    table = table.assign(above=table[criterion] - lowest)
    sums = sum_by_form(table, "above")
    long = table[["site", "form", "classes", criterion, "above"]]
    long = long.assign(lowest=table["above"] == 0, used=table["form"] == findings.fits.form)
    numbers = sorted(table["classes"].unique())
    rows = []
    for (site, form), part in table.groupby(["site", "form"], sort=False):
        above = part.set_index("classes")["above"]
        cells = {f"{k:.0f}": _cell(study, above.get(k)) for k in numbers}
        rows.append({"site": site, "form": form, **cells, "best": _cell(study, above.min())})
    for form, total in sums.items() if len(study.sites) > 1 else ():
        blank = {f"{k:.0f}": "" for k in numbers}
        value = float(total - sums.min())
        rows.append({"site": ALL_SITES, "form": form, **blank, "best": _cell(study, value)})
    name = criterion.upper()
    decides = ", and the form with the smallest sum is used" if study.form_rule == "compare" else ""
    together = (
        f"For {ALL_SITES} these are summed, since the sites' models together are one model of all "
        f"patients{decides}."
    )
    yield Item(
        "forms",
        f"{name} by form of the chains",
        sentences(
            f"{name} of each form of the chains and number of classes, less the lowest of the site "
            f"(marked). It counts {what_counts(study)}. The last column has the form at its best "
            "number of classes.",
            together if len(study.sites) > 1 else "",
            form_sentence(study, findings),
        ),
        long.astype({"classes": int}),
        Plain(
            n_keys=2,
            sortable=False,
            figures=(*(f"{k:.0f}" for k in numbers), "best"),
            labels={f"{k:.0f}": f"{k:.0f} class{'es' if k > 1 else ''}" for k in numbers}
            | {"best": "best number"},
            shown=pd.DataFrame(rows),
        ),
    )


def _cell(study: Study, value: float | None) -> str:
    if value is None:
        return "–"
    return "0 (lowest)" if value == 0 else _amount(study, value)


def methods(study: Study, findings: Findings) -> list[str]:
    """How the form was chosen."""
    compared = [other.form for other in others(study, findings)]
    if not compared or study.form_rule != "compare":
        return []
    name = study.classes.criterion.upper()
    where = f" ({name} summed over the sites, each with its own best number of classes)"
    forms = listed([chains(form) for form in sorted([*compared, findings.fits.form])])
    return [
        f"The form of the chains was chosen by {name} from {forms}"
        f"{where if len(study.sites) > 1 else ''}."
    ]


def cautions(study: Study, findings: Findings) -> list[str]:
    """Evidence for the form that is not used."""
    notes, used = [], chains(findings.fits.form)
    name = study.classes.criterion.upper()
    for other in others(study, findings):
        if study.form_rule != "compare" and other.larger < -_CLEAR:
            k = findings.combined.n_groups
            number = "" if other.number == k else f", with {counted(other.number, 'class')}"
            notes.append(
                f"The study file asks for {used}, but {chains(other.form)} describe the courses "
                f"better ({name} smaller by {_amount(study, -other.larger)}{number}); some of the "
                f"{counted(k, 'class')} may stand for parts of the same course. Set form = "
                '"compare" under [model] to use the better form.'
            )
        elif other.better and other.larger > 0:
            notes.append(
                f"At {listed(other.better)}, {chains(other.form)} have a smaller {name} than "
                f"{used}, which are better for all sites together."
            )
    return notes


def answer(study: Study, findings: Findings) -> str:
    """Whether other forms of chains were examined, for the checklist; "" if not."""
    found = others(study, findings)
    if not found:
        return ""
    used = findings.fits.form
    table = f"the table “{study.classes.criterion.upper()} by form of the chains”"
    return f"{chains(used)}; compared with {listed([chains(o.form) for o in found])}: {table}"
