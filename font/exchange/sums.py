"""The two files of a refinement: sums that a site sends, and the shared model that comes back.

A sums file answers an ensemble file (step 0: sums by the ensemble's clusters) or a shared file
(step r: sums by memberships under the shared model of step r − 1). A shared file has the totals of
all sites, from which every receiver makes the same model. `font.refinement` is the same in one
process; `font.exchange.spec` says what is in the files, `font.exchange.privacy` what may be. Both
files stand in one module, because each answers the other: what one writes of steps, sites and
numbers of sums, the reader of the other checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from font.checks import Floats, some, whole_number
from font.errors import InputError
from font.exchange.files import EnsembleFile, read_ensemble
from font.exchange.names import ALL_SITES
from font.exchange.parse import Path_, Source, name_of
from font.exchange.privacy import MIN_COUNT, Draws, SecretDraws, label_unit, round_sums
from font.exchange.registry import kind_of
from font.exchange.schema import read_file, write_file
from font.exchange.signatures import Keys

MOST_STEPS = 50  # of one refinement between sites
_SETTLED = 1e-3  # largest change of a class parameter after which "converge" ends

Rounds = int | str


@dataclass(frozen=True, eq=False)
class SumsFile:
    """A site's sums, rounded.

    Parameters
    ----------
    study, site : str
    step : int
        0: by the ensemble's clusters; r: by memberships under the shared model of step r − 1.
    of : str
        SHA-256 of the payload of the file that it answers.
    sums : (K, P)
        Sums by cluster, as `statistics` of the models' family gives them.
    payload : dict
    data : bytes
        The file, if it was written here.
    """

    study: str
    site: str
    step: int
    of: str
    sums: Floats
    payload: dict[str, Any] = field(repr=False)
    data: bytes = field(repr=False, default=b"")


@dataclass(frozen=True, eq=False)
class SharedFile:
    """The model that all sites share after a step of the refinement.

    Parameters
    ----------
    study : str
    step : int
    last : bool
        Whether the refinement ends here; else the sites send sums again.
    fingerprint : str
        SHA-256 of the payload.
    payload : dict
    data : bytes
        The file, if it was written here.
    """

    study: str
    step: int
    last: bool
    fingerprint: str
    payload: dict[str, Any] = field(repr=False)
    data: bytes = field(repr=False, default=b"")

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(self.payload["sites"])

    @property
    def total(self) -> Floats:
        """Sums of all sites, (K, P)."""
        return _sums(self.payload)

    @cached_property
    def model(self) -> Any:
        """The shared model: one class per cluster, ready for `font.refinement.site_step`."""
        content = self.payload["model"]
        return kind_of(content["format"]).read(content).from_statistics(self.total)


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


def read_step(
    source: Source, *, study: str | None = None, round: int | None = None, keys: Keys = None
) -> Step:
    """Read an ensemble or a shared file: what a site's next sums rest on."""
    file = read_file(source, study=study, round=round, keys=keys)
    if file.kind == "shared":
        shared = read_shared(source, study=study, round=round, keys=keys)
        part = shared.payload
        return Step(
            fingerprint=file.sha256,
            step=shared.step + 1,
            content=part["model"],
            n_clusters=len(part["sums"]),
            origin=part["ensemble"],
            labelled={row["site"]: row["patients"] for row in part["labelled"]},
            shared=shared,
        )
    if file.kind != "ensemble":
        raise InputError(
            f"{name_of(source)} is a file of the kind {file.kind!r}; give the centre's ensemble "
            "or shared file."
        )
    ensemble = read_ensemble(source, study=study, round=round, keys=keys)
    contents = [model.content for model in ensemble.models.values()]
    formats = sorted({content["format"] for content in contents})
    if len(formats) > 1:
        raise InputError(
            f"{name_of(source)} has models of different kinds ({some(formats)}); models of one "
            "kind can be refined."
        )
    sizes = ensemble.ensemble.cluster_sizes_.sum()
    unit = max(model["min_count"] for model in file.payload["models"])
    rounding = max(file.payload["ensemble"]["n_classes"]) * label_unit(unit, len(contents))
    return Step(
        fingerprint=file.sha256,
        step=0,
        content=contents[0],
        n_clusters=ensemble.ensemble.n_clusters_,
        origin=file.sha256,
        labelled={str(site): int(n) + rounding for site, n in sizes.items()},
        ensemble=ensemble,
    )


