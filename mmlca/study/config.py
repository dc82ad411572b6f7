"""The study file: its settings, and how it is read and checked.

It is one file so that every key of a study file is found in one place.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from font.checks import one_of
from font.files import check_regular
from font.spelling import option_name
from mmlca.study.site_files import (
    AllReading,
    Count,
    Day,
    Key,
    Labs,
    ObservationPeriods,
    Part,
    Patients,
    Site,
    Text,
    resolved,
    resolved_concepts,
    resolved_map,
)

Name = Annotated[str, Field(pattern=r"^[\w][\w .-]*$", max_length=60)]
_RENAMED = {
    ("threads",): "n_jobs",
    ("model", "starts"): "model.n_init",
    ("classes", "starts"): "model.n_init",
    ("rules", "none_state"): "rules.off_treatment",
}
_PLAIN = {
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid string": "a text in quotation marks",
    "a valid boolean": "true or false",
    "a valid tuple": "a list such as [2, 3]",
    "a valid dictionary": "a table of keys",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
}
"""What pydantic says, and what it means."""

_FILES = {"records", "sequences", "patients", "labs", "observation", "truth", "drugs", "drug_names"}


def _or_none(value: Any) -> Any:
    """TOML has no null: the text "none" stands for it."""
    return None if value == "none" else value


class Centre(Part):
    """The centre of a federated study: its public key, see `font.exchange.signatures`."""

    key: Key | None = None


class Rules(Part):
    """How records become sequences; see `ehr_prep.build_sequences`."""

    first_on_or_after: Annotated[Day | None, BeforeValidator(_or_none)] = None
    washout_days: Count | None = None
    min_history_days: Count | None = None
    min_follow_up_days: Count | None = None
    min_age: float | None = None
    max_age: float | None = None
    follow_up: Literal["patients", "observation", "last_record"] | Day | None = None
    data_cut: Day | None = None
    death: Literal["end", "state"] = "end"
    months: Count = 3
    days: Annotated[float, Field(ge=1)] | None = None
    max_windows: Count = 16
    states: Literal["most_frequent", "combinations"] = "most_frequent"
    by: Literal["records", "days"] = "records"
    ties: Literal["first", "latest", "previous"] = "first"
    gap_days: Annotated[int, Field(ge=0)] = 30
    combination_days: Count = 30
    max_combinations: Count = 10
    combinations: Annotated[tuple[Text, ...], Field(strict=False)] | None = None
    impute: Literal["carry_forward_max", "carry_forward_supplied", "carry_forward", "missing"] = (
        "carry_forward_max"
    )
    max_carry: Annotated[int, Field(ge=0)] = 2
    off_treatment: Text = "none"


class Classes(Part):
    """The number of classes: given, or chosen by the vote of the sites.

    With `stability` the resamples choose too, which shows how stable the choice is.
    """

    number: Count | Literal["vote"] = "vote"
    candidates: Annotated[tuple[Count, ...], Field(min_length=1, strict=False)] = tuple(range(1, 9))
    criterion: Literal["bic", "aic", "sabic", "caic", "icl"] = "bic"
    count: Literal["sequences", "timepoints"] = "sequences"
    stability: bool = True


class PseudoSites(Part):
    """Resamples of each site; with 0 per site the sites' own models make the ensemble."""

    per_site: Annotated[int, Field(ge=0)] = 4
    fraction: Annotated[float, Field(gt=0)] = 0.8


class Model(Part):
    """See `mmlca.MixtureMarkov`.

    Without `prior`, models that a site sends to others have the default of `mmlca.Hospital`,
    which serves ensembles of small sites; models that a study reports have `reported_prior`.
    """

    n_init: Count = 40
    search: Literal["default", "thorough"] = "default"
    prior: Annotated[float, Field(ge=0)] | None = None

    @property
    def reported_prior(self) -> float:
        """The prior of models whose probabilities the study reports: too small to matter."""
        return 1e-4 if self.prior is None else self.prior


class EnsembleRules(Part):
    """See `font.Ensemble`; `refine` are the rounds of `font.refine`, or "none"."""

    weights: Literal["spectral", "centred", "equal", "sparse"] = "spectral"
    distance: Literal["euclidean", "hellinger", "total-variation"] = "euclidean"
    method: Literal["kmeans", "kmeans-distance", "average", "complete", "ward", "spectral"] = (
        "kmeans"
    )
    refine: Annotated[int, Field(ge=0, le=50)] | Literal["held-out", "converge", "none"] = 1


