"""Commands for whole studies: from a study file, on a synthetic cohort, or on simulated sites."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ehr_prep.settings import MAPS
from font.errors import InputError, option_name, spelled
from mmlca.cli.options import (
    PLAIN,
    DrugMap,
    DrugNames,
    FileColumn,
    Json,
    NJobs,
    NoProgress,
    Out,
    Preset,
    Quiet,
    Seed,
    SiteReading,
    StudyArgument,
    as_key,
    as_option,
    by_file,
    chosen_map,
    map_file,
    say,
    whole_numbers,
    with_groups,
    working,
    wrote,
)

if TYPE_CHECKING:
    from mmlca.study.preview import Look
    from mmlca.study.processes import Processes
    from mmlca.study.settings import Study

study_app = typer.Typer(name="study", help="A whole study: init, run, sensitivity.", **PLAIN)


def demo(
    out: Out = Path("demo"),
    seed: Seed = 1,
    scale: Annotated[
        float, typer.Option(min=0.02, max=20, help="Size of the cohort; 1: 5,322 patients.")
    ] = 1.0,
    classes: Annotated[
        str, typer.Option("--classes", "-k", help="Numbers to try, such as 1-8: more take longer.")
    ] = "1-5",
    stability: Annotated[
        bool,
        typer.Option("--stability", help="Choose a number for each resample too; slower."),
    ] = False,
    omop: Annotated[
        bool, typer.Option("--omop", help="Keep the cohort in OMOP tables (Parquet).")
    ] = False,
    no_progress: NoProgress = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run a whole study on a synthetic cohort.

    Simulates rheumatoid arthritis patients of two hospitals and runs the study on them. The study
    file is kept beside the data, so that it can be changed and run again.
    """
    from font.files import hold
    from mmlca.study.processes import Processes

    candidates = whole_numbers(classes, "--classes")
    with hold(out), Processes() as processes:
        processes.start()  # they load while the patients are simulated
        study = _synthetic_study(out / "cohort", seed, scale, candidates, stability, omop)
        _run(study, out, no_progress, quiet, as_json, processes)


def _synthetic_study(
    folder: Path, seed: int, scale: float, candidates: list[int], stability: bool, omop: bool
) -> Study:
    """A study file and the files of its synthetic patients, written to a folder."""
    from ehr_prep.synthetic.omop import omop_files, write_omop
    from ehr_prep.synthetic.ra import ra_cohort
    from mmlca.study.study_file import read_study, write_study_file

    try:
        cohort = ra_cohort(seed, scale)
        sites: Any = tuple(cohort)
        if omop:
            write_omop(cohort, folder)
            sites = {site: omop_files(site) for site in cohort}
        else:
            cohort.write(folder)
        write_study_file(
            folder / "study.toml",
            sites,
            name="Rheumatoid arthritis medication study, synthetic cohort",
            seed=seed,
            synthetic=True,
            preset="ra",
            candidates=candidates,
            stability=stability,
        )
    except OSError as error:
        raise OSError(
            f"cannot write to {folder} ({error.strerror}); choose another --out."
        ) from None
    return read_study(folder / "study.toml")


def _by(what: str, text: str) -> Any:
    """An option that may be given for each site."""
    return typer.Option(metavar=f"[SITE=]{what}", help=text, show_default="as the files show")


