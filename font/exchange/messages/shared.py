"""The *shared* message, centre → all: the sum of the sites' sums, of which all make one model.

The payload is:

=================== =========================================================================
step, of, scale     as in the sums files that it adds
last                whether the refinement ends here
ensemble            SHA-256 of the payload of the ensemble that the refinement began with
min_count           the lowest of the sums files; of masked files, the largest, since the centre
                    rounds their sum
model               content of the first model of the ensemble; its states or items and its prior
                    are those of the clusters
labelled            list of {site, patients}: the most that each site can have labelled, given
                    its rounded counts in the ensemble; sums of more are refused
sites               whose sums are in it
sums                K × P, totals, in which of three or more sites none counts for more than all
                    others together; the model is made of them as of its own statistics. Of masked
                    files, sums to which few patients contribute are what their patients' number is
                    when it is spread evenly, see `font.exchange.disclosure.round_total`
=================== =========================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from font.checks import Floats, some, whole_number
from font.errors import InputError
from font.exchange.disclosure import MIN_COUNT, Draws, SecretDraws, label_unit
from font.exchange.envelope import claimed_kind, read_file, write_file
from font.exchange.fields import (
    ALL_SITES,
    MOST_SITES,
    MOST_WORK,
    Count,
    Hash,
    Least,
    Site,
    StepNumber,
    Strict,
    SumsTable,
    misfit,
    size,
)
from font.exchange.header import Header
from font.exchange.messages.ensemble import EnsembleFile, read_ensemble
from font.exchange.messages.model import check_model
from font.exchange.parse import Path_, Source, name_of
from font.exchange.registry import Message, ModelFamily, family_of

MOST_STEPS = 50  # of one refinement between sites
_SETTLED = 1e-3  # largest change of a class parameter after which "converge" ends

Rounds = int | str


class LabelledPart(Strict):
    """The most patients that a site can have labelled."""

    site: Site
    patients: Count


class SharedPayload(Strict):
    """The sums of all sites, and the model content that says how to read them."""

    step: StepNumber
    last: bool
    ensemble: Hash
    of: Hash
    min_count: Least
    model: dict[str, Any]
    labelled: Annotated[list[LabelledPart], size(1, MOST_SITES)]
    sites: Annotated[list[Site], size(1, MOST_SITES)]
    scale: Least
    sums: SumsTable


@dataclass(frozen=True, eq=False)
class SharedFile:
    """The model that all sites share after a step of the refinement.

    Parameters
    ----------
    study : str
    fingerprint : str
        SHA-256 of the payload.
    payload : dict
    data : bytes
        The file, if it was written here.
    """

    study: str
    fingerprint: str
    payload: dict[str, Any] = field(repr=False)
    data: bytes = field(repr=False, default=b"")

    @property
    def step(self) -> int:
        return int(self.payload["step"])

    @property
    def last(self) -> bool:
        """Whether the refinement ends here; otherwise the sites send sums again."""
        return bool(self.payload["last"])

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(self.payload["sites"])

    @property
    def total(self) -> Floats:
        """Sums of all sites, (K, P)."""
        return sums_of(self.payload)

    @cached_property
    def model(self) -> Any:
        """The shared model: one class per cluster, ready for `font.refinement.site_step`."""
        content = self.payload["model"]
        return family_of(content["format"]).read(content).from_statistics(self.total)


class Step(NamedTuple):
    """What a site's next sums answer: the ensemble (step 0), or a shared model.

    Parameters
    ----------
    fingerprint : str
        Of the file.
    step : int
        Of the sums that answer it.
    content : dict
        Of a model: family, variables and prior of all.
    n_clusters : int
    origin : str
        Fingerprint of the ensemble that the refinement began with.
    labelled : {site: patients}
        The most that each site can have labelled, given its rounded counts in the ensemble; after
        secure sums the most of all sites together, under `ALL_SITES`.
    ensemble, shared : the file, one of the two
    """

    fingerprint: str
    step: int
    content: dict[str, Any]
    n_clusters: int
    origin: str
    labelled: dict[str, int]
    ensemble: EnsembleFile | None = None
    shared: SharedFile | None = None

    @property
    def family(self) -> ModelFamily:
        return family_of(self.content["format"])

    @property
    def shape(self) -> tuple[int, int]:
        """Of a site's sums: clusters, and sums of each."""
        return self.n_clusters, n_statistics(self.content)

    @property
    def sites(self) -> list[str]:
        """The sites of the step before: those that sent sums, or at first models."""
        if self.shared is not None:
            return list(self.shared.sites)
        models = self.ensemble.models.values() if self.ensemble is not None else ()
        return list(dict.fromkeys(model.site for model in models))


