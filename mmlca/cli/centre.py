"""Commands of the centre, of a study between hospitals as a whole, and of exchange files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from font.errors import InputError
from font.settings import EnsembleSettings
from mmlca.cli.options import (
    FILE,
    PLAIN,
    STUDY_FILE,
    Group,
    KeysFile,
    NetworkFolder,
    Out,
    Quiet,
    StudyArgument,
    StudyFile,
    StudyMinCount,
    StudyName,
    StudySeed,
    agreed_study,
    from_study,
    known_keys,
    listed_sites,
    note,
    say,
    with_groups,
    working,
    wrote,
)
from mmlca.cli.site import make_key_pair

if TYPE_CHECKING:
    from font.exchange.envelope import Header
    from font.exchange.masked import MaskedFile
    from mmlca.study.settings import Study

centre_app = typer.Typer(
    name="centre", help="What the centre does: run, keys; combine, refine.", **PLAIN
)
network_app = typer.Typer(
    name="network", help="A study between hospitals: who has sent what.", **PLAIN
)
exchange_app = typer.Typer(name="exchange", help="Look at exchange files.", **PLAIN)
centre_app.command("keys")(make_key_pair)


# --- turns ------------------------------------------------------------------------------------


@centre_app.command("run")
def centre_run(
    study_file: StudyArgument,
    folder: NetworkFolder = Path(),
    without: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SITE",
            help="Go on without this site, which dropped out or is late; repeat it for others.",
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Do what comes next at the centre: wait, send the sites their next files, or report."""
    from mmlca.federation.centre_run import answers_of, run_centre

    with working("Combining", quiet=quiet) as show:
        turn = run_centre(study_file, folder, without=without or (), progress=show)
    for text in turn.notes:
        note(quiet, text)
    lines = []
    if turn.send:
        names = ", ".join(turn.send)
        lines.append(f"Send to all sites what is in {folder / 'outbox'}: {names}.")
    if turn.missing:
        lines.append(f"Waiting for {answers_of(turn.step)} of {len(turn.missing)} sites:")
        lines += [f"  {site}: {reason.rstrip('.')}." for site, reason in turn.missing.items()]
        lines.append(
            f"Put what comes into {folder / 'inbox'} and run the command again; with --without "
            "SITE it goes on without a site."
        )
    if turn.result is not None:
        lines.append(
            f"The round is over; its report is {folder / 'report' / 'report.html'}, with tables "
            "and figures beside it."
        )
    say(quiet, *lines)


@network_app.command("status")
def network_status(study_file: StudyArgument, folder: NetworkFolder = Path()) -> None:
    """Who has sent what, who is missing and what comes next, from the centre's folder."""
    from mmlca.federation.centre_run import answers_of, network_status

    status = network_status(study_file, folder)
    typer.echo(status.table.to_string())
    for text in status.notes:
        note(False, text)
    if status.missing:
        typer.echo(f"Next: {', '.join(status.missing)} must send their {answers_of(status.step)}.")
    elif status.step:
        typer.echo(f"Next: run `mmlca centre run {study_file}`.")
    else:
        typer.echo("The round is over.")


# --- single steps -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Centre:
    """What the centre knows of a study before it reads what came in."""

    study: StudyName = None
    study_file: StudyFile = None
    expect: Annotated[
        str | None,
        from_study(
            "who sent models, or took part in the step before",
            help="Sites that should take part; those absent are named.",
        ),
    ] = None
    min_count: StudyMinCount = None
    secure: Annotated[
        bool,
        typer.Option("--secure", help="Take masked files only, and read nothing but their sum."),
    ] = False
    keys: KeysFile = None
    signing_key: Annotated[
        Path | None,
        typer.Option(
            help="The centre's private key, to sign what it writes.",
            show_default="do not sign",
            **FILE,
        ),
    ] = None
    out: Out = Path("to_sites")
    quiet: Quiet = False

    @cached_property
    def agreed(self) -> Study | None:
        """The study file; None where --study names the study."""
        return agreed_study(self.study, self.study_file)

    @property
    def unit(self) -> int:
        from font.exchange.disclosure import MIN_COUNT

        known = MIN_COUNT if self.agreed is None else self.agreed.privacy.min_count
        return self.min_count or known

    @property
    def expected(self) -> list[str]:
        return listed_sites(self.expect) or list(self.agreed.sites if self.agreed else ())

    def header(self) -> Header:
        from font.exchange.envelope import Header
        from mmlca.federation.centre_run import centre_header
        from mmlca.federation.hospital import SOFTWARE

        known = Header(study=self.study or "", software=SOFTWARE)
        if self.agreed is not None:
            known = centre_header(self.agreed)
        keys = known_keys(self.keys, self.agreed)
        return replace(known, keys=keys, signing_key=self.signing_key)

    def sort(self, files: list[Path], sent: tuple[str, ...], answer: str) -> dict[str, list[Path]]:
        """The files by kind: what was sent to the sites before, and what they answered."""
        from font.exchange.envelope import claimed_kind
        from font.exchange.registry import masked

        wanted = masked(answer) if self.secure else answer
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

    def withheld(self, what: str) -> str:
        if self.secure:
            return (
                f"Withheld: each site's own {what}, which nobody here can read; their total was "
                "rounded at random."
            )
        return (
            f"Withheld: nothing more; all {what} were rounded at random before they left their "
            "sites."
        )


