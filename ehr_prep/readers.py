"""Tables as they come from a hospital: which column plays which role, and ids."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from difflib import SequenceMatcher
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.files import Loaded, Source, files_of, join_files, load_file, source_name
from font.checks import some
from font.spelling import option, option_name

_WHOLE = re.compile(r"0|-?[1-9]\d{0,17}")
_AS_FLOAT = re.compile(r"(0|-?[1-9]\d{0,17})\.0+")
_DATE_LIKE = re.compile(r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}|\d{8}(?!\d)")

# Column names as exports and the OMOP model spell them, the likeliest first.
GUESSES = {
    "patient": "patient_id patient person_id subject_id patientid pat_id patid patient_num mrn id",
    "date": "date start_date start date_start drug_exposure_start_date medication_date med_date "
    "order_date dispense_date fill_date administration_date rx_date exposure_date "
    "lab_date measurement_date result_date collection_date",
    "drug": "drug drug_name medication medication_name med_name ingredient drug_source_value "
    "drug_description description rxcui rxnorm atc atc_code ndc ndc_code drug_code code "
    "drug_concept_id",
    "end": "end_date end stop_date stop date_end drug_exposure_end_date",
    "supply": "days_supply supply days_supplied supply_days",
    "site": "site hospital centre center",
    "follow_up_end": "follow_up_end followup_end end_of_follow_up last_visit last_visit_date "
    "last_contact observation_period_end_date censor_date",
    "value": "value result value_as_number lab_value result_value numeric_value measurement_value",
    "test": "test test_name lab lab_name lab_test measurement measurement_source_value component",
    "death_date": "death_date date_of_death dod deathdate death_datetime death_day death",
    "observation_start": "observation_period_start_date observation_start start_date start from",
    "observation_end": "observation_period_end_date observation_end end_date end to",
    "birth_date": "birth_date date_of_birth dob birthdate birth_datetime",
    "code": "concept_id code drug_code rxcui ndc atc",
    "name": "concept_name name drug_name drug description",
}


class PrivateWarning(UserWarning):
    """A warning that shows single patients; `public` says the same without them."""

    def __init__(self, text: str, public: str) -> None:
        super().__init__(text)
        self.public = public


class Table(NamedTuple):
    """A table that was read.

    Parameters
    ----------
    frame : DataFrame
    roles : {role: column}
    n_broken : int
        Rows of a file with the wrong number of fields.
    files : list of dict
        How each file is written: its name, encoding and delimiter, or its sheet.
    """

    frame: pd.DataFrame
    roles: dict[str, Any]
    n_broken: int
    files: list[dict[str, str]]


def guess_columns(
    columns: list[Any],
    named: Mapping[str, Any],
    needed: tuple[str, ...],
    name: str,
    rows: list[list[Any]] | None = None,
    about: str = "",
) -> dict[str, Any]:
    """Which column plays which role: as given, else by its name; optional ones may be absent.

    `rows` are the first rows of the table, for advice; `about` is the table that the message
    is about, "" for the records.
    """
    for role, column in named.items():
        if column is not None and column not in columns:
            _refuse_title(rows, named, needed, name)
            near = _ranked(role, columns, rows, column)
            raise ValueError(
                f"{name} has no column {column!r}; it has {some_columns(columns)}; "
                f"{_closest(near)}; name it as in {_spelled(role, near[0], about)}."
            )
    plain = _plain_names(columns)
    by_column = {column: role for role, column in named.items() if column is not None}
    for role, column in named.items():
        if column is not None and by_column[column] != role:
            raise ValueError(
                f"the column {column!r} of {name} is named both as the {_words(role)} and as the "
                f"{_words(by_column[column])}; name a column of its own for each."
            )
    taken = set(by_column)
    roles: dict[str, Any] = {}
    for role, column in named.items():
        matches = [plain[g] for g in GUESSES[role].split() if g in plain and plain[g] not in taken]
        if column is None and matches:
            column = matches[0]
            taken.add(column)
        if column is not None:
            roles[role] = column
        elif role in needed:
            _refuse_title(rows, named, needed, name)
            near = [c for c in _ranked(role, columns, rows) if c not in taken]
            what = _words(role)
            for column in (plain[g] for g in GUESSES[role].split() if g in plain):
                if column in by_column:
                    raise ValueError(
                        f"the column {column!r} of {name} is named as the "
                        f"{_words(by_column[column])}, and no other looks like the {what}; name "
                        f"another column as the {_words(by_column[column])}, or say which one is "
                        f"the {what}."
                    )
            raise ValueError(
                f"no column of {name} looks like the {what}: it has {some_columns(columns)}; "
                + (
                    f"{_closest(near)}; rename it{_or_name(role, near[0], about)}."
                    if near
                    else f"add a column {GUESSES[role].split()[0]!r}."
                )
            )
    return roles


def named_roles(
    named: Mapping[str, str] | None, roles: tuple[str, ...], table: str
) -> dict[str, str]:
    """Columns of a further table, by role."""
    unknown = [role for role in named or {} if role not in roles]
    if unknown:
        called = option_name(f"{table}_columns")
        raise ValueError(f"{called} names {some(unknown)}; known are {', '.join(roles)}.")
    return dict(named or {})


def _words(role: str) -> str:
    return role.replace("_", " ")


def some_columns(columns: list[Any]) -> str:
    shown = ", ".join(repr(c) for c in columns[:20])
    return f"{shown}, …" if len(columns) > 20 else shown


def read_table(
    source: Source,
    named: Mapping[str, Any],
    needed: tuple[str, ...],
    *,
    all_columns: bool = False,
    encoding: str | None = None,
    delimiter: str | None = None,
    where: Mapping[str, str] | None = None,
    about: str = "",
) -> Table:
    """Read a DataFrame, a file, or several files as one table.

    Columns with a role come from a file as categoricals, integers with a small dictionary:
    a file of gigabytes becomes a few bytes per record.

    Parameters
    ----------
    source : see `ehr_prep.files.Source`
    named : {role: column or None}
        Columns that are None are guessed from their names.
    needed : roles without which the table cannot be used
    all_columns : bool
        Read the columns without a role too.
    encoding, delimiter : str, optional
        Of text files. Default: what the files themselves show.
    where : {column: value}, optional
        Keep only rows with these values. Records must have these columns; in other tables
        those that are not there are passed over.
    about : str
        The table's name in advice, "" for the records.
    """
    name = source_name(source)
    kept = dict(where or {})

    def choose(columns: list[Any], rows: list[list[Any]], name: str) -> Any:
        _need_unique(columns, name)
        roles = guess_columns(columns, named, needed, name, rows, about)
        more = [c for c in kept if c in columns and c not in roles.values()]
        if not about and (absent := [c for c in kept if c not in columns]):
            raise ValueError(
                f"{name} has no column {absent[0]!r}, by which {option_name('where')} "
                f"chooses rows; it has {some_columns(columns)}."
            )
        return roles, columns if all_columns else [*roles.values(), *more]

    if isinstance(source, pd.DataFrame):
        roles, columns = choose(list(source.columns), [], name)
        table = Table(source if all_columns else source[columns], roles, 0, [])
    else:
        parts = [
            load_file(path, lambda c, r, n=path.name: choose(c, r, n), encoding, delimiter)  # type: ignore[misc]
            for path in files_of(source)
        ]
        for part in parts:
            _tell_encoding(part)
        table = Table(*join_files(parts), [part.written for part in parts])
    return _filtered(table, kept, name, all_columns) if kept else table


def _tell_encoding(part: Loaded) -> None:
    """Warn of texts that may be misread, since nothing in a file tells which encoding it has."""
    if part.odd_text is None:
        return
    public = f"{part.written['file']} is not UTF-8 and was read as {part.written['encoding']}"
    warning = PrivateWarning(
        f"{public}, in which it holds {part.odd_text!r}; state the encoding, as in "
        f"{option('encoding', 'latin-1')}.",
        f"{public}; state its encoding.",
    )
    warnings.warn(warning, stacklevel=4)


def _filtered(table: Table, where: Mapping[str, str], name: str, everything: bool) -> Table:
    frame = table.frame
    present = [column for column in where if column in frame]
    for column in present:
        codes, values = factorize(frame[column])
        wanted = np.array([str(v).strip() == where[column] for v in values] + [False])
        if not wanted.any():
            raise ValueError(
                f"{name} has no row with {column} = {where[column]!r}; it has {some(values)}."
            )
        frame = frame[wanted[codes]]
    if not everything:
        frame = frame[list(table.roles.values())]
    return table._replace(frame=frame)


def _need_unique(columns: list[Any], name: str) -> None:
    if len(set(columns)) < len(columns):
        twice = [c for i, c in enumerate(columns) if c in columns[:i]]
        raise ValueError(f"{name} has several columns called {some(twice)}; rename them.")


# --- advice ----------------------------------------------------------------------------


def _plain_names(columns: list[Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for column in columns:
        plain.setdefault(re.sub(r"[^0-9a-z]+", "_", str(column).casefold()).strip("_"), column)
    return plain


def _ranked(
    role: str, columns: list[Any], rows: list[list[Any]] | None, wanted: str | None = None
) -> list[Any]:
    """The columns, the one that looks most like a role, or like a name, first."""
    likely = [wanted.casefold()] if wanted else GUESSES[role].split()

    def likeness(column: Any) -> float:
        name = str(column).casefold()
        alike = max(SequenceMatcher(None, name, guess).ratio() for guess in likely)
        inside = any(word in name for guess in likely for word in (guess, guess.split("_")[0]))
        dated = "date" in (role, *role.split("_")) or role in ("end", "follow_up_end")
        position = columns.index(column)
        values = [str(row[position]) for row in rows or [] if position < len(row)]
        looks = bool(values) and all(_DATE_LIKE.match(v) for v in values if v.strip())
        return alike + 0.2 * inside + (1.0 * looks if dated else -0.5 * looks)

    return sorted(columns, key=likeness, reverse=True)


def _closest(near: list[Any]) -> str:
    first, *others = near[:3]
    shown = f"are {', '.join(map(repr, [first, *others]))}" if others else f"is {first!r}"
    return f"the closest {shown}"


def _refuse_title(
    rows: list[list[Any]] | None, named: Mapping[str, Any], needed: tuple[str, ...], name: str
) -> None:
    """An error if the header seems to stand further down, below a title."""
    for row in rows or []:
        header = [str(field) for field in row]
        plain = _plain_names(header)
        if all(
            named[role] in header
            if named.get(role) is not None
            else any(guess in plain for guess in GUESSES[role].split())
            for role in needed
        ):
            raise ValueError(
                f"{name} does not begin with its header: a later line ({some(header)}) looks like "
                "it; delete the lines above it."
            )


def _spelled(role: str, column: Any, about: str) -> str:
    name = str(column)
    return option(f"{about}_columns", {role: name}) if about else option(role, name)


def _or_name(role: str, column: Any, about: str) -> str:
    if about == "drug_names":  # the only table whose columns cannot be named
        return f" to {GUESSES[role].split()[0]}"
    return f", or say which one it is, as in {_spelled(role, column, about)}"


# --- codes and ids ---------------------------------------------------------------------


def factorize(column: pd.Series) -> tuple[NDArray[np.integer[Any]], pd.Index]:
    """Codes (−1: missing) and the distinct values that occur."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        codes, values = column.cat.codes.to_numpy(), column.cat.categories
        used = np.zeros(len(values) + 1, dtype=bool)
        used[codes] = True
        if used[:-1].all():
            return codes, values
        number = np.append(np.cumsum(used[:-1], dtype=np.int32) - 1, np.int32(-1))
        return number[codes], values[used[:-1]]
    codes, values = pd.factorize(column)
    return codes, pd.Index(values, dtype=values.dtype)


