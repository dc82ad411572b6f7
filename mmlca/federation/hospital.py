"""A hospital's part in a federated study: fit, label, assign, refine.

The commands `mmlca site …` and an app for Flower do the same through here, and everything that
leaves goes through the site's ledger.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, TypeVar

from mmlca import __version__

if TYPE_CHECKING:
    import pandas as pd

    from font.exchange.files import ModelFile
    from font.exchange.sums import SharedFile, Step
    from mmlca.federation.ledger import Ledger
    from mmlca.model.estimator import MixtureMarkov
    from mmlca.sequences.type import Sequences

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
        from font.files import hold

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
        The site's patients; a table of columns to label with other models than Markov chains.
    folder : path
        Gets `ledger.json`, `to_all` (model files), `to_centre` (labels file) and `clusters.csv`;
        ledger and clusters stay.
    round : int
        Of the study, from 1.
    n_classes : int, optional
        Else the number of `candidates` with the lowest criterion.
    candidates : list of int
        Numbers of classes to compare; differences of their BIC are sent along, for the vote.
    criterion : str
        See `select_n_classes`.
    fewer_classes : bool
        Where a class would have fewer than `min_count` patients, fit one class fewer, and so on;
        otherwise that is an error.
    pseudo_sites, fraction
        Fit so many resamples of that size; 0: the patients themselves.
    min_count : int
        Counts leave rounded at random to multiples of it; see `font.exchange.privacy`.
    floor : int
        The smallest `min_count` that this site accepts. It is the site's own setting: a study file
        cannot change it.
    agreed : str, optional
        Fingerprint of the list of models that the sites agreed on (`font.list_fingerprint`, 12
        digits or more): label with no other list. A site that sends no model of its own needs it.
    keys : {site: public key}, optional
        Of other sites, and of the centre as "centre": a file in their name that they did not sign
        is refused. See `font.exchange.signatures`.
    signing_key : path, optional
        The private key to sign with; default: `signing.key` in `folder`, if it is there.
    override : str, optional
        Why something else than before should leave for the same study and round, in words.
    prior : float
        Pseudo-count of each probability, see `MixtureMarkov`. Half a patient serves ensembles,
        because chains of a few patients are steadied: at 10 simulated sites of 50 to 150 patients
        it raised the adjusted Rand index of the ensemble with the simulated classes from 0.870
        (with 10⁻⁴) to 0.923, at 5 sites of 50 to 500 from 0.884 to 0.923, at 2 of 2,000 to 3,200
        from 0.934 to 0.940 (40 replicates each, standard errors of the gains up to 0.005).
    starts, search, seed, n_jobs
        See `MixtureMarkov`; `starts` is its n_init.
    """

    study: str
    site: str
    sequences: Sequences | pd.DataFrame = field(repr=False)
    folder: Path = Path()
    round: int = 1
    n_classes: int | None = None
    candidates: Sequence[int] = ()
    criterion: str = "bic"
    fewer_classes: bool = False
    pseudo_sites: int = 0
    fraction: float = 0.8
    min_count: int = 11
    floor: int = 11
    agreed: str | None = None
    keys: Mapping[str, str] | None = None
    signing_key: str | os.PathLike[str] | None = None
    override: str | None = None
    starts: int = 40
    search: str = "default"
    prior: float = 0.5
    seed: int = 1
    n_jobs: int = 1

    def __post_init__(self) -> None:
        from font.exchange.names import check_site, check_study

        check_study(self.study)
        check_site(self.site)
        if self.min_count < self.floor:
            raise ValueError(
                f"min_count is {self.min_count}, but this site lets nothing leave that is rounded "
                f"to less than {self.floor}; raise min_count, or let the site change its floor."
            )

    @classmethod
    def from_study(
        cls, path: str | os.PathLike[str], site: str | None = None, **changes: Any
    ) -> Self:
        """The hospital that a study file describes.

        Parameters
        ----------
        path : the study file
            Of its sites only `site` needs to have its files here.
        site : str, optional
            Not needed if the file has one site.
        changes
            Fields of `Hospital` that are to differ from what the file says.
        """
        from mmlca.study.config import read_study
        from mmlca.study.read import read_site

        if site is None:
            site, *others = read_study(path, files=False).sites
            if others:
                raise ValueError(
                    f"{path} has the sites {', '.join([site, *others])}; say which one this is."
                )
        study = read_study(path, site=site)
        fixed = isinstance(study.classes.number, int)
        settings: dict[str, Any] = {
            "study": study.name,
            "n_classes": study.classes.number if fixed else None,
            "candidates": () if fixed else study.classes.candidates,
            "criterion": study.classes.criterion,
            "pseudo_sites": study.pseudo_sites.per_site,
            "fraction": study.pseudo_sites.fraction,
            "min_count": study.privacy.min_count,
            "starts": study.model.n_init,
            "search": study.model.search,
            "seed": study.seed,
            "n_jobs": study.n_jobs or 1,
            "keys": read_study(path, files=False).public_keys(),
        }
        if study.model.prior is not None:
            settings["prior"] = study.model.prior
        if "sequences" not in changes:
            settings["sequences"] = read_site(study, site)
        return cls(site=site, **(settings | changes))

    @_alone
    def fit(self, out: Path | None = None) -> list[Path]:
        """Fit the site's models and write their files.

        The same request gets the same files again, from the ledger, without another fit.
        """
        from mmlca.federation.ledger import request_of

        request = request_of(
            self._sequences(),
            **{name: getattr(self, name) for name in _DECIDES},
        )
        return self._release_models(request, self._fitted, out)

    @_alone
    def release(self, models: Mapping[str, Any], out: Path | None = None) -> list[Path]:
        """Write the files of models that were fitted elsewhere to this site's patients.

        Parameters
        ----------
        models : {name: fitted model}
            Of any registered kind; names are "SITE" or "SITE/1", "SITE/2", ….
        """
        from mmlca.federation.ledger import request_of

        shapes = {name: repr(_parameters(model)) for name, model in models.items()}
        request = request_of(self.sequences, min_count=self.min_count, models=shapes)
        parts = {name: (model, self.sequences) for name, model in models.items()}
        return self._release_models(request, lambda: (parts, {}), out)

    @_alone
    def mask_key(self, out: Path | None = None) -> Path:
        """Write this site's public key for secure sums, which all sites need before they label.

        The private one comes from the ledger, and is another in each study and round.
        """
        from font.exchange.files import file_name
        from font.exchange.secure import mask_key, write_mask_key

        ledger = self.ledger()
        secret = ledger.mask_secret()
        request = f"{mask_key(secret)} {self.min_count}"
        released = ledger.look_up("key", request, self.override)
        if released is None:
            data = write_mask_key(
                None,
                secret,
                study=self.study,
                site=self.site,
                round=self.round,
                min_count=self.min_count,
                software=SOFTWARE,
            )
            released = {file_name(self.site, "key"): data}
            ledger.record("key", request, released, self.override)
        return self._write(self.folder / "to_all" if out is None else out, released)[0]

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
            others label again without its key file. See `font.exchange.secure`.
        """
        from font.cross_tables import CrossTables
        from font.exchange.files import file_name, list_fingerprint, read_models, write_labels
        from font.labels import label
        from mmlca.federation.ledger import request_of

        rules: dict[str, Any] = {"study": self.study, "round": self.round, "keys": self.keys}
        files = read_models(models, min_count=self.min_count, **rules)
        ledger = self.ledger()
        _refuse_foreign(files, ledger, self.agreed)
        settings: dict[str, Any] = {"min_count": self.min_count, "models": list_fingerprint(files)}
        kind, other = "labels", "masked labels"
        keys: dict[str, str] = {}
        if secure is not None:
            from font.exchange.secure import read_mask_keys

            keys = read_mask_keys(secure, min_count=self.min_count, **rules)
            settings["sites"] = keys
            kind, other = other, kind
        if ledger.released(other) is not None and self.override is None:
            raise ValueError(
                f"{self.site} has labelled in round {self.round} of the study {self.study!r} "
                f"{'without' if keys else 'with'} secure sums; a round takes one of the two ways, "
                "so go on as before, or begin a new round."
            )
        request = request_of(self.sequences, **settings)
        name = file_name(self.site, kind.replace(" ", "-"))
        if keys:
            released = ledger.look_up_masked(kind, request, list(keys), self.override)
        else:
            released = ledger.look_up(kind, request, self.override)
        if released is None:
            table = label({name: file.model for name, file in files.items()}, self.sequences)
            tables = CrossTables.from_labels(
                {self.site: table}, {name: file.n_classes for name, file in files.items()}
            )
            about: dict[str, Any] = {
                "study": self.study,
                "round": self.round,
                "min_count": self.min_count,
                "software": SOFTWARE,
            }
            if keys:
                from font.exchange.secure import masked_labels

                data = masked_labels(None, tables, files, ledger.mask_secret(), keys, **about).data
            else:
                draws = ledger.draws(f"labels {request}")
                data = write_labels(None, tables, files, draws=draws, **about).data
            released = {name: data}
            ledger.record(kind, request, released, self.override)
        folder = self.folder / "to_centre" if out is None else out
        return self._write(folder, released)[0]

    def assign(self, ensemble: Source, out: Path | None = None) -> pd.DataFrame:
        """Give the patients their clusters, counted from 1; the table stays at the site.

        Only with the models that this site labelled with: another list is refused, unless
        `override` says why.
        """
        from font.exchange.files import read_ensemble
        from font.labels import label

        result = read_ensemble(ensemble, study=self.study, round=self.round, keys=self.keys)
        self._refuse_other_models(result.models)
        models = {name: file.model for name, file in result.models.items()}
        table = result.ensemble.confidence(label(models, self.sequences))
        table.index.name = "id"
        table[["cluster", "runner_up"]] += 1
        _write_table(self.folder / "clusters.csv" if out is None else out, table)
        return table

    @_alone
    def refine(self, source: Source, out: Path | None = None) -> Refinement:
        """Take part in a step of the refinement: sums for the centre, clusters for the patients.

        Parameters
        ----------
        source : the centre's ensemble file, or its shared file of the step before
            A shared file gives the patients their clusters with probabilities, in `clusters.csv`;
            the table stays at the site. Unless the file is the last, sums for the next step are
            written too.
        out : folder, optional
            For the sums; `to_centre` if not given.

        Notes
        -----
        All steps are rounded with the same draws. A shared file is refused whose refinement began
        with another ensemble than this site's, that this site has no part in, or whose sums are
        smaller than what this site sent.
        """
        from font.exchange.sums import read_step

        step = read_step(source, study=self.study, round=self.round, keys=self.keys)
        table = None
        if step.shared is None:
            self._refuse_other_models(step.ensemble.models)  # type: ignore[union-attr]
        else:
            self._refuse_foreign_sums(step.shared)
            table = self._refined(step.shared.model)
            path = self.folder / "clusters.csv"
            _write_table(path, table)
            if step.shared.last:
                return Refinement(step.shared.step, None, table)
        return Refinement(step.step, self._release_sums(step, out), table)

    @_alone
    def effects(
        self,
        source: Source,
        covariates: pd.DataFrame,
        out: Path | None = None,
        *,
        correction: Literal["BCH", "ML"] | None = "ML",
    ) -> Path:
        """Write how membership in the clusters depends on covariates here, for the centre.

        Parameters
        ----------
        source : the centre's ensemble file, or its last shared file
            Under a shared model the memberships are its own. For an ensemble those of Markov chains
            stand in for them that are estimated in each cluster of this site.
        covariates : DataFrame
            One row per patient, matched by id as in `MixtureMarkov.fit`. Columns, texts and
            levels must be the same at all sites.
        out : folder, optional
            `to_centre` if not given.
        correction : as in `mmlca.three_step`

        Notes
        -----
        `font.exchange.effects` says which effects may leave. A round takes one list of
        covariates: the ledger refuses another, since two could be compared.
        """
        from font.exchange.effects import write_effects
        from font.exchange.files import file_name
        from font.exchange.sums import read_step
        from mmlca.federation.ledger import request_of
        from mmlca.model.covariates import align
        from mmlca.tables.effects import cluster_memberships, site_effects

        data = self._sequences()
        frame = align(covariates, data)
        step = read_step(source, study=self.study, round=self.round, keys=self.keys)
        if step.shared is None:
            self._refuse_other_models(step.ensemble.models)  # type: ignore[union-attr]
        else:
            self._refuse_foreign_sums(step.shared)
        ledger = self.ledger()
        request = request_of(
            data,
            min_count=self.min_count,
            of=step.fingerprint,
            correction=correction,
            covariates=request_of(frame.reset_index(drop=True)),
        )
        released = ledger.look_up("effects", request, self.override)
        if released is None:
            _, membership = self._memberships(step)
            clusters = membership.argmax(axis=1)
            if step.shared is None:
                known = cluster_memberships({self.site: data}, {self.site: clusters})[self.site]
                membership = known.reindex(columns=range(step.n_clusters), fill_value=0.0)
                membership = membership.to_numpy()
            found = site_effects(membership, clusters, frame, self.min_count, correction)
            file = write_effects(
                None,
                found.table,
                found.covariance,
                found.columns,
                found.clusters,
                found.variables,
                of=step.fingerprint,
                study=self.study,
                site=self.site,
                round=self.round,
                min_count=self.min_count,
                software=SOFTWARE,
            )
            released = {file_name(self.site, "effects"): file.data}
            ledger.record("effects", request, released, self.override)
        return self._write(self.folder / "to_centre" if out is None else out, released)[0]

    def ledger(self) -> Ledger:
        """The record of what left this site, in `folder`."""
        from mmlca.federation.ledger import Ledger

        return Ledger(self.folder, self.study, self.site, self.round)

    # --- inside ---------------------------------------------------------------------------

    def _release_models(self, request: str, make: Any, out: Path | None) -> list[Path]:
        """Files for a request: from the ledger, or written anew and noted there first."""
        from font.exchange.files import file_names, write_model

        ledger = self.ledger()
        released = ledger.look_up("model", request, self.override)
        if released is None:
            parts, bic = make()
            names = file_names(parts, "model")
            released = {}
            for name, (model, data) in parts.items():
                released[names[name]] = write_model(
                    None,
                    model,
                    data,
                    study=self.study,
                    site=self.site,
                    name=name,
                    round=self.round,
                    bic=bic,
                    min_count=self.min_count,
                    draws=ledger.draws("models"),  # the same for all resamples
                    software=SOFTWARE,
                ).data
            ledger.record("model", request, released, self.override)
        return self._write(self.folder / "to_all" if out is None else out, released)

    def _fitted(self) -> tuple[dict[str, tuple[MixtureMarkov, Sequences]], dict[int, float]]:
        """The site's models with the patients behind them, and BIC by number of classes."""
        from ehr_prep.bootstrap import pseudo_sites
        from mmlca.model.selection import select_n_classes, vote

        data, bic, n_classes = self._sequences(), {}, self.n_classes
        settings: dict[str, Any] = {"n_init": self.starts, "search": self.search}
        settings |= {"prior": self.prior, "n_jobs": self.n_jobs}
        if self.candidates:
            table = select_n_classes(
                data,
                self.candidates,
                self.seed,
                criterion=self.criterion,  # type: ignore[arg-type]
                **settings,
            )
            bic = dict(zip(table["classes"], table["bic"], strict=True))
            n_classes = vote(table) if n_classes is None else n_classes
        if n_classes is None:
            raise ValueError("the number of classes is missing; give it, or candidates to try.")
        parts = {self.site: data}
        if self.pseudo_sites:
            parts = pseudo_sites(
                parts, n_per_site=self.pseudo_sites, fraction=self.fraction, seed=self.seed
            )
        fits = {
            name: (self._fit_one(part, n_classes, settings), part) for name, part in parts.items()
        }
        return fits, bic

    def _fit_one(self, part: Sequences, n_classes: int, settings: dict[str, Any]) -> MixtureMarkov:
        from mmlca.model.estimator import MixtureMarkov

        model = MixtureMarkov(n_classes, seed=self.seed, **settings).fit(part)
        smallest = model.params_.weights.min() * part.weights.sum()
        if self.fewer_classes and n_classes > 1 and smallest < self.min_count:
            return self._fit_one(part, n_classes - 1, settings)
        return model

    def _sequences(self) -> Sequences:
        from mmlca.sequences.type import Sequences

        if not isinstance(self.sequences, Sequences):
            raise TypeError("fitting needs treatment sequences; found a table of columns.")
        return self.sequences

    def _release_sums(self, step: Step, out: Path | None) -> Path:
        """The sums of a step: from the ledger, or made anew and noted there first."""
        from font.exchange.files import file_name
        from font.exchange.sums import write_sums
        from mmlca.federation.ledger import request_of

        ledger, kind = self.ledger(), f"sums {step.step}"
        request = request_of(self.sequences, min_count=self.min_count, of=step.fingerprint)
        released = ledger.look_up(kind, request, self.override)
        if released is None:
            model, membership = self._memberships(step)
            data = write_sums(
                None,
                step,
                model,
                self.sequences,
                membership,
                study=self.study,
                site=self.site,
                round=self.round,
                min_count=self.min_count,
                draws=ledger.draws("sums"),  # the same at all steps
                software=SOFTWARE,
            ).data
            released = {file_name(self.site, f"sums-{step.step}"): data}
            ledger.record(kind, request, released, self.override)
        return self._write(self.folder / "to_centre" if out is None else out, released)[0]

    def _memberships(self, step: Step) -> tuple[Any, Any]:
        """The model that sums a step's statistics, and the patients' memberships (n, K)."""
        import numpy as np

        from font.labels import label
        from font.refinement import one_class, site_memberships

        if step.shared is not None:
            return step.shared.model, site_memberships(step.shared.model, self.sequences)
        result = step.ensemble
        models = {name: file.model for name, file in result.models.items()}  # type: ignore[union-attr]
        clusters = result.ensemble.predict(label(models, self.sequences))  # type: ignore[union-attr]
        template = next(iter(models.values()))
        everyone = one_class(template, self.sequences)
        return everyone, np.eye(step.n_clusters)[clusters.to_numpy()]

    def _refined(self, model: Any) -> pd.DataFrame:
        """Each patient's cluster and its probability under the shared model."""
        from font.refinement import membership_table, site_memberships

        table = membership_table(site_memberships(model, self.sequences))
        ids = self.sequences.index if hasattr(self.sequences, "index") else self.sequences.ids
        table.index = ids.rename("id")
        table[["cluster", "runner_up"]] += 1
        return table

    def _refuse_foreign_sums(self, shared: SharedFile) -> None:
        """Only a shared model that this site's own sums are part of."""
        import numpy as np

        from font.exchange.sums import read_sums

        if self.override is not None:
            return
        ledger, own = self.ledger(), []
        for step in (0, shared.step):
            release = ledger.released(f"sums {step}", any_site=True)
            if release is None:
                raise ValueError(
                    f"this site sent no sums of step {step} in round {self.round} of the study "
                    f"{self.study!r} (there is no note of it in {self.folder / 'ledger.json'}); "
                    "begin with `mmlca site refine` on the ensemble file."
                )
            (text,) = release.files.values()
            own.append((release.site, read_sums(text.encode())))
        (_, first), (site, last) = own
        if first.of != shared.payload["ensemble"]:
            raise ValueError(
                "the shared model was refined from another ensemble than the one that this site "
                "answered; ask the centre which file it began with."
            )
        theirs, mine = np.array(shared.payload["sums"]), np.array(last.payload["sums"])
        same = shared.payload["scale"] == last.payload["scale"] and theirs.shape == mine.shape
        if last.of != shared.payload["of"] or site not in shared.sites or not same:
            raise ValueError(
                f"the shared model of step {shared.step} was made without the sums that this site "
                "sent; ask the centre for the file that they are part of."
            )
        if (theirs < mine).any():
            raise ValueError(
                f"the shared model of step {shared.step} has smaller sums than this site alone "
                "sent, so it is not their total; ask the centre to write it again."
            )

    def _write(self, folder: Path, files: Mapping[str, bytes]) -> list[Path]:
        """The files where they are sent from, signed if this site has a key."""
        from font.exchange.signatures import KEY_FILE, sign_file
        from font.files import atomic_write

        key = self.folder / KEY_FILE if self.signing_key is None else Path(self.signing_key)
        if self.signing_key is not None or key.exists():
            files = {name: sign_file(data, key) for name, data in files.items()}
        for name, data in files.items():
            atomic_write(folder / name, data)
        return [folder / name for name in files]

    def _refuse_other_models(self, models: Mapping[str, ModelFile]) -> None:
        """Only models that this site labelled with may place its patients."""
        from font.exchange.files import list_fingerprint
        from font.exchange.schema import read_file

        if self.override is not None:
            return
        ledger = self.ledger()
        last = ledger.released("labels", any_site=True)
        last = last or ledger.released("masked labels", any_site=True)
        if last is None:
            raise ValueError(
                f"this site has not labelled in round {self.round} of the study {self.study!r} "
                f"(there is no note of it in {self.folder / 'ledger.json'}); label first, or give "
                "an override that says in words why its patients should be placed all the same."
            )
        (labels,) = last.files.values()
        payload = read_file(labels.encode()).payload
        if "models" in payload:
            known = [part["fingerprint"] for part in payload["models"]]
            same = known == [model.fingerprint for model in models.values()]
        else:
            same = payload["of"] == list_fingerprint(models)
        if not same:
            raise ValueError(
                "the ensemble has other models than those that this site labelled with; ask the "
                "centre which files it combined."
            )


