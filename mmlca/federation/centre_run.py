"""The centre's turn in a study whose files go through folders: what `mmlca centre run` does.

The centre's folder has an `inbox` for what the sites sent, an `outbox` with what is to be sent to
them, a `private` folder for its notes and its signing key, and a `report` folder with tables,
figures and the page, which goes to all sites.
`font.exchange.rounds` describes the round, `font.exchange.folders` how it goes through folders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from font.errors import InputError
from font.exchange.envelope import Header
from font.exchange.folders import CentreFolder, Waiting
from font.exchange.rounds import Round, run_round
from font.exchange.signatures import KEY_FILE
from font.files import atomic_write, hold
from mmlca.federation.hospital import SOFTWARE
from mmlca.federation.results import combined, read_results
from mmlca.study.results.site import is_rounded
from mmlca.study.study_file import read_network_study

if TYPE_CHECKING:
    import pandas as pd

    from mmlca.study.cache import Progress
    from mmlca.study.results.site import SiteResults
    from mmlca.study.settings import Study


PAGE = "report.html"


class CentreTurn(NamedTuple):
    """What a turn of the centre did.

    Parameters
    ----------
    step : str
        The step that is open, "" at the end of the round.
    missing : {site: what is missing}
        Whose files the step still needs.
    send : list of str
        Files of the outbox that are to be sent to all sites.
    notes : list of str
        Sentences about files of the inbox that cannot be used.
    result : Round, optional
        The whole round, if it is over.
    """

    step: str
    missing: dict[str, str]
    send: list[str]
    notes: list[str]
    result: Round | None = None


def run_centre(
    study_file: Path,
    folder: Path = Path(),
    *,
    without: Sequence[str] = (),
    progress: Progress | None = None,
) -> CentreTurn:
    """Do what comes next at the centre: wait, or send the sites their next files, or report.

    The round is computed again from its start with everything that has come, so that a turn that
    was interrupted, or that finds nothing new, changes nothing.

    Parameters
    ----------
    study_file : path
        The sites' own files need not exist.
    folder : path
    without : list of str
        Sites to go on without.
    progress : function (text, share), optional
        Called while the report is made.
    """
    study = read_network_study(study_file)
    with hold(folder, private=True):
        (folder / "inbox").mkdir(exist_ok=True)  # people put files there
        carrier = _open_folder(study, folder, without)
        try:
            result = _round(study, carrier, folder / "private" / "round")
        except Waiting as wait:
            return CentreTurn(wait.step, wait.missing, carrier.sent, carrier.unused())
        atomic_write(folder / "report" / "report.md", result.report.encode())
        write_report(study, result, folder / "report", progress)
        page = (folder / "report" / PAGE).read_bytes()
        atomic_write(folder / "outbox" / PAGE, page)
        return CentreTurn("", {}, [*carrier.sent, PAGE], carrier.unused(), result)


def write_report(
    study: Study, result: Round, out: Path, progress: Progress | None = None
) -> dict[str, Any]:
    """The report of a round: the page of a study in one place, from the results of its sites.

    Parameters
    ----------
    study : Study
        What all sites agreed on.
    result : Round
    out : folder
    progress : function (text, share), optional

    Returns
    -------
    dict
        The content of `results.json`.
    """
    if not result.results:
        raise InputError("no site sent results, of which the report is made; ask the sites again.")
    unit = study.privacy.min_count
    results = {
        site: read_results(data, min_count=unit) for site, data in sorted(result.results.items())
    }
    ordered = {site: results[site] for site in study.sites if site in results}
    absent = tuple(
        f"{who.site} has no part in the {answers_of(who.step)} and what follows from them: "
        f"{who.reason.rstrip('.')}."
        for who in result.absent
    )
    known = combined(result.ensemble, result.models, result.shared, absent)
    from mmlca.study.run import report_results  # loads matplotlib

    return report_results(_as_reported(study, ordered), out, ordered, known, progress=progress)


def flower_centre() -> Any:
    """The centre's `flwr.serverapp.ServerApp`: the round of a study, and its report.

    The run's configuration (`flwr run --run-config 'study="/home/centre/study.toml"'`) names the
    study file that all sites have agreed on as `study`, the folder for everything as `out`
    ("results"), the seconds to wait for the sites in each step as `timeout` (3600), and the
    centre's private key, if it signs, as `signing-key`. The report is in the folder's `report`.
    """
    from font.exchange.flower import server_app

    return server_app(plan=_flower_plan)


def _flower_plan(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the study file says to `font.exchange.flower.server_app`."""
    study, out = read_network_study(str(config["study"])), Path(str(config.get("out", "results")))
    key = config.get("signing-key")
    return round_settings(study) | {
        "header": centre_header(study, Path(str(key)) if key else None),
        "out": out,
        "done": lambda result: write_report(study, result, out / "report"),
    }


