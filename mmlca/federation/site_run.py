"""A hospital's turn in a study whose files go through folders: what `mmlca site run` does.

The hospital's folder has an `inbox` for what came from the centre, an `outbox` with what is to be
sent to it, and a `private` folder, which stays: the ledger, the patients' clusters, the signing
key, and notes of what was answered. A turn does whatever comes next: it fits models, or answers
the requests of the centre that are new (`font.exchange.folders`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ehr_prep.drugs import unmapped_caution
from font.errors import InputError
from font.exchange.envelope import Header, claimed_kind
from font.exchange.explain import explain_page
from font.exchange.folders import Inbox, Request, read_inbox, requests_in
from font.exchange.replies import answer_step
from font.files import atomic_write, csv_text, hold, keep_inputs
from mmlca.federation.hospital import SOFTWARE, Hospital, name_of_site
from mmlca.study.study_file import read_network_study

if TYPE_CHECKING:
    from mmlca.study.settings import Study

NOTES = "answered.json"
Approve = Callable[[Sequence[Path], Path], str]


@dataclass
class SiteTurn:
    """What a turn did.

    Parameters
    ----------
    site : str
    done : list of str
        What was done, in sentences.
    leaving : list of Path
        Files of the outbox that this turn wrote.
    waiting : str
        What has to come before the next turn; "" if nothing more is to be done.
    notes : list of str
        Sentences about files of the inbox that cannot be used.
    """

    site: str
    done: list[str] = field(default_factory=list)
    leaving: list[Path] = field(default_factory=list)
    waiting: str = ""
    notes: list[str] = field(default_factory=list)


class Answered(BaseModel):
    """What a site has done in a round, as it notes it in its folder."""

    model_config = ConfigDict(extra="forbid", strict=True)

    study: str
    round: int
    site: str
    fitted: bool = False
    steps: list[Request] = []
    over: bool = False


def run_site(
    study_file: Path,
    site_file: Path | None = None,
    folder: Path = Path(),
    *,
    site: str | None = None,
    approve: Approve | None = None,
    **changes: Any,
) -> SiteTurn:
    """Do what comes next at a hospital.

    What was done is not done again. A turn that was interrupted is repeated, with the same result.

    Parameters
    ----------
    study_file : path
        The same at all sites.
    site_file : path, optional
        What is this site's own; not needed if the study file says where the patients are.
    folder : path
    site : str, optional
        Needed if there is no `site_file` and the study file has several sites.
    approve : files, page → name, optional
        Shows a person the files that are about to leave, which the page explains, and returns who
        approved them; raises an `InputError` if nobody did. Without it they leave at once.
    changes
        Fields of `Hospital` that are to differ from what the study file says.
    """
    study = read_network_study(study_file, site_file)
    name = name_of_site(study_file, study, site, site_file)
    with hold(folder, private=True):
        turn, answered = SiteTurn(name), read_answered(folder, study, name)
        (folder / "inbox").mkdir(exist_ok=True)  # people put files there
        inbox = _read_folder(folder / "inbox", study, name)
        turn.notes = inbox.refused
        requests = _new_requests(inbox, answered)
        turn.waiting = "" if answered.over else "the centre's next files"
        if answered.fitted and not requests:
            return turn
        own: dict[str, Any] = {"folder": folder / "private", "fewer_classes": True}
        hospital = Hospital.from_study(study_file, name, site_file=site_file, **(own | changes))
        if not answered.fitted:
            list_unmapped(hospital)
            paths = answer_step(hospital, "fit", ())
            paths += answer_step(hospital, "key", ()) if study.centre.secure else []
            _send(hospital, folder, paths, approve, turn)
            n, joins = len(hospital.sequences), hospital.ledger().released("joins")
            turn.done.append(
                f"Fitted models to the site's {n:,} patients."
                if joins is None
                else f"This site takes part by labels: {n:,} patients are too few for a model with "
                f"two classes of {hospital.min_count}."
            )
            answered.fitted = True
            _write_answered(folder, answered)
        elif hospital.ledger().released("model") is not None:
            hospital.fit()  # refused if these are other patients than those who were fitted
        sent = _read_folder(folder / "private" / "to_all", study, name)
        if sent.refused:
            raise InputError(sent.refused[0])
        at_hand = {file.mark: file.data for file in (*sent.files, *inbox.files)}
        for request in requests:
            lacking = [mark for mark in request.files if mark not in at_hand]
            if lacking:
                turn.waiting = (
                    f"{len(lacking)} of {len(request.files)} files that belong to the step "
                    f"{request.step!r}; put everything that the centre sent into {folder / 'inbox'}"
                )
                return turn
            data = [at_hand[mark] for mark in request.files]
            _check_secure(study, data)
            _answer(hospital, folder, request, data, approve, turn)
            answered.steps.append(request)
            answered.over = request.step == "results"
            _write_answered(folder, answered)
            turn.waiting = "" if answered.over else turn.waiting
    return turn


def report_site(
    study_file: Path,
    site_file: Path | None = None,
    folder: Path = Path(),
    *,
    site: str | None = None,
    out: Path | None = None,
) -> Path:
    """Write a report of a hospital's own patients with exact numbers, when the round is over.

    Parameters are those of `run_site`; `out` is the folder of the report, `private/report` unless
    given. Returns the page, which must stay inside the hospital.
    """
    study = read_network_study(study_file, site_file)
    name = name_of_site(study_file, study, site, site_file)
    with hold(folder, private=True):
        answered = read_answered(folder, study, name)
        last = [request for request in answered.steps if request.step == "results"]
        if not last:
            raise InputError(
                f"{folder} has no results of {name} yet; `mmlca site run` makes them in the last "
                "turn, and the report of the site follows them."
            )
        inbox = _read_folder(folder / "inbox", study, name)
        at_hand = {file.mark: file.data for file in inbox.files}
        files = [at_hand[mark] for mark in last[-1].files if mark in at_hand]
        if len(files) < len(last[-1].files):
            raise InputError(
                f"the report needs the last files of the centre; put them into {folder / 'inbox'}."
            )
        hospital = Hospital.from_study(
            study_file, name, site_file=site_file, folder=folder / "private"
        )
        ensemble, *shared = files
        return hospital.report(ensemble, shared[0] if shared else None, out)


def _read_folder(folder: Path, study: Study, site: str) -> Inbox:
    """The exchange files in a folder that belong to this round of the study."""
    header = Header(
        study=study.name,
        site=site,
        round=study.centre.round,
        software=SOFTWARE,
        keys=study.public_keys(),
        settings=study.agreed,
    )
    return read_inbox(folder, header, min_count=study.privacy.min_count, reader="site")


def list_unmapped(hospital: Hospital, inputs: Iterable[Path | None] = ()) -> None:
    """Write the drugs that the map does not know into the hospital's folder, where they stay."""
    account = getattr(hospital.sequences, "account", None)
    if account is None or account.unmapped is None or not len(account.unmapped):
        return
    path = hospital.folder / "unmapped.csv"
    keep_inputs([path], inputs)
    atomic_write(path, csv_text(account.unmapped).encode(), private=True)
    lost = account.settings["unmapped"]["lost"]
    if caution := unmapped_caution(account.unmapped, lost, str(path)):
        warnings.warn(caution, stacklevel=2)


