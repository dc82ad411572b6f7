"""Commands of a hospital that works together with others by exchanging files.

One round is: every site sends its model files to all; every site labels its patients with all
models and sends the counts to the centre; the centre sends the ensemble to all.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from mmlca.federation import Hospital
    from mmlca.sequences import Sequences

PLAIN: dict[str, Any] = {"no_args_is_help": True, "rich_markup_mode": None}
site_app = typer.Typer(name="site", help="What a hospital does: fit, label, assign.", **PLAIN)

Study = Annotated[
    str, typer.Option(help="Name of the study, the same at all sites; or its study file, a .toml.")
]
SiteName = Annotated[
    str | None, typer.Option("--site", help="Name of this hospital, as in the study file.")
]
Data = Annotated[
    Path | None,
    typer.Argument(
        help="This site's sequences, a .csv or .parquet file; not needed with a study file or "
        "--records.",
        exists=True,
    ),
]
Records = Annotated[
    Path | None,
    typer.Option(help="Medication records in place of sequences; see `mmlca prep`.", exists=True),
]
Patients = Annotated[
    Path | None, typer.Option(help="Patients' table, with --records.", exists=True)
]
States = Annotated[
    str | None, typer.Option(help="States in their order, with commas, as all sites agreed.")
]
MinCount = Annotated[
    int | None,
    typer.Option(min=1, help="The smallest number of patients that may show; 11 if not said."),
]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


@site_app.command("fit")
def site_fit(
    study: Study,
    sequences: Data = None,
    site: SiteName = None,
    records: Records = None,
    patients: Patients = None,
    classes: Annotated[
        int | None, typer.Option("--classes", "-k", min=1, help="Number of classes.")
    ] = None,
    pseudo_sites: Annotated[
        int | None,
        typer.Option(min=0, help="Fit so many resamples; 0, the default: the patients themselves."),
    ] = None,
    fraction: Annotated[
        float | None, typer.Option(help="Size of a resample, as a share; 0.8 if not said.")
    ] = None,
    also_try: Annotated[
        str | None, typer.Option("--try", help="Also send the BIC of these numbers, such as 1-6.")
    ] = None,
    min_count: MinCount = None,
    fewer_classes: Annotated[
        bool,
        typer.Option(help="Where a class would have too few patients, fit one class fewer."),
    ] = False,
    digits: Annotated[int, typer.Option(min=4, max=12, help="Decimals of probabilities.")] = 6,
    states: States = None,
    seed: Annotated[int | None, typer.Option(help="1 if not said.")] = None,
    starts: Annotated[
        int | None, typer.Option(min=1, help="How hard to search; 40 if not said.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Threads; they do not change the result.")
    ] = None,
    out: Out = Path("to_all"),
    quiet: Quiet = False,
) -> None:
    """Fit this site's model and write the model files for all sites.

    With a study file, its rules, numbers and seed hold, unless options say otherwise.
    """
    from font.exchange import read_model
    from mmlca.cli import _numbers, _warnings_as_notes

    hospital = _hospital(
        study,
        site,
        _sequences(sequences, records, patients, states),
        n_classes=classes,
        candidates=None if also_try is None else _numbers(also_try),
        pseudo_sites=pseudo_sites,
        fraction=fraction,
        min_count=min_count,
        fewer_classes=fewer_classes,
        digits=digits,
        seed=seed,
        starts=starts,
        jobs=jobs,
    )
    with _warnings_as_notes(quiet):
        paths = hospital.fit(out)
    written = [read_model(path) for path in paths]
    sizes = ", ".join(map(str, sorted({file.n_classes for file in written})))
    n_pooled = sum(file.payload["n_pooled_rows"] for file in written)
    say(
        quiet,
        f"{hospital.sequences}",
        f"{len(paths)} model{'s' * (len(paths) > 1)} with {sizes} classes.",
        wrote(paths),
        f"Withheld: everything but the probabilities (rounded to {digits} decimals) and totals; "
        f"no class has fewer than {hospital.min_count} patients, and {n_pooled} rows of "
        "transitions that rest on fewer were pooled or replaced by another class's.",
        f"Next: look at each file with `mmlca exchange check`, then send {_them(paths)} to all "
        "sites and the centre; when you have everyone's, run `mmlca site label`.",
    )


@site_app.command("label")
def site_label(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="This site's sequences (.csv or .parquet; not needed with a study file or "
            "--records) and the model files of all sites (.json).",
            exists=True,
        ),
    ],
    study: Study,
    site: SiteName = None,
    records: Records = None,
    patients: Patients = None,
    min_count: MinCount = None,
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
    models, data = _apart(files, "model files")
    hospital = _hospital(
        study,
        site,
        _sequences(data, records, patients, states, models),
        min_count=min_count,
        rare=rare,
        epsilon=epsilon,
        noise_seed=noise_seed,
    )
    path, patterns, sent = hospital.labelled(models, out)
    fate = "counted as the nearest common pattern" if sent.n_merged else "left out"
    lines = [
        f"{patterns.n_patients:,} patients labelled by {len(models)} models.",
        wrote([path]),
        f"Withheld: the patterns of {sent.n_rare:,} patients, shared by fewer than "
        f"{hospital.min_count}; these patients are {fate} and get their cluster here, in the end.",
    ]
    if sent.delta is not None:
        lines.append(f"Noise: ε = {epsilon:g}, δ = {sent.delta:.2g}.")
    lines.append(
        f"Next: look at it with `mmlca exchange check {path}`, then send {path.name} to the "
        "centre; keep the model files."
    )
    say(quiet, *lines)


@site_app.command("assign")
def site_assign(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="The ensemble file of the centre (.json) and this site's sequences (.csv or "
            ".parquet; not needed with a study file or --records).",
            exists=True,
        ),
    ],
    study: Study,
    site: SiteName = None,
    records: Records = None,
    patients: Patients = None,
    states: States = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Patients and their clusters, a .csv file.")
    ] = Path("clusters.csv"),
    quiet: Quiet = False,
) -> None:
    """Give this site's patients their clusters. The result stays here."""
    ensemble, data = _apart(files, "an ensemble file")
    if len(ensemble) != 1:
        raise ValueError(f"found {len(ensemble)} .json files; give the one ensemble file.")
    if site is None and not study.endswith(".toml"):
        site = "this site"  # nothing leaves, so that no name is needed
    hospital = _hospital(study, site, _sequences(data, records, patients, states, ensemble))
    table = hospital.assign(ensemble[0], out)
    sizes = table["cluster"].value_counts().sort_index()
    say(
        quiet,
        *(f"cluster {k}: {n:,} patients" for k, n in sizes.items()),
        f"Wrote {out}.",
        "Withheld: everything; this file names patients, so keep it at the site.",
    )