class Outputs(Part):
    """Which results are written, and how they are worded."""

    figures: bool = True
    dpi: Annotated[int, Field(ge=50, le=1200)] = 200
    formats: Annotated[
        tuple[Literal["png", "svg", "pdf", "docx"], ...], Field(strict=False, min_length=1)
    ] = ("png",)
    top: Count = 30
    bootstrap: Annotated[int, Field(ge=0)] = 1000
    table_one: Annotated[tuple[Text, ...], Field(strict=False)] | None = None
    time: Text | None = None
    names: dict[Text, Text] | Annotated[tuple[Text, ...], Field(strict=False)] | None = None
    lab: Text | None = None
    lab_label: Text | None = None
    lab_bands: Literal["pointwise", "simultaneous"] = "pointwise"

    @model_validator(mode="after")
    def _different_names(self) -> Outputs:
        several = isinstance(self.names, dict)
        given = list(self.names.values() if isinstance(self.names, dict) else self.names or ())
        twice = [text for text in dict.fromkeys(given) if given.count(text) > 1]
        if twice:
            what = "two names for the course" if several else "twice the name"
            raise ValueError(f"has {what} {twice[0]!r} in names; each may stand there once")
        return self


class InferenceRules(Part):
    """How sure the models are, and how well they fit.

    Without `simulations` there are 199, or as many as p-values that are adjusted for the number of
    tests need to fall below 0.05.
    """

    standard_errors: bool = True
    diagnostics: bool = True
    simulations: Count | None = None
    bootstrap: Annotated[int, Field(ge=0)] = 0
    blrt: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _enough(self) -> InferenceRules:
        if self.bootstrap == 1:
            raise ValueError("has bootstrap = 1; at least 2 refits are needed, or 0 for none")
        return self

    def simulations_for(self, n_tests: int) -> int:
        """Simulated data sets behind each of so many tests."""
        return self.simulations or max(199, 20 * n_tests - 1)


Correction = Annotated[Literal["BCH", "ML"] | None, BeforeValidator(_or_none)]


class Covariates(Part):
    """What membership in a cluster may depend on, after classification or inside the model.

    See `mmlca.three_step`, to which `correction` belongs, and `MixtureMarkov.fit`.
    """

    columns: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    method: Literal["three-step", "one-step"] = "three-step"
    correction: Correction = "ML"


class Outcomes(Part):
    """What is compared between the clusters: columns of the patients' tables.

    `event` and `competing` are columns of dates (empty: it did not happen).
    """

    columns: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    correction: Correction = "BCH"
    event: Text | None = None
    competing: Text | None = None
    landmark: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _event_first(self) -> Outcomes:
        if self.event is None and (self.competing or self.landmark):
            raise ValueError("has competing or landmark, which need event")
        if self.event is not None and self.event == self.competing:
            raise ValueError(f"names {self.event!r} as event and as competing event")
        return self


class Privacy(Part):
    """How numbers of patients are shown in tables, figures and the report.

    "inside": exact, without those of fewer than `min_count` patients; "public": all rounded at
    random to multiples of `min_count`. See `mmlca.study.release`.
    """

    min_count: Count = 11
    release: Literal["inside", "public"] = "inside"

    @model_validator(mode="after")
    def _something_to_round_to(self) -> Privacy:
        if self.release == "public" and self.min_count in (0, 1):
            raise ValueError(
                f'has release = "public" with min_count = {self.min_count}, to which nothing can '
                "be rounded; set min_count to 2 or more, such as 11"
            )
        return self


class Sensitivity(Part):
    """Other choices to try; each list holds alternatives to a setting of the study."""

    months: Annotated[tuple[Count, ...], Field(strict=False)] = (2, 6)
    ties: Annotated[tuple[str, ...], Field(strict=False)] = ("latest", "previous")
    by: Annotated[tuple[str, ...], Field(strict=False)] = ("days",)
    states: Annotated[tuple[str, ...], Field(strict=False)] = ()
    gap_days: Annotated[tuple[int, ...], Field(strict=False)] = ()
    combination_days: Annotated[tuple[Count, ...], Field(strict=False)] = ()
    death: Annotated[tuple[str, ...], Field(strict=False)] = ()
    impute: Annotated[tuple[str, ...], Field(strict=False)] = (
        "missing",
        "carry_forward",
        "carry_forward_max",
    )
    max_carry: Annotated[tuple[int, ...], Field(strict=False)] = (1, 4)
    classes: Annotated[tuple[Count, ...], Field(strict=False)] = (3, 5)
    per_site: Annotated[tuple[Count, ...], Field(strict=False)] = (2, 8)
    fraction: Annotated[tuple[float, ...], Field(strict=False)] = (0.5, 1.0)
    weights: Annotated[tuple[str, ...], Field(strict=False)] = ("centred", "equal")
    seeds: Annotated[tuple[int, ...], Field(strict=False)] = (2, 3, 4)
    crossed: bool = False


