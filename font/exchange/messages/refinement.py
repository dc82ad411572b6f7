"""What a refinement exchanges: the *sums* message, site → centre, and the *shared*, centre → all.

A sums file answers an ensemble file (step 0: sums by the ensemble's clusters) or a shared file
(step r: sums by memberships under the shared model of step r − 1). `font.refinement` is the same in
one process. Sums are whole numbers that stand for value × scale, so that they can be added exactly,
also modulo 2⁶⁴. The payload is:

=================== =========================================================================
step                0: by the ensemble's clusters; r: by memberships under the shared model of
                    step r − 1
of                  SHA-256 of the payload that the sums answer: of the ensemble or shared file
min_count           the unit of the sums
format              family of the models, as in model.format, of those whose statistics are counts,
                    such as latent class models
per_patient         mean number of events per patient in sums to which few patients contribute
scale               100; with min_count 1, where nothing is rounded, 1,000,000
sums                K × P: for each cluster the patients, then the statistics of the family, for
                    latent class models those who gave each answer; a sum to which fewer than
                    min_count different patients contribute is 0 or min_count × per_patient
=================== =========================================================================

The *masked sums* message takes its place in secure sums, see `font.exchange.masked`: exact sums
under masks. `of` is as above. The values are the sums by cluster (K × P) in millionths, then in
millionths how many patients contribute to each, then the same with each patient divided among the
sums of a block that are his, then 8 secret numbers of the site, whose sum seeds the centre's
rounding.

The *shared* message holds the sum of the sites' sums, of which all make one model. The payload is:

=================== =========================================================================
step, of, scale     as in the sums files that it adds
last                whether the refinement ends here
ensemble            SHA-256 of the payload of the ensemble that the refinement began with
min_count           the lowest of the sums files; of masked files, the largest, since the centre
                    rounds their sum
model               content of the first model of the ensemble; its states or items, its prior and
                    the form of its chains are those of the clusters
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

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from font.checks import Floats, some, whole_number
from font.errors import InputError
from font.exchange.disclosure import (
    EXACT,
    MIN_COUNT,
    Draws,
    SecretDraws,
    hints_of_counts,
    label_unit,
    round_sums,
    round_total,
    rounding_in_words,
    unrounded_sums,
)
from font.exchange.envelope import Header, Sent, claimed_kind, read_file, write_file
from font.exchange.fields import (
    ALL_SITES,
    MOST_SITES,
    MOST_WORK,
    Count,
    Hash,
    Least,
    Number,
    Path_,
    Site,
    Source,
    StepNumber,
    Strict,
    SumsTable,
    Text,
    misfit,
    name_of,
    size,
)
from font.exchange.masked import (
    MaskedFile,
    MaskedPayload,
    add_masked,
    check_masked,
    explain_masked,
    write_masked,
)
from font.exchange.messages.ensemble import EnsembleFile, read_ensemble
from font.exchange.messages.model import check_model
from font.exchange.registry import Message, ModelFamily, family_of
from font.labels import capped_site
from font.refinement import check_family

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


class SharedFile(Sent):
    """The model that all sites share after a step of the refinement."""

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

    @cached_property
    def model(self) -> Any:
        """The shared model: one class per cluster, ready for `font.refinement.site_step`."""
        return _shared_model(self.payload)

    @property
    def total(self) -> Floats:
        """Sums of all sites, (K, P)."""
        return sums_of(self.payload)


class Step(NamedTuple):
    """What a site's next sums answer: the ensemble (step 0), or a shared model.

    `content` is that of a model, with the family, variables and prior of all; `origin` the
    fingerprint of the ensemble that the refinement began with; `labelled` the most patients that
    each site can have labelled, given its rounded counts in the ensemble (after secure sums the
    most of all sites together, under `ALL_SITES`); `ensemble` or `shared` is the file.
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

    `model` is the one whose `statistics` sum: the shared model, or at step 0 one class for
    everyone. `membership` (n, K) is of the clusters. The draws are the same for all steps of a
    refinement, so that what several reveal does not add up.
    """

    step: Step
    model: Any
    data: Any
    membership: NDArray[Any]
    min_count: int = MIN_COUNT
    draws: Draws = field(default_factory=SecretDraws)


# --- reading and writing ----------------------------------------------------------------------


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
    """Write the shared model that the sums of these sites give, whole numbers that stand for
    total/scale.
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
    settled = (
        rounds == "converge"
        and before.shared is not None
        and parameter_change(before.shared.model, _shared_model(payload)) < _SETTLED
    )
    payload["last"] = bool(before.step >= most or settled)
    return SharedFile(write_file(path, "shared", payload, header))


