"""Study files: what they may say, and what is said where they are wrong."""

from __future__ import annotations

import datetime as dt
import inspect
import re
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from ra_like import ra_like

import mmlca
from ehr_prep.settings import PRESETS, RecordColumns, Rules
from font import settings
from font.errors import InputError
from mmlca import Hospital, MixtureMarkov
from mmlca.cli.data import prep
from mmlca.study import (
    Study,
    read_study,
    settings_table,
    site_data,
    write_study_file,
)
from mmlca.study.report.content import Item
from mmlca.study.sections import registry
from mmlca.study.sections.section import Section


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two sites with (empty) files, and the study file that `mmlca study init` writes."""
    for site in ("MGB", "VA"):
        (tmp_path / site).mkdir()
        for name in ("medications", "patients", "labs"):
            (tmp_path / site / f"{name}.csv").touch()
    write_study_file(tmp_path / "study.toml", ["MGB", "VA"])
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
    assert study.rules.first_on_or_after is None


def test_a_preset_writes_its_rules_into_the_file(tmp_path: Path) -> None:
    write_study_file(tmp_path / "study.toml", preset="ra")
    rules = read_study(tmp_path / "study.toml", files=False).rules
    assert rules.first_on_or_after == dt.date(2008, 1, 1)
    for name, value in PRESETS["ra"].model_dump(exclude_unset=True).items():
        assert str(getattr(rules, name)) == str(value), name
    with pytest.raises(ValueError, match="preset must be one of 'ra'; found 'oa'"):
        write_study_file(tmp_path / "other.toml", preset="oa")


def test_the_file_that_init_writes_names_every_setting(tmp_path: Path) -> None:
    write_study_file(tmp_path / "s.toml", ["MGB"])
    text = (tmp_path / "s.toml").read_text(encoding="utf-8")
    everything = re.sub(r"^# (\[?\w+\]?( = .*)?( +#.*)?)$", r"\1", text, flags=re.M)
    everything = everything.replace('records = "MGB/medications.csv"', "", 1)  # or sequences
    said = tomllib.loads(everything)
    for name, field in Study.model_fields.items():
        if name in ("sites", "synthetic"):
            continue
        assert name in said, name
        for part in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if hasattr(part, "model_fields"):
                # a column of the records may also stand in [records] itself
                short = set(RecordColumns.model_fields) if name == "records" else set()
                assert set(part.model_fields) - short == set(said[name]), name
                columns = getattr(part.model_fields.get("columns"), "annotation", None)
                if hasattr(columns, "model_fields"):
                    assert set(columns.model_fields) == set(said[name]["columns"])


def test_every_setting_has_a_sentence_of_help() -> None:
    table = settings_table()
    assert len(table) > 120
    assert table["meaning"].str.fullmatch(r"[A-Z].*[.…]").all()
    assert not table.duplicated(["section", "key"]).any()
    said = table[table["section"] == "rules"].set_index("key")
    assert said.loc["max_windows"].to_list()[1:] == ["16", "Largest number of windows."]


def test_prep_has_an_option_for_every_rule() -> None:
    options = inspect.signature(prep).parameters
    assert set(Rules.model_fields) <= set(options)
    since = options["first_on_or_after"].annotation.__metadata__[0]
    assert "--since" in (since.default, *(since.param_decls or ()))
    assert {n: options[n].default for n in Rules.model_fields} == dict.fromkeys(Rules.model_fields)


def test_rules_are_checked_where_they_are_given() -> None:
    assert Rules(first_on_or_after="2008-01-01").first_on_or_after == dt.date(2008, 1, 1)
    assert Rules(follow_up="2019-07-31").follow_up == dt.date(2019, 7, 31)
    assert Rules(combinations=["A+B"]).combinations == ("A+B",)
    changed = settings.change(PRESETS["ra"], {"months": np.int64(6), "impute": "missing"})
    assert (changed.months, changed.impute) == (6, "missing")
    assert changed.first_on_or_after == dt.date(2008, 1, 1)
    with pytest.raises(TypeError, match="month is not a setting of Rules; did you mean months"):
        settings.change(Rules(), {"month": 6})
    with pytest.raises(ValueError, match=r"months is 1\.5 and should be a whole number"):
        settings.change(Rules(), {"months": 1.5})


def test_every_fit_of_a_study_searches_as_the_file_asks(folder: Path) -> None:
    asked = read_study(change(folder, 'search = "default"', 'search = "thorough"'), files=False)
    assert asked.fit_settings["search"] == "thorough"
    assert asked.fit_settings["prior"] == MixtureMarkov().prior


def test_models_for_other_sites_have_the_prior_of_hospitals_unless_the_file_gives_one(
    folder: Path,
) -> None:
    site = Hospital.from_study(folder / "study.toml", "MGB", sequences=ra_like(20))
    assert (site.prior, site.used_prior, site.search) == (None, 0.5, "default")
    change(folder, 'search = "default"', 'search = "thorough"')
    given = change(folder, "# prior = 0.0001", "prior = 0.1")
    site = Hospital.from_study(given, "MGB", sequences=ra_like(20))
    assert (site.prior, site.search) == (0.1, "thorough")
    assert read_study(given).fit_settings["prior"] == 0.1


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
        "rules.months is '3' and should be a whole number",
    ),
    "old name": ("n_init = 40", "starts = 40", "model.starts is now called model.n_init; use"),
    "gone": ('criterion = "bic"', "starts = 4", "classes.starts is now called model.n_init; use"),
    "old name at the top": ("seed = 1", "seed = 1\nthreads = 2", "threads is now called n_jobs"),
    "no quotes": ("months = 3", "months = three", "texts need quotation marks"),
    "too small": ("months = 3", "months = 0", "rules.months is 0 and should be at least 1"),
    "no such choice": (
        'ties = "first"',
        'ties = "lst"',
        "rules.ties is 'lst' and should be 'first', ",
    ),
    "no such search": (
        'search = "default"',
        'search = "deep"',
        "model.search is 'deep' and should be 'default' or 'thorough'",
    ),
    "negative seed": ("seed = 1", "seed = -1", "seed is -1 and should be"),
    "neither number nor vote": ('number = "vote"', 'number = "bic"', "classes.number is 'bic' and"),
    "not a date": (
        "# first_on_or_after = 2008-01-01",
        'first_on_or_after = "soon"',
        "rules.first_on_or_after is 'soon' and should be a date such as",
    ),
    "two sources": (
        "records = ",
        'sequences = "a.csv"\nrecords = ',
        "sites.MGB needs exactly one of records",
    ),
    "no name": ("name = ", "title = ", "name is missing (1 more at fault)"),
    "unknown section": ("[privacy]", "[privcy]", "privcy is not known; did you mean privacy?"),
    "name of a site": (
        "[sites.MGB]",
        '[sites."../x"]',
        "sites.../x is '../x' and may hold letters",
    ),
    "no such file": (
        '"MGB/labs.csv"',
        '"MGB/lab.csv"',
        "sites.MGB.labs is 'MGB/lab.csv', and the folder of study.toml has no",
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


def test_a_lab_needs_labs(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("patient_id,date,drug\n1,2010-01-01,Humira\n")
    text = 'name = "S"\n[sites.A]\nrecords = "r.csv"\n[outputs]\nlab = "CRP"\n'
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(ValueError, match=r"outputs\.lab is 'CRP', but no site has labs; .*s\.A"):
        read_study(tmp_path / "s.toml")


# --- colours ------------------------------------------------------------------------------


def coloured(colours: dict[str, str]) -> Study:
    sites = {"A": {"sequences": "a.csv"}}
    return Study.model_validate({"name": "x", "sites": sites, "outputs": {"colours": colours}})


def test_colours_of_unknown_states_are_refused_before_anything_is_fitted() -> None:
    data = {"A": mmlca.Sequences.from_lists([["TNFi", "JAK"], ["JAK", "none"]])}
    site_data.check_colours(coloured({"TNFi": "#0072B2"}), data)
    with pytest.raises(InputError, match=r"do not have; they have .*did you mean 'TNFi'\?"):
        site_data.check_colours(coloured({"TNF": "#0072B2"}), data)


def test_colours_are_six_hexadecimal_digits() -> None:
    with pytest.raises(ValueError, match="should be a colour such as"):
        coloured({"TNFi": "red"})


def test_every_figure_of_the_report_has_the_colours_of_the_study(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def items(study: Study, findings: Any) -> list[Item]:
        shown = mmlca.state_colours(["TNFi"])["TNFi"]
        draw = partial(mmlca.state_colours, ["TNFi"])
        return [Item("a", shown, "", pd.DataFrame(), draw=draw)]

    monkeypatch.setattr(registry, "RESULTS", (Section("a", "A", items),))
    monkeypatch.setattr(registry, "DIAGNOSTICS", ())
    nothing: Any = None
    (item,) = registry.all_items(coloured({"TNFi": "#ABCDEF"}), nothing)
    assert item.title == "#ABCDEF"
    assert item.draw is not None
    assert item.draw() == {"TNFi": "#ABCDEF"}
