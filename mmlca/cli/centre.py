"""Commands of the centre, and of anyone who wants to know what an exchange file holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from font.errors import InputError
from mmlca.cli.display import say, working, write_table, wrote
from mmlca.cli.options import (
    FILE,
    PLAIN,
    KeysFile,
    Out,
    Quiet,
    StudyFile,
    StudyMinCount,
    StudyName,
    StudySeed,
    from_study,
    listed_sites,
)
from mmlca.cli.site import make_key_pair
from mmlca.cli.site_input import read_keys_file, study_name

if TYPE_CHECKING:
    from font.exchange.secure import MaskedFile
    from font.exchange.sums import Step

centre_app = typer.Typer(
    name="centre", help="What the centre does: keys, combine, refine, effects.", **PLAIN
)
exchange_app = typer.Typer(name="exchange", help="Look at exchange files.", **PLAIN)
centre_app.command("keys")(make_key_pair)

Secure = Annotated[
    bool,
    typer.Option("--secure", help="Take masked files only, and read nothing but their sum."),
]


@centre_app.command("combine")
def centre_combine(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES",
            help="Model files and labels or masked files of all sites, .json.",
            **FILE,
        ),
    ],
    study: StudyName = None,
    study_file: StudyFile = None,
    clusters: Annotated[
        int | None,
        from_study("the sites' vote", "--clusters", "-k", min=1, help="Number of clusters."),
    ] = None,
    expect: Annotated[
        str | None,
        from_study("none", help="Sites that should take part; the report names those absent."),
    ] = None,
    weights: Annotated[
        Literal["spectral", "centred", "equal", "sparse"] | None,
        from_study("spectral", help="How the models are weighted."),
    ] = None,
    distance: Annotated[
        Literal["euclidean", "hellinger", "total-variation"] | None,
        from_study("euclidean", help="Distance between classes."),
    ] = None,
    method: Annotated[
        Literal["kmeans", "latent"] | None,
        typer.Option(help="How the clusters are found.", show_default="latent"),
    ] = None,
    min_count: StudyMinCount = None,
    unequal: Annotated[
        bool, typer.Option("--unequal", help="Let sites send different numbers of models.")
    ] = False,
    secure: Secure = False,
    keys: KeysFile = None,
    signing_key: Annotated[
        Path | None,
        typer.Option(
            help="The centre's private key, to sign the ensemble with.",
            show_default="do not sign",
            **FILE,
        ),
    ] = None,
    seed: StudySeed = None,
    out: Out = Path("to_sites"),
    quiet: Quiet = False,
) -> None:
    """Combine all sites' models and counts: the ensemble file for all sites, and a report."""
    from font.exchange.files import read_labels, read_models, write_ensemble
    from font.exchange.privacy import MIN_COUNT
    from font.exchange.report import Absent, round_report
    from font.exchange.rounds import combine, site_votes
    from font.exchange.schema import claimed_kind
    from font.exchange.secure import read_masked, sum_of_labels
    from font.files import atomic_write, keep_inputs
    from mmlca.federation.hospital import SOFTWARE

    name = study_name(study, study_file)
    keep_inputs([out / "ensemble.json", out / "report.md"], files)
    options: dict[str, Any] = {
        "n_clusters": clusters,
        "weights": weights,
        "distance": distance,
        "method": method,
        "seed": seed,
    }
    settings = {key: value for key, value in options.items() if value is not None}
    expected = listed_sites(expect)
    if study_file is not None:
        from mmlca.study.study_file import read_study

        read = read_study(study_file, files=False)
        name, expected = read.name, expected or list(read.sites)
        # the method is that of one process, the refinement comes later
        in_common = read.ensemble.model_dump(exclude={"method", "refine"})
        settings = {**in_common, "seed": read.seed, **settings}
        min_count = min_count or read.privacy.min_count
        if isinstance(read.classes.number, int):
            settings.setdefault("n_clusters", read.classes.number)
    rules: dict[str, Any] = {"study": name, "min_count": min_count or MIN_COUNT}
    rules["keys"] = read_keys_file(keys, study_file)
    kinds = {path: claimed_kind(path) for path in files}
    counts = "masked" if secure else "labels"
    odd = [path for path, kind in kinds.items() if kind not in ("model", counts)]
    if odd:
        found = "an ensemble already" if kinds[odd[0]] == "ensemble" else f"a {kinds[odd[0]]} file"
        hint = "; masked files go with --secure" if kinds[odd[0]] == "masked" else ""
        raise InputError(f"{odd[0]} is {found}; give model and {counts} files only{hint}.")
    models = read_models([p for p, kind in kinds.items() if kind == "model"], **rules)
    tables_files = [path for path, kind in kinds.items() if kind == counts]
    if not tables_files:
        option = " --secure" * secure
        raise InputError(
            f"there is no {counts} file; each site makes one with `mmlca site label{option}`."
        )
    counted: set[str] = set()

    def masked_files() -> Iterator[MaskedFile]:
        for path in tables_files:
            part = read_masked(path, **rules)
            counted.add(part.site)
            yield part

    with working("Combining", quiet=quiet):  # files are read one after the other, none is kept
        parts = (
            iter([sum_of_labels(masked_files(), models)])
            if secure
            else (read_labels(path, models, **rules) for path in tables_files)
        )
        result, tables = combine(models, parts, unequal=unequal, **settings)
    if not secure:
        counted.update(map(str, tables.sizes))
    path = out / "ensemble.json"
    heard = {model.site for model in models.values()} | counted
    absent = [Absent(site, "fit", "no model came") for site in expected if site not in heard]
    text = round_report(
        result,
        models,
        tables,
        study=name,
        absent=absent,
        min_count=rules["min_count"],
        votes=None if "n_clusters" in settings else site_votes(models).by_site,
    )
    write_ensemble(path, result, models, study=name, software=SOFTWARE, signing_key=signing_key)
    atomic_write(out / "report.md", text.encode())
    say(
        quiet,
        text,
        wrote([path, out / "report.md"]),
        "Withheld: each site's own counts, which nobody here can read; their sum was rounded at "
        "random."
        if secure
        else "Withheld: nothing more; all counts were rounded at random before they left their "
        "sites.",
        f"Next: send {path.name} to all sites; each runs `mmlca site assign`.",
    )