def read_shared(source: Source, header: Header | None = None) -> SharedFile:
    """Read a shared model file (or its bytes)."""
    return SharedFile(read_file(source, header, kind="shared"))


def parameter_change(one: Any, two: Any) -> float:
    """The largest difference of a class parameter between two models."""
    before, after = np.asarray(one.class_parameters_), np.asarray(two.class_parameters_)
    return float(np.abs(after - before).max())


def _shared_model(payload: Mapping[str, Any]) -> Any:
    content = payload["model"]
    return family_of(content["format"]).read(content).from_statistics(sums_of(payload))


def sums_of(payload: Mapping[str, Any]) -> Floats:
    """The sums in a payload, as numbers."""
    return np.asarray(np.array(payload["sums"], dtype=float) / payload["scale"])


def n_statistics(content: dict[str, Any]) -> int:
    """Sums per cluster that a model of this content has."""
    family = family_of(content["format"])
    if family.n_statistics is None:
        raise InputError(f"a {family.name} cannot be refined by exchanging files.")
    return family.n_statistics(content)


# --- what is refused --------------------------------------------------------------------------


def check_rounds(rounds: Rounds) -> int:
    """The last step that is possible."""
    if rounds == "converge":
        return MOST_STEPS
    number = whole_number(rounds, 0, 'rounds, unless "converge",')
    if number > MOST_STEPS:
        raise InputError(f"rounds is {number}; at most {MOST_STEPS} are possible between sites.")
    return number


def check_one_form(before: Step) -> None:
    """Refuse an ensemble of models of several families or forms: their sums cannot be added."""
    if before.ensemble is not None:
        check_family({name: file.model for name, file in before.ensemble.models.items()})


def check_members(before: Step, sites: Iterable[str]) -> None:
    """Refuse sites that were not part of the step before."""
    unknown = sorted(set(sites) - set(before.shared.sites)) if before.shared is not None else []
    if unknown:
        raise InputError(
            f"the sites {some(unknown)} were not part of the step before; a site joins at the "
            "beginning or not at all."
        )


def check_claim(before: Step, sites: Sequence[str], patients: float, unit: int) -> None:
    """Refuse sums of more patients than these sites labelled, but for what rounding to `unit` may
    add.
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


def _check_shared(payload: Mapping[str, Any], site: str, origin: str) -> None:
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


def _explain_shared(payload: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    last = ", the last" if payload["last"] else ""
    contains = [
        f"step {payload['step']} of a refinement{last}: for each of {len(payload['sums'])} "
        f"clusters the sums of all sites ({', '.join(payload['sites'])}), from which the shared "
        "model is made",
        "one site's model as it was sent, for its states, prior and form",
    ]
    reveals = [
        "about how common each course of treatment is at all sites together",
        "no more about patients than the sums files that it was made of",
    ]
    return contains, reveals


SHARED = Message(
    payload=SharedPayload,
    explain=_explain_shared,
    check=_check_shared,
    sender="centre",
    receiver="all",
)


class SumsPayload(Strict):
    """A site's sums by cluster, for a refinement."""

    step: StepNumber
    of: Hash
    min_count: Least
    format: Text
    per_patient: Annotated[Number, Field(ge=1)]
    scale: Least
    sums: SumsTable


class SumsFile(Sent):
    """A site's sums, rounded."""

    @property
    def step(self) -> int:
        """0: by the ensemble's clusters; r: by memberships under the model of step r − 1."""
        return int(self.payload["step"])

    @property
    def of(self) -> str:
        """SHA-256 of the payload of the file that it answers."""
        return str(self.payload["of"])

    @property
    def sums(self) -> Floats:
        """Sums by cluster (K, P), as `statistics` of the models' family gives them."""
        return sums_of(self.payload)