def write_sums(
    path: Path_ | None,
    before: Step,
    model: Any,
    data: Any,
    membership: NDArray[Any],
    *,
    study: str,
    site: str,
    round: int = 1,
    min_count: int = MIN_COUNT,
    draws: Draws | None = None,
    software: str = "font",
    created: str | None = None,
) -> SumsFile:
    """Write a site's sums by cluster, rounded at random.

    Parameters
    ----------
    path : where to; None checks everything and writes nothing
    before : Step
        The file that the sums answer.
    model
        Whose `statistics` sums: the shared model, or at step 0 one class for everyone.
    data
        The site's patients.
    membership : (n, K)
        Of the clusters.
    study, site, round, min_count, draws, software, created
        As in `write_model`. The same draws must serve all steps of a refinement, so that what
        several steps tell does not add up.
    """
    whole_number(min_count, 1, "min_count")
    exact, support = exact_sums(before, model, data, membership)
    rounded = round_sums(exact, support, min_count, draws or SecretDraws())
    payload = {
        "step": before.step,
        "of": before.fingerprint,
        "min_count": min_count,
        "format": before.content["format"],
        "per_patient": rounded.per_patient,
        "scale": rounded.scale,
        "sums": rounded.values.tolist(),
    }
    about: dict[str, Any] = {"study": study, "site": site, "round": round, "software": software}
    file, sent = write_file(path, "sums", payload, created=created, **about)
    return SumsFile(
        study, site, before.step, before.fingerprint, _sums(payload), file.payload, sent
    )


def exact_sums(
    before: Step, model: Any, data: Any, membership: NDArray[Any]
) -> tuple[Floats, Floats]:
    """A site's sums by cluster and how many patients stand behind each, (K, P) both, unrounded."""
    kind = kind_of(before.content["format"])
    if kind.support is None:
        raise InputError(
            f"a {kind.name} cannot be refined by exchanging files: its sums are no counts, and "
            "nothing but rounded counts may leave."
        )
    return model.statistics(data, membership), kind.support(model, data, membership)


def read_sums(
    source: Source,
    *,
    study: str | None = None,
    min_count: int = 1,
    round: int | None = None,
    keys: Keys = None,
) -> SumsFile:
    """Read a site's sums file (or its bytes); the arguments are those of `read_model`."""
    file = read_file(source, study=study, kind="sums", min_count=min_count, round=round, keys=keys)
    part = file.payload
    return SumsFile(file.study, file.site, part["step"], part["of"], _sums(part), part)


def share(
    before: Step,
    parts: Iterable[SumsFile],
    *,
    study: str,
    rounds: Rounds = 1,
    path: Path_ | None = None,
    **about: Any,
) -> SharedFile:
    """The centre's part of a step: add all sites' sums and write the shared model.

    Parameters
    ----------
    before : Step
        The file that the sums answer: the ensemble, or the shared file of the step before.
    parts : list of SumsFile, one of each site
    study : str
    rounds : int or "converge"
        The step after which the refinement ends; "converge" ends it when no parameter changes by
        0.001 any more, or at step 50.
    path : where to write the file, optional
    about
        round, site, software, created, signing_key, as in `write_ensemble`.

    Notes
    -----
    A site's sums may count no more patients than it labelled, and of three or more sites none
    counts for more than all the others together, as in `combine`: larger sums are scaled down. So a
    site that makes up its sums can outweigh the others neither by their size nor alone.
    """
    check_rounds(rounds)
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
        sites=[part.site for part in sums],
        min_count=min(part.payload["min_count"] for part in sums),
        study=study,
        rounds=rounds,
        **about,
    )


