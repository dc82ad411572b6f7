"""Which column of a table plays which role: as named by the user, or recognised by its name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import PurePath
from typing import Any, NamedTuple

from font.checks import listed, some
from font.errors import InputError, option, option_name
from mmlca.sequences.checks import looks_like_dates

_WHOSE = ("patient", "person", "subject", "member", "bene", "pat")
_WHEN = ("datetime", "timestamp", "dttm", "date", "time", "dtc", "dt")

# Names of columns in exports of EHRs, claims and the OMOP model, the likeliest first. Case, spaces
# and underscores do not matter: "DateOfDeath" is "date_of_death".
GUESSES: dict[str, list[str]] = {
    role: names.split()
    for role, names in {
        "patient": "patient_id patient person_id subject_id patientid pat_id patid patient_num "
        "patient_nr patient_no patient_number pat_nr pat_no pat_num patient_key patient_identifier "
        "member_id member_nr member_no member_number enrolid enrollee_id bene_id beneficiary_id "
        "desynpuf_id participant_id usubjid mrn medical_record_number empi person subject member "
        "pid pseudonym id",
        "date": "date start_date start date_start drug_exposure_start_date medication_date "
        "med_date order_date dispense_date fill_date administration_date rx_date exposure_date "
        "lab_date measurement_date result_date collection_date "
        "administered_date admin_date admin_datetime administered_at given_date "
        "dispensed_date dispensing_date filled_date rx_fill_date prescription_date "
        "prescribed_date ordered_date drug_start_date medication_start_date "
        "drug_date service_date svc_date srvc_date claim_date specimen_date sample_date test_date "
        "event_date datetime charttime",
        "drug": "drug drug_name medication medication_name med_name ingredient drug_source_value "
        "drug_description description generic_name brand_name drug_text medication_text "
        "medication_description product_name substance active_ingredient rxcui rxnorm rxnorm_code "
        "atc atc_code ndc ndc_code ndcnum ndc11 ndc_number prod_srvc_id drug_code medication_code "
        "code drug_concept_id",
        "end": "end_date end stop_date stop date_end drug_exposure_end_date date_stop "
        "drug_end_date medication_end_date",
        "supply": "days_supply supply days_supplied supply_days day_supply days_sup daysupp "
        "days_of_supply days_supply_num days_suply_num",
        "site": "site hospital centre center",
        "follow_up_end": "follow_up_end followup_end end_of_follow_up last_visit last_visit_date "
        "last_contact observation_period_end_date censor_date end_follow_up follow_up_until "
        "fu_end end_fu end_of_fu last_follow_up last_fu date_of_last_follow_up "
        "date_of_last_contact last_seen date_last_seen last_encounter date_of_last_encounter "
        "date_of_last_visit last_known_alive date_last_known_alive last_alive last_activity "
        "last_observation end_of_observation observation_end end_of_study study_end study_exit "
        "exit_date date_of_exit enrollment_end enrolment_end enroll_end end_of_enrollment "
        "end_of_enrolment eligibility_end coverage_end membership_end disenrollment_date "
        "disenrolment_date dtend censoring_date date_censored censored_date",
        "value": "value result value_as_number lab_value result_value numeric_value "
        "measurement_value valuenum result_numeric",
        "test": "test test_name lab lab_name lab_test measurement measurement_source_value "
        "component analyte",
        "unit": "unit units lab_unit result_unit unit_of_measure unit_source_value",
        "death_date": "death_date date_of_death dod deathdate death_datetime death_day "
        "deceased_date date_deceased died_date date_died died_on deceased_on dth_date "
        "day_of_death mortality_date death died deceased",
        "observation_start": "observation_period_start_date observation_start start_date start "
        "from enrollment_start enrolment_start eligibility_start coverage_start dtstart",
        "observation_end": "observation_period_end_date observation_end end_date end to "
        "enrollment_end enrolment_end eligibility_end coverage_end dtend",
        "birth_date": "birth_date date_of_birth dob birthdate birth_datetime birth_day birthday "
        "born date_born",
        "code": "concept_id code drug_code rxcui ndc atc",
        "name": "concept_name name drug_name drug description",
    }.items()
}
_DATES = {role for role in GUESSES if role.endswith("date")} | {"end", "follow_up_end"}
_DATES |= {"observation_start", "observation_end"}


class Header(NamedTuple):
    """The columns of a table, and what messages about them need.

    Parameters
    ----------
    columns : list
    name : of the table
    rows : its first rows
    about : the table that advice is about, "" for the records
    file : the file that advice is about, where a table consists of several
    """

    columns: list[Any]
    name: str
    rows: Sequence[list[Any]] = ()
    about: str = ""
    file: str | None = None


def guess_columns(
    header: Header, named: Mapping[str, Any], needed: tuple[str, ...]
) -> dict[str, Any]:
    """Which column plays which role: as given, else by its name; only `needed` ones must be there.

    Examples
    --------
    >>> header = Header(["PatNr", "DateOfDeath", "sex"], "patients.csv")
    >>> guess_columns(header, {"patient": None, "death_date": None}, ())
    {'patient': 'PatNr', 'death_date': 'DateOfDeath'}
    """
    columns, name = header.columns, header.name
    absent = {r: c for r, c in named.items() if c is not None and c not in columns}
    if absent:
        _check_header_first(header, named, needed)
        raise InputError(_absent_text(absent, header))
    by_column = {column: role for role, column in named.items() if column is not None}
    for role, column in named.items():
        if column is not None and by_column[column] != role:
            raise InputError(
                f"the column {column!r} of {name} is named both as the {_words(role)} and as the "
                f"{_words(by_column[column])}; name a column of its own for each."
            )
    taken = set(by_column)
    roles: dict[str, Any] = {}
    for role, column in named.items():
        matches = [c for c in _matching(role, columns) if c not in taken]
        if column is None and matches:
            column = matches[0]
            taken.add(column)
        if column is not None:
            roles[role] = column
    missing = [role for role in needed if role in named and role not in roles]
    if missing:
        _check_header_first(header, named, needed)
        _check_not_taken(missing, by_column, header)
        free = [c for c in columns if c not in taken]
        raise InputError(_missing_text(missing, free, header))
    return roles


def named_roles(
    named: Mapping[str, str] | None, roles: tuple[str, ...], table: str
) -> dict[str, str]:
    """Columns of a further table, by role."""
    unknown = [role for role in named or {} if role not in roles]
    if unknown:
        called = option_name(f"{table}_columns")
        raise InputError(f"{called} names {some(unknown)}; known are {', '.join(roles)}.")
    return dict(named or {})


def columns_of_file(
    path: PurePath, named: Mapping[str, Any], by_file: Mapping[str, Mapping[str, str]]
) -> dict[str, Any]:
    """The named columns of one of several files; `by_file` has them by name or pattern of files.

    Examples
    --------
    >>> columns_of_file(PurePath("2019/b.csv"), {"patient": "id", "date": None},
    ...                 {"b*.csv": {"patient": "PatNr"}})
    {'patient': 'PatNr', 'date': None}
    """
    own: dict[str, Any] = dict(named)
    for pattern, columns in by_file.items():
        if path.match(pattern):
            own |= columns
    return own


def check_by_file(
    by_file: Mapping[str, Mapping[str, str]], paths: Iterable[PurePath], roles: Iterable[str]
) -> None:
    """Refuse columns of files that are not read, and roles that do not exist."""
    files, known = list(paths), list(roles)
    called = option_name("file_columns")
    for pattern, columns in by_file.items():
        if not any(path.match(pattern) for path in files):
            raise InputError(
                f"{called} names the file {pattern!r}, which is not read; the files are "
                f"{some(path.name for path in files)}."
            )
        unknown = [role for role in columns if role not in known]
        if unknown:
            raise InputError(
                f"{called} names {some(unknown)} of {pattern!r}; known are {', '.join(known)}."
            )


def some_columns(columns: list[Any]) -> str:
    shown = ", ".join(repr(c) for c in columns[:20])
    return f"{shown}, …" if len(columns) > 20 else shown


# --- names -------------------------------------------------------------------------------


def _matching(role: str, columns: list[Any]) -> list[Any]:
    """The columns whose names are among those of a role, the likeliest first.

    Dates may also have another ending ("death_dt") or say whose they are ("patient_dob").
    """
    keys = [_compact(guess) for guess in GUESSES[role]]
    exact = {_compact(column): column for column in reversed(columns)}
    found = [exact[key] for key in keys if key in exact]
    if role in _DATES:
        loose = {_without_owner(_dated(_compact(column))): column for column in reversed(columns)}
        found += [
            loose[name] for key in keys for name in (_dated(key), f"{key}date") if name in loose
        ]
    return list(dict.fromkeys(found))


def _compact(name: Any) -> str:
    return re.sub(r"[^0-9a-z]", "", str(name).casefold())


def _dated(name: str) -> str:
    """A compact name whose ending says that it is a date, with the ending "date"."""
    for ending in _WHEN:
        if name.endswith(ending) and name != ending:
            return f"{name.removesuffix(ending)}date"
    return name


def _without_owner(name: str) -> str:
    """A compact name without whose it is: "patientdob" → "dob"."""
    for owner in _WHOSE:
        if name.startswith(owner):
            return name.removeprefix(owner)
    return name


# --- advice ------------------------------------------------------------------------------


def _absent_text(absent: Mapping[str, Any], header: Header) -> str:
    """What to say of columns that were named and do not exist."""
    near = {role: _ranked(role, header, column) for role, column in absent.items()}
    plural = "s" if len(absent) > 1 else ""
    closest = _closest(near) if len(absent) == 1 else ""
    return (
        f"{header.name} has no column{plural} {listed([repr(c) for c in absent.values()])}; it has "
        f"{some_columns(header.columns)}; {closest}name {'them' if plural else 'it'} as in "
        f"{_spelled({role: ranked[0] for role, ranked in near.items()}, header)}."
    )


def _missing_text(missing: list[str], free: list[Any], header: Header) -> str:
    """What to say of roles that no column seems to have."""
    whats = listed([f"the {_words(role)}" for role in missing]).replace(" and ", " or ")
    start = (
        f"no column of {header.name} looks like {whats}: it has {some_columns(header.columns)}; "
    )
    near: dict[str, list[Any]] = {}
    for role in missing:
        proposed = [ranked[0] for ranked in near.values()]
        left = [c for c in free if c not in proposed]
        near[role] = [c for c in _ranked(role, header) if c in left]
        if not near[role]:
            names = listed([repr(GUESSES[role][0]) for role in missing])
            return f"{start}add {'columns' if len(missing) > 1 else 'a column'} {names}."
    likeliest = {role: ranked[0] for role, ranked in near.items()}
    if header.about == "drug_names":  # the only table whose columns cannot be named
        renamed = listed([f"{c!r} to {GUESSES[role][0]}" for role, c in likeliest.items()])
        return f"{start}{_closest(near)}rename {renamed}."
    it, are = ("them", "they are") if len(missing) > 1 else ("it", "it is")
    which = "which" if len(missing) > 1 else "which one"
    return (
        f"{start}{_closest(near)}rename {it}, or say {which} {are}, as in "
        f"{_spelled(likeliest, header)}."
    )


def _words(role: str) -> str:
    return role.replace("_", " ")


def _ranked(role: str, header: Header, wanted: str | None = None) -> list[Any]:
    """The columns, the one that looks most like a role, or like a name, first."""
    likely = [str(wanted).casefold()] if wanted else GUESSES[role]

    def likeness(column: Any) -> float:
        name = str(column).casefold()
        alike = max(SequenceMatcher(None, name, guess).ratio() for guess in likely)
        inside = any(word in name for guess in likely for word in (guess, guess.split("_")[0]))
        position = header.columns.index(column)
        values = [str(row[position]) for row in header.rows if position < len(row)]
        values = [value for value in values if value.strip()]
        dates = looks_like_dates(values)
        words = bool(values) and all(sum(c.isalpha() for c in value) > 3 for value in values)
        fits = 1.0 * dates if role in _DATES else -0.5 * dates
        fits += 0.5 * words if role in ("drug", "test", "name") else -0.5 * words
        return alike + 0.2 * inside + fits

    return sorted(header.columns, key=likeness, reverse=True)


def _closest(near: Mapping[str, list[Any]]) -> str:
    """The columns that come closest, where one role is asked for; the advice has the others."""
    if len(near) > 1:
        return ""
    (ranked,) = near.values()
    first, *others = ranked[:3]
    shown = f"are {', '.join(map(repr, [first, *others]))}" if others else f"is {first!r}"
    return f"the closest {shown}; "


def _check_header_first(header: Header, named: Mapping[str, Any], needed: tuple[str, ...]) -> None:
    """An error if the header seems to stand further down, below a title."""
    for row in header.rows:
        fields = [str(field) for field in row]
        if all(
            named[role] in fields if named.get(role) is not None else _matching(role, fields)
            for role in needed
        ):
            raise InputError(
                f"{header.name} does not begin with its header: a later line ({some(fields)}) "
                "looks like it; delete the lines above it."
            )


def _check_not_taken(missing: list[str], by_column: Mapping[Any, str], header: Header) -> None:
    """An error if the column of a role was named as another one."""
    for role in missing:
        for column in _matching(role, header.columns):
            if column in by_column:
                other = _words(by_column[column])
                raise InputError(
                    f"the column {column!r} of {header.name} is named as the {other}, and no "
                    f"other looks like the {_words(role)}; name another column as the {other}, or "
                    f"say which one is the {_words(role)}."
                )


def _spelled(columns: Mapping[str, Any], header: Header) -> str:
    """How the user says which column is what."""
    named = {role: str(column) for role, column in columns.items()}
    if header.about:
        return option(f"{header.about}_columns", named)
    if header.file is not None:
        return option("file_columns", {header.file: named})
    return listed([option(role, column) for role, column in named.items()])