def _answer(
    hospital: Hospital,
    folder: Path,
    request: Request,
    files: Sequence[bytes],
    approve: Approve | None,
    turn: SiteTurn,
) -> None:
    """Do one step, and send what answers it."""
    if hospital.site not in request.sites and request.step != "assign":
        turn.done.append(f"The centre went on without this site at the step {request.step!r}.")
        return
    paths = answer_step(hospital, request.step, files)
    _send(hospital, folder, paths, approve, turn)
    placed = request.step == "assign"
    if request.step == "refine":
        placed = any(claimed_kind(file) == "shared" for file in files)
    clusters = folder / "private" / "clusters.csv"
    said = {
        "label": f"Labelled {len(hospital.sequences):,} patients with all sites' models.",
        "refine": "Added up this site's statistics by cluster.",
        "results": "Made this site's results for the report.",
    }
    turn.done.append(
        f"Wrote the patients' clusters to {clusters}; the file names patients and stays here."
        if placed
        else said.get(
            request.step, f"Made the {request.step.removeprefix('answer ')} of this site."
        )
    )


def _check_secure(study: Study, files: Iterable[bytes]) -> None:
    """Exact counts leave, under masks, only where the study file says so."""
    if not study.centre.secure and any(claimed_kind(file) == "key" for file in files):
        raise InputError(
            "the centre asks for secure sums, in which exact counts leave under masks, but the "
            "study file does not: all sites need [centre] secure = true, or the centre must not "
            "ask for it."
        )