@centre_app.command("combine")
@with_groups
def centre_combine(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES",
            help="Model files and labels or masked files of all sites, .json.",
            **FILE,
        ),
    ],
    *,
    centre: Centre,
    clusters: Annotated[
        int | None,
        from_study("the sites' vote", "--clusters", "-k", min=1, help="Number of clusters."),
    ] = None,
    combining: Annotated[
        dict[str, Any], Group(EnsembleSettings, ("weights", "distance"), otherwise=STUDY_FILE)
    ],
    method: Annotated[
        Literal["kmeans", "latent"] | None,
        typer.Option(help="How the clusters are found.", show_default="latent"),
    ] = None,
    unequal: Annotated[
        bool, typer.Option("--unequal", help="Let sites send different numbers of models.")
    ] = False,
    seed: StudySeed = None,
) -> None:
    """Combine all sites' models and counts: the ensemble file for all sites, and a report."""
    from font.exchange.masked import read_masked
    from font.exchange.messages.ensemble import write_ensemble
    from font.exchange.messages.labels import read_labels, sum_of_labels
    from font.exchange.messages.model import read_models
    from font.exchange.replies import Absent
    from font.exchange.rounds import combine, round_report, site_votes
    from font.files import atomic_write, keep_inputs

    path, page = centre.out / "ensemble.json", centre.out / "report.md"
    keep_inputs([path, page], files)
    options = {**combining, "n_clusters": clusters, "method": method, "seed": seed}
    settings = {key: value for key, value in options.items() if value is not None}
    if centre.agreed is not None:
        # the method is that of one process, the refinement comes later
        in_common = centre.agreed.ensemble.model_dump(exclude={"method", "refine"})
        settings = {**in_common, "seed": centre.agreed.seed, **settings}
        if isinstance(centre.agreed.classes.number, int):
            settings.setdefault("n_clusters", centre.agreed.classes.number)
    header, unit = centre.header(), centre.unit
    by_kind = centre.sort(files, ("model",), "labels")
    (_, came), (counts, replies) = by_kind.items()
    models = read_models(came, header, min_count=unit)
    if not replies:
        option = " --secure" if centre.secure else ""
        raise InputError(
            f"there is no {counts} file; each site makes one with `mmlca site label{option}`."
        )
    counted: set[str] = set()

    def masked_files() -> Iterator[MaskedFile]:
        for reply in replies:
            part = read_masked(reply, header, kind=counts, min_count=unit)
            counted.add(part.site)
            yield part

    with working("Combining", quiet=centre.quiet):  # one file after the other, none is kept
        parts = (
            iter([sum_of_labels(masked_files(), models)])
            if centre.secure
            else (read_labels(reply, models, header, min_count=unit) for reply in replies)
        )
        result, tables = combine(models, parts, unequal=unequal, **settings)
    if not centre.secure:
        counted.update(map(str, tables.sizes))
    heard = {model.site for model in models.values()} | counted
    absent = [Absent(site, "fit", "no model came") for site in centre.expected if site not in heard]
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
    atomic_write(page, text.encode())
    say(
        centre.quiet,
        text,
        wrote([path, page]),
        centre.withheld("counts"),
        f"Next: send {path.name} to all sites; each runs `mmlca site assign`.",
    )


@centre_app.command("refine")
@with_groups
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
    *,
    centre: Centre,
    rounds: Annotated[
        str | None,
        from_study(
            EnsembleSettings().refine, help='Step with which the refinement ends, or "converge".'
        ),
    ] = None,
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

    last = _last_step(rounds, centre.agreed)
    header, unit = centre.header(), centre.unit
    ensembles, shared, came = centre.sort(files, ("ensemble", "shared"), "sums").values()
    sent = ensembles + shared
    if len(sent) != 1:
        raise InputError(
            f"found {len(sent)} ensemble or shared files; give the one that the sums answer."
        )
    before = read_step(sent[0], header)
    path = centre.out / f"shared-{before.step}.json"
    keep_inputs([path], files)
    if centre.secure:
        masked = (read_masked(p, header, kind="masked sums", min_count=unit) for p in came)
        result = share_masked(before, masked, header, rounds=last, path=path)
    else:
        sums = (read_sums(p, header, min_count=unit) for p in came)
        result = share(before, sums, header, rounds=last, path=path)
    absent = [site for site in centre.expected or before.sites if site not in result.sites]
    lines = [f"Step {result.step} of the refinement: sums of {len(came)} sites."]
    if absent:
        lines.append(f"No sums came from {some(absent)}; these sites cannot go on.")
    if before.shared is not None:
        change = parameter_change(before.shared.model, result.model)
        lines.append(f"The largest change of a parameter was {change:.4f}.")
    option = " --secure" if centre.secure else ""
    following = (
        "it is the last: each runs `mmlca site refine` with it for its patients' clusters."
        if result.last
        else f"each runs `mmlca site refine{option}` with it and sends its sums of "
        f"step {result.step + 1}."
    )
    say(
        centre.quiet,
        *lines,
        wrote([path]),
        centre.withheld("sums"),
        f"Next: send {path.name} to all sites; {following}",
    )


def _last_step(text: str | None, agreed: Study | None) -> Any:
    """The step with which a refinement ends, or "converge": from --rounds, else the study file."""
    if text is None:
        known = "none" if agreed is None else agreed.ensemble.refine
        return EnsembleSettings().refine if known == "none" else known
    if text != "converge" and not text.isdecimal():
        raise InputError(f'--rounds takes a whole number or "converge"; found {text!r}.')
    return text if text == "converge" else int(text)


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
