"""Simulate the data of the diabetes study: three sites that write their files in three ways.

python examples/diabetes_study/make_data.py
mmlca study run examples/diabetes_study/study.toml --out results

Courses, doses and habits of care are assumptions, and nothing here describes a real patient or
hospital. The cohort shows what a study needs besides rheumatoid arthritis: drugs taken together,
fixed combinations, stopping, deaths, and differently formatted files.
"""

from __future__ import annotations

import gzip
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ehr_prep.values import day_text, one_day
from font.files import atomic_write

NOTE = "SYNTHETIC: made-up records of made-up patients, not data of any hospital."

_QUARTERS = 16
_FIRST, _LAST, _CUT = "2014-01-01", "2018-12-31", "2022-12-31"
_STOPPED = ()

# What patients take together, in the order of the columns of `_COURSES`.
_REGIMENS: tuple[tuple[str, ...], ...] = (
    ("metformin",),
    ("metformin", "sulfonylurea"),
    ("metformin", "DPP-4"),
    ("metformin", "SGLT2"),
    ("metformin", "GLP-1"),
    ("metformin", "insulin"),
    ("insulin",),
    _STOPPED,
)
# Weight of each regimen at the start, and weights of moving to it per quarter; what is left of 1
# stays. A patient's latent course is one of these.
_COURSES = {
    "metformin alone": ((97, 1, 1, 1, 0, 0, 0, 0), (0.3, 0.2, 0.2, 0.1, 0.1, 0.1, 0, 0.3)),
    "on and off": ((50, 20, 15, 15, 0, 0, 0, 0), (10, 1, 1, 1, 0, 0, 0, 35)),
    "changing add-ons": ((25, 30, 20, 20, 2, 3, 0, 0), (3, 20, 20, 20, 4, 5, 1, 1)),
}
_RETURN = 0.35  # chance per quarter that someone who stopped takes metformin again


class _Habits(NamedTuple):
    """What differs between sites: shares of the courses, sizes, and the words for drugs."""

    patients: int
    courses: tuple[float, float, float]
    p_combined: float  # share of fixed combinations where one exists
    texts: dict[str, tuple[str, ...]]
    combined: dict[str, tuple[str, ...]]
    others: tuple[str, ...]


SITES = {
    "Aachen": _Habits(
        1200,
        (0.45, 0.30, 0.25),
        0.3,
        {
            "metformin": ("Metformin 1000 Heumann Filmtabletten", "METFORMIN AL 850 N2"),
            "sulfonylurea": ("Glimepirid Sandoz 2 mg Tabletten",),
            "DPP-4": ("Januvia 100 mg Filmtabl. (für Ärzte)", "XELEVIA 100MG"),
            "SGLT2": ("Jardiance 10 mg Filmtabl.", "FORXIGA 10 mg"),
            "GLP-1": ("Ozempic 1 mg Injektionslösung", "Victoza 6 mg/ml Fertigpen"),
            "insulin": ("Lantus SoloStar 100 E/ml Injektionslösung",),
        },
        {
            "DPP-4": ("Janumet 50 mg/1000 mg Filmtabl.",),
            "SGLT2": ("Synjardy 5 mg/1000 mg Filmtabl.",),
        },
        ("Ramipril 5 mg", "Atorvastatin 20 mg", "Teststreifen für Blutzucker"),
    ),
    "Boston": _Habits(
        1000,
        (0.35, 0.30, 0.35),
        0.2,
        {
            "metformin": ("METFORMIN HCL 500 MG TABLET", "metFORMIN ER 750 mg"),
            "sulfonylurea": ("GLIPIZIDE 5 MG TABLET", "glimepiride 2 mg"),
            "DPP-4": ("SITAGLIPTIN 100 MG (JANUVIA)", "linagliptin 5 mg tab"),
            "SGLT2": ("EMPAGLIFLOZIN 10 MG TAB", "Farxiga 10 mg"),
            "GLP-1": ("Ozempic 1 mg/dose pen", "TRULICITY 1.5 MG/0.5 ML"),
            "insulin": ("insulin glargine (LANTUS) 100 unit/mL", "HUMALOG KWIKPEN"),
        },
        {
            "DPP-4": ("JANUMET XR 50-1,000 MG",),
            "SGLT2": ("empagliflozin-metformin (SYNJARDY) 5-1,000 mg",),
        },
        ("LISINOPRIL 10 MG TABLET", "ATORVASTATIN 40 MG", "blood glucose test strips"),
    ),
    "Columbus": _Habits(
        1100,
        (0.40, 0.35, 0.25),
        0.4,
        {
            "metformin": (
                "24 HR metformin hydrochloride 500 MG Extended Release Oral Tablet",
                "metformin hydrochloride 1000 MG Oral Tablet",
            ),
            "sulfonylurea": ("glipizide 5 MG Oral Tablet", "glyburide 2.5 MG Oral Tablet"),
            "DPP-4": ("sitagliptin 100 MG Oral Tablet [Januvia]",),
            "SGLT2": ("canagliflozin 100 MG Oral Tablet", "dapagliflozin 10 MG Oral Tablet"),
            "GLP-1": ("3 ML liraglutide 6 MG/ML Pen Injector [Victoza]",),
            "insulin": ("3 ML insulin glargine 100 UNT/ML Pen Injector",),
        },
        {
            "DPP-4": ("metformin hydrochloride 1000 MG / sitagliptin 50 MG Oral Tablet",),
            "SGLT2": ("empagliflozin 5 MG / metformin hydrochloride 1000 MG Oral Tablet",),
        },
        ("lisinopril 10 MG Oral Tablet", "simvastatin 20 MG Oral Tablet"),
    ),
}


