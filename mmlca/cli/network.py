"""Commands of a study between hospitals, one per turn: site run, centre run, network status."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from font.errors import InputError
from mmlca.cli.centre import centre_app
from mmlca.cli.display import note, say, working
from mmlca.cli.options import PLAIN, Quiet, SiteFile, SiteName, StudyArgument, listed_sites
from mmlca.cli.site import site_app
from mmlca.cli.site_input import Without

network_app = typer.Typer(
    name="network", help="A study between hospitals: who has sent what.", **PLAIN
)

Folder = Annotated[
    Path, typer.Option(file_okay=False, help="Folder with inbox, outbox and private; keep it.")
]


@site_app.command("run")
def site_run(
    study_file: StudyArgument,
    site_file: SiteFile = None,
    *,
    site: SiteName = None,
    folder: Folder = Path(),
    approve: Annotated[
        bool,
        typer.Option(
            "--approve",
            envvar="MMLCA_APPROVE",
            help="Show what leaves, and let nothing leave before somebody has agreed to it.",
        ),
    ] = False,
    approved_by: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Who agrees that the files leave, having read private/leaving.html.",
            show_default="asked with --approve",
        ),
    ] = None,
    without: Without = None,
    floor: Annotated[
        int | None,
        typer.Option(
            min=1,
            envvar="MMLCA_FLOOR",
            help="Smallest privacy.min_count that this site accepts.",
            show_default="from the site file, else 11",
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Do what comes next at a hospital: fit, label, assign, refine."""
    from mmlca.federation.site_run import run_site
    from mmlca.study.study_file import read_site_file

    approve = approve or (site_file is not None and read_site_file(site_file).approve)

    def agreed(files: Sequence[Path], page: Path) -> str:
        return _ask_for_approval(files, page, approved_by)

    with working("Working (the first fit also compiles)", quiet=quiet or approve):
        turn = run_site(
            study_file,
            site_file,
            folder,
            site=site,
            approve=agreed if approve or approved_by is not None else None,
            without=listed_sites(without),
            **({} if floor is None else {"floor": floor}),
        )
    for text in turn.notes:
        note(quiet, text)
    lines = turn.done or ["Nothing new is to be done."]
    if turn.leaving:
        names = ", ".join(path.name for path in turn.leaving)
        lines.append(f"Next: send to the centre what is in {folder / 'outbox'}: {names}.")
    if turn.waiting:
        lines.append(
            f"Then wait for {turn.waiting}; put what comes into {folder / 'inbox'} and run the "
            "command again."
        )
    else:
        lines.append(
            "Nothing more is to be sent; the centre sends the report of all sites. `mmlca site "
            "report` makes one of this site alone, with exact numbers."
        )
    say(quiet, *lines)


@site_app.command("report")
def site_report(
    study_file: StudyArgument,
    site_file: SiteFile = None,
    *,
    site: SiteName = None,
    folder: Folder = Path(),
    out: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Folder of the report.", show_default="private/report"),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Report on this hospital alone, with exact numbers, once it has sent its results."""
    from mmlca.federation.site_run import report_site

    with working("Making the report of this site", quiet=quiet):
        page = report_site(study_file, site_file, folder, site=site, out=out)
    say(quiet, f"The report is {page}. Its numbers are exact: keep it inside the hospital.")


def _ask_for_approval(files: Sequence[Path], page: Path, approved_by: str | None) -> str:
    """Show what is about to leave; returns who approved it."""
    from font.exchange.explain import explain

    if approved_by is not None:
        return approved_by
    if not sys.stdin.isatty():
        raise InputError(
            f"nobody can be asked here; read {page}, which shows what would leave, and run the "
            "command again with --approved-by NAME."
        )
    for file in files:
        typer.echo(f"{file.name}\n{explain(file)}\n")
    typer.echo(f"The page {page} shows every number.")
    if not typer.confirm(f"May {'this file' if len(files) == 1 else 'these files'} leave?"):
        raise InputError("nothing left; the same command asks again.")
    return getpass.getuser()


@centre_app.command("run")
def centre_run(
    study_file: StudyArgument,
    folder: Folder = Path(),
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
def network_status(study_file: StudyArgument, folder: Folder = Path()) -> None:
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
