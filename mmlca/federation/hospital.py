"""A hospital's part in a federated study: fit, label, assign, refine, results.

The commands `mmlca site …` and an app for Flower do the same through here, and everything that
leaves goes through the site's ledger. What the steps compute, and what a site does not answer, is
in `steps` and `results`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from ehr_prep.settings import PseudoSites
from font.checks import class_parameters, some
from font.errors import InputError, option_name
from font.exchange.envelope import Header, file_name, file_names
from font.exchange.fields import check_site, check_study
from font.exchange.masked import mask_key, read_mask_keys, write_mask_key
from font.exchange.messages.ensemble import EnsembleFile, read_ensemble
from font.exchange.messages.labels import write_labels, write_masked_labels
from font.exchange.messages.model import list_fingerprint, read_models, write_joins, write_model
from font.exchange.messages.refinement import Step, check_members, read_step
from font.exchange.registry import family_named, masked, message_of
from font.exchange.signatures import KEY_FILE, sign_file
from font.files import atomic_write, csv_text, hold
from font.labels import CrossTables, label
from font.settings import MIN_COUNT
from mmlca import __version__
from mmlca.federation.ledger import Ledger, request_of
from mmlca.federation.steps import (
    Notes,
    Refinement,
    check_agreed_models,
    check_agreed_steps,
    check_clusters_kept,
    check_labelled_models,
    check_likelihood_kept,
    check_own_sums_included,
    check_same_way,
    fit_models,
    local_prior,
    make_answer,
    read_notes,
    refined_table,
    step_memberships,
    write_notes,
)
from mmlca.model.settings import ClassSettings, ModelSettings
from mmlca.sequences.forms import PLAIN, Cuts, Form, Shared, make_form

if TYPE_CHECKING:
    import pandas as pd

    from mmlca.sequences.type import Sequences
    from mmlca.study.settings import Study

_CLASSES, _MODEL, _RESAMPLES = ClassSettings(), ModelSettings(), PseudoSites()
SOFTWARE = f"mmlca {__version__}"
Source = str | os.PathLike[str] | bytes
_P = ParamSpec("_P")
_T = TypeVar("_T")


def _alone(
    step: Callable[Concatenate[Any, _P], _T],
) -> Callable[Concatenate[Any, _P], _T]:
    """A step that has the site's folder for itself: two could not both add to the ledger."""

    @wraps(step)
    def held(self: Any, /, *args: _P.args, **options: _P.kwargs) -> _T:
        with hold(self.folder, private=True):
            return step(self, *args, **options)

    return held