class Published(Part):
    """Numbers of an earlier study, shown beside those of this one."""

    source: Text = "published"
    transition_ensemble: float | None = None
    transition_local: float | None = None
    initial_ensemble: float | None = None
    initial_local: float | None = None


class Study(Part):
    """A study file, checked. Paths are as given until `read_study` resolves them."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    seed: Annotated[int, Field(ge=0)] = 1
    n_jobs: Count | None = None
    synthetic: bool = False
    sites: Annotated[dict[Name, Site], Field(min_length=1)]
    records: AllReading = AllReading()
    patients: Patients = Patients()
    observation: ObservationPeriods = ObservationPeriods()
    labs: Labs = Labs()
    concepts: dict[Text, list[int | Text]] | None = None
    rules: Rules = Rules()
    classes: Classes = Classes()
    pseudo_sites: PseudoSites = PseudoSites()
    model: Model = Model()
    ensemble: EnsembleRules = EnsembleRules()
    inference: InferenceRules = InferenceRules()
    covariates: Covariates = Covariates()
    outcomes: Outcomes = Outcomes()
    outputs: Outputs = Outputs()
    privacy: Privacy = Privacy()
    centre: Centre = Centre()
    published: Published | None = None
    sensitivity: Sensitivity = Sensitivity()

    _folder: Path = PrivateAttr(default_factory=Path)

    def plain(self) -> dict[str, Any]:
        """All settings, defaults included, as JSON can hold them; paths as the file gave them."""
        settings = self.model_dump(mode="json", exclude_none=True)
        for parts in (*settings["sites"].values(), settings["records"]):
            for kind in ("omop", "warehouse"):
                if kind in parts:
                    parts[kind] = self._relative_url(parts[kind])
            for role in _FILES & parts.keys() - ({"labs"} if "omop" in parts else set()):
                if role != "drugs" or parts[role] != "ra":
                    parts[role] = self._relative(parts[role])
        return settings

    def _relative(self, files: Any) -> Any:
        if isinstance(files, list):
            return [self._relative(file) for file in files]
        return Path(os.path.relpath(files, self._folder)).as_posix()

    def _relative_url(self, url: str) -> str:
        from ehr_prep.databases import check_url, local_path

        path = local_path(url)
        return url if path is None else f"{check_url(url)}:{self._relative(path)}"

    @property
    def from_records(self) -> bool:
        """Whether any site's sequences are built here, by the rules."""
        return any(site.sequences is None for site in self.sites.values())

    def public_keys(self) -> dict[str, str]:
        """The keys that the study file gives, by site; that of the centre as "centre"."""
        keys = {name: site.key for name, site in self.sites.items()}
        keys["centre"] = self.centre.key or keys.get("centre")
        return {name: key for name, key in keys.items() if key is not None}

    def site_options(self, site: str) -> dict[str, Any]:
        """How to read the records of a site: its own options, then those of all sites."""
        own = self.sites[site]
        options = {**self.records.options(), **own.options()}
        tables: tuple[Literal["patients", "observation"], ...] = ("patients", "observation")
        columns = {f"{table}_columns": self.table_columns(site, table) for table in tables}
        more = {"where": own.where, **columns}
        return options | {name: value for name, value in more.items() if value}

    def table_columns(
        self, site: str, table: Literal["patients", "observation", "labs"]
    ) -> dict[str, Any]:
        """The columns that are named in a further table of a site."""
        parts: tuple[BaseModel, BaseModel] = (
            getattr(self, table).columns,
            getattr(self.sites[site], f"{table}_columns"),
        )
        return {n: c for part in parts for n, c in part.model_dump(exclude_none=True).items()}

    def table_options(self, site: str, *names: str) -> dict[str, Any]:
        """Those of a site's options that other tables of it share, such as the encoding."""
        options = self.site_options(site)
        return {name: options[name] for name in names if name in options}

    def omop_options(self, site: str) -> dict[str, Any]:
        """How to read the database of a site, as `ehr_prep.read_omop` takes it."""
        place = self.sites[site]
        options = self.table_options(site, "drugs", "duplicates", "latest")
        if self.concepts is not None:
            options["drugs"] = self.concepts
        labs = None if place.labs is None else [t.strip() for t in str(place.labs).split(",")]
        named: dict[str, Any] = {"schema": place.cdm_schema, "table": place.table, "labs": labs}
        named |= {"condition": place.condition, "cohort": place.cohort}
        return options | {n: v for n, v in named.items() if v is not None}

    def warehouse_options(self, site: str) -> dict[str, Any]:
        """How to read the database of a site, as `ehr_prep.read_warehouse` takes it."""
        place = self.sites[site]
        of_files = ("drug_names", "date_format", "encoding", "delimiter", "decimal", "strict")
        options = {n: v for n, v in self.site_options(site).items() if n not in of_files}
        named = {"schema": place.cdm_schema, "table": place.table}
        named |= {"patients": place.patients_table, "observation": place.observation_table}
        return options | {n: v for n, v in named.items() if v is not None}

    def changed(self, **parts: dict[str, Any]) -> Study:
        """The same study with other values: `changed(rules={"months": 6}, seed=2)`."""
        settings: dict[str, Any] = {
            name: getattr(self, name).model_copy(update=value) if isinstance(value, dict) else value
            for name, value in parts.items()
        }
        return self.model_copy(update=settings)

    def validated(self, settings: dict[str, Any]) -> Study:
        """A study with these settings, checked like a study file."""
        try:
            study = Study.model_validate(settings, strict=False)
        except ValidationError as error:
            raise ValueError(_one_sentence(error, settings)) from None
        study._folder = self._folder
        return study


