"""Names of the study file stay with the courses that they were given to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from mmlca import Sequences
from mmlca.study import Study, read_study, run_study
from mmlca.study.words import courses_of_names, short_names

STAY, SWITCH, PAUSE = ["DRd"] * 6, ["DRd", "DRd", *["Pd"] * 4], ["DRd", *["none"] * 5]
QUICK = """
[classes]
number = 2
[model]
n_init = 4
[inference]
standard_errors = false
diagnostics = false
[outputs]
figures = false
"""


def run(folder: Path, courses: list[tuple[int, list[str]]], names: str, out: str = "out") -> Any:
    """A study of one site whose patients have these courses."""
    data = Sequences.from_lists([course for n, course in courses for _ in range(n)])
    data.to_frame().to_csv(folder / "x.csv")
    text = f'name = "Names"\n[sites.x]\nsequences = "x.csv"\n{QUICK}{names}\n'
    (folder / "study.toml").write_text(text)
    content = run_study(read_study(folder / "study.toml"), folder / out)
    table = pd.read_csv(folder / out / "tables" / "clusters.csv")
    return content, dict(zip(table["name"], table["path"], strict=True))


LIST = 'names = ["DRd first line", "second line"]'


def test_a_name_goes_with_its_course_when_the_order_changes(tmp_path: Path) -> None:
    """The larger class comes first; a name by its place would go to the other patients."""
    first, named = run(tmp_path, [(60, STAY), (40, SWITCH)], LIST)
    assert named == {"DRd first line": "DRd", "second line": "DRd → Pd"}
    assert any("by their order" in note for note in first["careful"])
    assert "“DRd first line” (class 1; 100 % never leave DRd during" in first["summary"][1]
    _, named = run(tmp_path, [(40, STAY), (60, SWITCH)], LIST)
    assert named == {"second line": "DRd → Pd", "DRd first line": "DRd"}


def test_a_name_whose_course_is_gone_is_not_used(tmp_path: Path) -> None:
    """What was DRd to the end is DRd and then nothing, as after another rule for gaps."""
    run(tmp_path, [(60, STAY), (40, SWITCH)], LIST)
    for _ in range(2):  # the folder remembers the first course, not the last one
        content, named = run(tmp_path, [(60, PAUSE), (40, SWITCH)], LIST)
        assert named == {"DRd → none": "DRd → none", "second line": "DRd → Pd"}
        (note,) = [note for note in content["careful"] if "is not used" in note]
        assert note.startswith(
            "The name “DRd first line” is not used: it was given to a class with the course “DRd "
            "persisters”, and there is no such class without a name now. The classes are “DRd → "
            "none” and “DRd → Pd”."
        )
    record = json.loads((tmp_path / "out" / "models" / "names.json").read_text())
    assert record == {"DRd first line": "DRd persisters", "second line": "DRd → Pd"}


def test_names_with_their_courses_hold_in_any_folder(tmp_path: Path) -> None:
    table = '[outputs.names]\n"DRd first line" = "DRd persisters"'
    _, named = run(tmp_path, [(40, STAY), (60, SWITCH)], table)
    assert named == {"DRd → Pd": "DRd → Pd", "DRd first line": "DRd"}
    assert not (tmp_path / "out" / "models" / "names.json").exists()
    content, named = run(tmp_path, [(60, PAUSE), (40, SWITCH)], table, "other")
    assert named == {"DRd → none": "DRd → none", "DRd → Pd": "DRd → Pd"}
    assert any("“DRd first line” is not used" in note for note in content["careful"])
    assert not any("by their order" in note for note in content["careful"])


def study(names: Any) -> Study:
    settings = {"name": "n", "sites": {"x": {"sequences": "x.csv"}}, "outputs": {"names": names}}
    return Study.model_validate(settings, strict=False)


def test_a_new_name_takes_its_place_and_no_course_has_two() -> None:
    names, courses = study(["a", "b", "c"]), ["P", "Q", None]
    assert courses_of_names(names, courses, {"a": "Q"}) == {"a": "Q", "b": "Q"}
    with pytest.warns(UserWarning, match="is not used|by their order") as notes:
        assert short_names(names, courses, {"a": "Q", "b": "Q"}) == ["P", "a", None]
    unused, order = (str(note.message) for note in notes)
    assert "“b” is not used: it was given to a class with the course “Q”" in unused
    assert order.endswith('write in the study file: names = {"a" = "Q"}.')
    with pytest.raises(ValueError, match=r"outputs.names has 3 names, but there are 2 classes"):
        courses_of_names(names, ["P", "Q"], {})


def test_a_name_that_is_the_course_of_others_is_not_used() -> None:
    given = {"Q": "P"}
    with pytest.warns(UserWarning, match="“Q” is not used"):
        assert short_names(study(given), ["P", "Q"], given) == ["P", "Q"]


@pytest.mark.parametrize(
    ("names", "told"), [(["a", "a"], "twice the name 'a'"), ({"a": "P", "b": "P"}, "two names for")]
)
def test_names_that_cannot_be_told_apart_are_refused(names: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        study(names)
