"""The settings of this package: how files are read, and how records become sequences."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from font.errors import InputError
from font.settings import Alternatives, Settings, setting

DEAD = "dead"
OTHER = "other combination"
"""The states that the rules add to the classes of the drug map."""

MAPS = tuple(sorted(path.stem for path in (Path(__file__).parent / "maps").glob("*.csv")))
"""The drug maps that are built in."""

Count = Annotated[int, Field(ge=1)]
Text = Annotated[str, Field(min_length=1)]


def _as_day(value: Any) -> Any:
    """A date from what Python, a command line or a study file may hold; "none": without one."""
    if isinstance(value, dt.datetime):
        return value.date()
    if type(value).__name__ == "datetime64":  # numpy's, which this module need not load
        return value.astype("datetime64[D]").item()
    if isinstance(value, str):
        if value == "none":
            return None
        try:
            return dt.datetime.fromisoformat(value.strip()).date()
        except ValueError:
            return value
    return value


def _as_texts(value: Any) -> Any:
    """A list of texts as a tuple."""
    return tuple(value) if isinstance(value, list) else value


def _as_supplies(value: Any) -> Any:
    """Days of supply: one number for all drugs, or one for each named, also as a command has them.

    >>> _as_supplies(["30"]), _as_supplies(["metformin=90", "insulin=30"])
    (30, {'metformin': 90, 'insulin': 30})
    """
    for drug, days in value.items() if isinstance(value, dict) else ():
        if not isinstance(days, int) or days < 1:
            raise InputError(
                f"should be a whole number of days, at least 1, for {drug!r}; found {days!r}"
            )
    if not isinstance(value, tuple | list):
        return value
    named = {}
    for text in value:
        drug, _, days = str(text).rpartition("=")
        if not days.strip().isdecimal() or (not drug.strip() and len(value) > 1):
            raise InputError(
                "should be one number of days, or a number for each class or ingredient, as in "
                f"metformin=90; found {text!r}"
            )
        named[drug.strip()] = int(days)
    return named.get("", named)


File = Annotated[Path, Field(strict=False)]
Files = File | Annotated[tuple[File, ...], Field(min_length=1, strict=False)]
"""One file or several; a path may be a pattern such as "2019/*.csv"."""
Day = Annotated[dt.date, Field(strict=False)]
OptionalDay = Annotated[Day | None, BeforeValidator(_as_day)]
Texts = Annotated[tuple[Text, ...], BeforeValidator(_as_texts)]


class RecordColumns(Settings):
    """Which column of the records is what; guessed from the names unless given."""

    patient: Text | None = setting(
        None, "Column of the patient id.", example="patient_id", option="--patient-column"
    )
    date: Text | None = setting(None, "Column of the date.", example="date", option="--date-column")
    drug: Text | None = setting(None, "Column of the drug.", example="drug", option="--drug-column")
    end: Text | None = setting(
        None, "Column of the last day covered, if any.", example="end_date", option="--end-column"
    )
    supply: Text | None = setting(
        None,
        "Column of the days supplied, if any.",
        example="days_supply",
        option="--supply-column",
    )


class PatientColumns(Settings):
    """Which column of the patients' table is what."""

    patient: Text | None = setting(None, "Column of the patient id.", example="patient_id")
    follow_up_end: Text | None = setting(
        None, "Column of the last day of follow-up.", example="follow_up_end"
    )
    birth_date: Text | None = setting(None, "Column of the date of birth.", example="birth_date")
    death_date: Text | None = setting(None, "Column of the date of death.", example="death_date")


class LabColumns(Settings):
    """Which column of the labs is what."""

    patient: Text | None = setting(None, "Column of the patient id.", example="patient_id")
    date: Text | None = setting(None, "Column of the date.", example="date")
    value: Text | None = setting(None, "Column of the value.", example="value")
    test: Text | None = setting(None, "Column of the name of the test.", example="test")
    unit: Text | None = setting(None, "Column of the unit.", example="unit")


class ObservationColumns(Settings):
    """Which column of the observation periods is what."""

    patient: Text | None = setting(None, "Column of the patient id.", example="patient_id")
    observation_start: Text | None = setting(
        None, "Column of the first day of a period.", example="start"
    )
    observation_end: Text | None = setting(
        None, "Column of the last day of a period.", example="end"
    )


