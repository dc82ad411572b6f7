"""Study files: what they may say, and what is said where they are wrong."""

from __future__ import annotations

import datetime as dt
import re
import tomllib
from pathlib import Path

import pytest

from mmlca.study import Study, read_study, write_study_file
from mmlca.study.templates import render


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two sites with (empty) files, and the study file that `mmlca study init` writes."""
    for site in ("MGB", "VA"):
        (tmp_path / site).mkdir()
        for name in ("medications", "patients", "labs"):
            (tmp_path / site / f"{name}.csv").touch()
    write_study_file(tmp_path / "study.toml")
    return tmp_path


def change(folder: Path, old: str, new: str) -> Path:
    path = folder / "study.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return path


def test_the_file_that_init_writes_says_the_defaults(folder: Path) -> None:
    study = read_study(folder / "study.toml")
    defaults = Study.model_validate({"name": "Treatment courses", "sites": study.sites})
    assert study.model_dump() == defaults.model_dump()
    assert study.plain()["sites"]["MGB"]["records"] == "MGB/medications.csv"
    assert study.rules.first_on_or_after == dt.date(2008, 1, 1)


def test_the_file_that_init_writes_names_every_setting() -> None:
    text = render("study.toml.j2", sites=["MGB"], name="x", seed=1, synthetic=False)
    everything = re.sub(r"^# (\[?\w+\]?( = .*)?( +#.*)?)$", r"\1", text, flags=re.M)
    everything = everything.replace('records = "MGB/medications.csv"', "", 1)  # or sequences
    said = tomllib.loads(everything)
    for name, field in Study.model_fields.items():
        if name in ("sites", "synthetic"):
            continue
        assert name in said, name
        for part in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if hasattr(part, "model_fields"):
                assert set(part.model_fields) == set(said[name]), name


def test_paths_are_relative_to_the_file_and_sites_may_differ_in_format(folder: Path) -> None:
    path = change(
        folder, "\n[records]", '\n[records]\ndate_format = "%Y-%m-%d"\nduplicates = "keep"'
    )
    path = change(folder, 'labs = "VA/labs.csv"', 'labs = "VA/labs.csv"\ndate_format = "%d/%m/%Y"')
    study = read_study(path)
    assert study.sites["MGB"].records == folder / "MGB/medications.csv"
    assert study.site_options("MGB") == {"date_format": "%Y-%m-%d", "duplicates": "keep"}
    assert study.site_options("VA") == {"date_format": "%d/%m/%Y", "duplicates": "keep"}


WRONG = {
    "unknown key": (
        "months = 3",
        "month = 3",
        "rules.month is not known; did you mean rules.months?",
    ),
    "text for a number": (
        "months = 3",
        'months = "3"',
        "rules.months is '3' and should be a valid int",
    ),
    "too small": ("months = 3", "months = 0", "rules.months is 0 and should be greater"),
    "no such choice": (
        'ties = "first"',
        'ties = "lst"',
        "rules.ties is 'lst' and should be 'first', ",
    ),
    "negative seed": ("seed = 1", "seed = -1", "seed is -1 and should be"),
    "neither number nor vote": ('number = "vote"', 'number = "bic"', "classes.number is 'bic' and"),
    "not a date": (
        "= 2008-01-01",
        '= "soon"',
        "rules.first_on_or_after is 'soon' and should be a valid date",
    ),
    "two sources": (
        "records = ",
        'sequences = "a.csv"\nrecords = ',
        "sites.MGB needs either records or",
    ),
    "no name": ("name = ", "title = ", "name is missing (1 more at fault)"),
    "unknown section": ("[privacy]", "[privcy]", "privcy is not known; did you mean privacy?"),
    "name of a site": (
        '[sites."MGB"]',
        '[sites."../x"]',
        "sites.../x is '../x' and may hold letters",
    ),
    "no such file": (
        '"MGB/labs.csv"',
        '"MGB/lab.csv"',
        "sites.MGB.labs is 'MGB/lab.csv', and there is no",
    ),
    "no such map": (
        "\n[records]",
        '\n[records]\ndrugs = "my.csv"',
        "records.drugs is 'my.csv', which is neither",
    ),
    "not TOML": ("seed = 1", "seed = ", "cannot be read as TOML"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_file_is_told_in_one_sentence_that_names_the_key(folder: Path, what: str) -> None:
    old, new, message = WRONG[what]
    path = change(folder, old, new)
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        read_study(path)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("study.toml")


def test_no_study_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no study file"):
        read_study(tmp_path / "study.toml")