@dataclass(frozen=True, eq=False)
class Question:
    """What a site has at hand to answer the centre's ensemble or shared file.

    Parameters
    ----------
    step : Step
        The file.
    model
        Whose `statistics` sum: the shared model, or at step 0 one class for everyone.
    data
        The site's patients.
    membership : (n, K)
        Of the clusters.
    min_count : int
    draws : Draws
        The same for all steps of a refinement, so that what several reveal does not add up.
    """

    step: Step
    model: Any
    data: Any
    membership: NDArray[Any]
    min_count: int = MIN_COUNT
    draws: Draws = field(default_factory=SecretDraws)


# --- reading and writing -------------------------------------------------------------------


def read_step(source: Source, header: Header | None = None) -> Step:
    """Read an ensemble or a shared file: what a site's next sums rest on."""
    kind = claimed_kind(source)
    if kind == "shared":
        shared = read_shared(source, header)
        part = shared.payload
        return Step(
            fingerprint=shared.fingerprint,
            step=shared.step + 1,
            content=part["model"],
            n_clusters=len(part["sums"]),
            origin=part["ensemble"],
            labelled={row["site"]: row["patients"] for row in part["labelled"]},
            shared=shared,
        )
    if kind != "ensemble":
        raise InputError(
            f"{name_of(source)} is a file of the kind {kind[:60]!r}; give the centre's ensemble or "
            "shared file."
        )
    file = read_ensemble(source, header)
    contents = [model.content for model in file.models.values()]
    formats = sorted({content["format"] for content in contents})
    if len(formats) > 1:
        raise InputError(
            f"{name_of(source)} has models of different families ({some(formats)}); models of one "
            "family can be refined."
        )
    sizes = file.ensemble.cluster_sizes_.sum()
    unit = max(model.payload["min_count"] for model in file.models.values())
    most_classes = max(model.n_classes for model in file.models.values())
    rounding = most_classes * label_unit(unit, len(contents))
    return Step(
        fingerprint=file.fingerprint,
        step=0,
        content=contents[0],
        n_clusters=file.ensemble.n_clusters_,
        origin=file.fingerprint,
        labelled={str(site): int(n) + rounding for site, n in sizes.items()},
        ensemble=file,
    )


def write_shared(
    path: Path_ | None,
    before: Step,
    total: NDArray[Any],
    scale: int,
    header: Header,
    *,
    sites: Sequence[str],
    min_count: int,
    rounds: Rounds = 1,
) -> SharedFile:
    """Write the shared model that all sites' sums give.

    Parameters
    ----------
    path, before, header, rounds
        As in `font.exchange.messages.sums.share`.
    total : (K, P) whole numbers
        The sums of all sites, which stand for total/scale.
    scale : int
    sites : list of str
        Whose sums they are.
    min_count : int
        The unit that they were rounded to.
    """
    most = check_rounds(rounds)
    check_members(before, sites)
    if any(row[0] <= 0 for row in total.tolist()):
        raise InputError(
            "a cluster has no patients left in the sums of these sites; end the refinement with "
            "the step before, or combine with fewer clusters."
        )
    payload = {
        "step": before.step,
        "last": False,
        "ensemble": before.origin,
        "of": before.fingerprint,
        "min_count": min_count,
        "model": before.content,
        "labelled": [{"site": name, "patients": n} for name, n in before.labelled.items()],
        "sites": list(sites),
        "scale": scale,
        "sums": total.tolist(),
    }
    result = SharedFile(header.study, "", payload)
    settled = (
        rounds == "converge"
        and before.shared is not None
        and parameter_change(before.shared, result) < _SETTLED
    )
    payload["last"] = bool(before.step >= most or settled)
    file, sent = write_file(path, "shared", payload, header)
    return SharedFile(file.study, file.sha256, file.payload, sent)


def read_shared(source: Source, header: Header | None = None) -> SharedFile:
    """Read a shared model file (or its bytes)."""
    file = read_file(source, header, kind="shared")
    return SharedFile(file.study, file.sha256, file.payload)