def _hospital(study: str, site: str | None, sequences: Any, **settings: Any) -> Hospital:
    """This site, from the study file or from what the options say."""
    from mmlca.federation import Hospital

    said = {name: value for name, value in settings.items() if value is not None}
    if sequences is not None:
        said["sequences"] = sequences
    if study.endswith(".toml"):
        return Hospital.from_study(study, site, **said)
    if site is None:
        raise ValueError("the name of this hospital is not said; give it with --site.")
    if sequences is None:
        raise ValueError(
            "there is nothing to read; give a file of sequences, --records, or a study file with "
            "--study."
        )
    return Hospital(study=study, site=site, **said)


def _sequences(
    data: Path | None,
    records: Path | None,
    patients: Path | None,
    states: str | None,
    models: list[Path] | None = None,
) -> Sequences | Any | None:
    """The site's patients, as its options say; None leaves them to the study file."""
    from mmlca.cli import _read

    if data is not None and records is not None:
        raise ValueError(f"found both sequences ({data}) and records ({records}); give one.")
    if records is not None:
        from ehr_prep.build import build_sequences
        from ehr_prep.drugs import RA_DRUGS
        from ehr_prep.records import read_records

        return build_sequences(read_records(records, RA_DRUGS, patients=patients))
    if data is None:
        return None
    if models and (columns := _columns(models[0])):
        return _table(data, columns)
    try:
        return _read(data, states)
    except ValueError as error:
        if "no column 'id'" not in str(error):
            raise
        raise ValueError(
            f"{data} has no column 'id', so it holds no sequences; give medication records with "
            "--records."
        ) from None


def _columns(path: Path) -> list[str]:
    """The columns that a model looks at; none if it looks at sequences."""
    from font.kinds import variables_of
    from font.schema import read_file

    payload = read_file(path).payload
    content = (payload["models"][0] if "ensemble" in payload else payload).get("model")
    return [] if content is None or "states" in content else list(variables_of(content))


def _table(path: Path, columns: list[str]) -> Any:
    import pandas as pd

    from mmlca.checks import some

    table = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    lacking = [name for name in ["id", *columns] if name not in table.columns]
    if lacking:
        raise ValueError(f"{path} lacks the columns {some(lacking)}; add them or mend the names.")
    return table.set_index("id")[columns]


def _apart(files: list[Path], what: str) -> tuple[list[Path], Path | None]:
    """Exchange files, and the file of sequences if there is one."""
    data = [path for path in files if path.suffix.lower() != ".json"]
    if len(data) > 1:
        raise ValueError(
            f"found {len(data)} files of sequences ({data[0]}, {data[1]}, …); give one, and {what} "
            "that end in .json."
        )
    return [path for path in files if path.suffix.lower() == ".json"], data[0] if data else None


def wrote(paths: list[Path]) -> str:
    return f"Wrote {', '.join(path.name for path in paths)} to {paths[0].parent}."


def _them(paths: list[Path]) -> str:
    return paths[0].name if len(paths) == 1 else f"all {len(paths)}"


def say(quiet: bool, *lines: str) -> None:
    if not quiet:
        typer.echo("\n".join(lines))
