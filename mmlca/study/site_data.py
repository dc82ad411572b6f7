"""The data of a study: each site's sequences, by the rules of the study file."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from font.errors import InputError, option, spelled, spelling
from mmlca.sequences.checks import some
from mmlca.tables.disclosure import is_small
from mmlca.tables.settings import SITE, START
from mmlca.tables.strata import check_strata, stratify

if TYPE_CHECKING:
    from ehr_prep.records import Records
    from mmlca.sequences.type import Sequences
    from mmlca.study.settings import Study


def read_site(study: Study, site: str) -> Sequences:
    """The sequences of one site: built from its records, or read from its file.

    Sequences from records have an account, with their flow and patients.
    """
    rules = study.rules
    if rules.states == "combinations" and rules.combinations is None:
        raise InputError(
            "rules.combinations must name the combinations that are states, such as "
            'combinations = ["A+B"]: a site alone cannot know which are frequent at all of them.'
        )
    return build_site(study, site, read_source(study, site))


def read_source(study: Study, site: str) -> Records | Sequences:
    """The records of one site, or its sequences, as files or a database hold them."""
    from ehr_prep.databases.omop import read_omop
    from ehr_prep.databases.warehouse import read_warehouse
    from ehr_prep.records import read_records
    from mmlca.sequences.type import Sequences

    if site not in study.sites:
        raise InputError(f"the study has no site {site!r}; it has {', '.join(study.sites)}.")
    files = study.sites[site]
    with _at(site):
        if files.sequences is not None:
            return Sequences.read(files.sequences, columns=files.columns)
        if files.omop is not None:
            return read_omop(files.omop, **study.omop_options(site))
        if files.warehouse is not None:
            return read_warehouse(files.warehouse, **study.warehouse_options(site))
        assert files.records is not None
        return read_records(
            files.records,
            patients=files.patients,
            observation=files.observation,
            **study.site_options(site),
        )


def build_site(study: Study, site: str, source: Records | Sequences) -> Sequences:
    """The sequences of one site, by the rules of the study."""
    from ehr_prep.build import build_sequences
    from mmlca.sequences.type import Sequences

    if isinstance(source, Sequences):
        return source
    with _at(site):
        return build_sequences(source, study.rules)


def build_sites(study: Study, sources: Mapping[str, Records | Sequences]) -> dict[str, Sequences]:
    """The sequences of all sites, which need the same states and at least `min_count` patients."""
    rules = study.rules
    together = len(sources) > 1 and rules.states == "combinations" and rules.combinations is None
    alone = study.changed(rules={"state_order": None}) if together else study
    data = {site: build_site(alone, site, source) for site, source in sources.items()}
    if together:
        named = study.changed(rules={"combinations": _common_combinations(study, data)})
        data = {site: build_site(named, site, source) for site, source in sources.items()}
    (first, *others), min_count = data, study.privacy.min_count
    for other in others:
        a, b = data[first].states, data[other].states
        if a != b:
            raise InputError(
                f"{first} has the states {', '.join(a)} and {other} has {', '.join(b)}; all sites "
                "need the same in the same order: use one drug map, or write the sequences anew "
                "with common states."
            )
    for site, part in data.items():
        if is_small(len(part), min_count):
            raise InputError(
                f"site {site} has fewer eligible patients than privacy.min_count = {min_count}; "
                "relax the rules, or leave the site out."
            )
    return data


def _common_combinations(study: Study, data: Mapping[str, Sequences]) -> tuple[str, ...]:
    """The combinations that are frequent enough at all sites together."""
    from ehr_prep.states import frequent_combinations

    windows: Counter[str] = Counter()
    patients: Counter[str] = Counter()
    for part in data.values():
        if part.account is not None:
            windows.update(part.account.settings["combinations_taken"])
            patients.update(part.account.settings["combination_patients"])
    names = sorted(windows, key=lambda name: sorted(name.split("+")))
    in_order = {name: windows[name] for name in names}
    return tuple(frequent_combinations(in_order, patients, study.rules))


def database_hashes(
    sources: Mapping[str, Records | Sequences], data: Mapping[str, Sequences]
) -> dict[str, str]:
    """A hash of what came from each database: unlike a file, it may change without a trace."""
    from mmlca.sequences.type import Sequences

    hashes = {}
    for site, source in sources.items():
        if isinstance(source, Sequences) or source.database is None:
            continue
        content = hashlib.sha256(data[site].codes.tobytes())
        for table in (data[site].patients, source.labs):
            if table is not None:
                content.update(pd.util.hash_pandas_object(table.astype(str)).to_numpy().tobytes())
        hashes[site] = content.hexdigest()
    return hashes


@contextmanager
def _at(site: str) -> Iterator[None]:
    """Name the site in errors, and in the keys of the study file that they name."""
    spell = spelling()

    def spell_here(name: str, value: object) -> str:
        return spell(name, value).replace("sites.NAME", f"sites.{site}")

    try:
        with spelled(spell_here):
            yield
    except InputError as error:
        raise InputError(f"site {site}: {error}") from None


def patients_of(study: Study, site: str, sequences: Sequences) -> pd.DataFrame:
    """What is known about the patients of a site, one row for each of its sequences."""
    from ehr_prep.patients import align_patients, read_patients

    rules = study.outcomes
    dates = ["index_date", "follow_up_end", "birth_date", "death_date"]
    dates += [name for name in (rules.event, rules.competing) if name is not None]
    if sequences.account is not None:
        known = sequences.patients
    else:
        known = pd.DataFrame(index=sequences.ids)
        if (file := study.sites[site].patients) is not None:
            table = read_patients(
                file,
                **study.table_columns(site, "patients"),
                **study.table_options(site, "date_format", "encoding", "delimiter", "where"),
                about="patients",
            )
            known, _ = align_patients(table, sequences.ids)
    return known.drop(columns=dates, errors="ignore")


def check_colours(study: Study, sequences: Mapping[str, Sequences]) -> None:
    """Refuse colours of states that no site has."""
    states = list(dict.fromkeys(s for part in sequences.values() for s in part.states))
    unknown = [name for name in study.outputs.colours or () if name not in states]
    if unknown:
        near = get_close_matches(unknown[0], states, n=1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(
            f"{option('colours', dict.fromkeys(unknown, '#…'))} names states that the sequences do "
            f"not have; they have {', '.join(states)}{meant}"
        )


def check_columns(study: Study, sequences: Mapping[str, Sequences]) -> None:
    """Refuse columns of the patients' tables that the study needs and cannot have.

    Called before anything is fitted, so that nobody waits for a model to hear it.
    """
    from mmlca.tables.table_one import check_variables

    people = {site: patients_of(study, site, part) for site, part in sequences.items()}
    known = set.intersection(*(set(frame) for frame in people.values()))
    wanted = {
        "table_one.variables": study.table_one.variables or (),
        "covariates.columns": study.covariates.columns,
        "outcomes.columns": study.outcomes.columns,
        "strata.columns": [n for n in study.strata.columns if n not in (SITE, START)],
    }
    for key, names in wanted.items():
        if absent := [name for name in names if name not in known]:
            age = (
                "; age needs a date of birth, whose column is named as in "
                f"{option('patients_columns', {'birth_date': 'Geb'})}"
                if "age" in absent
                else ""
            )
            raise InputError(
                f"{key} names {', '.join(absent)}, but the patients' tables of all sites have "
                f"{', '.join(sorted(known)) or 'no columns'}{age}."
            )
    check_variables(people, study.table_one)
    _check_strata(study, sequences, people)
    rules = study.outcomes
    for site, part in sequences.items() if rules.event is not None else ():
        if part.account is None:
            raise InputError(
                f"outcomes.event needs dates, and the sequences of {site} come from a file without "
                "any; give records instead, or leave outcomes.event out."
            )
        if absent := [n for n in (rules.event, rules.competing) if n and n not in part.patients]:
            raise InputError(
                f"outcomes names the dates {', '.join(absent)}, but the patients' table of {site} "
                f"has {', '.join(part.patients)}."
            )
        event_times(part.patients, str(rules.event), rules.competing)


def strata_of(study: Study, site: str, sequences: Sequences) -> pd.DataFrame:
    """The strata of a site's patients: a column for each of `[strata]`, None if not known."""
    people = patients_of(study, site, sequences)
    columns = {}
    for name in study.strata.columns:
        if name == SITE:
            values = pd.Series(site, people.index, dtype=object)
        elif name == START:
            days = pd.to_datetime(sequences.patients["index_date"])
            values = days.dt.year.set_axis(people.index)
        else:
            values = people[name]
        columns[name] = stratify(values, study.strata.cut_points.get(name), years=name == START)
    return pd.DataFrame(columns, index=people.index)