def parameter_change(one: SharedFile, two: SharedFile) -> float:
    """The largest difference of a class parameter between two shared models."""
    before, after = one.model.class_parameters_, two.model.class_parameters_
    return float(np.abs(np.asarray(after) - np.asarray(before)).max())


def sums_of(payload: Mapping[str, Any]) -> Floats:
    """The sums in a payload, as numbers."""
    return np.asarray(np.array(payload["sums"], dtype=float) / payload["scale"])


def n_statistics(content: dict[str, Any]) -> int:
    """Sums per cluster that a model of this content has."""
    family = family_of(content["format"])
    if family.n_statistics is None:
        raise InputError(f"a {family.name} cannot be refined by exchanging files.")
    return family.n_statistics(content)


# --- what is refused -----------------------------------------------------------------------


def check_rounds(rounds: Rounds) -> int:
    """The last step that is possible."""
    if rounds == "converge":
        return MOST_STEPS
    number = whole_number(rounds, 0, 'rounds, unless "converge",')
    if number > MOST_STEPS:
        raise InputError(f"rounds is {number}; at most {MOST_STEPS} are possible between sites.")
    return number


def check_members(before: Step, sites: Iterable[str]) -> None:
    """Refuse sites that were not part of the step before."""
    unknown = sorted(set(sites) - set(before.shared.sites)) if before.shared is not None else []
    if unknown:
        raise InputError(
            f"the sites {some(unknown)} were not part of the step before; a site joins at the "
            "beginning or not at all."
        )


def check_claim(before: Step, sites: Sequence[str], patients: float, unit: int) -> None:
    """Refuse sums of more patients than these sites labelled, but for what rounding may add.

    Parameters
    ----------
    before : Step
    sites : whose sums they are
    patients : number of patients in the sums of all clusters
    unit : of the sums
    """
    names = [ALL_SITES] if ALL_SITES in before.labelled else sites  # labels came as one sum
    absent = [name for name in names if name not in before.labelled]
    if absent:
        raise InputError(
            f"the ensemble has no counts of labels from {some(absent)}, so the sums of these sites "
            "cannot be compared with them; leave their sums out."
        )
    most = sum(before.labelled[name] for name in names)
    if patients > most + before.n_clusters * unit:
        raise InputError(
            f"the sums of {some(sites)} count about {patients:,.0f} patients, but at most "
            f"{most:,} were labelled there; have the site check what it sent, or leave it out."
        )


def sums_table(payload: Mapping[str, Any], origin: str) -> NDArray[np.int64]:
    """The whole numbers of a payload as a table, if its rows are of one length."""
    if len({len(row) for row in payload["sums"]}) > 1:
        raise misfit(origin, "its sums have rows of unequal length")
    return np.array(payload["sums"], dtype=np.int64)


def _check(payload: Mapping[str, Any], site: str, origin: str) -> None:
    content, unit = payload["model"], payload["min_count"]
    part = {"name": "shared", "bic": [], "min_count": unit, "model": content}
    check_model(part, "shared", origin)
    family = family_of(content["format"])
    if family.n_statistics is None:
        raise misfit(origin, f"a {family.name} cannot be refined by exchanging files")
    sums, width = sums_table(payload, origin), family.n_statistics(content)
    if sums.shape[1] != width:
        raise misfit(origin, f"it has {sums.shape[1]} sums per cluster instead of {width}")
    if sums.shape[0] ** 2 * width > MOST_WORK:
        raise misfit(origin, f"{len(sums)} clusters are more than can be compared")
    if (sums[:, 0] <= 0).any():
        raise misfit(origin, "it has a cluster without patients")
    if len(set(payload["sites"])) != len(payload["sites"]):
        raise misfit(origin, f"the sites {some(payload['sites'])} come with repeats")


def _explain(payload: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    last = ", the last" if payload["last"] else ""
    contains = [
        f"step {payload['step']} of a refinement{last}: for each of {len(payload['sums'])} "
        f"clusters the sums of all sites ({', '.join(payload['sites'])}), from which the shared "
        "model is made",
        "one site's model as it was sent, for its states and prior",
    ]
    reveals = [
        "about how common each course of treatment is at all sites together",
        "no more about patients than the sums files that it was made of",
    ]
    return contains, reveals


MESSAGE = Message(
    payload=SharedPayload, explain=_explain, check=_check, sender="centre", receiver="all"
)