@centre_app.command("refine")
def centre_refine(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES",
            help="The ensemble or shared file that was sent last, and the sums or masked files of "
            "all sites, .json.",
            **FILE,
        ),
    ],
    study: StudyName = None,
    study_file: StudyFile = None,
    rounds: Annotated[
        str | None,
        from_study(1, help='Step with which the refinement ends, or "converge".'),
    ] = None,
    expect: Annotated[
        str | None,
        from_study(
            "those of the step before", help="Sites that should take part; those absent are named."
        ),
    ] = None,
    min_count: StudyMinCount = None,
    secure: Secure = False,
    keys: KeysFile = None,
    signing_key: Annotated[
        Path | None,
        typer.Option(
            help="The centre's private key, to sign the shared model with.",
            show_default="do not sign",
            **FILE,
        ),
    ] = None,
    out: Out = Path("to_sites"),
    quiet: Quiet = False,
) -> None:
    """Add all sites' sums of a step: the shared model for all sites."""
    from font.checks import some
    from font.exchange.privacy import MIN_COUNT
    from font.exchange.schema import claimed_kind
    from font.exchange.secure import read_masked, share_masked
    from font.exchange.sums import parameter_change, read_step, read_sums, share
    from font.files import keep_inputs
    from mmlca.federation.hospital import SOFTWARE

    name = study_name(study, study_file)
    expected = listed_sites(expect)
    number: int | str | None = None if rounds is None else _rounds(rounds)
    if study_file is not None:
        from mmlca.study.study_file import read_study

        read = read_study(study_file, files=False)
        name, expected = read.name, expected or list(read.sites)
        if number is None and read.ensemble.refine != "none":
            number = read.ensemble.refine
        min_count = min_count or read.privacy.min_count
    number = 1 if number is None else number
    pinned = read_keys_file(keys, study_file)
    kinds = {path: claimed_kind(path) for path in files}
    sent = [path for path, kind in kinds.items() if kind in ("ensemble", "shared")]
    wanted = "masked" if secure else "sums"
    odd = [path for path, kind in kinds.items() if path not in sent and kind != wanted]
    if odd:
        hint = "; masked files go with --secure" if kinds[odd[0]] == "masked" else ""
        raise InputError(f"{odd[0]} is a {kinds[odd[0]]} file; give {wanted} files{hint}.")
    if len(sent) != 1:
        raise InputError(
            f"found {len(sent)} ensemble or shared files; give the one that the sums answer."
        )
    before = read_step(sent[0], study=name, keys=pinned)
    path = out / f"shared-{before.step}.json"
    keep_inputs([path], files)
    rules: dict[str, Any] = {"study": name, "min_count": min_count or MIN_COUNT, "keys": pinned}
    came = [p for p, kind in kinds.items() if kind == wanted]
    about: dict[str, Any] = {
        "study": name,
        "rounds": number,
        "path": path,
        "software": SOFTWARE,
        "signing_key": signing_key,
    }
    if secure:
        result = share_masked(before, (read_masked(p, **rules) for p in came), **about)
    else:
        result = share(before, (read_sums(p, **rules) for p in came), **about)
    absent = [site for site in expected or _part_of(before) if site not in result.sites]
    lines = [f"Step {result.step} of the refinement: sums of {len(came)} sites."]
    if absent:
        lines.append(f"No sums came from {some(absent)}; these sites cannot go on.")
    if before.shared is not None:
        change = parameter_change(before.shared, result)
        lines.append(f"The largest change of a parameter was {change:.4f}.")
    following = (
        "it is the last: each runs `mmlca site refine` with it for its patients' clusters."
        if result.last
        else f"each runs `mmlca site refine{' --secure' * secure}` with it and sends its sums of "
        f"step {result.step + 1}."
    )
    say(
        quiet,
        *lines,
        wrote([path]),
        "Withheld: each site's own sums, which nobody here can read; their total was rounded at "
        "random."
        if secure
        else "Withheld: nothing more; all sums were rounded at random before they left their "
        "sites.",
        f"Next: send {path.name} to all sites; {following}",
    )