def _check_strata(
    study: Study, sequences: Mapping[str, Sequences], people: Mapping[str, pd.DataFrame]
) -> None:
    """Refuse strata that cannot be formed, or are too many."""
    rules = study.strata
    if SITE in rules.columns and len(study.sites) == 1:
        raise InputError("strata.columns names site, but the study has a single one; leave it out.")
    for site, part in sequences.items():
        if START in rules.columns and (
            part.account is None or "index_date" not in part.account.patients
        ):
            raise InputError(
                f"strata.columns names {START}, which needs dates, and the sequences of {site} "
                "come from a file without any; give records instead, or leave it out."
            )
        for name in rules.columns:
            values = people[site].get(name)
            if values is not None:
                check_strata(values, name in rules.cut_points)


def read_labs(study: Study, site: str) -> pd.DataFrame:
    """The laboratory values of one site, with dates and numbers."""
    from ehr_prep import read_labs as read_table_of_labs

    if study.sites[site].omop is not None:
        values: pd.DataFrame = read_source(study, site).labs  # type: ignore[union-attr]
        return values
    labs = study.sites[site].labs
    assert labs is not None
    shared = ("date_format", "encoding", "delimiter", "decimal", "where")
    with _at(site):
        return read_table_of_labs(
            labs,
            **study.table_columns(site, "labs"),
            **study.table_options(site, *shared),
            about="labs",
        )


