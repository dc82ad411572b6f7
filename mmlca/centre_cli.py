"""Commands of the centre, and of anyone who wants to know what an exchange file holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mmlca.federation_cli import PLAIN, Out, Quiet, Study, say, wrote

centre_app = typer.Typer(name="centre", help="What the centre does: combine.", **PLAIN)
exchange_app = typer.Typer(name="exchange", help="Look at exchange files.", **PLAIN)


@centre_app.command("combine")
def centre_combine(
    files: Annotated[
        list[Path], typer.Argument(help="Model and labels files of all sites.", exists=True)
    ],
    study: Study,
    clusters: Annotated[
        int | None,
        typer.Option("--clusters", "-k", min=1, help="Number of clusters; else the sites' vote."),
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="spectral (if not said), centred, equal or sparse.")
    ] = None,
    distance: Annotated[
        str | None, typer.Option(help="euclidean (if not said), hellinger or total-variation.")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="The last step: kmeans (if not said), ward, …")
    ] = None,
    expect: Annotated[
        str | None,
        typer.Option(help="Sites that should take part, with commas; the report names the absent."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="1 if not said.")] = None,
    out: Out = Path("to_sites"),
    quiet: Quiet = False,
) -> None:
    """Combine all sites' models and counts: the ensemble file for all sites, and a report.

    With a study file, its seed, its [ensemble] and its sites hold, unless options say otherwise.
    """
    from font.exchange import read_labels, read_models, write_ensemble
    from font.files import atomic_write
    from font.report import Absent, round_report
    from font.rounds import combine
    from font.schema import read_file
    from mmlca.cli import _warnings_as_notes
    from mmlca.federation import SOFTWARE

    said: dict[str, Any] = {
        "n_clusters": clusters,
        "weights": weights,
        "distance": distance,
        "method": method,
        "seed": seed,
    }
    wanted = [name.strip() for name in (expect or "").split(",") if name.strip()]
    settings = {name: value for name, value in said.items() if value is not None}
    if study.endswith(".toml"):
        from mmlca.study.config import read_study

        read = read_study(study, files=False)
        study, wanted = read.name, wanted or list(read.sites)
        settings = {**read.ensemble.model_dump(), "seed": read.seed, **settings}
        if isinstance(read.classes.number, int):
            settings.setdefault("n_clusters", read.classes.number)
    kinds = {path: read_file(path, study=study).kind for path in files}
    odd = [str(path) for path, kind in kinds.items() if kind == "ensemble"]
    if odd:
        raise ValueError(f"{odd[0]} is an ensemble already; give model and labels files only.")
    models = read_models([p for p, kind in kinds.items() if kind == "model"], study=study)
    counts = [
        read_labels(path, models, study=study) for path, kind in kinds.items() if kind == "labels"
    ]
    if not counts:
        raise ValueError("there is no labels file; each site makes one with `mmlca site label`.")
    with _warnings_as_notes(quiet):
        result, patterns = combine(models, counts, **settings)
    path = out / "ensemble.json"
    heard = {model.site for model in models.values()}
    absent = [Absent(name, "fit", "no model came") for name in wanted if name not in heard]
    text = round_report(result, models, patterns, study=study, absent=absent)
    write_ensemble(path, result, models, study=study, software=SOFTWARE)
    atomic_write(out / "report.md", text.encode())
    say(
        quiet,
        text,
        wrote([path, out / "report.md"]),
        "Withheld: nothing more; the files hold no patient and no pattern that its site withheld.",
        f"Next: send {path.name} to all sites; each runs `mmlca site assign`.",
    )


@exchange_app.command("check")
def exchange_check(
    file: Annotated[Path, typer.Argument(help="A model, labels or ensemble file.", exists=True)],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")] = False,
    html: Annotated[
        Path | None, typer.Option(help="Also write a page that shows everything in the file.")
    ] = None,
) -> None:
    """Say in plain words what a file contains and what it reveals."""
    import json

    from font.files import atomic_write
    from font.plain_words import describe_file, explain, explain_page

    if as_json:
        typer.echo(json.dumps(describe_file(file), ensure_ascii=False, indent=1))
    else:
        typer.echo(explain(file))
    if html is not None:
        atomic_write(html, explain_page(file).encode())
        typer.echo(f"Wrote {html}.", err=as_json)