@dataclass(frozen=True)
class Refinement:
    """What came of a step: its number, the sums to send (None at the end), the patients' table."""

    step: int
    sums: Path | None
    clusters: pd.DataFrame | None = field(repr=False)


_DECIDES = (
    *("n_classes", "candidates", "criterion", "fewer_classes", "pseudo_sites", "fraction"),
    *("min_count", "starts", "search", "prior", "seed"),
)


def _write_table(path: Path, table: pd.DataFrame) -> None:
    """A table of patients, for its owner alone."""
    from font.files import atomic_write, csv_text

    atomic_write(path, csv_text(table, index=True).encode(), private=True)


def _parameters(model: Any) -> list[Any]:
    from font.checks import class_parameters

    values: list[Any] = class_parameters(model, type(model).__name__).tolist()
    return values


def _refuse_foreign(files: Mapping[str, ModelFile], ledger: Ledger, agreed: str | None) -> None:
    """Label with the agreed list only: this site's own models, as it sent them, are part of it."""
    from font.exchange.files import list_fingerprint, read_model

    last = ledger.released("model")
    if last is None and agreed is None:
        raise ValueError(
            f"{ledger.site} has sent no model for round {ledger.round} of the study "
            f"{ledger.study!r} (there is no note of it in {ledger.path}); a site labels only with "
            "a list of models that its own are part of, or whose fingerprint it was told: fit "
            "first, in the same folder, or, to take part without a model, say which list the sites "
            "agreed on."
        )
    own = {}
    for data in last.files.values() if last is not None else ():
        model = read_model(data.encode())
        own[model.name] = model.fingerprint
    theirs = {name: file.fingerprint for name, file in files.items() if file.site == ledger.site}
    if theirs != own:
        wrong = sorted(name for name, _ in set(own.items()) ^ set(theirs.items()))
        raise ValueError(
            f"the models of {ledger.site} in this list ({', '.join(wrong[:5])}) are not those that "
            "it sent; get the list that all sites agreed on."
        )
    if agreed is not None:
        whole = list_fingerprint(files)
        if len(agreed) < 12 or not whole.startswith(agreed):
            raise ValueError(
                f"the list of {len(files)} models has the fingerprint {whole[:16]}…, not the "
                f"agreed {agreed!r}; get the files that all sites agreed on."
            )
