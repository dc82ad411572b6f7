"""Commands for whole studies: from a study file, or from a made-up cohort."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from mmlca.study.config import Study

study_app = typer.Typer(
    name="study",
    help="A whole study: init, run, sensitivity.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

StudyFile = Annotated[Path, typer.Argument(help="The study file.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.")]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="No moving display.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Json = Annotated[bool, typer.Option("--json", help="Print the numbers as JSON, nothing else.")]


@study_app.command("init")
def study_init(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("study.toml"),
    site: Annotated[
        list[str] | None, typer.Option(help="Name of a site; once for each. Default: MGB, VA.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the study.")] = "Treatment courses",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a commented study file to start from."""
    from mmlca.study.config import write_study_file

    if path.exists() and not force:
        raise ValueError(f"{path} is already there; choose another name, or replace it by --force.")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_study_file(path, site or ("MGB", "VA"), name=name)
    typer.echo(f"Wrote {path}. Change the paths in it, then: mmlca study run {path} --out results")


@study_app.command("run")
def study_run(
    study: StudyFile,
    out: Out = Path("results"),
    no_progress: NoProgress = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run a study: tables, figures and a report.

    An interrupted run goes on where it stopped. Nothing is done twice.
    """
    from mmlca.study.config import read_study

    _run(read_study(study), out, no_progress, quiet, as_json)


@study_app.command("sensitivity")
def study_sensitivity(
    study: StudyFile,
    out: Out = Path("sensitivity"),
    no_progress: NoProgress = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Repeat a study under other choices, and see what changes.

    The choices are those of [sensitivity] in the study file: one at a time, or all combinations.
    """
    from mmlca.study.config import read_study
    from mmlca.study.sensitivity import run_sensitivity

    chosen = read_study(study)
    with _display(no_progress or quiet or as_json) as progress:
        found = run_sensitivity(chosen, out, progress=progress)
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
    elif not quiet:
        typer.echo("\n".join(found["summary"]))
        typer.echo(
            f"\nWrote sensitivity.csv, numbers.csv, ranges.csv and sensitivity.png to {out}."
        )


def demo(
    out: Out = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, help="Of the cohort and of the analysis.")] = 1,
    scale: Annotated[float, typer.Option(min=0.02, max=20, help="Size of the cohort.")] = 1.0,
    no_progress: NoProgress = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Make up a rheumatoid arthritis cohort of two hospitals and run the study on it.

    The patients are synthetic. The study file is left beside the data, to be changed and run again.
    """
    from ehr_prep.synthetic import ra_cohort
    from mmlca.study.config import read_study, write_study_file

    folder = out / "cohort"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        cohort = ra_cohort(seed, scale)
        cohort.write(folder)
        name = "Rheumatoid arthritis medication study, synthetic cohort"
        write_study_file(folder / "study.toml", tuple(cohort), name=name, seed=seed, synthetic=True)
    except OSError as error:
        raise OSError(
            f"cannot write to {folder} ({error.strerror}); choose another --out."
        ) from None
    _run(read_study(folder / "study.toml"), out, no_progress, quiet, as_json)


def _run(study: Study, out: Path, no_progress: bool, quiet: bool, as_json: bool) -> None:
    from mmlca.study.run import run_study

    with _display(no_progress or quiet or as_json) as progress:
        found = run_study(study, out, progress=progress)
    if as_json:
        kept = ("study", "synthetic", "sites", "n_clusters", "summary", "careful", "numbers")
        content = {name: found[name] for name in kept} | {"report": str(out / "report.html")}
        typer.echo(json.dumps(content, indent=2, ensure_ascii=False))
    elif not quiet:
        typer.echo("\n".join(f"{text}" for text in found["summary"]))
        typer.echo(
            f"\nThe report is {out / 'report.html'}; tables, figures and models are beside it. The "
            f"folder {out / 'patients'} holds patients' ids: keep it inside the hospital."
        )


@contextmanager
def _display(off: bool) -> Iterator[Callable[[str, float], Any] | None]:
    """A moving line on standard error that says what is being done; Ctrl-C ends in a sentence."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(24), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    console = Console(stderr=True)
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task("Reading", total=1.0)
    try:
        with nullcontext() if off or not console.is_terminal else bar:
            yield lambda text, share: bar.update(task, completed=share, description=text)
    except KeyboardInterrupt:
        typer.echo(
            "mmlca: stopped; the same command goes on from the last finished step.", err=True
        )
        raise typer.Exit(1) from None
