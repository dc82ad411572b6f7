"""The command `mmlca simulate`: the ensemble and its competitors on simulated sites."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer


def simulate(
    data: Annotated[
        str, typer.Option(help="gaussian (K-means at each site) or chains (sequences).")
    ] = "gaussian",
    settings: Annotated[
        str, typer.Option(help="Among homogeneous, imbalanced, contaminated.")
    ] = "homogeneous,imbalanced,contaminated",
    sites: Annotated[str, typer.Option(help="Numbers of sites.")] = "5,10,50",
    variances: Annotated[str, typer.Option(help="Of the noise, for gaussian.")] = "0.05,0.1,0.3",
    quarters: Annotated[str, typer.Option(help="Lengths of sequences, for chains.")] = "8,16,32",
    replicates: Annotated[int, typer.Option(min=2, help="In each cell, at least.")] = 100,
    precision: Annotated[
        float | None,
        typer.Option(
            help="Add replicates until standard errors are so small, with the first of --starts."
        ),
    ] = None,
    starts: Annotated[str, typer.Option(help="Starts of local models: a study for each.")] = "10,1",
    extensions: Annotated[
        bool, typer.Option(help="Also measure the extensions, for gaussian.")
    ] = True,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same result.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Processes; they do not change results.")] = 1,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder.")] = Path("simulation"),
    resume: Annotated[bool, typer.Option(help="Keep replicates that are in the folder.")] = True,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Compare the ensemble with its competitors on simulated sites.

    Writes tidy results, tables, claims beside numbers, and figures. A run that was stopped takes
    up where it was: finished replicates are in the folder's `cells`.
    """
    from font.gaussian_sites import GaussianSource
    from font.simulation import grid_cells, run_simulation
    from font.simulation_extensions import run_extensions
    from font.simulation_report import simulation_text, write_simulation

    if data not in ("gaussian", "chains"):
        raise ValueError(f"--data takes gaussian or chains, found {data!r}.")
    source: Any = GaussianSource()
    levels: list[Any] = _list(variances, float, "--variances")
    if data == "chains":
        from mmlca.chain_sites import ChainSource

        source, levels = ChainSource(), _list(quarters, int, "--quarters")
    grid = {
        "setting": _list(settings, str, "--settings"),
        "n_sites": _list(sites, int, "--sites"),
        source.axis: levels,
    }
    grid_cells(grid, source)  # what is wrong with it is said before any work
    common: dict[str, Any] = {
        "seed": seed,
        "n_jobs": jobs,
        "folder": out / "cells",
        "resume": resume,
    }
    results: dict[int, Any] = {}
    for n_starts in _list(starts, int, "--starts"):
        with _progress(f"{n_starts} start{'s' * (n_starts != 1)}", quiet) as advance:
            results[n_starts] = run_simulation(
                grid,
                replicates,
                n_starts=n_starts,
                precision=precision if not results else None,
                source=source,
                progress=advance,
                **common,
            )
    more = None
    if extensions and data == "gaussian":
        with _progress("extensions", quiet) as advance:
            more = run_extensions(None, replicates, progress=advance, **common)
    written = write_simulation(results, out, more)
    if not quiet:
        typer.echo(simulation_text(results, more))
        typer.echo(f"Wrote {', '.join(path.name for path in written)} to {out}.")


def _list(text: str, kind: Callable[[str], Any], option: str) -> list[Any]:
    try:
        return list(dict.fromkeys(kind(part.strip()) for part in text.split(",")))
    except ValueError:
        raise ValueError(
            f"{option} takes values separated by commas, such as 5,10; found {text!r}."
        ) from None


@contextmanager
def _progress(what: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True))
    task = bar.add_task(what, total=None)
    with nullcontext() if quiet else bar:
        yield lambda done, total: bar.update(task, completed=done, total=total)