def answer(question: Question) -> dict[str, Any]:
    """The payload with which a site answers an ensemble or shared file."""
    before, min_count = question.step, whole_number(question.min_count, 1, "min_count")
    rounded = round_sums(*exact_sums(question), min_count, question.draws)
    return {
        "step": before.step,
        "of": before.fingerprint,
        "min_count": min_count,
        "format": before.content["format"],
        "per_patient": rounded.per_patient,
        "scale": rounded.scale,
        "sums": rounded.values.tolist(),
    }


def exact_sums(question: Question) -> tuple[Floats, Floats]:
    """A site's sums by cluster and how many patients contribute to each, (K, P), unrounded."""
    check_one_form(question.step)
    family = question.step.family
    if family.support is None:
        raise InputError(
            f"a {family.name} cannot be refined by exchanging files: its sums are not counts, and "
            "nothing but rounded counts may leave."
        )
    model, data, membership = question.model, question.data, question.membership
    return model.statistics(data, membership), family.support(model, data, membership)


def read_sums(source: Source, header: Header | None = None, *, min_count: int = 1) -> SumsFile:
    """Read a site's sums file (or its bytes); the arguments are those of `read_file`."""
    return SumsFile(read_file(source, header, kind="sums", min_count=min_count))


# --- the centre's part ------------------------------------------------------------------------


def share(
    before: Step,
    parts: Iterable[SumsFile],
    header: Header,
    *,
    rounds: Rounds = 1,
    path: Path_ | None = None,
) -> SharedFile:
    """The centre's part of a step: add all sites' sums and write the shared model.

    The sums answer the file `before`. The refinement ends after the step `rounds`; "converge" ends
    it when no parameter changes by 0.001 any more, or at step 50. A site's sums may count no more
    patients than it labelled, and of three or more sites none counts for more than all the others
    together, as in `combine`: larger sums are scaled down. So a site that makes up its sums can
    outweigh the others neither by their size nor alone.
    """
    check_rounds(rounds)
    check_one_form(before)
    sums = sorted(parts, key=lambda part: part.site)
    check_parts(before, sums)
    scales = {part.payload["scale"] for part in sums}
    if len(scales) > 1:
        raise InputError(
            f"the sites' sums have different scales ({some(sorted(scales))}); use the same "
            "release of mmlca and the same min_count at all sites."
        )
    largest, factor = capped_site([float(part.sums[:, 0].sum()) for part in sums])
    tables = [np.array(part.payload["sums"], dtype=object) for part in sums]
    tables[largest] = np.rint(tables[largest].astype(float) * factor).astype(np.int64)
    return write_shared(
        path,
        before,
        np.sum(tables, axis=0),
        scales.pop(),
        header,
        sites=[part.site for part in sums],
        min_count=min(part.payload["min_count"] for part in sums),
        rounds=rounds,
    )


def check_parts(before: Step, parts: Sequence[SumsFile]) -> None:
    """Refuse sums that do not answer the file, or do not fit it."""
    if not parts:
        raise InputError("there is no sums file; each site makes one with `mmlca site refine`.")
    names = [part.site for part in parts]
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise InputError(f"the sites {some(twice)} sent sums twice; give each site's file once.")
    other = [part.site for part in parts if part.of != before.fingerprint]
    if other:
        steps = sorted({part.step for part in parts if part.of != before.fingerprint})
        raise InputError(
            f"the sums of {some(other)} (step {some(steps)}) answer another file than the one "
            f"given, for which step {before.step} is due; give the file that they answer, or have "
            "these sites run `mmlca site refine` with this one."
        )
    check_members(before, names)
    for part in parts:
        if part.sums.shape != before.shape or part.payload["format"] != before.content["format"]:
            raise InputError(
                f"the sums of {part.site!r} are a table of {part.sums.shape} of the family "
                f"{part.payload['format']!r}, where {before.shape} of "
                f"{before.content['format']!r} is needed; have the site run `mmlca site refine` "
                "with the file given."
            )
    for part in parts:
        check_claim(before, [part.site], float(part.sums[:, 0].sum()), part.payload["min_count"])


def _check_sums(payload: Mapping[str, Any], site: str, origin: str) -> None:
    family_of(payload["format"], f"{origin}: ")
    sums = sums_table(payload, origin)
    unit, scale = payload["min_count"], payload["scale"]
    wrong = unrounded_sums(sums, scale, payload["per_patient"], unit)
    if wrong is not None:
        raise misfit(origin, f"it has {wrong}")


