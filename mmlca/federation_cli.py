"""Commands for hospitals that work together by exchanging files.

One round is: every site sends its model files to all; every site labels its patients with all
models and sends the counts to the centre; the centre sends the ensemble to all.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmlca import __version__

if TYPE_CHECKING:
    from font.exchange import ModelFile
    from mmlca.model import MixtureMarkov

_PLAIN: dict[str, Any] = {"no_args_is_help": True, "rich_markup_mode": None}
site_app = typer.Typer(name="site", help="What a hospital does: fit, label, assign.", **_PLAIN)
centre_app = typer.Typer(name="centre", help="What the centre does: combine.", **_PLAIN)
exchange_app = typer.Typer(name="exchange", help="Look at exchange files.", **_PLAIN)
_SOFTWARE = f"mmlca {__version__}"

Study = Annotated[str, typer.Option(help="Name of the study; the same at all sites.")]
SiteName = Annotated[str, typer.Option("--site", help="Name of this hospital.")]
Data = Annotated[
    Path, typer.Argument(help="This site's sequences, a .csv or .parquet file.", exists=True)
]
States = Annotated[
    str | None,
    typer.Option(help="States in their order, with commas, as all sites agreed."),
]
MinCount = Annotated[
    int, typer.Option(min=1, help="The smallest number of patients that may show.")
]
Seed = Annotated[int, typer.Option(help="The same seed gives the same result.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


@site_app.command("fit")
def site_fit(
    sequences: Data,
    study: Study,
    site: SiteName,
    classes: Annotated[int, typer.Option("--classes", "-k", min=1, help="Number of classes.")],
    pseudo_sites: Annotated[
        int, typer.Option(min=0, help="Fit so many resamples instead; 0: the patients themselves.")
    ] = 0,
    fraction: Annotated[float, typer.Option(help="Size of a resample, as a share.")] = 0.8,
    also_try: Annotated[
        str | None, typer.Option("--try", help="Also send the BIC of these numbers, such as 1-6.")
    ] = None,
    min_count: MinCount = 11,
    digits: Annotated[int, typer.Option(min=4, max=12, help="Decimals of probabilities.")] = 6,
    states: States = None,
    seed: Seed = 1,
    starts: Annotated[int, typer.Option(min=1, help="How hard to search.")] = 40,
    jobs: Annotated[int, typer.Option(min=1, help="Threads; they do not change the result.")] = 1,
    out: Out = Path("to_all"),
    quiet: Quiet = False,
) -> None:
    """Fit this site's model and write the model files for all sites."""
    from ehr_prep.bootstrap import pseudo_sites as resample
    from font.exchange import write_model
    from font.privacy import row_support
    from font.schema import check_names
    from mmlca.cli import _numbers, _read, _warnings_as_notes
    from mmlca.model import MixtureMarkov
    from mmlca.selection import select_n_classes

    check_names(study, site)
    data = _read(sequences, states)
    parts = {site: data}
    if pseudo_sites:
        parts = resample(parts, n_per_site=pseudo_sites, fraction=fraction, seed=seed)
    settings: dict[str, Any] = {"n_init": starts, "n_jobs": jobs}
    with _warnings_as_notes(quiet):
        models = {
            name: MixtureMarkov(classes, seed=seed, **settings).fit(part)
            for name, part in parts.items()
        }
        bic = {}
        if also_try is not None:
            table = select_n_classes(data, _numbers(also_try), seed, **settings)
            bic = dict(zip(table["classes"], table["bic"], strict=True))
    said: dict[str, Any] = {"study": study, "site": site, "min_count": min_count, "digits": digits}
    said |= {"bic": bic, "software": _SOFTWARE}
    support = {
        name: row_support(part.codes, models[name].predict_proba(part), part.weights)
        for name, part in parts.items()
    }
    for name, model in models.items():  # all are checked before the first is written
        write_model(None, model, name=name, support=support[name], **said)
    paths, n_pooled = [], []
    for name, model in models.items():
        paths.append(out / f"{_file_name(name)}.model.json")
        sent = write_model(paths[-1], model, name=name, support=support[name], **said)
        n_pooled.append(sent.payload["n_pooled_rows"])
    _say(
        quiet,
        f"{data}",
        _wrote(paths),
        f"Withheld: everything but the probabilities (rounded to {digits} decimals) and totals; "
        f"no class has fewer than {min_count} patients, and {sum(n_pooled)} rows of transitions "
        "that rest on fewer were replaced by the average over classes.",
        f"Next: look at each file with `mmlca exchange check`, then send {_them(paths)} to all "
        "sites and the centre; when you have everyone's, run `mmlca site label`.",
    )


