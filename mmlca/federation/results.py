"""The results of a site as an exchange file, and what a site makes them from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from font.errors import InputError
from font.exchange.envelope import read_file, write_file
from font.exchange.fields import Source, name_of
from font.exchange.messages.results import column_part, column_values
from mmlca.study.results.registry import TABLES
from mmlca.study.results.site import SiteResults, typed

if TYPE_CHECKING:
    from font.ensemble import Ensemble
    from font.exchange.envelope import Header
    from font.exchange.messages.ensemble import EnsembleFile
    from font.exchange.messages.model import ModelFile
    from font.exchange.messages.refinement import SharedFile, Step
    from mmlca.federation.hospital import Hospital
    from mmlca.federation.ledger import Ledger
    from mmlca.model.estimator import MixtureMarkov
    from mmlca.sequences.type import Sequences
    from mmlca.study.combined import Combined
    from mmlca.study.results.site import SitePatients
    from mmlca.study.settings import Study

FORMAT = "mmlca study"
"""The format of the tables, which `mmlca/__init__.py` registers."""
_WORDS: dict[str, Callable[[Any], Any]] = {
    "text": str,
    "count": int,
    "whole": int,
    "number": float,
    "flag": bool,
}


def write_results(results: SiteResults, header: Header, *, of: str, min_count: int) -> bytes:
    """The file of a site's results.

    Parameters
    ----------
    results : SiteResults
        Rounded to multiples of `min_count`; exact if that is 1.
    header : Header
        The site's.
    of : str
        SHA-256 of the payload of the ensemble or shared file whose clusters these are.
    min_count : int
    """
    if results.unit != min_count:
        raise ValueError(f"counts are multiples of {results.unit}, not of {min_count}")
    tables = [
        {
            "name": table,
            "columns": [
                column_part(column.kind, name, _values(results, table, name))
                for name, column in columns.items()
            ],
        }
        for table, columns in TABLES.items()
    ]
    payload = {"format": FORMAT, "of": of, "min_count": min_count, "tables": tables}
    return write_file(None, "results", payload, header).data


def _values(results: SiteResults, table: str, name: str) -> list[Any]:
    """The values of a column as JSON has them, with None for missing ones."""
    kind = TABLES[table][name].kind
    convert = _WORDS[kind]
    values = []
    for value in results.tables[table][name]:
        missing = value is None or value != value
        if not missing and kind in ("count", "whole", "number") and not math.isfinite(value):
            raise ValueError(f"the column {name} of the table {table} has the value {value}")
        if not missing and kind in ("count", "whole") and value != int(value):
            raise ValueError(f"the column {name} of the table {table} has {value}, not whole")
        values.append(None if missing else convert(value))
    return values


def read_results(
    source: Source, header: Header | None = None, *, of: str | None = None, min_count: int = 1
) -> SiteResults:
    """Read a site's results, with the tables and columns of `mmlca.study.results.registry.TABLES`.

    Parameters
    ----------
    source, header, min_count
        As for `font.exchange.envelope.read_file`.
    of : str, optional
        Refuse results of the clusters of another file than the one with this fingerprint.
    """
    file = read_file(source, header, kind="results", min_count=min_count)
    payload = file.payload
    if payload["format"] != FORMAT:
        raise InputError(
            f"{name_of(source)} has results of the format {payload['format']!r}; give files of "
            f"the format {FORMAT!r}."
        )
    if of is not None and payload["of"] != of:
        raise InputError(
            f"{name_of(source)} is about the clusters of another ensemble or shared file than the "
            f"one given; have {file.site} make its results with the file of this study."
        )
    tables = {
        table["name"]: typed(
            pd.DataFrame({c["name"]: column_values(c) for c in table["columns"]}, dtype=object),
            TABLES[table["name"]],
        )
        for table in payload["tables"]
    }
    return SiteResults(file.site, payload["min_count"], {name: tables[name] for name in TABLES})


# --- at the site ---------------------------------------------------------------------------


def make_results(
    hospital: Hospital,
    ledger: Ledger,
    data: Sequences,
    study: Study,
    ensemble: EnsembleFile,
    step: Step,
) -> bytes:
    """The results file of a site for the clusters of an ensemble, or of its refinement."""
    from mmlca.study.results.registry import site_results

    patients = site_patients(hospital, ledger, data, study, ensemble, step)
    return write_results(
        site_results(study, patients),
        hospital.header(),
        of=step.fingerprint,
        min_count=hospital.min_count,
    )


def site_patients(
    hospital: Hospital,
    ledger: Ledger,
    data: Sequences,
    study: Study,
    ensemble: EnsembleFile,
    step: Step,
    *,
    exact: bool = False,
) -> SitePatients:
    """The patients of a site with their groups by all rules of the study.

    The site's own model is fitted anew to all its patients, as in a study in one place; there is
    none if it would have fewer than `min_count` patients per class. Results are rounded unless
    they are `exact` because they stay.
    """
    from font.labels import label
    from font.refinement import site_memberships
    from mmlca.federation.steps import noted_fits
    from mmlca.study.results.site import ENSEMBLE, OWN, REFINED, SitePatients
    from mmlca.tables.disclosure import Rounding

    labels = label({name: file.model for name, file in ensemble.models.items()}, data)
    certainty = ensemble.ensemble.confidence(labels)
    certainty[["cluster", "runner_up"]] += 1
    groups = {ENSEMBLE: certainty["cluster"]}
    own = _own_model(hospital, data, study, ensemble.ensemble.n_clusters_)
    ids = pd.Index(data.ids)
    if own is not None:
        groups[OWN] = pd.Series(own.predict(data) + 1, ids)
    memberships = None
    if step.shared is not None:
        memberships = pd.DataFrame(site_memberships(step.shared.model, data), ids)
        groups[REFINED] = memberships.idxmax(axis=1) + 1
    rounding = None
    if hospital.min_count > 1 and not exact:
        secret = ledger.secret_of("results")
        rounding = Rounding(secret, hospital.min_count, {hospital.site: groups[ENSEMBLE]})
    return SitePatients(
        site=hospital.site,
        sequences=data,
        groups={view: group.rename("cluster") for view, group in groups.items()},
        labels=labels,
        certainty=certainty,
        own=own,
        fits=_fits(hospital, own, data),
        choice=noted_fits(hospital).get("selection"),
        memberships=memberships,
        rounding=rounding,
    )


def _own_model(
    hospital: Hospital, data: Sequences, study: Study, n_classes: int
) -> MixtureMarkov | None:
    """The model of all patients of the site, None if there are too few for one."""
    from mmlca.study.analysis import fit_models
    from mmlca.study.processes import Processes

    if len(data) / n_classes < hospital.min_count:
        return None
    with Processes(1) as processes:
        parts, form = {hospital.site: data}, hospital.form
        return fit_models(study, parts, n_classes, processes, form=form)[hospital.site]


def _fits(hospital: Hospital, own: MixtureMarkov | None, data: Sequences) -> pd.DataFrame | None:
    """How the models of resamples and of the whole site were fitted, as far as it is known."""
    from font.labels import label
    from mmlca.federation.steps import noted_fits
    from mmlca.study.results.models import fit_table

    noted, site = noted_fits(hospital).get("models"), hospital.site
    if own is None:
        return noted
    table = fit_table({site: own}, label({site: own}, data))
    return table if noted is None else pd.concat([noted[noted["model"] != site], table])


def write_own_report(
    hospital: Hospital,
    study: Study,
    data: Sequences,
    ensemble: EnsembleFile,
    step: Step,
    out: Path,
) -> None:
    """The report of one site with exact numbers, of the clusters of all sites."""
    from mmlca.study.results.registry import site_results
    from mmlca.study.run import report_results

    site = hospital.site
    study = study.changed(privacy={"min_count": hospital.min_count, "release": "inside"})
    patients = site_patients(hospital, hospital.ledger(), data, study, ensemble, step, exact=True)
    known = combined(ensemble.ensemble, ensemble.models, step.shared)
    report_results(study, out, {site: site_results(study, patients)}, known)


def combined(
    ensemble: Ensemble,
    models: Mapping[str, ModelFile],
    shared: SharedFile | None,
    absent: tuple[str, ...] = (),
) -> Combined:
    """What a report needs to know of the clusters, beside the results of the sites."""
    from mmlca.study.combined import Combined, Refinement

    return Combined(
        n_groups=ensemble.n_clusters_,
        ensemble=ensemble,
        models={name: file.site for name, file in models.items()},
        refined=None if shared is None else Refinement.after(shared.step),
        absent=absent,
        by_files=True,
    )


def study_of(hospital: Hospital, study: Study) -> Study:
    """The study with the rules of privacy of the hospital: what leaves it is rounded."""
    if hospital.site not in study.sites:
        raise InputError(
            f"the study file has no site {hospital.site!r}; it has {', '.join(study.sites)}."
        )
    release = "public" if hospital.min_count > 1 else "inside"
    return study.changed(privacy={"min_count": hospital.min_count, "release": release})


def request_of_results(hospital: Hospital, data: Sequences, study: Study, step: Step) -> str:
    """A fingerprint of all that decides the results: patients, files, settings and clusters."""
    from mmlca.federation.ledger import request_of
    from mmlca.study.cache import file_hash, settings_key
    from mmlca.study.study_file import input_files

    place, here = study.sites[hospital.site], study.alone(hospital.site)
    account = data.account
    return request_of(
        data,
        min_count=hospital.min_count,
        of=step.fingerprint,
        settings=settings_key(study, "sites", "records"),
        place=place.options() | {"where": place.where},
        files={role: file_hash(Path(path)) for role, path in input_files(here).items()},
        patients=None if account is None else request_of(account.patients.astype(str)),
    )
