"""The command line. Commands parse, call the library and print; they compute nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmlca import __version__
from mmlca.centre_cli import centre_app, exchange_app
from mmlca.federation_cli import site_app
from mmlca.simulate_cli import simulate
from mmlca.study_cli import demo, study_app

if TYPE_CHECKING:
    import pandas as pd

    from mmlca.sequences import Sequences

app = typer.Typer(
    name="mmlca",
    help="Mixture-Markov latent class analysis of treatment sequences, federated across hospitals.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help starts twice as fast
)

for _group in (study_app, site_app, centre_app, exchange_app):
    app.add_typer(_group)
app.command()(simulate)
app.command("demo")(demo)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mmlca {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


Files = Annotated[
    list[Path], typer.Argument(help="Sequences, one .csv or .parquet file a site.", exists=True)
]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same result.")]
Starts = Annotated[int, typer.Option(min=1, help="How hard to search.")]
States = Annotated[
    str | None, typer.Option(help="States in their order, separated by commas, if a file needs it.")
]
Jobs = Annotated[int, typer.Option(min=1, help="Threads; they do not change the result.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


@app.command()
def fit(
    sequences: Annotated[
        Path, typer.Argument(help="Sequences, a .csv or .parquet file.", exists=True)
    ],
    classes: Annotated[int, typer.Option("--classes", "-k", min=1, help="Number of classes.")],
    out: Out = Path("fit"),
    seed: Seed = 1,
    starts: Starts = 40,
    prior: Annotated[
        float, typer.Option(min=0, help="Pseudo-count; 0: maximum likelihood.")
    ] = 1e-4,
    states: States = None,
    jobs: Jobs = 1,
    quiet: Quiet = False,
) -> None:
    """Find latent classes of sequences.

    A mixture of Markov chains: the model, its summary and every patient's class.
    """
    from rich.console import Console

    from mmlca.model import MixtureMarkov

    data = _read(sequences, states)
    waiting = Console(stderr=True, quiet=quiet).status("Fitting (the first fit also compiles)")
    with waiting, _warnings_as_notes(quiet):
        model = MixtureMarkov(classes, n_init=starts, prior=prior, seed=seed, n_jobs=jobs).fit(data)
    out.mkdir(parents=True, exist_ok=True)
    model.save(out / "model.json")
    summary = model.summary()
    _write(summary.reset_index(), out / "summary.csv")
    _write(model.posterior_, out / "patients.csv")
    _write(model.starts_, out / "starts.csv")
    if not quiet:
        typer.echo(f"{data}\n")
        typer.echo(summary.to_string(float_format="{:.3f}".format))
        typer.echo(
            f"\nlog-likelihood {model.loglik_:,.2f}, BIC {model.bic():,.2f}, entropy R² "
            f"{model.entropy():.3f}; the maximum was reached by {model.n_replicated_} of the "
            "starts that were followed."
        )
        typer.echo(f"Wrote model.json, summary.csv, patients.csv and starts.csv to {out}.")


@app.command()
def select(
    sequences: Files,
    classes: Annotated[
        str, typer.Option("--classes", "-k", help="Numbers to try, such as 1-8 or 2,3,5.")
    ] = "1-8",
    criterion: Annotated[str, typer.Option(help="bic, aic, sabic or icl.")] = "bic",
    count: Annotated[
        str, typer.Option(help="What BIC counts: sequences, or timepoints as seqHMM does.")
    ] = "sequences",
    out: Out = Path("selection"),
    seed: Seed = 1,
    starts: Starts = 40,
    states: States = None,
    jobs: Jobs = 1,
    quiet: Quiet = False,
) -> None:
    """Choose the number of classes.

    Fits each number at each site and compares; the sites vote.
    """
    from matplotlib.figure import Figure
    from rich.console import Console
    from rich.progress import Progress

    from mmlca.files import atomic
    from mmlca.plots import plot_selection
    from mmlca.selection import select_n_classes, vote

    ks = _numbers(classes)
    names = [path.stem for path in sequences]
    if len(set(names)) != len(names):
        raise ValueError(f"two files have the same name ({', '.join(names)}); it names the site.")
    data = {name: _read(path, states) for name, path in zip(names, sequences, strict=True)}
    bar = Progress(console=Console(stderr=True), transient=True)
    with nullcontext() if quiet else bar, _warnings_as_notes(quiet):
        task = bar.add_task("Fitting", total=len(ks) * len(data))
        table = select_n_classes(
            data if len(data) > 1 else data[names[0]],
            ks,
            seed,
            criterion=criterion,  # type: ignore[arg-type]
            n=count,  # type: ignore[arg-type]
            progress=lambda site, k: bar.update(task, advance=1, description=f"{site} K = {k}"),
            n_init=starts,
            n_jobs=jobs,
        )
    out.mkdir(parents=True, exist_ok=True)
    _write(table, out / "selection.csv")
    figure = Figure(figsize=(3.5, 2.8), layout="constrained")
    plot_selection(table, criterion, ax=figure.subplots())
    with atomic(out / "selection.png") as file:
        figure.savefig(file, dpi=300)
    if not quiet:
        typer.echo(table.to_string(index=False, float_format="{:.3f}".format))
        chosen = vote(table)
        typer.echo(f"\n{criterion.upper()} chooses {chosen} classes.")
        typer.echo(f"Wrote selection.csv and selection.png to {out}.")


@app.command()
def prep(
    records: Annotated[
        Path, typer.Argument(help="Medication records, .csv, .csv.gz or .parquet.", exists=True)
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Sequences, .csv or .parquet.")],
    patients: Annotated[
        Path | None, typer.Option(help="Patients' table: follow-up end, birth date, …", exists=True)
    ] = None,
    drugs: Annotated[
        Path | None, typer.Option(help="Your own map: a .csv of name and class.", exists=True)
    ] = None,
    patient_column: Annotated[str | None, typer.Option(help="Name of the column.")] = None,
    date_column: Annotated[str | None, typer.Option(help="Name of the column.")] = None,
    drug_column: Annotated[str | None, typer.Option(help="Name of the column.")] = None,
    date_format: Annotated[str | None, typer.Option(help="Such as %d/%m/%Y.")] = None,
    since: Annotated[str, typer.Option(help="First treatment on or after.")] = "2008-01-01",
    months: Annotated[int, typer.Option(min=1, help="Length of a window.")] = 3,
    windows: Annotated[int, typer.Option(min=1, help="At most so many.")] = 16,
    by: Annotated[str, typer.Option(help="Count records or days.")] = "records",
    ties: Annotated[str, typer.Option(help="first, latest or previous.")] = "first",
    impute: Annotated[
        str, typer.Option(help="carry_forward, carry_forward_max or missing.")
    ] = "carry_forward",
    strict: Annotated[bool, typer.Option(help="Odd records are errors.")] = False,
    quiet: Quiet = False,
) -> None:
    """Turn medication records into sequences.

    Prints and writes a flow table that accounts for every record and patient dropped.
    """
    from ehr_prep.build import build_sequences
    from ehr_prep.drugs import RA_DRUGS, drug_map, drug_report
    from ehr_prep.records import read_records

    read = read_records(
        records,
        RA_DRUGS if drugs is None else drug_map(drugs),
        patient=patient_column,
        date=date_column,
        drug=drug_column,
        date_format=date_format,
        patients=patients,
        strict=strict,
    )
    built = build_sequences(
        read,
        first_on_or_after=since,
        months=months,
        max_windows=windows,
        by=by,
        ties=ties,
        impute=impute,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    written = built.write_all(out)
    if not quiet:
        typer.echo(built.flow.to_string(index=False))
        if len(built.issues):
            typer.echo(f"\nOdd records:\n{built.issues.to_string(index=False)}")
        unmapped = drug_report(read)
        if len(unmapped):
            typer.echo(f"\nDrugs not in the map:\n{unmapped.head(10).to_string(index=False)}")
        typer.echo(
            f"\n{built}\n\nWrote {', '.join(path.name for path in written)} to {out.parent}."
        )


def _read(path: Path, states: str | None) -> Sequences:
    from mmlca.sequences import Sequences

    return Sequences.read(path, None if states is None else states.split(","))


def _write(table: pd.DataFrame, path: Path) -> None:
    from mmlca.files import atomic

    with atomic(path) as file:
        table.to_csv(file, index=False, lineterminator="\n")


def _numbers(text: str) -> list[int]:
    """ "1-4,6" → 1, 2, 3, 4, 6."""
    found: list[int] = []
    try:
        for part in text.split(","):
            low, _, high = part.partition("-")
            found += range(int(low), int(high or low) + 1)
    except ValueError:
        raise ValueError(f"--classes takes numbers such as 1-8 or 2,3,5, found {text!r}.") from None
    return found


@contextmanager
def _warnings_as_notes(quiet: bool) -> Iterator[None]:
    """Warnings as lines on standard error, after the work."""
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in caught if not quiet else ():
        typer.echo(f"note: {warning.message}", err=True)


def main() -> None:
    """Run a command. What is wrong with the input is one sentence on stderr and exit code 2."""
    try:
        app()
    except (ValueError, TypeError, OSError) as error:
        typer.echo(f"mmlca: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