def read_study(
    path: str | os.PathLike[str], *, site: str | None = None, files: bool = True
) -> Study:
    """Read and check a study file. Paths in it are relative to its folder.

    With `site` the study has that site alone, and only that site's files must exist, so that a
    hospital can use the study file of all hospitals. With `files=False` no file need exist.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.csv").write_text("id,1,2\\n1,TNFi,JAK\\n")
    >>> _ = (folder / "study.toml").write_text(
    ...     'name = "Trial"\\n[sites.MGB]\\nsequences = "a.csv"\\n[rules]\\nmonth = 6\\n')
    >>> read_study(folder / "study.toml")
    Traceback (most recent call last):
    ValueError: study.toml: rules.month is not known; did you mean rules.months?
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no study file {path}; `mmlca study init` writes one.")
    check_regular(path)
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is not UTF-8 text; save it as UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path.name} cannot be read as TOML: {_not_toml(path, error)}") from None
    try:
        study = Study.model_validate(settings)
    except ValidationError as error:
        raise ValueError(f"{path.name}: {_one_sentence(error, settings)}") from None
    if site is not None and site not in study.sites:
        raise ValueError(f"{path.name} has no site {site!r}; it has {', '.join(study.sites)}.")
    if site is None and study.outputs.lab and not any(s.labs for s in study.sites.values()):
        raise ValueError(
            f"{path.name}: outputs.lab is {study.outputs.lab!r}, but no site has labs; name "
            f'their files, as in [sites.{next(iter(study.sites))}] labs = "labs.csv".'
        )
    if not files:
        return study
    kept = study.sites if site is None else {site: study.sites[site]}
    sites = {name: resolved(path, name, part) for name, part in kept.items()}
    reading = resolved_map(path, "records", study.records)
    concepts = resolved_concepts(path, study.concepts)
    changed = {"sites": sites, "records": reading, "concepts": concepts}
    study = study.model_copy(update=changed)
    study._folder = path.parent
    return study


def write_study_file(
    path: str | os.PathLike[str],
    sites: Sequence[str] | Mapping[str, Mapping[str, Any]] = ("MGB", "VA"),
    *,
    name: str = "Treatment courses",
    seed: int = 1,
    synthetic: bool = False,
    preset: str | None = None,
    records: Mapping[str, Any] | None = None,
    candidates: Sequence[int] = tuple(range(1, 9)),
    stability: bool = True,
    notes: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Write a commented study file that lists every setting with its default.

    Parameters
    ----------
    path : path
    sites : names, or {name: settings}
        Settings as a study file has them under `[sites.NAME]`; default: files to be named.
    name, seed, synthetic
        See `Study`.
    preset : str, optional
        Write the rules of that name, such as "ra"; see `ehr_prep.PRESETS`.
    records : dict, optional
        Settings under `[records]`, which hold for all sites.
    candidates : list of int
        Numbers of classes to try.
    stability : bool
        Try them at the resamples of the sites too.
    notes : {site: lines}, optional
        Comments for each site.
    """
    from ehr_prep.presets import PRESETS
    from mmlca.sequences.files import atomic
    from mmlca.study.templates import render

    if not isinstance(sites, Mapping):
        sites = {site: _to_be_named(site, synthetic) for site in sites}
    settings = {"name": name, "sites": sites, "records": dict(records or {})}
    try:
        Study.model_validate(settings)
    except ValidationError as error:
        raise ValueError(_one_sentence(error, settings)) from None
    if preset is not None:
        one_of(preset, PRESETS, option_name("preset"))
    rules = {**Rules().model_dump(), **PRESETS.get(preset or "", {})}
    about = {"seed": seed, "synthetic": synthetic, "rules": rules, "notes": dict(notes or {})}
    text = render(
        "study.toml.j2",
        **settings,
        **about,
        candidates=list(candidates),
        stability=stability,
        preset=preset,
    )
    with atomic(Path(path)) as file:
        file.write(text.encode())