def encode_ids(column: pd.Series) -> tuple[NDArray[np.int32], pd.Index, NDArray[np.bool_] | None]:
    """Each row's position in the sorted ids (−1: none), the ids, and which rows differ in type.

    Ids are whole numbers where all of them can be (1, 1.0 and "1" are the same patient, but
    "01" makes all of them text), and text otherwise.
    """
    codes, values = factorize(column)
    odd = None
    if values.dtype.kind not in "iu":
        raw = values.tolist()
        texts = [_id_text(value) for value in raw]
        is_text = np.array([isinstance(value, str) for value in raw], dtype=bool)
        if is_text.any() and not is_text.all():
            odd = np.append(~is_text, False)[codes]
        whole = all(_WHOLE.fullmatch(text) for text in texts if text)
        again, unique = pd.factorize(pd.Series([t or None for t in texts], dtype=object))
        codes = np.append(again, -1)[codes]
        values = pd.Index(np.asarray(unique).astype(np.int64) if whole else unique)
    order = np.argsort(values.to_numpy(), kind="stable")
    rank = np.empty(len(values) + 1, dtype=np.int32)
    rank[order] = np.arange(len(values), dtype=np.int32)
    rank[-1] = -1
    ids = values[order]
    return rank[codes], ids.astype(np.int64 if ids.dtype.kind in "iu" else str), odd