class Reading(RecordColumns):
    """How records are read; what is not given is detected in each file.

    *Dates.* Without a format they are ISO dates, or what the dates themselves show, see
    `ehr_prep.values.read_dates`. A year of two digits is the latest one that is not in the future.

    *Text files.* Text that is not UTF-8 is read as cp1252, with a warning, unless the encoding is
    given.

    *Repetitions* are records that have the patient, day, drug and end of another.

    *Default supply.* A record with neither an end nor a supply covers so many days: one number, or
    {class or ingredient: days}, where an ingredient goes before its class and what is not named
    covers one day. The records concerned are counted in `.issues`.
    """

    drugs: Text | None = setting(
        None,
        "Drug map: ra, which is built in, or a .csv file of drug and class; for OMOP also an Atlas "
        "file.",
        example="ra",
    )
    drug_names: Files | None = setting(
        None,
        "What codes in the drug column mean: a table of code and name, such as OMOP's concept.",
        example="concept.parquet",
    )
    date_format: Text | None = setting(None, "Format of dates.", example="%d/%m/%Y")
    encoding: Text | None = setting(None, "Encoding of the files.", example="latin-1")
    delimiter: Text | None = setting(
        None, "Character between fields, or the word tab.", example=";"
    )
    decimal: Literal[".", ","] | None = setting(
        None, "Decimal mark of supplies and lab values.", example=","
    )
    duplicates: Literal["drop", "keep"] | None = setting(
        None, "What to do with repeated records; default: drop.", example="keep"
    )
    latest: OptionalDay = setting(
        None, "Later dates count as mistakes; default: today.", example=dt.date(2024, 12, 31)
    )
    default_supply: Annotated[Count | dict[Text, Count] | None, BeforeValidator(_as_supplies)] = (
        setting(
            None,
            "Days covered by a record without an end or supply, for all drugs or by class or "
            "ingredient.",
            example=30,
        )
    )
    strict: bool | None = setting(
        None, "Treat unusual records as errors; default: false.", example=True
    )

    def options(self) -> dict[str, Any]:
        """The settings that are given, by name, as `read_records` takes them."""
        options = {name: getattr(self, name) for name in Reading.model_fields}
        return {name: value for name, value in options.items() if value is not None}


class PseudoSites(Settings):
    """Resamples of each site; with 0 per site the sites' own models make the ensemble."""

    per_site: int = setting(
        4,
        "Resamples per site; 0: the sites' own models make the ensemble.",
        ge=0,
        alternatives=Alternatives("resamples per site", (2, 8)),
    )
    fraction: float = setting(
        0.8,
        "Size of a resample as a share of the site's patients.",
        gt=0,
        alternatives=Alternatives("size of a resample", (0.5, 1.0)),
    )


