"""The command `mmlca simulate`: the ensemble and its competitors on simulated sites."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from font.errors import InputError
from mmlca.cli.display import say, working, wrote
from mmlca.cli.options import NJobs, Out, Quiet, Seed


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
    from font.files import hold
    from font.simulation.run import grid_scenarios, run_simulation
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
            text = f"{n} random {'start' if n == 1 else 'starts'}"
            results[n] = run_simulation(
                grid,
                replicates,
                n_init=n,
                precision=precision if not results else None,
                source=source,
                progress=advance(text),
                seed=seed,
                n_jobs=n_jobs,
                folder=out / "scenarios",
                resume=resume,
            )
        written = _write(results, out)
    say(quiet, _means(results), wrote(written))


def _write(results: dict[int, Any], out: Path) -> list[Path]:
    import pandas as pd

    from font.files import atomic_write
    from font.simulation.run import simulation_table

    rows, tables = [], []
    for n, part in results.items():
        rows.append(part.assign(n_init=n))
        table = simulation_table(part)
        table.columns = table.columns.map(" ".join)
        tables.append(table.reset_index().assign(n_init=n))
    written = []
    for name, parts in (("results.csv", rows), ("table.csv", tables)):
        whole = pd.concat(parts, ignore_index=True)
        whole = whole[["n_init", *whole.columns.drop("n_init")]]
        atomic_write(out / name, whole.to_csv(index=False).encode())
        written.append(out / name)
    return written


def _means(results: dict[int, Any]) -> str:
    """The table of means for each number of starts, as a text."""
    from font.simulation.run import simulation_table

    parts = []
    for n, part in results.items():
        table = simulation_table(part)
        means, se = (table.xs(what, axis=1, level=1) for what in ("mean", "se"))
        parts.append(
            f"Mean adjusted Rand index, local models from {n} {'start' if n == 1 else 'starts'}; "
            f"the largest standard error is {se.max().max():.3f}."
        )
        parts.append(means.rename_axis(columns=None).to_string(float_format="{:.3f}".format))
    return "\n\n".join(parts)


def _list(text: str, convert: Callable[[str], Any], option: str) -> list[Any]:
    try:
        return list(dict.fromkeys(convert(part.strip()) for part in text.split(",")))
    except ValueError:
        raise InputError(
            f"{option} takes values separated by commas, such as 5,10; found {text!r}."
        ) from None