@centre_app.command("effects")
def centre_effects(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILES", help="The effects files of all sites, .json.", **FILE),
    ],
    study: StudyName = None,
    study_file: StudyFile = None,
    min_count: StudyMinCount = None,
    keys: KeysFile = None,
    out: Out = Path("effects"),
    quiet: Quiet = False,
) -> None:
    """Pool the sites' effects of covariates, each weighted by the inverse of its variance."""
    import pandas as pd

    from font.exchange.effects import read_all_effects
    from font.exchange.privacy import MIN_COUNT
    from font.files import keep_inputs
    from mmlca.tables.pooling import inverse_variance

    name = study_name(study, study_file)
    if study_file is not None:
        from mmlca.study.study_file import read_study

        read = read_study(study_file, files=False)
        name, min_count = read.name, min_count or read.privacy.min_count
    places = [out / "effects_by_site.csv", out / "effects.csv"]
    keep_inputs(places, files)
    read_files = read_all_effects(
        files, study=name, min_count=min_count or MIN_COUNT, keys=read_keys_file(keys, study_file)
    )
    tables = {site: file.table.rename(columns={"cluster": "class"}) for site, file in
              read_files.items()}  # fmt: skip
    for table in tables.values():
        table["class"] += 1
    pooled = inverse_variance(tables)
    by_site = pd.concat([t.assign(site=site) for site, t in tables.items()], ignore_index=True)
    pooled = pooled.rename(columns={"class": "cluster"})
    write_table(by_site.rename(columns={"class": "cluster"}), places[0])
    write_table(pooled, places[1])
    few = len(read_files) < 2
    say(
        quiet,
        f"Effects of {len(read_files)} site{'s' * (not few)}: log-odds of each cluster against "
        "cluster 1.",
        "With one site there is nothing to pool." if few else pooled.to_string(
            index=False, float_format="{:.3g}".format
        ),
        wrote(places),
        "Withheld: nothing more; the sites left out what rests on few patients.",
    )  # fmt: skip


def _part_of(before: Step) -> list[str]:
    """The sites of the step before: those that sent sums, or at first models."""
    if before.shared is not None:
        return list(before.shared.sites)
    models = before.ensemble.models.values() if before.ensemble is not None else ()
    return list(dict.fromkeys(model.site for model in models))


def _rounds(text: str) -> int | str:
    """--rounds as a number or "converge"."""
    if text == "converge":
        return text
    if not text.isdecimal():
        raise InputError(f'--rounds takes a whole number or "converge"; found {text!r}.')
    return int(text)


@exchange_app.command("check")
def exchange_check(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="An exchange file of any kind.", **FILE)
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
    html: Annotated[
        Path | None,
        typer.Option(help="Page to write: all that is in the file.", dir_okay=False),
    ] = None,
) -> None:
    """Explain in plain words what a file contains and what it reveals."""
    import json

    from font.exchange.explain import describe_file, explain, explain_page
    from font.files import atomic_write, keep_inputs

    keep_inputs([html] if html is not None else [], [file])
    if as_json:
        typer.echo(json.dumps(describe_file(file), ensure_ascii=False, indent=1))
    else:
        typer.echo(explain(file))
    if html is not None:
        atomic_write(html, explain_page(file).encode())
        typer.echo(f"Wrote {html}.", err=as_json)