class Site(NamedTuple):
    """What one site knows of its patients; `truth` has their courses."""

    records: pd.DataFrame
    patients: pd.DataFrame
    labs: pd.DataFrame
    truth: pd.DataFrame


def diabetes_cohort(seed: int, scale: float = 1.0) -> dict[str, Site]:
    """Make up a type 2 diabetes cohort of three sites: records, patients and HbA1c. SYNTHETIC.

    Patients start with metformin, alone or with a second drug, and follow one of three courses:
    they stay on metformin, stop and begin again, or change what they take with it (sulfonylurea,
    DPP-4, SGLT2, GLP-1, insulin). Some die. Drugs that are taken together are dispensed separately
    or as a fixed combination.

    Parameters
    ----------
    seed : int
        Each site has its own random numbers.
    scale : float
        Multiplies the number of patients, 3,300 at a scale of 1.
    """
    sites = {}
    for number, (name, habits) in enumerate(SITES.items()):
        n = max(round(habits.patients * scale), 1)
        sites[name] = _make_site(habits, n, np.random.default_rng([seed, number]))
    return sites


def write_cohort(cohort: dict[str, Site], folder: Path) -> list[Path]:
    """Write each site's files as that site would; returns the paths.

    Aachen writes semicolons, decimal commas and days before months in Latin-1; Boston writes one
    Excel file for each table; Columbus writes packed CSV files by year, with clinical drug names of
    RxNorm. The truth goes to truth/synthetic_{site}.csv, apart from what an analysis reads.
    """
    files = {
        folder / site / name: content
        for site, data in cohort.items()
        for name, content in _WRITERS[site](data).items()
    }
    for site, data in cohort.items():
        text = data.truth.to_csv(lineterminator="\n")
        files[folder / "truth" / f"synthetic_{site}.csv"] = text.encode()
    files[folder / "SYNTHETIC.txt"] = f"{NOTE}\n".encode()
    for path, content in files.items():
        atomic_write(path, content)
    return list(files)


# --- one site ---------------------------------------------------------------------------


def _make_site(habits: _Habits, n: int, rng: np.random.Generator) -> Site:
    first, last, cut = (one_day(day, "day") for day in (_FIRST, _LAST, _CUT))
    course = rng.choice(len(_COURSES), n, p=habits.courses)
    start = rng.integers(first, last + 1, n)
    age = rng.normal(61, 10, n).clip(30, 90)
    hazard = 0.004 * np.exp(0.07 * (age - 61))  # per quarter
    died = start + 30 + (rng.exponential(1 / hazard) * 91.3125).astype(np.int64)
    end = np.minimum(died, np.minimum(start + rng.integers(400, 2600, n), cut))
    states = _draw_regimens(course, rng)
    ids = np.arange(1, n + 1)
    records = _dispense(habits, states, start, end, rng)
    dead = died <= end
    patients = pd.DataFrame(
        {
            "patient_id": ids,
            "birth_date": _days(start - (age * 365.25).astype(np.int64)),
            "sex": np.where(rng.random(n) < 0.46, "F", "M").astype(object),
            "death_date": pd.Series(_days(died), dtype=object).where(dead, None),
            "follow_up_end": _days(end),
        }
    )
    names = np.array(list(_COURSES), dtype=object)
    truth = pd.DataFrame({"class": names[course]}, index=pd.Index(ids, name="patient_id"))
    return Site(records, patients, _draw_labs(course, start, end, rng), truth)