@site_app.command("label")
def site_label(
    sequences: Data,
    models: Annotated[list[Path], typer.Argument(help="Model files of all sites.", exists=True)],
    study: Study,
    site: SiteName,
    min_count: MinCount = 11,
    rare: Annotated[
        str,
        typer.Option(help="withhold rare patterns, or merge: count as the nearest common one."),
    ] = "withhold",
    epsilon: Annotated[
        float | None, typer.Option(help="Add noise to the counts for differential privacy.")
    ] = None,
    noise_seed: Annotated[
        int | None, typer.Option(help="Seed of the noise; keep it secret.")
    ] = None,
    states: States = None,
    out: Out = Path("to_centre"),
    quiet: Quiet = False,
) -> None:
    """Label this site's patients with all models and write the counts for the centre."""
    from font.exchange import read_models, write_labels
    from font.labels import LabelPatterns, label
    from font.schema import check_names
    from mmlca.cli import _read

    check_names(study, site)
    files = read_models(models, study=study)
    table = label(_fitted(files), _read(sequences, states))
    patterns = LabelPatterns.from_labels({site: table})
    path = out / f"{_file_name(site)}.labels.json"
    sent = write_labels(
        path,
        patterns,
        files,
        study=study,
        min_count=min_count,
        rare=rare,
        epsilon=epsilon,
        seed=noise_seed,
        software=_SOFTWARE,
    )
    fate = "counted as the nearest common pattern" if sent.n_merged else "left out"
    lines = [
        f"{patterns.n_patients:,} patients labelled by {len(files)} models.",
        _wrote([path]),
        f"Withheld: the patterns of {sent.n_rare:,} patients, shared by fewer than {min_count}; "
        f"these patients are {fate} and get their cluster here, in the end.",
    ]
    if sent.delta is not None:
        lines.append(f"Noise: ε = {epsilon:g}, δ = {sent.delta:.2g}.")
    lines.append(
        f"Next: look at it with `mmlca exchange check {path}`, then send {path.name} to the "
        "centre; keep the model files."
    )
    _say(quiet, *lines)


@site_app.command("assign")
def site_assign(
    ensemble: Annotated[Path, typer.Argument(help="The ensemble file of the centre.", exists=True)],
    sequences: Data,
    study: Study,
    states: States = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Patients and their clusters, a .csv file.")
    ] = Path("clusters.csv"),
    quiet: Quiet = False,
) -> None:
    """Give this site's patients their clusters. The result stays here."""
    from font.exchange import read_ensemble
    from font.labels import label
    from mmlca.cli import _read, _write

    result = read_ensemble(ensemble, study=study)
    labels = label(_fitted(result.models), _read(sequences, states))
    table = result.ensemble.confidence(labels)
    table.index.name = "id"
    out.parent.mkdir(parents=True, exist_ok=True)
    _write(table.reset_index(), out)
    sizes = table["cluster"].value_counts().sort_index()
    _say(
        quiet,
        *(f"cluster {k}: {n:,} patients" for k, n in sizes.items()),
        f"Wrote {out}.",
        "Withheld: everything; this file names patients, so keep it at the site.",
    )


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
    weights: Annotated[str, typer.Option(help="spectral, centred, equal or sparse.")] = "spectral",
    distance: Annotated[
        str, typer.Option(help="euclidean, hellinger or total-variation.")
    ] = "euclidean",
    method: Annotated[str, typer.Option(help="The last step, such as kmeans or ward.")] = "kmeans",
    seed: Seed = 1,
    out: Out = Path("to_sites"),
    quiet: Quiet = False,
) -> None:
    """Combine all sites' models and counts: the ensemble file for all sites, and a report."""
    from font.ensemble import Ensemble
    from font.exchange import atomic_write, read_labels, read_models, write_ensemble
    from font.labels import LabelPatterns
    from font.schema import read_file
    from mmlca.cli import _warnings_as_notes

    kinds = {path: read_file(path, study=study).kind for path in files}
    odd = [str(path) for path, kind in kinds.items() if kind == "ensemble"]
    if odd:
        raise ValueError(f"{odd[0]} is an ensemble already; give model and labels files only.")
    models = read_models([p for p, kind in kinds.items() if kind == "model"], study=study)
    parts = [
        read_labels(path, models, study=study)
        for path, kind in sorted(kinds.items())
        if kind == "labels"
    ]
    if not parts:
        raise ValueError("there is no labels file; each site makes one with `mmlca site label`.")
    patterns = LabelPatterns.merge(sorted(parts, key=lambda part: str(part.sites[0])))
    n_clusters = _vote(models) if clusters is None else clusters
    with _warnings_as_notes(quiet):
        result = Ensemble(
            n_clusters, weights=weights, distance=distance, method=method, seed=seed
        ).fit(models, patterns)
    path = out / "ensemble.json"
    write_ensemble(path, result, models, study=study, software=_SOFTWARE)
    silent = sorted({model.site for model in models.values()} - {str(s) for s in patterns.sites})
    report = result.summary() + "\n"
    if silent:
        report += f"No counts came from {', '.join(silent)}; their models took part all the same.\n"
    atomic_write(out / "report.txt", report.encode())
    _say(
        quiet,
        report,
        _wrote([path, out / "report.txt"]),
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

    from font.exchange import atomic_write
    from font.explain import describe_file, explain, explain_page

    if as_json:
        typer.echo(json.dumps(describe_file(file), ensure_ascii=False, indent=1))
    else:
        typer.echo(explain(file))
    if html is not None:
        atomic_write(html, explain_page(file).encode())
        typer.echo(f"Wrote {html}.", err=as_json)


def _fitted(files: Mapping[str, ModelFile]) -> dict[str, MixtureMarkov]:
    from mmlca.model import MixtureMarkov

    return {name: MixtureMarkov.from_dict(file.content) for name, file in files.items()}


def _vote(models: Mapping[str, ModelFile]) -> int:
    """The number of classes that most models have or, where the sender said, have best BIC."""
    from font.clustering import majority_vote

    chosen = [
        min(model.bic, key=lambda k: model.bic[k]) if model.bic else model.n_classes
        for model in models.values()
    ]
    return int(majority_vote(chosen))


def _file_name(name: str) -> str:
    return name.replace("/", "-").replace(" ", "_")


def _wrote(paths: list[Path]) -> str:
    return f"Wrote {', '.join(path.name for path in paths)} to {paths[0].parent}."


def _them(paths: list[Path]) -> str:
    return paths[0].name if len(paths) == 1 else f"all {len(paths)}"


def _say(quiet: bool, *lines: str) -> None:
    if not quiet:
        typer.echo("\n".join(lines))