# --- inside ----------------------------------------------------------------------------


def _to_be_named(site: str, synthetic: bool) -> dict[str, str]:
    files = {role: f"{site}/{role}.csv" for role in ("records", "patients", "labs")}
    files["records"] = f"{site}/medications.csv"
    return files | ({"truth": f"truth/synthetic_{site}.csv"} if synthetic else {})


def _not_toml(path: Path, error: tomllib.TOMLDecodeError) -> str:
    """What is wrong, with the line at fault."""
    place = re.search(r"at line (\d+)", str(error))
    if place is None:
        return f"{error}."
    line = path.read_text(encoding="utf-8").splitlines()[int(place[1]) - 1].strip()
    quotes = "; texts need quotation marks" if "Invalid value" in str(error) else ""
    return f"{error}, in {line!r}{quotes}."


def _one_sentence(error: ValidationError, settings: dict[str, Any]) -> str:
    """The first key at fault, with everything that pydantic says about it."""
    from ehr_prep.databases import hide_secrets

    faults: dict[tuple[str, ...], list[Any]] = {}
    for fault in error.errors(include_url=False):
        faults.setdefault(_place(fault, settings), []).append(fault)
    (place, (first, *rest)), *others = faults.items()
    key, more = ".".join(place), f" ({len(others)} more at fault)" if others else ""
    if place in _RENAMED:
        return f"{key} is now called {_RENAMED[place]}{more}; use that instead."
    if first["type"] == "extra_forbidden":
        known = _keys_at(place[:-1])
        near = difflib.get_close_matches(place[-1], known, n=1)
        hint = (
            f"did you mean {'.'.join([*place[:-1], *near])}?"
            if near
            else f"known: {', '.join(known)}."
        )
        return f"{key} is not known{more}; {hint}"
    if first["type"] == "missing":
        return f"{key} is missing{more}; `mmlca study init` shows what a study file holds."
    needs = " or ".join(dict.fromkeys(_need(fault) for fault in (first, *rest)))
    value = "" if isinstance(first["input"], dict | BaseModel) else f" is {first['input']!r} and"
    end = "" if needs.endswith("?") else "."
    return hide_secrets(f"{key}{value} {needs.rstrip('.')}{more}{end}")


def _place(fault: Any, settings: dict[str, Any]) -> tuple[str, ...]:
    """The keys that lead to a fault; pydantic also names the branches of a union it tried."""
    kept: list[str] = []
    node: Any = settings
    for part in fault["loc"]:
        if isinstance(node, dict) and part in node:
            node = node[part]
        elif fault["type"] != "missing":
            break
        kept.append(str(part))
    return tuple(kept)


def _need(fault: Any) -> str:
    text = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] == "string_pattern_mismatch" and fault["loc"][-1] == "key":
        return "should be a public key of 64 hexadecimal digits, from the site's signing.pub"
    if fault["type"] == "string_pattern_mismatch":
        return "may hold letters, digits, spaces, points and dashes only"
    if fault["type"].startswith(("date_", "datetime_")):
        return "should be a date such as 2008-01-01"
    for technical, plain in _PLAIN.items():
        text = text.replace(technical, plain)
    return text[text.index("should") :] if "should" in text else text


def _keys_at(place: Sequence[str]) -> list[str]:
    """What may stand at this place of a study file."""
    kind: Any = Study
    for part in place[:1] if place[:1] == ("sites",) else place:
        kind = _part_of(kind.model_fields[part].annotation)
    if place[:1] == ("sites",):
        kind = Site
        for part in place[2:]:
            if part in kind.model_fields:  # others are names of files
                kind = _part_of(kind.model_fields[part].annotation)
    return [field.alias or name for name, field in kind.model_fields.items()]


def _part_of(annotation: Any) -> Any:
    kinds = [a for a in (annotation, *typing.get_args(annotation)) if isinstance(a, type)]
    return next((a for a in kinds if issubclass(a, BaseModel)), Site)
