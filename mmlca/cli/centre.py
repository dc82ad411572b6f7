"""Commands of the centre, and of anyone who wants to know what an exchange file holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from font.errors import InputError
from mmlca.cli.display import say, working, wrote
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
    from font.exchange.envelope import Header
    from font.exchange.masked import MaskedFile
    from mmlca.study.settings import Study

centre_app = typer.Typer(
    name="centre", help="What the centre does: keys, combine, refine.", **PLAIN
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
    from font.exchange.masked import read_masked
    from font.exchange.messages.ensemble import write_ensemble
    from font.exchange.messages.labels import read_labels, sum_of_labels
    from font.exchange.messages.model import read_models
    from font.exchange.replies import Absent
    from font.exchange.rounds import combine, round_report, site_votes
    from font.files import atomic_write, keep_inputs

    keep_inputs([out / "ensemble.json", out / "report.md"], files)
    options: dict[str, Any] = {
        "n_clusters": clusters,
        "weights": weights,
        "distance": distance,
        "method": method,
        "seed": seed,
    }
    settings = {key: value for key, value in options.items() if value is not None}
    about = _about(study, study_file, min_count, expect, keys, signing_key)
    if about.file is not None:
        # the method is that of one process, the refinement comes later
        in_common = about.file.ensemble.model_dump(exclude={"method", "refine"})
        settings = {**in_common, "seed": about.file.seed, **settings}
        if isinstance(about.file.classes.number, int):
            settings.setdefault("n_clusters", about.file.classes.number)
    header, unit = about.header, about.min_count
    counts = "masked labels" if secure else "labels"
    given = _sorted_by_kind(files, ("model",), counts)
    models = read_models(given["model"], header, min_count=unit)
    if not given[counts]:
        option = " --secure" if secure else ""
        raise InputError(
            f"there is no {counts} file; each site makes one with `mmlca site label{option}`."
        )
    counted: set[str] = set()

    def masked_files() -> Iterator[MaskedFile]:
        for path in given[counts]:
            part = read_masked(path, header, kind=counts, min_count=unit)
            counted.add(part.site)
            yield part

    with working("Combining", quiet=quiet):  # files are read one after the other, none is kept
        parts = (
            iter([sum_of_labels(masked_files(), models)])
            if secure
            else (read_labels(path, models, header, min_count=unit) for path in given[counts])
        )
        result, tables = combine(models, parts, unequal=unequal, **settings)
    if not secure:
        counted.update(map(str, tables.sizes))
    path = out / "ensemble.json"
    heard = {model.site for model in models.values()} | counted
    absent = [Absent(site, "fit", "no model came") for site in about.expected if site not in heard]
    text = round_report(
        result,
        models,
        tables,
        study=header.study,
        absent=absent,
        min_count=unit,
        votes=None if "n_clusters" in settings else site_votes(models).by_site,
    )
    write_ensemble(path, result, models, header)
    atomic_write(out / "report.md", text.encode())
    say(
        quiet,
        text,
        wrote([path, out / "report.md"]),
        _withheld(secure, "counts"),
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
    from font.exchange.masked import read_masked
    from font.exchange.messages.refinement import (
        parameter_change,
        read_step,
        read_sums,
        share,
        share_masked,
    )
    from font.files import keep_inputs

    number: int | str | None = None if rounds is None else _rounds(rounds)
    about = _about(study, study_file, min_count, expect, keys, signing_key)
    if number is None and about.file is not None and about.file.ensemble.refine != "none":
        number = about.file.ensemble.refine
    number = 1 if number is None else number
    wanted = "masked sums" if secure else "sums"
    given = _sorted_by_kind(files, ("ensemble", "shared"), wanted)
    sent, came = given["ensemble"] + given["shared"], given[wanted]
    if len(sent) != 1:
        raise InputError(
            f"found {len(sent)} ensemble or shared files; give the one that the sums answer."
        )
    header, unit = about.header, about.min_count
    before = read_step(sent[0], header)
    path = out / f"shared-{before.step}.json"
    keep_inputs([path], files)
    if secure:
        masked = (read_masked(p, header, kind=wanted, min_count=unit) for p in came)
        result = share_masked(before, masked, header, rounds=number, path=path)
    else:
        sums = (read_sums(p, header, min_count=unit) for p in came)
        result = share(before, sums, header, rounds=number, path=path)
    absent = [site for site in about.expected or before.sites if site not in result.sites]
    lines = [f"Step {result.step} of the refinement: sums of {len(came)} sites."]
    if absent:
        lines.append(f"No sums came from {some(absent)}; these sites cannot go on.")
    if before.shared is not None:
        change = parameter_change(before.shared.model, result.model)
        lines.append(f"The largest change of a parameter was {change:.4f}.")
    option = " --secure" if secure else ""
    following = (
        "it is the last: each runs `mmlca site refine` with it for its patients' clusters."
        if result.last
        else f"each runs `mmlca site refine{option}` with it and sends its sums of "
        f"step {result.step + 1}."
    )
    say(
        quiet,
        *lines,
        wrote([path]),
        _withheld(secure, "sums"),
        f"Next: send {path.name} to all sites; {following}",
    )


class _About(NamedTuple):
    """What the centre knows of a study before it reads what came in."""

    header: Header
    min_count: int
    expected: list[str]
    file: Study | None


def _about(
    study: str | None,
    study_file: Path | None,
    min_count: int | None,
    expect: str | None,
    keys: Path | None,
    signing_key: Path | None,
) -> _About:
    """The study from its file or from the options, which come first."""
    from font.exchange.disclosure import MIN_COUNT
    from font.exchange.envelope import Header
    from mmlca.federation.hospital import SOFTWARE
    from mmlca.study.study_file import read_study

    name, expected = study_name(study, study_file), listed_sites(expect)
    read = None if study_file is None else read_study(study_file, files=False)
    if read is not None:
        name, expected = read.name, expected or list(read.sites)
        min_count = min_count or read.privacy.min_count
    header = Header(
        study=name,
        software=SOFTWARE,
        keys=read_keys_file(keys, study_file),
        signing_key=signing_key,
    )
    return _About(header, min_count or MIN_COUNT, expected, read)


def _sorted_by_kind(files: list[Path], sent: tuple[str, ...], wanted: str) -> dict[str, list[Path]]:
    """The files by kind: what was sent to the sites before, and what they answered."""
    from font.exchange.envelope import claimed_kind
    from font.exchange.registry import masked

    given: dict[str, list[Path]] = {kind: [] for kind in (*sent, wanted)}
    for path in files:
        kind = claimed_kind(path)
        if kind not in given:
            what = "an ensemble already" if kind == "ensemble" else f"a {kind[:60]} file"
            hint = "; masked files go with --secure" if kind == masked(wanted) else ""
            names = ", ".join([*sent[:-1], f"{sent[-1]} and {wanted}"])
            raise InputError(f"{path} is {what}; give {names} files only{hint}.")
        given[kind].append(path)
    return given


def _withheld(secure: bool, what: str) -> str:
    if secure:
        return (
            f"Withheld: each site's own {what}, which nobody here can read; their total was "
            "rounded at random."
        )
    return (
        f"Withheld: nothing more; all {what} were rounded at random before they left their sites."
    )


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