def _draw_regimens(course: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """The regimen of each patient in each quarter (n, quarters)."""
    off = _REGIMENS.index(_STOPPED)
    states = np.empty((len(course), _QUARTERS), dtype=np.int64)
    for number, (initial, moves) in enumerate(_COURSES.values()):
        mine = course == number
        weights = np.array(initial, dtype=float)
        chain = np.tile(np.array(moves) / 100, (len(_REGIMENS), 1))
        chain[off] = 0
        chain[off, 0] = _RETURN
        chain[6, :6] = 0  # few leave insulin alone
        np.fill_diagonal(chain, 0)
        np.fill_diagonal(chain, 1 - chain.sum(axis=1))
        states[mine, 0] = rng.choice(len(_REGIMENS), mine.sum(), p=weights / weights.sum())
        edges = chain.cumsum(axis=1)
        for quarter in range(1, _QUARTERS):
            draw = rng.random(mine.sum())[:, None]
            states[mine, quarter] = (draw > edges[states[mine, quarter - 1]]).sum(axis=1)
    return np.minimum(states, len(_REGIMENS) - 1)


def _dispense(
    habits: _Habits,
    states: NDArray[np.int64],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    rng: np.random.Generator,
) -> pd.DataFrame:
    """Records: a package of 30 or 90 days of each drug while it is taken, and other drugs."""
    rows: list[tuple[int, int, str, int]] = []
    for patient in range(len(states)):
        supply = int(rng.choice((30, 90)))
        prefers = rng.random() < habits.p_combined
        brand = {name: rng.choice(len(texts)) for name, texts in habits.texts.items()}
        for quarter in range(_QUARTERS):
            regimen = _REGIMENS[states[patient, quarter]]
            texts = [habits.texts[name][brand[name]] for name in regimen]
            if prefers and len(regimen) == 2 and regimen[1] in habits.combined:
                texts = [habits.combined[regimen[1]][0]]
            if rng.random() < 0.3:
                texts.append(habits.others[int(rng.integers(len(habits.others)))])
            for text in texts:
                for days in range(0, 90, supply):
                    day = int(start[patient] + round(quarter * 91.3125) + days)
                    late = int(rng.integers(0, 6)) if quarter or days else 0
                    rows.append((patient + 1, day + late, text, supply))
    frame = pd.DataFrame(rows, columns=["patient_id", "day", "drug", "days_supply"])
    frame = frame[frame["day"] <= end[frame["patient_id"] - 1]]
    frame = frame.sort_values(["patient_id", "day"], kind="stable", ignore_index=True)
    frame.insert(1, "date", _days(frame.pop("day").to_numpy()))
    return frame


def _draw_labs(
    course: NDArray[np.int64],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    rng: np.random.Generator,
) -> pd.DataFrame:
    """HbA1c in per cent, twice a year: it falls after the start, and later rises by course."""
    who = np.repeat(np.arange(len(course)), 10)
    day = start[who] + rng.integers(-350, 1400, len(who))
    kept = day <= end[who]
    who, day = who[kept], day[kept]
    years = (day - start[who]) / 365.25
    rise = np.array([0.05, 0.25, 0.1])[course[who]] * years.clip(0)
    level = rng.normal(0, 0.6, len(course))[who]
    value = 8.2 - 1.1 * (1 - np.exp(-3 * years.clip(0))) + rise + level
    value = (value + rng.normal(0, 0.4, len(who))).clip(4.5, 14).round(1)
    frame = pd.DataFrame({"patient_id": who + 1, "date": _days(day), "test": "HbA1c"})
    return frame.assign(value=value).sort_values(["patient_id", "date"], ignore_index=True)


def _days(days: NDArray[np.int64]) -> NDArray[np.object_]:
    return np.array([day_text(day) for day in days], dtype=object)


# --- files, as each site writes them ------------------------------------------------------


def _german(data: Site) -> dict[str, bytes]:
    def written(frame: pd.DataFrame) -> bytes:
        text: str = frame.to_csv(index=False, sep=";", decimal=",", lineterminator="\r\n")
        return text.encode("latin-1")

    def plain(frame: pd.DataFrame, **columns: str) -> pd.DataFrame:
        table = frame.assign(patient_id=frame["patient_id"].map("{:06d}".format))
        for column in ("date", "birth_date", "death_date", "follow_up_end"):
            if column in table:
                table[column] = table[column].map(_dotted)
        return table.rename(columns={"patient_id": "PatNr", **columns})[
            ["PatNr", *columns.values()]
        ]

    return {
        "verordnungen.csv": written(
            plain(data.records, date="Datum", drug="Arzneimittel", days_supply="Reichweite")
        ),
        "patienten.csv": written(
            plain(
                data.patients,
                birth_date="Geburtsdatum",
                sex="sex",
                death_date="Todesdatum",
                follow_up_end="Letzter Kontakt",
            )
        ),
        "labor.csv": written(plain(data.labs, date="Datum", test="Untersuchung", value="Wert")),
    }


def _dotted(day: Any) -> str:
    return "" if not isinstance(day, str) else f"{day[8:10]}.{day[5:7]}.{day[:4]}"


def _excel(data: Site) -> dict[str, bytes]:
    names = {"date": "fill_date", "drug": "medication_name"}
    tables = {
        "pharmacy.xlsx": data.records.rename(columns=names),
        "patients.xlsx": data.patients,
        "labs.xlsx": data.labs.rename(columns={"date": "result_date", "value": "result"}),
    }
    files = {}
    for name, table in tables.items():
        dated = table.assign(
            **{c: pd.to_datetime(table[c]) for c in table if str(c).endswith("_date")}
        )
        buffer = io.BytesIO()
        with pd.ExcelWriter(buffer, engine="openpyxl") as book:
            note = pd.DataFrame({"note": [NOTE]})
            note.to_excel(book, sheet_name="about", index=False)
            dated.to_excel(book, sheet_name="data", index=False)
        files[name] = buffer.getvalue()
    return files


def _rxnorm(data: Site) -> dict[str, bytes]:
    def packed(frame: pd.DataFrame) -> bytes:
        return gzip.compress(frame.to_csv(index=False, lineterminator="\n").encode(), mtime=0)

    records = data.records
    end = pd.to_datetime(records["date"]) + pd.to_timedelta(records["days_supply"] - 1, unit="D")
    table = pd.DataFrame(
        {
            "START": records["date"] + "T08:30:00Z",
            "STOP": end.dt.strftime("%Y-%m-%dT08:30:00Z"),
            "PATIENT": "syn-" + records["patient_id"].astype(str),
            "DESCRIPTION": records["drug"],
        }
    )
    people = data.patients.assign(patient_id="syn-" + data.patients["patient_id"].astype(str))
    columns = {
        "patient_id": "Id",
        "birth_date": "BIRTHDATE",
        "death_date": "DEATHDATE",
        "sex": "sex",
        "follow_up_end": "LAST_VISIT",
    }
    labs = data.labs.assign(patient_id="syn-" + data.labs["patient_id"].astype(str))
    by_year = table.groupby(table["START"].str[:4])
    return {
        **{f"medications_{year}.csv.gz": packed(part) for year, part in by_year},
        "patients.csv.gz": packed(people.rename(columns=columns)[list(columns.values())]),
        "labs.csv.gz": packed(labs),
    }


_WRITERS: dict[str, Callable[[Site], dict[str, bytes]]] = {
    "Aachen": _german,
    "Boston": _excel,
    "Columbus": _rxnorm,
}


if __name__ == "__main__":
    data = Path(__file__).parent / "data"
    scale = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    for path in write_cohort(diabetes_cohort(seed=1, scale=scale), data):
        print(path.relative_to(data.parent))