@study_app.command("init")
@with_groups
def study_init(
    *,
    path: Annotated[
        Path, typer.Argument(help="File to write.", metavar="STUDY_FILE", dir_okay=False)
    ] = Path("study.toml"),
    site: Annotated[
        list[str] | None,
        typer.Option(
            help="Name of a site; repeat it for each.", show_default="hospital_1 and hospital_2"
        ),
    ] = None,
    records: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[SITE=]FILE",
            help="Records of a site, to inspect; repeat it for further files and sites.",
        ),
    ] = None,
    patients: Annotated[
        list[str] | None, typer.Option(metavar="[SITE=]FILE", help="Patients' table of a site.")
    ] = None,
    labs: Annotated[
        list[str] | None, typer.Option(metavar="[SITE=]FILE", help="Lab tests of a site.")
    ] = None,
    drugs: DrugMap = None,
    drug_names: DrugNames = None,
    reading: SiteReading,
    file_column: FileColumn = None,
    patients_column: Annotated[
        list[str] | None,
        _by("WHAT=COLUMN", "Column of the patients' table, such as death_date=Tod."),
    ] = None,
    labs_column: Annotated[
        list[str] | None, _by("WHAT=COLUMN", "Column of the labs, such as value=Wert.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the study.")] = "Treatment courses",
    preset: Preset = None,
    network: Annotated[
        bool,
        typer.Option(
            "--network",
            help="For hospitals that exchange files: STUDY_FILE has what all agree on, and a site "
            "file beside it what is a hospital's own. A study file that exists is kept.",
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    quiet: Quiet = False,
) -> None:
    """Write a commented study file to start from.

    With --records it looks at the files, writes what it saw (columns, dates, drugs) into the study
    file, and prints a preview: what each column was taken for, the flow so far and ten patients'
    sequences, without their ids. If a file cannot be read, the command lists
    all problems and writes nothing. Options with [SITE=] apply to one site, or without it to all.
    """
    from font.files import keep_inputs
    from mmlca.study.study_file import write_study_file

    if path.exists() and not (force or network):
        raise InputError(f"{path} exists; choose another name, or replace it with --force.")
    tables = {"patients_columns": patients_column, "labs_columns": labs_column}
    if not records:
        belonging = {"patients": patients, "labs": labs, "drugs": drugs, "drug_names": drug_names}
        belonging |= {**reading, **tables, "file_columns": file_column}
        for option, given in belonging.items():
            if given:
                raise InputError(f"{option_name(option)} goes with --records; give both.")
        sites = site or ["hospital_1", "hospital_2"]
        if network:
            new = not path.exists() or force
            written = _write_network(path, dict.fromkeys(sites), new, force, name, preset, {})
            say(quiet, *written, f"Change what they say, then: {_next_turn(path)}")
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        write_study_file(path, sites, name=name, preset=preset)
        say(quiet, f"Wrote {path}. Change the paths in it, then: {_next(path)}")
        return
    if site and not network:
        raise InputError("--records names the sites, as in MGB=mgb.csv; leave --site out.")
    from mmlca.study.preview import look_at_sites

    by_site, people = _by_site(records, "--records"), _by_site(patients, "--patients")
    tests = _by_site(labs, "--labs")
    files = [f for table in (by_site, people, tests) for part in table.values() for f in part]
    keep_inputs([path], [*files, map_file(drugs), drug_names])
    kept = network and path.exists() and not force
    known = _agreed_map(path) if kept and drugs is None else chosen_map(drugs, preset)
    shared_options = {"drugs": known, "drug_names": drug_names}
    options: dict[str, dict[str, Any]] = {k: {"": v} for k, v in shared_options.items() if v}
    options |= {key: _values(texts) for key, texts in reading.items()}
    options |= {key: _roles(texts, key) for key, texts in tables.items() if texts}
    if file_column:
        options["file_columns"] = {"": by_file(file_column)}
    with working("Reading", quiet=quiet):
        looks = look_at_sites(by_site, people, tests, options, path.parent, preset)
    read = {site: look for site, look in looks.items() if look.records is not None}
    say(quiet, *(f"--- {site}\n{look.preview()}\n" for site, look in read.items()))
    unread = {site: look.problems for site, look in looks.items() if look.records is None}
    if unread:
        problems = " ".join(f"{site}: {text}" for site, part in unread.items() for text in part)
        raise InputError(f"{path} was not written, because some files cannot be read. {problems}")
    path.parent.mkdir(parents=True, exist_ok=True)
    shared = {"drugs": map_file(drugs), "drug_names": drug_names}
    relative = {k: Path(os.path.relpath(f, path.parent)).as_posix() for k, f in shared.items() if f}
    if known is not None:
        relative.setdefault("drugs", known)
    if network:
        own = {"drug_names": relative.pop("drug_names")} if drug_names else {}
        places: dict[str, Look | None] = {
            s: replace(look, settings={**own, **look.settings}) for s, look in looks.items()
        }
        places |= {s: None for s in site or () if s not in places}
        written = _write_network(path, places, not kept, force, name, preset, relative)
    else:
        write_study_file(
            path,
            {site: look.settings for site, look in looks.items()},
            name=name,
            preset=preset,
            records=relative,
            notes={site: look.notes() for site, look in looks.items()},
        )
        written = [f"Wrote {path}."]
    empty = {site: look.problems for site, look in looks.items() if look.sequences is None}
    if empty:
        problems = " ".join(f"{site}: {text}" for site, part in empty.items() for text in part)
        raise InputError(f"wrote {path}, but its rules leave no sequences. {problems}")
    then = _next_turn(path) if network else _next(path)
    say(quiet, *written, f"Look through what was written, then: {then}")


def _write_network(
    path: Path,
    places: Mapping[str, Look | None],
    new: bool,
    force: bool,
    name: str,
    preset: str | None,
    records: Mapping[str, Any],
) -> list[str]:
    """The study file of hospitals that exchange files, unless it is kept, and site files.

    Site files are for the sites whose records are known, or else for all. Returns what was done.
    """
    from mmlca.study.study_file import read_study, write_site_file, write_study_file

    if not new:
        known = read_study(path, files=False).sites
        strange = [site for site in places if site not in known]
        if strange:
            raise InputError(
                f"{path} has no site {strange[0]!r}; it has {', '.join(known)}. Use the name that "
                "was agreed on, or replace the file with --force."
            )
    here = [site for site, look in places.items() if look is not None] or list(places)
    files = {
        site: path.with_name("site.toml" if len(here) == 1 else f"site_{site}.toml")
        for site in here
    }
    taken = [file for file in files.values() if file.exists() and not force]
    if taken:
        raise InputError(f"{taken[0]} exists; move it away, or replace it with --force.")
    path.parent.mkdir(parents=True, exist_ok=True)
    if new:
        write_study_file(
            path, list(places), name=name, preset=preset, records=records, network=True
        )
    for site, file in files.items():
        look = places[site]
        settings, notes = (None, []) if look is None else (look.settings, look.notes())
        write_site_file(file, site, settings, notes=notes)
    did = f"Wrote {path}, which is for all hospitals and the centre." if new else f"Kept {path}."
    return [did, *(f"Wrote {file}, which stays at {site}." for site, file in files.items())]


def _agreed_map(path: Path) -> str | None:
    """The drug map of a study file that exists."""
    from mmlca.study.study_file import read_study

    drugs = read_study(path, files=False).records.drugs
    return drugs if drugs is None or drugs in MAPS else str(path.parent / drugs)


def _values(texts: list[str]) -> dict[str, str]:
    """What options such as --patient-column MGB=PatNr say, by site; "" stands for all sites.

    >>> _values(["MGB=PatNr", "patient_id"])
    {'MGB': 'PatNr', '': 'patient_id'}
    """
    values = {}
    for text in texts:
        site, _, value = text.rpartition("=")
        values[site.strip()] = value
    return values


def _roles(texts: list[str], name: str) -> dict[str, dict[str, str]]:
    """What options such as --labs-column MGB=value=Wert say, by site and role.

    >>> _roles(["value=Wert", "MGB=value=result"], "labs_columns")
    {'': {'value': 'Wert'}, 'MGB': {'value': 'result'}}
    """
    named: dict[str, dict[str, str]] = {}
    for text in texts:
        *site, role, column = text.split("=") if "=" in text else ["", text]
        if len(site) > 1 or not (role.strip() and column):
            raise InputError(
                f"{as_option(name, None)} takes what a column is and its name, as in "
                f"patient=PatNr, or for one site MGB=patient=PatNr; found {text!r}."
            )
        named.setdefault("".join(site).strip(), {})[role.strip()] = column
    return named


def _next(path: Path) -> str:
    return f"mmlca study run {path} --out results"


def _next_turn(path: Path) -> str:
    return f"mmlca site run {path} {path.with_name('site.toml')}"


def _by_site(texts: list[str] | None, option: str) -> dict[str, list[Path]]:
    """The files of options such as --records MGB=mgb.csv, by site; "" where none is named."""
    from ehr_prep.files import files_of
    from font.files import check_regular

    files: dict[str, list[Path]] = {}
    for text in texts or []:
        site, sign, file = text.partition("=")
        if not sign or Path(text).exists():
            site, file = "", text
        for path in files_of(file.strip()):
            if not path.is_file():
                raise InputError(
                    f"there is no file {str(path)!r} ({option} {text}); correct the path, or write "
                    "the site and the file as in MGB=mgb.csv."
                )
            check_regular(path)
            files.setdefault(site.strip(), []).append(path)
    return files


@study_app.command("run")
def study_run(
    study_file: StudyArgument,
    out: Out = Path("results"),
    no_progress: NoProgress = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run a study: tables, figures and a report.

    An interrupted run goes on where it stopped, and finished steps are not repeated.
    """
    from mmlca.study.study_file import read_study

    _run(read_study(study_file), out, no_progress, quiet, as_json)


@study_app.command("sensitivity")
def study_sensitivity(
    study_file: StudyArgument,
    out: Out = Path("sensitivity"),
    no_progress: NoProgress = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Repeat a study under other choices, and see what changes.

    The choices under [sensitivity] in the study file are tried one at a time, or all combined.
    """
    from mmlca.study.sensitivity import run_sensitivity
    from mmlca.study.study_file import read_study

    study = read_study(study_file)
    calm = no_progress or quiet or as_json
    with working("Reading", quiet=calm, resumes=True) as show, spelled(as_key):
        content = run_sensitivity(study, out, progress=show)
    if as_json:
        typer.echo(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        files = "sensitivity.csv, numbers.csv, ranges.csv and sensitivity.png"
        say(quiet, *content["summary"], f"\nWrote {files} to {out}.")


def _run(
    study: Study,
    out: Path,
    no_progress: bool,
    quiet: bool,
    as_json: bool,
    processes: Processes | None = None,
) -> None:
    from mmlca.study.run import run_study

    calm = no_progress or quiet or as_json
    with working("Reading", quiet=calm, resumes=True) as show, spelled(as_key):
        content = run_study(study, out, progress=show, processes=processes)
    if as_json:
        kept = ("study", "synthetic", "sites", "n_clusters", "summary", "careful", "numbers")
        numbers = {name: content[name] for name in kept} | {"report": str(out / "report.html")}
        typer.echo(json.dumps(numbers, indent=2, ensure_ascii=False))
    else:
        say(
            quiet,
            *content["summary"],
            f"\nThe report is {out / 'report.html'}; tables and figures are beside it. The folders "
            f"{out / 'patients'} and {out / 'models'} hold patients' ids and exact numbers: keep "
            "them inside the hospital.",
        )


# --- the simulation study ---------------------------------------------------------------------


def simulate(
    data: Annotated[
        Literal["gaussian", "chains"],
        typer.Option(help="Gaussian mixtures with K-means at each site, or sequences."),
    ] = "gaussian",
    settings: Annotated[
        str, typer.Option(help="Among homogeneous, imbalanced, contaminated.")
    ] = "homogeneous,imbalanced,contaminated",
    sites: Annotated[str, typer.Option(help="Numbers of sites.")] = "5,10,50",
    variances: Annotated[
        str, typer.Option(help="Variances of the noise of gaussian data.")
    ] = "0.05,0.1,0.3",
    quarters: Annotated[str, typer.Option(help="Lengths of the sequences of chains.")] = "8,16,32",
    replicates: Annotated[
        int, typer.Option(min=2, help="Smallest number of replicates of each combination.")
    ] = 100,
    precision: Annotated[
        float | None,
        typer.Option(
            help="Add replicates until all standard errors are at most this, for the first n_init."
        ),
    ] = None,
    n_init: Annotated[
        str,
        typer.Option(help="Numbers of random starts of local models; each is a separate study."),
    ] = "10,1",
    seed: Seed = 1,
    n_jobs: NJobs = 1,
    out: Out = Path("simulation"),
    resume: Annotated[
        bool, typer.Option(help="Keep replicates that are already in the folder.")
    ] = True,
    quiet: Quiet = False,
) -> None:
    """Compare the ensemble with its competitors on simulated sites.

    Writes results.csv, one row per replicate and method, and table.csv, means and standard errors.
    An interrupted run continues where it stopped. Options that take several values separate them by
    commas.
    """
    import pandas as pd

    from font.files import atomic_write, hold
    from font.simulation.run import grid_scenarios, run_simulation, simulation_table
    from font.simulation.sources import GaussianSource

    source: Any = GaussianSource()
    levels: list[Any] = _list(variances, float, "--variances")
    if data == "chains":
        from mmlca.federation.chain_sites import ChainSource

        source, levels = ChainSource(), _list(quarters, int, "--quarters")
    grid = {
        "setting": _list(settings, str, "--settings"),
        "n_sites": _list(sites, int, "--sites"),
        source.axis: levels,
    }
    grid_scenarios(grid, source)  # checks the grid before any work
    results: dict[int, Any] = {}
    with hold(out), working("Starting", quiet=quiet, resumes=True) as show:

        def advance(text: str) -> Callable[[int, int], None]:
            return lambda done, total: show(text, done / total)

        for n in _list(n_init, int, "--n-init"):
            results[n] = run_simulation(
                grid,
                replicates,
                n_init=n,
                precision=precision if not results else None,
                source=source,
                progress=advance(_starts(n)),
                seed=seed,
                n_jobs=n_jobs,
                folder=out / "scenarios",
                resume=resume,
            )
        tables = {n: simulation_table(part) for n, part in results.items()}
        flat = {
            n: table.set_axis(table.columns.map(" ".join), axis=1) for n, table in tables.items()
        }
        whole = {
            "results.csv": pd.concat(results, names=["n_init"]).reset_index("n_init"),
            "table.csv": pd.concat(flat, names=["n_init"]).reset_index(),
        }
        for name, table in whole.items():
            atomic_write(out / name, table.to_csv(index=False).encode())
    lines = []
    for n, table in tables.items():
        means, se = (table.xs(what, axis=1, level=1) for what in ("mean", "se"))
        lines.append(
            f"Mean adjusted Rand index, local models from {_starts(n)}; the largest standard error "
            f"is {se.max().max():.3f}."
        )
        means = means.rename_axis(columns=None)
        lines.append(means.to_string(float_format="{:.3f}".format))
    say(quiet, "\n\n".join(lines), wrote([out / name for name in whole]))


def _starts(n: int) -> str:
    return "1 start" if n == 1 else f"{n} starts"


def _list(text: str, convert: Callable[[str], Any], option: str) -> list[Any]:
    try:
        return list(dict.fromkeys(convert(part.strip()) for part in text.split(",")))
    except ValueError:
        raise InputError(
            f"{option} takes values separated by commas, such as 5,10; found {text!r}."
        ) from None