@dataclass(frozen=True, kw_only=True, eq=False)
class Hospital:
    """A site of a federated study, with its patients and its rules of privacy.

    Parameters
    ----------
    study, site : str
        Names; that of the study is the same at all sites.
    sequences : Sequences
        The site's patients; a table of columns for models of columns, such as K-means.
    folder : path
        Gets `ledger.json`, `fits.json` (how the models were fitted), `to_all` (model files),
        `to_centre` (labels file) and `clusters.csv`; ledger, fits and clusters stay.
    round : int
        Of the study, from 1.
    study_file : Study, optional
        What `from_study` read of this site, which `results` needs.
    family : str
        Of the models that `fit` makes: the name of a registered family in small letters with
        hyphens, such as "time-course-model", "k-means" or "latent-class-model".
    n_classes : int, optional
        If not given, the number of `candidates` with the lowest `criterion`.
    candidates, criterion
        Numbers of classes to compare, as in `select_n_classes`; differences of their BIC are sent
        along, for the vote.
    fewer_classes : bool
        Where a class would have fewer than `min_count` patients, fit one class fewer, and so on;
        otherwise that is an error. A class with hardly any patients (fewer than 2) always has this
        effect, with a warning.
    pseudo_sites, fraction
        Fit so many resamples of that size; 0: the patients themselves.
    min_count, floor : int
        Counts leave rounded at random to multiples of `min_count` (`font.exchange.disclosure`),
        and `floor` is the smallest that this site accepts, which a study file cannot change.
    agreed : str, optional
        Fingerprint of the list of models that the sites agreed on (`font.list_fingerprint`, 12
        digits or more): label with no other list. A site that sends no model of its own needs it.
    keys : {site: public key}, optional
        Of other sites, and of the centre as "centre": a file in their name that they did not sign
        is refused. See `font.exchange.signatures`.
    signing_key : path, optional
        The private key to sign with; default: `signing.key` in `folder`, if it is there.
    override : str, optional
        Why something other than before should leave for the same study and round, in words.
    without : list of str
        Sites of a secure sum that have dropped out, as a person at this site has confirmed with
        them: once per round it answers again as the smaller set without them.
    starts, search, prior, seed, n_jobs
        See `MixtureMarkov`; `starts` is its n_init. Default of the prior: half a patient, with more
        than six states less (`mmlca.federation.steps.local_prior`).
    stays, periods, shared
        The form of the chains, see `MixtureMarkov`. Labels are all that the ensemble needs, so that
        sites may use different ones; a refinement needs models of one form.
    """

    study: str
    site: str
    sequences: Sequences | pd.DataFrame = field(repr=False)
    folder: Path = Path()
    round: int = 1
    study_file: Study | None = field(default=None, repr=False)
    family: str = "mixture-of-markov-chains"
    n_classes: int | None = None
    candidates: Sequence[int] = ()
    criterion: str = _CLASSES.criterion
    fewer_classes: bool = False
    pseudo_sites: int = 0
    fraction: float = _RESAMPLES.fraction
    min_count: int = MIN_COUNT
    floor: int = MIN_COUNT
    agreed: str | None = None
    keys: Mapping[str, str] | None = None
    signing_key: str | os.PathLike[str] | None = None
    override: str | None = None
    without: Sequence[str] = ()
    starts: int = _MODEL.n_init
    search: str = _MODEL.search
    prior: float | None = None
    seed: int = 1
    n_jobs: int = 1
    stays: Cuts = None
    periods: Cuts = None
    shared: Shared | None = None

    def __post_init__(self) -> None:
        check_study(self.study)
        check_site(self.site)
        if self.min_count < self.floor:
            raise InputError(
                f"min_count is {self.min_count}, but this site lets nothing leave that is rounded "
                f"to less than {self.floor}; raise min_count, or let the site change its floor."
            )
        make_form(self.stays, self.periods, self.shared)

    @classmethod
    def from_study(
        cls,
        path: str | os.PathLike[str],
        site: str | None = None,
        *,
        site_file: str | os.PathLike[str] | None = None,
        **changes: Any,
    ) -> Self:
        """The hospital that a study file describes.

        Parameters
        ----------
        path : the study file
            Of its sites only `site` needs to have its files here.
        site : str, optional
            Not needed if the file has one site, or with `site_file`.
        site_file : path, optional
            The hospital's own file, where the study file does not say where its patients are.
        changes
            Fields of `Hospital` that are to differ from what the file says.
        """
        from mmlca.study.site_data import read_site
        from mmlca.study.study_file import network_form, read_site_file, read_study

        place = None if site_file is None else read_site_file(site_file)
        site = name_of_site(path, read_study(path, files=False), site, site_file)
        study = read_study(path, site=site, site_file=site_file)
        number = study.classes.number
        settings: dict[str, Any] = {
            "study": study.name,
            "round": study.centre.round,
            "study_file": study,
            "n_classes": None if number == "vote" else number,
            "candidates": study.classes.candidates if number == "vote" else (),
            "criterion": study.classes.criterion,
            "pseudo_sites": study.pseudo_sites.per_site,
            "fraction": study.pseudo_sites.fraction,
            "min_count": study.privacy.min_count,
            "starts": study.model.n_init,
            "search": study.model.search,
            "prior": study.model.prior,
            "seed": study.seed,
            "n_jobs": study.n_jobs or 1,
            "keys": study.public_keys(),
        } | network_form(study).time_parts
        if place is not None:
            settings |= {"floor": place.floor, "signing_key": place.signing_key}
        if "sequences" not in changes:
            settings["sequences"] = read_site(study, site)
        return cls(site=site, **(settings | changes))

    @_alone
    def fit(self, out: Path | None = None) -> list[Path]:
        """Fit the site's models and write their files.

        The same request gets the same files again, from the ledger, without another fit. With
        `fewer_classes` and too few patients for two classes of `min_count` each, the only file says
        that the site takes part without a model of its own.
        """
        family = family_named(self.family)
        decides = {name: getattr(self, name) for name in _DECIDES}
        data = self._data(family.data)
        if family.data == "sequences":
            decides["prior"] = self.used_prior
            # as before there were other forms, so that plain models leave again as they left
            decides |= {} if self.form == PLAIN else {"form": self.form}
        if self.family != type(self).family:
            decides["family"] = self.family
        request = request_of(data, **decides)
        if self.fewer_classes and len(data) < 2 * self.min_count:
            content = write_joins(self.header(), min_count=self.min_count)
            return self._release("joins", request, lambda _: content, out)
        return self._release_models(request, lambda: fit_models(self, family, data), out)

    @_alone
    def release(self, models: Mapping[str, Any], out: Path | None = None) -> list[Path]:
        """Write the files of models that were fitted elsewhere to this site's patients.

        Parameters
        ----------
        models : {name: fitted model}
            Of any registered family; names are "SITE" or "SITE/1", "SITE/2", ….
        """

        def shape(model: Any) -> str:
            return repr(class_parameters(model, type(model).__name__).tolist())

        shapes = {name: shape(model) for name, model in models.items()}
        request = request_of(self.sequences, min_count=self.min_count, models=shapes)
        parts = {name: (model, self.sequences) for name, model in models.items()}
        return self._release_models(request, lambda: (parts, {}), out)

    @_alone
    def mask_key(self, out: Path | None = None) -> Path:
        """Write this site's public key for secure sums, which all sites need before they label.

        The private one is another in each study and round; it stays in the site's folder.
        """
        secret = self.ledger().mask_secret()
        request = f"{mask_key(secret)} {self.min_count}"
        content = write_mask_key(None, secret, self.header(), min_count=self.min_count)
        (path,) = self._release("key", request, lambda _: content, out)
        return path

    @_alone
    def label(
        self,
        models: Iterable[Source],
        out: Path | None = None,
        *,
        secure: Iterable[Source] | None = None,
    ) -> Path:
        """Label the patients with all sites' models and write the counts for the centre.

        The models must be those that the study agreed on: this site's own among them as they were
        sent, and the list the same as before if the site has labelled in this round already. A site
        that has sent no model, for instance because it has too few patients for one, may label as
        well, with the list whose fingerprint is `agreed`.

        Parameters
        ----------
        models : model files of all sites
        out : folder, optional
            `to_centre` if not given.
        secure : key files of all sites that take part, optional
            At least three, this site's own among them (`mask_key`). The counts then leave exact but
            masked, and the centre learns their sum over these sites only. If a site drops out, all
            others label again without its key file, once per round, and with its name in
            `without`. See `font.exchange.masked`.
        """
        header, unit = self.header(), self.min_count
        files = read_models(models, header, min_count=unit)
        check_agreed_models(files, self.ledger(), self.agreed)
        keys = self._mask_keys(secure)

        def make(ledger: Ledger) -> bytes:
            local = {name: file.model for name, file in files.items()}
            sizes = {name: file.n_classes for name, file in files.items()}
            tables = CrossTables.from_labels({self.site: label(local, self.sequences)}, sizes)
            if keys:
                own = ledger.mask_secret()
                return write_masked_labels(
                    None, tables, files, own, keys, header, min_count=unit
                ).data
            draws = ledger.draws("labels")
            return write_labels(None, tables, files, header, min_count=unit, draws=draws).data

        settings: dict[str, Any] = {"min_count": unit, "models": list_fingerprint(files)}
        request = request_of(self.sequences, **settings | ({"sites": keys} if keys else {}))
        (path,) = self._release("labels", request, make, out, keys=keys)
        return path

    def assign(self, ensemble: Source, out: Path | None = None) -> pd.DataFrame:
        """Give the patients their clusters, counted from 1; the table stays at the site.

        Only with the models that this site labelled with: another list is refused, unless
        `override` says why.
        """
        result = read_ensemble(ensemble, self.header())
        if self.override is None:
            check_labelled_models(result.models, self.ledger())
        models = {name: file.model for name, file in result.models.items()}
        table = result.ensemble.confidence(label(models, self.sequences))
        table.index.name = "id"
        table[["cluster", "runner_up"]] += 1
        _write_table(self.folder / "clusters.csv" if out is None else out, table)
        return table

    @_alone
    def refine(
        self,
        source: Source,
        out: Path | None = None,
        *,
        secure: Iterable[Source] | None = None,
    ) -> Refinement:
        """Take part in a step of the refinement: sums for the centre, clusters for the patients.

        Parameters
        ----------
        source : the centre's ensemble file, or its shared file of the step before
            A shared file gives the patients their clusters with probabilities, in `clusters.csv`;
            the table stays at the site. Unless the file is the last, sums for the next step are
            written too.
        out : folder, optional
            For the sums; `to_centre` if not given.
        secure : key files of all sites that take part, optional
            As in `label`: the sums leave exact but masked. Each step has masks of its own.

        Notes
        -----
        All steps are rounded with the same draws. A shared file is refused whose refinement began
        with another ensemble than this site's, that this site has no part in, whose sums are
        smaller than what this site sent, under which the log-likelihood of the site's patients
        falls by more than 5 % from one step to the next, or, of the first step, under which more
        than 30 % of the site's patients change their cluster; nothing is written then.
        """
        step = read_step(source, self.header())
        table, notes = self._refined(step)
        path = None
        if step.shared is None or not step.shared.last:
            keys = self._mask_keys(secure)
            check_members(step, keys)
            path = self._answer("sums", step, out, keys)
        write_notes(self, step.origin, notes)
        if table is None or step.shared is None:
            return Refinement(step.step, path, None)
        _write_table(self.folder / "clusters.csv", table)
        return Refinement(step.step if path else step.shared.step, path, table, notes.loglik)

    @_alone
    def answer(self, kind: str, source: Source, out: Path | None = None) -> Path:
        """Write the message of a kind with which this site answers the centre.

        Parameters
        ----------
        kind : str
            Of a message that answers an ensemble or shared file, see
            `font.exchange.registry.Message`.
        source : the centre's ensemble file, or its shared file of the step before
        out : folder, optional
            `to_centre` if not given.
        """
        step = read_step(source, self.header())
        self._check_own_part(step)
        return self._answer(kind, step, out)

    @_alone
    def results(
        self, ensemble: Source, shared: Source | None = None, out: Path | None = None
    ) -> Path:
        """Write this site's results for the report of all sites, for the centre.

        Parameters
        ----------
        ensemble : the centre's ensemble file
        shared : the last shared file of the refinement, if there was one
        out : folder, optional
            `to_centre` if not given.

        Notes
        -----
        Counts are rounded to multiples of `min_count`, whatever the study file says, with draws
        from the site's ledger; the same patients who are counted again get the same draw.
        """
        from mmlca.federation.results import make_results, request_of_results, study_of

        study = study_of(self, self._known_study())
        data, file, step = self._last_step(ensemble, shared)
        request = request_of_results(self, data, study, step)
        (path,) = self._release(
            "results",
            request,
            lambda ledger: make_results(self, ledger, data, study, file, step),
            out,
        )
        return path

    def report(
        self, ensemble: Source, shared: Source | None = None, out: Path | None = None
    ) -> Path:
        """Write a report of this site alone, with exact numbers, which must stay inside.

        Parameters
        ----------
        ensemble, shared : as in `results`
        out : folder, optional
            `report` in the site's folder if not given.

        Returns
        -------
        Path
            The page. Numbers of fewer than `min_count` patients are not shown.
        """
        from mmlca.federation.results import write_own_report

        study, out = self._known_study(), self.folder / "report" if out is None else out
        write_own_report(self, study, *self._last_step(ensemble, shared), out)
        return out / "report.html"

    def _known_study(self) -> Study:
        if self.study_file is None:
            raise InputError("results need the rules of a study file; use Hospital.from_study.")
        return self.study_file

    def _last_step(
        self, ensemble: Source, shared: Source | None
    ) -> tuple[Sequences, EnsembleFile, Step]:
        """The patients, and the clusters that results are about."""
        data = self._data("sequences")
        file = read_ensemble(ensemble, self.header())
        step = read_step(ensemble if shared is None else shared, self.header())
        if step.shared is not None and (not step.shared.last or step.origin != file.fingerprint):
            raise InputError(
                "the shared file is not the last of the refinement of this ensemble; give the two "
                "files that the centre sent last."
            )
        self._check_own_part(step)
        return data, file, step

    def header(self) -> Header:
        """What this site's files say of themselves, and what files from others must fit."""
        return Header(
            study=self.study,
            site=self.site,
            round=self.round,
            software=SOFTWARE,
            keys=self.keys,
            settings=None if self.study_file is None else self.study_file.agreed,
        )

    def ledger(self) -> Ledger:
        """The record of what left this site, in `folder`."""
        return Ledger(self.folder, self.study, self.site, self.round)

    # --- inside ---------------------------------------------------------------------------

    def _release_models(self, request: str, make: Any, out: Path | None) -> list[Path]:
        """Model files: from the ledger, or written anew and noted there first."""

        def write(ledger: Ledger) -> dict[str, bytes]:
            parts, bic = make()
            names = file_names(parts, "model")
            return {
                names[name]: write_model(
                    None,
                    model,
                    data,
                    self.header(),
                    name=name,
                    bic=bic,
                    min_count=self.min_count,
                    draws=ledger.draws("models"),  # the same for all resamples
                ).data
                for name, (model, data) in parts.items()
            }

        return self._release("model", request, write, out)

    def _answer(
        self, kind: str, step: Step, out: Path | None, keys: Mapping[str, str] | None = None
    ) -> Path:
        """The message that answers a step: from the ledger, or made anew and noted there first."""
        settings: dict[str, Any] = {"min_count": self.min_count, "of": step.fingerprint}
        request = request_of(self.sequences, **settings | ({"sites": keys} if keys else {}))
        (path,) = self._release(
            kind,
            request,
            lambda ledger: make_answer(self, ledger, kind, step, keys or {}),
            out,
            keys=keys,
            step=step.step,
        )
        return path

    def _release(
        self,
        kind: str,
        request: str,
        make: Callable[[Ledger], bytes | dict[str, bytes]],
        out: Path | None,
        *,
        keys: Mapping[str, str] | None = None,
        step: int | None = None,
    ) -> list[Path]:
        """Files of a kind for a request: from the ledger, or made anew and noted there first.

        `keys` are those of the sites of a secure sum; `step` is that of a refinement, if the site
        sends the message at every step.
        """
        kind = masked(kind) if keys else kind
        entry = kind if step is None else f"{kind} {step}"
        ledger = self.ledger()
        if self.override is None:
            check_same_way(entry, ledger)
        if keys:
            released = ledger.look_up_masked(entry, request, list(keys), self.without)
        else:
            released = ledger.look_up(entry, request, self.override)
        if released is None:
            made = make(ledger)  # with the draws that this ledger will keep
            released = made if isinstance(made, dict) else {file_name(self.site, entry): made}
            consent = f"without {', '.join(self.without)}" if keys and self.without else None
            ledger.record(entry, request, released, self.override or consent)
            if keys:
                ledger.mask_secret()  # which notes beside itself what it has masked
        folder = self.folder / f"to_{message_of(kind).receiver}"
        return self._write(folder if out is None else out, released)

    def _refined(self, step: Step) -> tuple[pd.DataFrame | None, Notes]:
        """The patients' table under a shared model that may be answered, and the site's notes."""
        self._check_own_part(step)
        if self.override is None and self.study_file is not None:
            check_agreed_steps(step, self.study_file.ensemble.refine)
        if step.shared is None:
            _, membership = step_memberships(self, step)
            return None, Notes(membership.argmax(axis=1).tolist(), {})
        notes, number = read_notes(self, step.origin), step.shared.step
        table, now = refined_table(step.shared.model, self.sequences)
        if self.override is None:
            check_likelihood_kept(notes.loglik.get(number - 1), now, number)
            if number == 0 and notes.clusters:
                check_clusters_kept(notes.clusters, (table["cluster"] - 1).tolist())
        before = {at: value for at, value in notes.loglik.items() if at < number}
        return table, notes._replace(loglik=before | {number: now})

    def _check_own_part(self, step: Step) -> None:
        """Answer an ensemble or a shared model only if this site has a part in it."""
        if self.override is not None:
            return
        if step.shared is not None:
            check_own_sums_included(step.shared, self.ledger())
        elif step.ensemble is not None:
            check_labelled_models(step.ensemble.models, self.ledger())

    def _mask_keys(self, secure: Iterable[Source] | None) -> dict[str, str]:
        """The public keys of the sites of a secure sum; none if the sum is not secure."""
        if secure is None:
            return {}
        return read_mask_keys(secure, self.header(), min_count=self.min_count)

    def _data(self, kind: str) -> Any:
        """The patients, of the kind that models need: "sequences" or "table"."""
        from mmlca.sequences.type import Sequences

        if kind == "sequences" and not isinstance(self.sequences, Sequences):
            raise TypeError("fitting needs treatment sequences; found a table of columns.")
        if kind == "table" and isinstance(self.sequences, Sequences):
            raise TypeError(f"a {self.family} is fitted to a table of columns; found sequences.")
        return self.sequences

    @property
    def form(self) -> Form:
        """Which parts the chains have, by `stays`, `periods` and `shared`."""
        return make_form(self.stays, self.periods, self.shared)

    @property
    def used_prior(self) -> float:
        """The prior that was given, or the default for as many states and the form."""
        if self.prior is not None:
            return self.prior
        return local_prior(self._data("sequences").n_states, self.form)

    def _write(self, folder: Path, files: Mapping[str, bytes]) -> list[Path]:
        """The files where they are sent from, signed if this site has a key."""
        key = self.folder / KEY_FILE if self.signing_key is None else Path(self.signing_key)
        if self.signing_key is not None or key.exists():
            files = {name: sign_file(data, key) for name, data in files.items()}
        for name, data in files.items():
            atomic_write(folder / name, data)
        return [folder / name for name in files]


def name_of_site(
    path: str | os.PathLike[str],
    study: Study,
    site: str | None,
    site_file: str | os.PathLike[str] | None = None,
) -> str:
    """Which site of a study file this is: the one named, that of its own file, or the only one."""
    from mmlca.study.study_file import read_site_file

    if site_file is not None:
        own = read_site_file(site_file).site
        if site not in (None, own):
            raise InputError(f"{site_file} is the file of {own!r}, not of {site!r}.")
        site = own
    if site is None and len(study.sites) > 1:
        raise InputError(
            f"{path} has the sites {some(study.sites)}; choose one with {option_name('site')}."
        )
    if site is not None and site not in study.sites:
        raise InputError(f"{path} has no site {site!r}; it has {some(study.sites)}.")
    return next(iter(study.sites)) if site is None else site


_DECIDES = (
    "n_classes",
    "candidates",
    "criterion",
    "fewer_classes",
    "pseudo_sites",
    "fraction",
    "min_count",
    "starts",
    "search",
    "seed",
)


def _write_table(path: Path, table: pd.DataFrame) -> None:
    """A table of patients, for its owner alone."""

    atomic_write(path, csv_text(table, index=True).encode(), private=True)