def _as_reported(study: Study, results: Mapping[str, SiteResults]) -> Study:
    """The study as its report describes it: which sites have records, and that counts are rounded.

    The study file of a network does not say where the patients of a site come from.
    """
    sites = {
        name: place
        if name not in results or results[name].from_records
        else place.model_copy(update={"sequences": Path("sequences")})
        for name, place in study.sites.items()
    }
    release = "public" if is_rounded(results) else "inside"
    return study.changed(privacy={"release": release}).model_copy(update={"sites": sites})


class Status(NamedTuple):
    """Who has sent what.

    Parameters
    ----------
    table : DataFrame
        A row for each site, a column for each step up to the open one.
    step : str
        The step that is open, "" at the end of the round.
    missing : list of str
        Sites that the open step waits for.
    notes : list of str
        Sentences about files of the inbox that cannot be used.
    """

    table: pd.DataFrame
    step: str
    missing: list[str]
    notes: list[str]


def network_status(study_file: Path, folder: Path = Path()) -> Status:
    """Who has sent what, from the centre's folder, in which nothing is changed."""
    import pandas as pd

    study = read_network_study(study_file)
    carrier = _open_folder(study, folder, look=True)
    step, missing = "", {}
    with TemporaryDirectory() as out:
        try:
            _round(study, carrier, Path(out))
        except Waiting as wait:
            step, missing = wait.step, wait.missing
    columns: dict[str, dict[str, str]] = {}
    for closed in carrier.closed:
        if any(closed.replies.values()):
            states = dict.fromkeys(closed.replies, "came")
            columns[_column(closed.step, columns)] = states | dict.fromkeys(
                closed.without, "without"
            )
    if step:
        gone = {site for closed in carrier.closed for site in closed.without}
        states = {site: "came" for site in study.sites if site not in gone}
        columns[_column(step, columns)] = states | missing
    table = pd.DataFrame(columns, index=list(study.sites)).fillna("–")
    return Status(table, step, list(missing), carrier.unused())


def answers_of(step: str) -> str:
    """What the sites' answers to a step are called."""
    names = {"fit": "models", "key": "keys", "label": "labels", "refine": "sums"}
    return names.get(step, step.removeprefix("answer "))


def _column(step: str, columns: Mapping[str, Any]) -> str:
    """What the answers to a step are called, with a number if there were some before."""
    name = answers_of(step)
    before = sum(column.split(" ")[0] == name for column in columns)
    return f"{name} {before + 1}" if before else name


def round_settings(study: Study) -> dict[str, Any]:
    """What the study file says to `font.exchange.rounds.run_round`, whatever carries the files."""
    settings: dict[str, Any] = study.ensemble.model_dump()
    steps = settings.pop("refine")
    return settings | {
        "sites": list(study.sites),
        "n_clusters": study.classes.number if isinstance(study.classes.number, int) else None,
        "min_count": study.privacy.min_count,
        "seed": study.seed,
        "refine": None if steps == "none" else steps,
        "results": True,
        "secure": study.centre.secure,
    }


def centre_header(study: Study, signing_key: Path | None = None) -> Header:
    """What the centre's files say of themselves, and what those of the sites must fit."""
    return Header(
        study=study.name,
        round=study.centre.round,
        software=SOFTWARE,
        keys=study.public_keys() or None,
        signing_key=signing_key,
        settings=study.agreed,
    )


def _round(study: Study, carrier: CentreFolder, out: Path) -> Round:
    result = run_round(
        carrier.ask, carrier.header, out=out, absent=carrier.absent, **round_settings(study)
    )
    carrier.settle()
    return result


def _open_folder(
    study: Study, folder: Path, without: Sequence[str] = (), *, look: bool = False
) -> CentreFolder:
    key = folder / "private" / KEY_FILE
    return CentreFolder(
        folder,
        centre_header(study, key if key.exists() else None),
        list(study.sites),
        without=without,
        min_count=study.privacy.min_count,
        n_models=study.pseudo_sites.per_site or 1,
        look=look,
    )