def _id_text(value: Any) -> str:
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    text = str(value).strip()
    return text.partition(".")[0] if _AS_FLOAT.fullmatch(text) else text


def match_ids(wanted: pd.Index, table: pd.Index) -> NDArray[np.intp]:
    """Position in `table` of each id (−1: none); whole numbers and their texts agree."""
    if wanted.dtype.kind != table.dtype.kind:
        wanted, table = wanted.astype(str), table.astype(str)
    positions: NDArray[np.intp] = table.get_indexer(wanted)
    return positions


def check_matched(
    ids: pd.Index,
    others: pd.Index,
    matched: NDArray[np.bool_],
    names: tuple[str, str],
    *,
    enough: float = 0.95,
) -> None:
    """An error if none of the ids of one table is in another, a warning if too few are.

    Parameters
    ----------
    ids, others : the patients of the two tables
    matched : (len(ids),) bool
        Which of the ids are among the others.
    names : of the two tables
    enough : the share without a warning
    """
    if not len(ids) or (matched.any() and matched.mean() >= enough):
        return
    name, other = names
    strangers = others[match_ids(others, ids) < 0]
    examples = (
        f"{name} has ids such as {some(map(str, ids[~matched][:3]))}, {other} has "
        f"{some(map(str, (strangers if len(strangers) else others)[:3]))}"
    )
    if not matched.any():
        bare = [pd.Index([str(i).lstrip("0") for i in part]) for part in (ids, others)]
        zeros = (
            ", with or without leading zeros, which Excel drops"
            if bare[0].isin(bare[1]).any()
            else ""
        )
        raise ValueError(
            f"none of the {len(ids):,} patients of {name} are in {other}: {examples}; write them "
            f"alike{zeros}."
        )
    advice = "check that both write them alike."
    warning = PrivateWarning(
        f"only {matched.sum():,} of {len(ids):,} patients of {name} are in {other}: {examples}; "
        f"{advice}",
        f"fewer than {100 * enough:g} % of the patients of {name} are in {other}; {advice}",
    )
    warnings.warn(warning, stacklevel=3)