def write_shared(
    path: Path_ | None,
    before: Step,
    total: NDArray[Any],
    scale: int,
    *,
    sites: Sequence[str],
    min_count: int,
    study: str,
    rounds: Rounds = 1,
    round: int = 1,
    site: str = "centre",
    software: str = "font",
    created: str | None = None,
    signing_key: Path_ | None = None,
) -> SharedFile:
    """Write the shared model that all sites' sums give.

    Parameters
    ----------
    path, before, study, rounds, round, site, software, created, signing_key
        As in `share`.
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
    result = SharedFile(study, before.step, False, "", payload)
    settled = (
        rounds == "converge"
        and before.shared is not None
        and parameter_change(before.shared, result) < _SETTLED
    )
    payload["last"] = bool(before.step >= most or settled)
    about: dict[str, Any] = {"study": study, "site": site, "round": round, "software": software}
    file, sent = write_file(
        path, "shared", payload, created=created, signing_key=signing_key, **about
    )
    return SharedFile(study, before.step, payload["last"], file.sha256, file.payload, sent)


def read_shared(
    source: Source, *, study: str | None = None, round: int | None = None, keys: Keys = None
) -> SharedFile:
    """Read a shared model file (or its bytes)."""
    file = read_file(source, study=study, kind="shared", round=round, keys=keys)
    part = file.payload
    return SharedFile(file.study, part["step"], part["last"], file.sha256, part)


def parameter_change(one: SharedFile, two: SharedFile) -> float:
    """The largest difference of a class parameter between two shared models."""
    before, after = one.model.class_parameters_, two.model.class_parameters_
    return float(np.abs(np.asarray(after) - np.asarray(before)).max())


def check_rounds(rounds: Rounds) -> int:
    """The last step that is possible."""
    if rounds == "converge":
        return MOST_STEPS
    number = whole_number(rounds, 0, 'rounds, unless "converge",')
    if number > MOST_STEPS:
        raise InputError(f"rounds is {number}, between sites at most {MOST_STEPS} are possible.")
    return number


def _sums(payload: dict[str, Any]) -> Floats:
    return np.asarray(np.array(payload["sums"], dtype=float) / payload["scale"])


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
    shape = (before.n_clusters, n_statistics(before.content))
    for part in parts:
        if part.sums.shape != shape or part.payload["format"] != before.content["format"]:
            raise InputError(
                f"the sums of {part.site!r} are a table of {part.sums.shape} of the kind "
                f"{part.payload['format']!r}, where {shape} of {before.content['format']!r} is "
                "needed; have the site run `mmlca site refine` with the file given."
            )

    for part in parts:
        check_claim(before, [part.site], float(part.sums[:, 0].sum()), part.payload["min_count"])


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


def capped_site(patients: Sequence[float]) -> tuple[int, float]:
    """The site with most patients, and the factor by which its sums count.

    With three sites or more none counts for more than all the others together.

    Examples
    --------
    >>> capped_site([300, 3300, 300, 300])
    (1, 0.2727272727272727)
    >>> capped_site([2172, 3150])
    (1, 1.0)
    """
    largest = int(np.argmax(patients))
    others = sum(patients) - patients[largest]
    if len(patients) < 3 or patients[largest] <= others:
        return largest, 1.0
    return largest, others / patients[largest]


def check_members(before: Step, sites: Iterable[str]) -> None:
    """Refuse sites that were not part of the step before."""
    unknown = sorted(set(sites) - set(before.shared.sites)) if before.shared is not None else []
    if unknown:
        raise InputError(
            f"the sites {some(unknown)} were not part of the step before; a site joins at the "
            "beginning or not at all."
        )


def n_statistics(content: dict[str, Any]) -> int:
    """Sums per cluster that a model of this content has."""
    kind = kind_of(content["format"])
    if kind.n_statistics is None:
        raise InputError(f"a {kind.name} cannot be refined by exchanging files.")
    return kind.n_statistics(content)
