import ast
import subprocess
import sys
from pathlib import Path

import pytest

import font

ROOT = Path(font.__file__).parent


def test_importing_the_package_loads_nothing_heavy():
    code = (
        "import sys, font; dir(font); "
        "print([m for m in ('numpy', 'pandas', 'numba', 'matplotlib', 'sklearn', 'scipy') "
        "if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT.parent, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_site_places_patients_without_scikit_learn():
    code = (
        "import sys, pandas as pd, numpy as np, font; "
        "t = pd.DataFrame({'A': [0, 1, 1]}); "
        "e = font.Ensemble(2).fit({'A': np.eye(2)}, {'here': t}); "  # as many patterns as clusters
        "from font.exchange.messages.ensemble import ensemble_content, ensemble_from; "
        "ensemble_from(ensemble_content(e)).confidence(t); "
        "print([m for m in ('numba', 'matplotlib', 'sklearn', 'mmlca') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT.parent, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", font.__all__)
def test_every_public_name_loads_and_is_documented(name):
    assert getattr(font, name).__doc__


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="attribute nothing"):
        font.nothing  # noqa: B018


@pytest.mark.parametrize("path", sorted(ROOT.glob("*.py")), ids=lambda path: path.name)
def test_the_package_stands_alone(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module.split(".")[0])
    assert not imported & {"mmlca", "ehr_prep", "numba"}


def test_the_example_runs_and_the_small_site_gains():
    example = ROOT.parent / "examples" / "own_local_model.py"
    if not example.exists():
        pytest.skip("the examples are not installed")
    done = subprocess.run(
        [sys.executable, str(example)],
        env={"PYTHONPATH": str(ROOT.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    west = done.stdout.strip().splitlines()[-1]
    score, alone = (float(word) for word in west.replace(",", " ").split() if word[:2] == "0.")
    assert west.startswith("west")
    assert score > alone
