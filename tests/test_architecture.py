"""The rules on who may import whom, and what importing costs."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import itertools
import operator
import re
import subprocess
import sys
import tomllib
from collections.abc import Container, Iterable
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("mmlca", "font", "ehr_prep")
# The floors of mmlca: a file may import from its own floor and from those before it.
FLOORS = ("sequences", "model", "tables", "figures", "study", "federation", "cli")
ROOF = ("mmlca/study/", "mmlca/federation/", "mmlca/cli/")  # the only ones to see all packages
# what all packages may take from font
SHARED = (
    "font.checks.",
    "font.errors.",
    "font.files.",
    "font.metrics.",
    "font.models.",  # the latent class model, which mmlca.model.course fits to windows
    "font.probabilities.",
    "font.settings.",
    "font.sniff.",
)
MODULES = sorted(p for package in PACKAGES for p in (ROOT / package).rglob("*.py"))


# Where a type and what makes, reads or stores it are apart, the latter name the type in their
# signatures: inside these groups a module may import another one for type checkers alone.
SHARING_A_TYPE = (
    {"mmlca.sequences.build", "mmlca.sequences.files", "mmlca.sequences.type"},
    {
        f"mmlca.model.{name}"
        for name in ("course", "estimator", "inference", "step_inference", "store")
    },
    {f"mmlca.federation.{name}" for name in ("hospital", "results", "steps")},
)


@functools.cache
def imports(path: Path, top_level_only: bool = False, types: bool = False) -> frozenset[str]:
    """Dotted names of everything a file imports; with `types` also for type checkers alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set()
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not types:
            continue
        if top_level_only and isinstance(node, (ast.FunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: use absolute imports"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        nodes += ast.iter_child_nodes(node)
    return frozenset(found)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def from_package(names: Iterable[str], package: str) -> set[str]:
    return {name for name in names if name.split(".")[0] == package}


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_siblings_are_imported_only_where_allowed(path: Path) -> None:
    names, here = imports(path, types=True), relative(path)
    if here.startswith("font/"):
        assert not from_package(names, "mmlca") | from_package(names, "ehr_prep")
    if here.startswith("mmlca/") and not here.startswith(ROOF):
        assert not from_package(names, "ehr_prep")
        # mmlca's front door makes its models and tables known to the exchange files
        door = "font.exchange.registry."
        shared = door if here == "mmlca/__init__.py" else SHARED
        assert all(name.startswith(shared) for name in from_package(names, "font"))
    if here.startswith("ehr_prep/"):
        assert all(name.startswith(SHARED) for name in from_package(names, "font"))
        # analyses of mmlca keep the names that they have in ehr_prep
        again = here == "ehr_prep/analysis.py"
        allowed = ("mmlca.sequences.", *(("mmlca.tables", "mmlca.figures.") if again else ()))
        assert all(name.startswith(allowed) for name in from_package(names, "mmlca"))


@pytest.mark.parametrize("path", sorted((ROOT / "mmlca").rglob("*.py")), ids=relative)
def test_nothing_imports_upward(path: Path) -> None:
    floor = path.relative_to(ROOT / "mmlca").parts[0].replace("__main__.py", "cli")
    above = FLOORS[FLOORS.index(floor) + 1 :] if floor in FLOORS else FLOORS
    names = from_package(imports(path, types=True), "mmlca")
    assert not {name.split(".")[1] for name in names if "." in name} & set(above)


def test_there_are_no_import_cycles() -> None:
    names = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in MODULES}
    names = {name.removesuffix(".__init__"): p for name, p in names.items()}
    uses = {}
    for name, path in names.items():
        run, checked = (_modules(imports(path, types=types), names) for types in (False, True))
        sharing = set[str]().union(*(group for group in SHARING_A_TYPE if name in group))
        uses[name] = (run | (checked - sharing)) - {name}
    TopologicalSorter(uses).prepare()  # raises CycleError


def _modules(names: Iterable[str], known: Container[str]) -> set[str]:
    """The modules among imported names; packages, which load names on first use, are none."""
    parts = {part for name in names for part in (name, name.rpartition(".")[0])}
    return {part for part in parts if part in known} - set(PACKAGES)


OF_PATIENTS = {
    "mmlca.sequences.type.Sequences",
    "mmlca.model.estimator.MixtureMarkov",
    "mmlca.study.results.site.SitePatients",
    "mmlca.study.combined.site_patients",
    "mmlca.study.analysis",
    "mmlca.study.site_data",
}
REPORT = [
    *(ROOT / "mmlca/study/sections").glob("*.py"),
    *(ROOT / "mmlca/study/report").glob("*.py"),
    *(ROOT / "mmlca/study" / f"{name}.py" for name in ("findings", "headline", "words")),
    ROOT / "mmlca/study/results/shown_courses.py",
]


@pytest.mark.parametrize("path", sorted(REPORT), ids=relative)
def test_no_function_of_the_report_sees_patients(path: Path) -> None:
    """It has the results of sites and what the centre knows, wherever the patients are."""
    names = imports(path, types=True)
    assert not {name for name in names if name.startswith(tuple(OF_PATIENTS))}


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_numba_flower_and_pyplot_only_where_allowed(path: Path) -> None:
    if not path.name.endswith(("_kernels.py", "_compiled.py")):  # the latter readies numba's cache
        assert not from_package(imports(path), "numba")
        at_top = imports(path, top_level_only=True)
        assert not {n for n in at_top if "_kernels" in n or "_compiled" in n}
        assert not from_package(at_top, "matplotlib")
    if relative(path) != "font/exchange/flower.py":
        assert not from_package(imports(path), "flwr")


def test_importing_the_settings_of_a_study_is_light() -> None:
    code = (
        "import sys, mmlca.study.settings; print([m for m in ('numba', 'matplotlib', 'sklearn',"
        " 'scipy', 'pandas', 'numpy') if m in sys.modules])"
    )
    assert _python(code) == "[]"


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_package_is_light(package: str) -> None:
    code = (
        f"import sys, {package}; print([m for m in ('numba', 'matplotlib', 'sklearn', 'pandas')"
        " if m in sys.modules])"
    )
    assert _python(code) == "[]"


def test_using_sequences_loads_neither_numba_nor_matplotlib_nor_sklearn() -> None:
    code = (
        "import sys, mmlca; mmlca.Sequences, mmlca.state_distribution;"
        "print([m for m in ('numba', 'matplotlib', 'sklearn') if m in sys.modules])"
    )
    assert _python(code) == "[]"


def test_help_is_light() -> None:
    code = (
        "import sys\nfrom mmlca.cli import app\nsys.argv = ['mmlca', '--help']\n"
        "try:\n    app.main()\nexcept SystemExit:\n    pass\n"
        "heavy = ('numba', 'matplotlib', 'sklearn', 'pandas', 'numpy')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    assert _python(code).splitlines()[-1] == "[]"


def test_paths_and_dependencies_that_contributing_names_are_true() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = {name for name in re.findall(r"`([\w./-]+)`", page) if "/" in name}
    assert len(paths) > 40
    assert not [name for name in paths if not (ROOT / name).exists()]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = itertools.chain(project["dependencies"], *project["optional-dependencies"].values())
    listed = {name for row in re.findall(r"^\| ([^|]+) \|", page, re.M) for name in row.split(", ")}
    named = {re.split(r"[\[<>=]", name)[0] for name in needed} - {"mmlca", "sqlglot"}
    assert named <= listed


# Names and arguments that programs outside this repository use; they stay.
RELIED_ON = {
    "mmlca": """
        Hospital(study site sequences folder n_classes starts fewer_classes)
        MarkovParams(weights initial transition)
        MixtureMarkov(n_classes n_init init prior accelerate max_iter tol seed n_jobs)
        MixtureMarkov.fit(sequences weights covariates groups)
        MixtureMarkov.coefficient_table(sequences covariates)
        MixtureMarkov.standard_errors(sequences)
        Sequences.from_frame(id states) Sequences.from_codes(states)
        bootstrap(model sequences n seed) bootstrap_lrt(sequences k n seed) plot_intervals()
        cluster_sequences(sequences k method linkage) distances(sequences method)
        select_n_classes(ks seed) three_step(posterior outcome covariates correction assignment)
    """,
    "font": """
        Ensemble(n_clusters weights distance method seed) Ensemble.fit(models patterns)
        Ensemble.predict() Ensemble.confidence() LabelPatterns.from_labels()
        consensus(labels n_clusters) label(models) read_model() refine(ensemble models rounds)
        run_simulation(grid replicates seed n_jobs)
    """,
    "ehr_prep": """
        build_sequences(records) drug_report(records) pseudo_sites(n_per_site fraction seed)
        read_omop(connection schema drugs) read_records(path_or_frame drugs)
        table_one(patients clusters)
    """,
}
USED = [
    (package, name, tuple(arguments.split()))
    for package, text in RELIED_ON.items()
    for name, arguments in re.findall(r"([\w.]+)\(([\w ]*)\)", text)
]


@pytest.mark.parametrize(("package", "name", "arguments"), USED)
def test_what_others_call_stays(package: str, name: str, arguments: tuple[str, ...]) -> None:
    target = operator.attrgetter(name)(importlib.import_module(package))
    assert set(arguments) <= set(inspect.signature(target).parameters)


@pytest.mark.parametrize(("package", "most"), [("mmlca", 50), ("font", 45)])
def test_the_public_names_can_be_read_at_a_glance(package: str, most: int) -> None:
    assert len(importlib.import_module(package).__all__) <= most


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_there(package: str) -> None:
    module = importlib.import_module(package)
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError):
        module.no_such_name  # noqa: B018


def test_no_package_host_and_no_merge_conflict_in_the_repository() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    hosts = ("pypi" + ".org", "python" + "hosted", "npm" + "js", "anaconda" + ".org")
    for name in listed.stdout.split():
        path = ROOT / name
        if path.is_file() and path.suffix not in {".png", ".parquet"}:
            text = path.read_text(encoding="utf-8")
            assert not [host for host in hosts if host in text], name
            assert not re.search(r"^(<{7}|>{7}) ", text, re.M), f"{name} has a merge conflict"


def _python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return done.stdout.strip()


@pytest.mark.parametrize("package", [*PACKAGES, "mmlca.study"])
def test_no_module_hides_a_public_name(package: str) -> None:
    names = set(importlib.import_module(package).__all__)
    modules = {p.stem for p in (ROOT / package.replace(".", "/")).glob("*.py")}
    assert names & modules <= {"labs", "synthetic"}  # meant as modules