def _explain_sums(payload: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    rows, unit = payload["sums"], payload["min_count"]
    contains = [
        f"step {payload['step']} of a refinement: for each of {len(rows)} clusters {len(rows[0])} "
        "sums over the site's patients, from which all sites' clusters are estimated anew",
        f"the mean number of events per patient ({payload['per_patient']:g}) in sums to which few "
        "patients contribute",
        rounding_in_words(unit)
        if unit > 1
        else "every sum as it is, not rounded, since min_count is 1",
    ]
    reveals = [
        "about how many patients of the site are in each cluster, and what they do",
        *(hints_of_counts(unit) if unit > 1 else ["the exact sums"]),
        "all steps of a refinement round with the same draws, so that several reveal little more "
        "than one",
    ]
    return contains, reveals


SUMS = Message(payload=SumsPayload, explain=_explain_sums, check=_check_sums, answer=answer)


# --- under masks ------------------------------------------------------------------------------

_MASKED = "masked sums"
# each site sends secret numbers along; their sum, which only the centre reads, seeds the rounding
_N_SEEDS, _SEED_BELOW = 8, 2**40


def write_masked_sums(
    path: Path_ | None,
    question: Question,
    secret: bytes,
    keys: Mapping[str, str],
    header: Header,
) -> MaskedFile:
    """Write a site's exact sums by cluster, masked, and how many patients contribute to each.

    These are counted twice: each patient once in every cell that is his, and divided among them.
    Each step has another file that it answers, and so other masks. The draws must be the same at
    all steps, from a secret of this site: they are its part of the seed with which the centre
    rounds the sum. The centre learns only the sum of all sites' parts.
    """
    shares, _ = _shares_and_blocks(question.step.family)
    parts = np.floor(question.draws.random(_N_SEEDS) * _SEED_BELOW)
    divided = shares(question.model, question.data, question.membership)
    scaled = [np.rint(EXACT * table).ravel() for table in (*exact_sums(question), divided)]
    numbers = np.concatenate([*scaled, parts]).astype(np.int64)
    of, min_count = question.step.fingerprint, question.min_count
    return write_masked(path, _MASKED, numbers, secret, keys, header, of=of, min_count=min_count)


def own_sums(part: MaskedFile, secret: bytes) -> tuple[Floats, Floats]:
    """The sums and the support (n,) that a site masked itself."""
    sums, support, _ = _tables(part.numbers(secret))
    return sums, support


def share_masked(
    before: Step,
    parts: Iterable[MaskedFile],
    header: Header,
    *,
    rounds: Rounds = 1,
    path: Path_ | None = None,
) -> SharedFile:
    """The centre's part of a step: the exact sum of all sites, rounded once, as a shared model.

    All steps are rounded with the same draws, as long as the same sites take part, so that what
    several steps reveal does not add up. Nobody but the centre can repeat them.
    """
    check_one_form(before)
    n_clusters, width = before.shape
    total = add_masked(parts)
    total.check(_MASKED, before.fingerprint, 3 * n_clusters * width + _N_SEEDS)
    sites = list(total.fingerprints)
    sums, support, shares = _tables(total.values).reshape(3, n_clusters, width)
    check_claim(before, sites, float(sums[:, 0].sum()), unit=0)
    seed = hashlib.sha256(total.values[-_N_SEEDS:].tobytes()).digest()
    _, blocks = _shares_and_blocks(before.family)
    draws, unit = SecretDraws(seed, "sums"), total.min_count
    rounded = round_total(sums, support, shares, blocks(before.content), unit, draws)
    return write_shared(
        path,
        before,
        rounded.values.astype(object),
        rounded.scale,
        header,
        sites=sites,
        min_count=unit,
        rounds=rounds,
    )


def _tables(numbers: NDArray[np.int64]) -> Floats:
    """Sums, support and shares (3, K·P) of the numbers in a masked file."""
    return np.asarray(numbers[:-_N_SEEDS].reshape(3, -1) / EXACT)


def _shares_and_blocks(family: ModelFamily) -> tuple[Any, Any]:
    """The two functions of a family without which its sums cannot be masked."""
    if family.shares is None or family.blocks is None:
        raise InputError(f"a {family.name} cannot be refined with secure sums.")
    return family.shares, family.blocks


MASKED = Message(payload=MaskedPayload, explain=explain_masked, check=check_masked)