def read_truth(path: Path, sequences: Sequences) -> pd.Series:
    """The true classes of a synthetic cohort: a file of patient ids and classes."""
    table = pd.read_csv(path, dtype=str)
    if "class" not in table.columns or len(table.columns) < 2:
        raise InputError(f'{path.name} must have a column of ids and a column "class".')
    ids = next(name for name in table.columns if name != "class")
    classes = table.set_index(ids)["class"].reindex(sequences.ids.astype(str))
    absent = classes.isna()
    if absent.any():
        raise InputError(
            f"{path.name} lacks {absent.sum():,} of the {len(sequences):,} patients "
            f"({some(classes.index[absent])})."
        )
    return classes.set_axis(sequences.ids)


def event_times(patients: pd.DataFrame, event: str, competing: str | None) -> pd.DataFrame:
    """Years from the index date to the event or the end of follow-up, and which it was.

    An event after the end of follow-up does not count. `event` is 1, 2 for a competing event that
    came first, and 0 for neither.
    """
    start, end = patients["index_date"], patients["follow_up_end"]
    dates = {1: _dates(patients, event)}
    if competing is not None:
        dates[2] = _dates(patients, competing)
    early = {code: days < start for code, days in dates.items()}
    n_early = sum(int(rows.sum()) for rows in early.values())
    if n_early:
        raise InputError(
            f"{n_early:,} dates of {event!r} or {competing!r} lie before the patient's first "
            "treatment; correct them, or empty them where the event does not count."
        )
    first = pd.DataFrame(dates).min(axis=1)
    happened = first.notna() & (first <= end)
    kind = pd.Series(0, patients.index)
    for code, days in sorted(dates.items(), reverse=True):  # of equal dates the event counts
        kind = kind.mask(happened & (days == first), code)
    last = end.where(~happened, first)
    return pd.DataFrame({"time": (last - start).dt.days / 365.25, "event": kind})


def _dates(patients: pd.DataFrame, name: str) -> pd.Series:
    """A column of dates; what cannot be read is refused, not taken as "did not happen"."""
    values = patients[name].replace("", None)
    dates = pd.to_datetime(values, errors="coerce", format="ISO8601")
    unread = dates.isna() & values.notna()
    if unread.any():
        raise InputError(
            f"the column {name!r} of the patients' table holds {unread.sum():,} values that are "
            f"not dates such as 2019-07-31 ({some(values[unread])}); correct them, or leave them "
            "empty."
        )
    return dates
