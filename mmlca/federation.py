"""A hospital's part in a federated study: fit, label, assign.

The commands `mmlca site …` and an app for Flower do the same through here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from mmlca import __version__

if TYPE_CHECKING:
    import pandas as pd

    from font.exchange import ModelFile
    from font.labels import LabelPatterns
    from font.privacy import Released
    from mmlca.model import MixtureMarkov
    from mmlca.sequences import Sequences

SOFTWARE = f"mmlca {__version__}"
Source = str | os.PathLike[str] | bytes


class Labelled(NamedTuple):
    """A labels file that was written, what went into it and what did not."""

    path: Path
    patterns: LabelPatterns
    released: Released


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
        Gets `to_all` (model files), `to_centre` (labels file) and `clusters.csv`, which stays.
    n_classes : int, optional
        Else the number of `candidates` with the lowest criterion.
    candidates : list of int
        Numbers of classes to compare; their BIC is sent along, for the vote.
    criterion : str
        See `select_n_classes`.
    fewer_classes : bool
        Where a class would have fewer than `min_count` patients, fit one class fewer, and so on;
        otherwise that is an error.
    pseudo_sites, fraction
        Fit so many resamples of that size; 0: the patients themselves.
    min_count, digits, rare, epsilon, noise_seed
        See `font.write_model` and `font.release`.
    starts, prior, seed, jobs
        See `MixtureMarkov`.
    """

    study: str
    site: str
    sequences: Sequences | pd.DataFrame = field(repr=False)
    folder: Path = Path()
    n_classes: int | None = None
    candidates: Sequence[int] = ()
    criterion: str = "bic"
    fewer_classes: bool = False
    pseudo_sites: int = 0
    fraction: float = 0.8
    min_count: int = 11
    digits: int = 6
    rare: str = "withhold"
    epsilon: float | None = None
    noise_seed: int | None = None
    starts: int = 40
    prior: float = 1e-4
    seed: int = 1
    jobs: int = 1

    def __post_init__(self) -> None:
        from font.schema import check_names

        check_names(self.study, self.site)

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
        from mmlca.study.data import read_site

        if site is None:
            site, *others = read_study(path, files=False).sites
            if others:
                raise ValueError(
                    f"{path} has the sites {', '.join([site, *others])}; say which one this is."
                )
        study = read_study(path, site=site)
        fixed = isinstance(study.classes.number, int)
        said: dict[str, Any] = {
            "study": study.name,
            "n_classes": study.classes.number if fixed else None,
            "candidates": () if fixed else study.classes.candidates,
            "criterion": study.classes.criterion,
            "pseudo_sites": study.pseudo_sites.per_site,
            "fraction": study.pseudo_sites.fraction,
            "min_count": study.privacy.min_count,
            "starts": study.model.starts,
            "prior": study.model.prior,
            "seed": study.seed,
            "jobs": study.threads or 1,
        }
        if "sequences" not in changes:
            said["sequences"] = read_site(study, site)
        return cls(site=site, **(said | changes))

    def fit(self, out: Path | None = None) -> list[Path]:
        """Fit the site's models and write their files; all are checked before the first is."""
        from ehr_prep.bootstrap import pseudo_sites
        from font.exchange import write_model
        from font.files import file_name
        from font.privacy import row_support
        from mmlca.selection import select_n_classes, vote

        data, bic, n_classes = self._sequences(), {}, self.n_classes
        search: dict[str, Any] = {"n_init": self.starts, "prior": self.prior, "n_jobs": self.jobs}
        if self.candidates:
            table = select_n_classes(
                data,
                self.candidates,
                self.seed,
                criterion=self.criterion,  # type: ignore[arg-type]
                **search,
            )
            bic = dict(zip(table["classes"], table["bic"], strict=True))
            n_classes = vote(table) if n_classes is None else n_classes
        if n_classes is None:
            raise ValueError("the number of classes is not said; give it, or candidates to try.")
        parts = {self.site: data}
        if self.pseudo_sites:
            parts = pseudo_sites(
                parts, n_per_site=self.pseudo_sites, fraction=self.fraction, seed=self.seed
            )
        to_write = []
        for name, part in parts.items():
            model = self._fit_one(part, n_classes, search)
            support = row_support(part.codes, model.predict_proba(part), part.weights)
            said: dict[str, Any] = {"study": self.study, "site": self.site, "name": name}
            said |= {"bic": bic, "support": support, "software": SOFTWARE}
            said |= {"min_count": self.min_count, "digits": self.digits}
            write_model(None, model, **said)
            to_write.append((model, said))
        folder = self.folder / "to_all" if out is None else out
        paths = [folder / file_name(said["name"], "model") for _, said in to_write]
        for path, (model, said) in zip(paths, to_write, strict=True):
            write_model(path, model, **said)
        return paths

    def label(self, models: Iterable[Source]) -> Path:
        """Label the patients with all sites' models and write the counts for the centre.

        A second time with other models is refused, since two labels files can be subtracted from
        each other: whoever asks, counts leave once.
        """
        from font.exchange import read_models
        from font.files import file_name
        from font.schema import read_file

        models = list(models)
        path = self.folder / "to_centre" / file_name(self.site, "labels")
        if path.exists():
            earlier = {part["fingerprint"] for part in read_file(path).payload["models"]}
            now = read_models(models, study=self.study).values()
            if earlier != {model.fingerprint for model in now}:
                raise ValueError(
                    f"{path} was made with other models and may have left already; delete it to "
                    "let another one leave."
                )
        return self.labelled(models).path

    def labelled(self, models: Iterable[Source], out: Path | None = None) -> Labelled:
        """The same as `label`, with what was released and what was withheld."""
        from font.exchange import read_models, write_labels
        from font.files import file_name
        from font.labels import LabelPatterns, label

        files = read_models(models, study=self.study)
        patterns = LabelPatterns.from_labels({self.site: label(fitted(files), self.sequences)})
        folder = self.folder / "to_centre" if out is None else out
        path = folder / file_name(self.site, "labels")
        released = write_labels(
            path,
            patterns,
            files,
            study=self.study,
            min_count=self.min_count,
            rare=self.rare,
            epsilon=self.epsilon,
            seed=self.noise_seed,
            software=SOFTWARE,
        )
        return Labelled(path, patterns, released)

    def assign(self, ensemble: Source, out: Path | None = None) -> pd.DataFrame:
        """Give the patients their clusters; the table is written, and stays at the site."""
        from font.exchange import read_ensemble
        from font.labels import label
        from mmlca.files import atomic

        result = read_ensemble(ensemble, study=self.study)
        table = result.ensemble.confidence(label(fitted(result.models), self.sequences))
        table.index.name = "id"
        path = self.folder / "clusters.csv" if out is None else out
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic(path) as file:
            table.to_csv(file, lineterminator="\n")
        return table

    def _fit_one(self, part: Sequences, n_classes: int, search: dict[str, Any]) -> MixtureMarkov:
        from mmlca.model import MixtureMarkov

        model = MixtureMarkov(n_classes, seed=self.seed, **search).fit(part)
        smallest = model.params_.weights.min() * part.weights.sum()
        if self.fewer_classes and n_classes > 1 and smallest < self.min_count:
            return self._fit_one(part, n_classes - 1, search)
        return model

    def _sequences(self) -> Sequences:
        from mmlca.sequences import Sequences

        if not isinstance(self.sequences, Sequences):
            raise TypeError("fitting needs treatment sequences; found a table of columns.")
        return self.sequences


def fitted(files: Mapping[str, ModelFile]) -> dict[str, Any]:
    """The models in exchange files, ready to predict."""
    from mmlca.model import MixtureMarkov

    return {
        name: MixtureMarkov.from_dict(file.content)
        if file.content["format"] == "mmlca model"
        else file.model
        for name, file in files.items()
    }