def _send(
    hospital: Hospital,
    folder: Path,
    paths: Iterable[Path],
    approve: Approve | None,
    turn: SiteTurn,
) -> None:
    """Put files into the outbox, if a person approves; those that are there already stay."""
    outbox = folder / "outbox"
    there = {path.name: path.read_bytes() for path in outbox.glob("*") if path.is_file()}
    new = [path for path in paths if there.get(path.name) != path.read_bytes()]
    if new and approve is not None:
        page = folder / "private" / "leaving.html"
        atomic_write(page, explain_page(*new).encode(), private=True)
        hospital.ledger().note_approval([path.name for path in new], approve(new, page))
    for path in new:
        atomic_write(outbox / path.name, path.read_bytes())
        turn.leaving.append(outbox / path.name)


def _new_requests(inbox: Inbox, answered: Answered) -> list[Request]:
    """The centre's requests that are not answered yet.

    The files of one centre continue each other; those of two do not.
    """
    files = sorted(inbox.of_kind("requests"), key=lambda file: len(file.payload["steps"]))
    longest: list[Request] = []
    name = ""
    for file in files:
        steps = requests_in(file.payload)
        if not _continues(steps, longest):
            raise InputError(
                f"{name} and {file.name} are requests of two centres, or of one that began anew; "
                "ask the centre which of them holds, and take the other out of the inbox."
            )
        longest, name = steps, file.name
    n = min(len(longest), len(answered.steps))
    if not _continues(longest[:n], answered.steps[:n]):
        raise InputError(
            f"{name} has other requests than those that this site has answered already in round "
            f"{answered.round} of the study {answered.study!r}, perhaps of another centre; ask the "
            "centre, or begin a new round."
        )
    return longest[n:]


def _continues(steps: Sequence[Request], before: Sequence[Request]) -> bool:
    """Whether a list of requests begins with another one; who was asked may have changed."""
    first = [(request.step, request.files) for request in steps[: len(before)]]
    return first == [(request.step, request.files) for request in before]


def read_answered(folder: Path, study: Study, site: str) -> Answered:
    """The notes of what the site in a folder has done in this round."""
    path = folder / "private" / NOTES
    new = Answered(study=study.name, round=study.centre.round, site=site)
    if not path.exists():
        return new
    try:
        notes = Answered.model_validate_json(path.read_bytes())
    except ValidationError:
        raise InputError(
            f"{path} is damaged or was not written by this program; remove it: the ledger keeps "
            "what left, so that every step gives the same files again."
        ) from None
    if (notes.study, notes.site) != (new.study, new.site):
        raise InputError(
            f"{folder} is the folder of {notes.site!r} in the study {notes.study!r}, not of "
            f"{site!r} in {study.name!r}; use another --folder."
        )
    return notes if notes.round == new.round else new


def _write_answered(folder: Path, answered: Answered) -> None:
    path = folder / "private" / NOTES
    atomic_write(path, answered.model_dump_json(indent=1).encode(), private=True)