class Rules(Settings):
    """How records become sequences.

    *Shares of the dead.* With `death="state"` the end of the data is `data_cut`, or `follow_up` if
    that is a date; otherwise the latest day on which any patient of the table is followed. A
    patient who died leaves at the end of the data, as does a patient with the same index date who
    lives and is followed until then. If the living leave for no other reason, the share of the
    dead among those in a window is an estimate of the risk of death, as 1 − Kaplan–Meier is. A
    patient who lives but whose follow-up ends earlier leaves earlier, while nobody knows when the
    dead would have been lost to follow-up: they stay, and the share of the dead is too large.
    `left_alive` in the sequences' settings is the number of such patients; with many of them take
    the risk of death from a Kaplan–Meier curve (`mmlca.survival_curves`), or follow everyone to one
    day (`follow_up="2019-12-31"`) if deaths up to that day are known.

    *Ties.* Of classes with equally many records or days, "first" takes the one whose first in the
    window is the earliest, "latest" the one whose last is the latest, and "previous" the one that
    was the state of the window before, or part of it, otherwise as "first". The window before
    counts as it was filled in. Classes that were recorded on the same day are ranked by days'
    supply in the window, then the class that was taken last, then by name.

    *Combinations.* Where two or more classes were in use together for at least `combination_days`
    of a window, its state is their set, such as "A+B". Of several such sets the one with the most
    classes wins, then the one that lasted longer, then the one that began earlier, then the first
    by name. A combination is a state of its own if it is one of the `max_combinations` most
    frequent ones and at least `min_combination_patients` patients take it, or if `combinations`
    names it; the others are one state, since a state of a handful of windows only adds parameters.
    Combinations need an end or a supply of the records, or a `default_supply`. With `by`
    "days" the days between two covers of one era count as covered.

    *Empty windows.* With observation periods, a window without a class of which less than half was
    observed is missing, whatever `impute` says. Otherwise it repeats the state before it: at most
    `max_carry` times in a row ("carry_forward_max"), until the supply of its classes has ended for
    `gap_days` ("carry_forward_supplied"; needs an end or a supply), or always ("carry_forward"),
    and is off treatment after that; or it is "missing". The default needs nothing but dates, and
    it lets patients stop. Two windows, because a drug given every six months leaves a quarter
    empty, and may come late.
    """

    first_on_or_after: OptionalDay = setting(
        None,
        "Earliest date of a first treatment; patients treated before it are not eligible.",
        example=dt.date(2008, 1, 1),
        option="--since",
    )
    washout_days: Count | None = setting(
        None, "Allow earlier treatment if this many days without any followed.", example=365
    )
    min_history_days: Count | None = setting(
        None, "Days before the first treatment for which a patient must be known.", example=365
    )
    min_follow_up_days: Count | None = setting(
        None, "Days of follow-up that a patient must have.", example=90
    )
    min_age: float | None = setting(
        None, "Youngest age at the first treatment, in completed years.", example=18
    )
    max_age: float | None = setting(
        None, "Oldest age at the first treatment, in completed years.", example=100
    )
    follow_up: Annotated[
        Literal["patients", "observation", "last_record"] | Day | None, BeforeValidator(_as_day)
    ] = setting(
        None,
        "Where follow-up ends: in the patients' table, with the last observation period or the "
        "last record, or for all on one day; default: whichever of the first three is known, "
        "observation periods first.",
        example="patients",
    )
    data_cut: OptionalDay = setting(
        None, "End of the data: nothing after this day counts.", example=dt.date(2019, 12, 31)
    )
    death: Literal["end", "state"] = setting(
        "end",
        "Death ends follow-up, or is an absorbing state.",
        alternatives=Alternatives("death"),
    )
    months: int = setting(
        3,
        "Length of a window in calendar months from the first treatment.",
        ge=1,
        alternatives=Alternatives("window (months)", (2, 6)),
    )
    days: float | None = setting(
        None, "Length of a window in days, instead of months.", example=91.3125, ge=1
    )
    max_windows: int = setting(16, "Largest number of windows.", option="--windows", ge=1)
    states: Literal["most_frequent", "combinations"] = setting(
        "most_frequent",
        "State of a window: the class that counts most, or also combinations such as A+B.",
        alternatives=Alternatives("states"),
    )
    by: Literal["records", "days"] = setting(
        "records",
        "What counts in a window: records, or days covered.",
        alternatives=Alternatives("counting", ("days",)),
    )
    ties: Literal["first", "latest", "previous"] = setting(
        "first",
        "Which of two classes that count the same is taken: the first or the latest in the window, "
        "or that of the window before.",
        alternatives=Alternatives("ties", ("latest", "previous")),
    )
    gap_days: int = setting(
        30,
        "Longest gap between supplies of one continuous treatment, in days.",
        ge=0,
        alternatives=Alternatives("days of a gap"),
    )
    combination_days: int = setting(
        30,
        "Days that classes must be in use together in a window to be a combination.",
        ge=1,
        alternatives=Alternatives("days of a combination"),
    )
    max_combinations: int = setting(
        10,
        "Number of combinations that are states; the others are one state, other combination.",
        ge=1,
    )
    min_combination_patients: int = setting(
        11,
        "Patients that a combination needs to be a state; rarer ones are other combination.",
        ge=1,
        alternatives=Alternatives("patients of a combination"),
    )
    combinations: Texts | None = setting(
        None,
        "Combinations that are states, instead of the most frequent ones; several sites need the "
        "same.",
        example=("A+B",),
        option="--combination",
    )
    impute: Literal["carry_forward_max", "carry_forward_supplied", "carry_forward", "missing"] = (
        setting(
            "carry_forward_max",
            "State of a window without a record: the one before, at most max_carry times, while "
            "supplied, or always; or missing.",
            alternatives=Alternatives(
                "empty windows", ("missing", "carry_forward", "carry_forward_max")
            ),
        )
    )
    max_carry: int = setting(
        2,
        "Windows in a row that carry_forward_max fills.",
        ge=0,
        alternatives=Alternatives("carried at most", (1, 4)),
    )
    off_treatment: Text = setting(
        "none", "Name of the state off treatment; missing: leave such windows missing."
    )
    state_order: Texts | None = setting(
        None,
        "States in the order of tables, figures and colours; those that are not named follow.",
        example=("TNFi", "JAK"),
    )

    @property
    def combine(self) -> bool:
        """Whether combinations of classes are states."""
        return self.states == "combinations"

    @property
    def has_off(self) -> bool:
        """Whether a patient can be in the state `off_treatment`."""
        stops = self.impute in ("carry_forward_supplied", "carry_forward_max")
        return stops and self.off_treatment != "missing"


PRESETS: dict[str, Rules] = {
    "ra": Rules(
        first_on_or_after=dt.date(2008, 1, 1),
        months=3,
        max_windows=16,
        states="most_frequent",
        by="records",
        ties="first",
        impute="carry_forward",
        death="end",
    )
}
"""Rules of known studies by name: `build_sequences(records, preset="ra")`.

`ra`: the rheumatoid arthritis study. First biologic or JAK inhibitor from 2008 on, four years of
quarters, the most recorded class, carried forward without end: in that study a quarter without a
record of a drug that is infused or dispensed for months was taken to be a continuation."""
