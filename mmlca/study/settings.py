"""The settings of a study: those of the packages it uses, and its own.

`mmlca.study.study_file` reads and writes them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import GenericAlias
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    create_model,
    model_validator,
)

from ehr_prep.settings import (
    MAPS,
    Count,
    File,
    Files,
    LabColumns,
    ObservationColumns,
    PatientColumns,
    PseudoSites,
    Reading,
    RecordColumns,
    Rules,
    Text,
)
from font.errors import InputError
from font.settings import (
    MIN_COUNT,
    Alternatives,
    EnsembleSettings,
    Settings,
    about,
    explain,
    setting,
)
from mmlca.model.settings import (
    ChainSettings,
    ClassSettings,
    CovariateSettings,
    InferenceSettings,
    OutcomeSettings,
)
from mmlca.tables.settings import StrataSettings, TableOneSettings

if TYPE_CHECKING:
    from mmlca.sequences.forms import Form

_STAYS = (2, 4)  # cut points of time in state, where a study names none
Key = Annotated[str, Field(pattern="^[0-9a-fA-F]{64}$")]


def _check_colour(text: str) -> str:
    if not re.fullmatch("#[0-9a-fA-F]{6}", text):
        raise InputError('should be a colour such as "#0072B2"')
    return text


Colour = Annotated[str, AfterValidator(_check_colour)]
Name = Annotated[str, Field(pattern=r"^[\w][\w .-]*$", max_length=60)]
FILE_ROLES = ("records", "sequences", "patients", "labs", "observation", "truth")
MAP_ROLES = ("drugs", "drug_names")
"""The settings of a site that name files, and those that all sites may share."""

# what belongs to files, what an OMOP database says itself, and what belongs to databases
_FILES_ONLY: tuple[str, ...] = ("columns", "patients", "observation", "drug_names", "date_format")
_FILES_ONLY += ("encoding", "delimiter", "decimal", "strict", "labs_columns", "file_columns")
_NOT_OMOP: tuple[str, ...] = (*RecordColumns.model_fields, "default_supply", "where")
_NOT_OMOP += ("records_columns", "patients_columns", "observation_columns")
_OMOP_ONLY = ("condition", "cohort")
_WAREHOUSE_ONLY = ("patients_table", "observation_table")
WRONG_SOURCE = {
    "omop": (*_FILES_ONLY, *_NOT_OMOP, *_WAREHOUSE_ONLY),
    "warehouse": (*_FILES_ONLY, *_OMOP_ONLY, "labs"),
    "files": (*_OMOP_ONLY, *_WAREHOUSE_ONLY, "cdm_schema", "table"),
}


class Patients(Settings):
    """How patients' tables are read."""

    columns: PatientColumns = PatientColumns()


class ObservationPeriods(Settings):
    """How tables of observation periods are read."""

    columns: ObservationColumns = ObservationColumns()


class Labs(Settings):
    """How tables of labs are read."""

    columns: LabColumns = LabColumns()


class AllReading(Reading):
    """How the files of all sites are read; `columns` are those of the records."""

    columns: RecordColumns = RecordColumns()

    def options(self) -> dict[str, Any]:
        return {**super().options(), **self.columns.model_dump(exclude_none=True)}


class Place(Reading):
    """Where the patients of a hospital are: its files or its database.

    With `omop`, the URL of a database, `labs` are tests of its table measurement: "ESR,CRP".
    `warehouse` is the URL of one that is not OMOP; see `ehr_prep.read_warehouse`.
    """

    model_config = ConfigDict(populate_by_name=True)

    records: Files | None = setting(
        None, "Medication records: .csv, .parquet or .xlsx, one or several.", example="records.csv"
    )
    sequences: File | None = setting(
        None, "Sequences made by `mmlca prep`, instead of records.", example="sequences.parquet"
    )
    omop: Text | None = setting(
        None, "OMOP database instead of records.", example="postgresql://host/database"
    )
    warehouse: Text | None = setting(
        None, "Database that is not OMOP instead of records.", example="duckdb:///file.duckdb"
    )
    cdm_schema: Text | None = setting(
        None, "Schema of the tables of the database.", example="cdm", alias="schema"
    )
    condition: Count | tuple[Count, ...] | Text | None = setting(
        None,
        "Patients enter with this condition (OMOP): concept ids or an Atlas file.",
        example=80809,
    )
    cohort: Count | Text | None = setting(
        None, "Patients enter with a row of this cohort table (OMOP).", example="results.cohort:7"
    )
    table: Text | None = setting(
        None, "Table of the records in the database.", example="drug_exposure"
    )
    patients_table: Text | None = setting(
        None, "Table of the patients in the database (warehouse).", example="patients"
    )
    observation_table: Text | None = setting(
        None, "Table of the observation periods in the database (warehouse).", example="periods"
    )
    columns: Text | None = setting(None, "Columns of the sequences.", example="t1:t12")
    patients: Files | None = setting(
        None, "Patients' table: birth date, sex, end of follow-up, …", example="patients.csv"
    )
    labs: Files | None = setting(
        None, "Lab tests: patient, date, value; with omop the names of tests.", example="labs.csv"
    )
    observation: Files | None = setting(
        None,
        "Observation periods: patient, start, end; one or more each.",
        example="observation.csv",
    )
    truth: File | None = setting(None, "True classes of synthetic patients.", example="truth.csv")
    where: dict[Text, Text] = setting(
        {}, "Only these rows, if a file holds several sites.", example={"site": "MGB"}
    )
    records_columns: RecordColumns = RecordColumns()
    file_columns: dict[Text, RecordColumns] = Field(default_factory=dict)
    patients_columns: PatientColumns = PatientColumns()
    observation_columns: ObservationColumns = ObservationColumns()
    labs_columns: LabColumns = LabColumns()

    def options(self) -> dict[str, Any]:
        options = {**super().options(), **self.records_columns.model_dump(exclude_none=True)}
        if self.file_columns:
            options["file_columns"] = {
                file: columns.model_dump(exclude_none=True)
                for file, columns in self.file_columns.items()
            }
        return options

    @property
    def database(self) -> str | None:
        """The URL of the site's database, None if it has files."""
        return self.omop or self.warehouse

    @property
    def is_elsewhere(self) -> bool:
        """Whether the study file does not say where the patients are, as between hospitals."""
        return (self.records, self.sequences, self.omop, self.warehouse) == (None,) * 4

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        sources = (self.records, self.sequences, self.omop, self.warehouse)
        number = sum(source is not None for source in sources)
        if number > 1 or (number == 0 and self.model_fields_set - {"key"}):
            raise InputError("needs exactly one of records, sequences, omop and warehouse")
        kind = "omop" if self.omop else "warehouse" if self.warehouse else "files"
        fields = type(self).model_fields
        if extra := [
            n
            for n in WRONG_SOURCE[kind]
            if getattr(self, n) != fields[n].get_default(call_default_factory=True)
        ]:
            name = extra[0].removeprefix("cdm_")
            reason = f"which does not go with {kind}"
            if kind == "files":
                reason = "which belongs to databases (omop or warehouse)"
            raise InputError(f"has {name}, {reason}")
        if self.omop is not None and self.table not in (None, "drug_exposure", "drug_era"):
            raise InputError(f'has table = "{self.table}"; omop has drug_exposure and drug_era')
        if (url := self.database) is not None:
            from ehr_prep.databases.connect import check_url

            check_url(url)
        if self.columns is not None and self.sequences is None:
            raise InputError("has columns, which belong to sequences")
        return self


class Site(Place):
    """The files or the database of one hospital. Its reading options override `[records]`.

    Between hospitals there are none in the study file: each has its own in a `SiteFile`.
    """

    key: Key | None = setting(
        None, "Public key, to refuse files that the site did not sign.", example="64 digits"
    )


class SiteFile(Place):
    """What belongs to one hospital of a study between hospitals; it never leaves."""

    site: Name = Field(description="Name of this hospital in the study file.")
    floor: int = setting(
        MIN_COUNT, "Smallest privacy.min_count that this hospital accepts from a study.", ge=1
    )
    approve: bool = setting(False, "Let nothing leave before somebody has agreed to it.")
    signing_key: File | None = setting(
        None,
        "Private key to sign with; default: signing.key in the private folder.",
        example="signing.key",
    )

    def place(self) -> Site:
        """The site as a study file for one place has it."""
        own = self.model_dump(include=set(Place.model_fields), exclude_unset=True)
        return Site.model_validate(own)


class Outputs(Settings):
    """Which results are written, and how they are worded."""

    figures: bool = setting(True, "Draw figures.")
    dpi: int = setting(200, "Resolution of pictures.", ge=50, le=1200)
    formats: Annotated[
        tuple[Literal["png", "svg", "pdf", "docx"], ...], Field(strict=False, min_length=1)
    ] = setting(("png",), "Files of figures: png, svg, pdf; docx: Table 1 and methods for Word.")
    top: int = setting(30, "Number of most frequent sequences shown.", ge=1)
    bootstrap: int = setting(1000, "Samples for the intervals of site differences.", ge=0)
    time: Text | None = setting(
        None, "What a window is called; default: from its length.", example="Quarter"
    )
    names: dict[Text, Text] | Annotated[tuple[Text, ...], Field(strict=False)] | None = setting(
        None,
        "Names of your own for clusters, by what the report calls them.",
        example={"stayers": "TNFi persisters"},
    )
    colours: dict[Text, Colour] | None = setting(
        None,
        "Colours of states in all figures, as #RRGGBB; the other states have those of the program.",
        example={"TNFi": "#0072B2"},
    )
    lab: Text | None = setting(None, "Which test, where the labs hold several.", example="ESR")
    lab_label: Text | None = setting(
        None, "What the lab is called; default: as the labs' files name it.", example="HbA1c (%)"
    )
    lab_bands: Literal["pointwise", "simultaneous"] = setting(
        "pointwise", "Bands of lab curves; simultaneous ones are wider, and hold whole curves."
    )

    @model_validator(mode="after")
    def _different_names(self) -> Outputs:
        several = isinstance(self.names, dict)
        given = list(self.names.values() if isinstance(self.names, dict) else self.names or ())
        twice = [text for text in dict.fromkeys(given) if given.count(text) > 1]
        if twice:
            what = "two names for the course" if several else "twice the name"
            raise InputError(f"has {what} {twice[0]!r} in names; give each only one")
        return self


class Privacy(Settings):
    """How numbers of patients are shown in tables, figures and the report.

    "inside": exact, without those of fewer than `min_count` patients; "public": all rounded at
    random to multiples of `min_count`. See `mmlca.study.release`.
    """

    min_count: int = setting(MIN_COUNT, "Smallest number of patients shown in results.", ge=1)
    release: Literal["inside", "public"] = setting(
        "inside",
        "Exact numbers for the hospital itself; public: every count rounded at random to a "
        "multiple of min_count.",
    )

    @model_validator(mode="after")
    def _something_to_round_to(self) -> Privacy:
        if self.release == "public" and self.min_count in (0, 1):
            raise InputError(
                f'has release = "public" with min_count = {self.min_count}, to which nothing can '
                "be rounded; set min_count to 2 or more, such as 11"
            )
        return self


class Centre(Settings):
    """The centre of hospitals that exchange files, see `mmlca site`."""

    key: Key | None = setting(
        None, "Its public key, to refuse an ensemble that it did not sign.", example="64 digits"
    )
    round: int = setting(
        1,
        "Number of this run of the study between hospitals; a later one sends all files anew.",
        ge=1,
        le=1000,
    )
    secure: bool = setting(
        False, "Secure sums: the centre reads only what the sites' counts add up to."
    )


class Factor(NamedTuple):
    """A setting that a sensitivity analysis varies: its name for people, and its place."""

    label: str
    section: str
    key: str


_VARIED: dict[str, type[Settings]] = {
    "rules": Rules,
    "classes": ClassSettings,
    "model": ChainSettings,
    "pseudo_sites": PseudoSites,
    "ensemble": EnsembleSettings,
}
_SEEDS = Alternatives("seed", (2, 3, 4), "seeds")


def _find_factors() -> dict[str, tuple[Factor, Any, tuple[Any, ...]]]:
    """By key under `[sensitivity]`: the setting, the type of one value, and the alternatives."""
    factors: dict[str, tuple[Factor, Any, tuple[Any, ...]]] = {}
    for section, kind in _VARIED.items():
        for name, field in kind.model_fields.items():
            other = about(field, "alternatives")
            if other is not None:
                value: Any = Annotated[(field.annotation, Field(), *field.metadata)]
                place = Factor(other.label, section, name)
                factors[other.key or name] = place, value, other.values
    seed = Annotated[int, Field(ge=0)]
    factors["seeds"] = Factor(_SEEDS.label, "", "seed"), seed, _SEEDS.values
    return factors


_FOUND = _find_factors()
FACTORS = {key: factor for key, (factor, _, _) in _FOUND.items()}
"""What `[sensitivity]` may vary, by its key there."""


class Crossed(Settings):
    """Other choices to try; each list holds alternatives to a setting of the study."""

    crossed: bool = setting(
        False, "Try all combinations of the alternatives, instead of one at a time."
    )


_alternatives: dict[str, Any] = {
    key: (
        Annotated[(GenericAlias(tuple, (value, ...)), Field(strict=False))],
        setting(values, f"Alternatives to {'.'.join(filter(None, factor[1:]))}."),
    )
    for key, (factor, value, values) in _FOUND.items()
}
if TYPE_CHECKING:
    Sensitivity = Crossed
else:
    Sensitivity = create_model(
        "Sensitivity", __base__=Crossed, __doc__=Crossed.__doc__, **_alternatives
    )


class Published(Settings):
    """Numbers of an earlier study, shown beside those of this one."""

    source: Text = setting("published", "What they are called.")
    transition_ensemble: float | None = setting(
        None, "Norm of the differences of transitions, by the ensemble.", example=0.403
    )
    transition_local: float | None = setting(
        None, "The same by each site's own model.", example=1.083
    )
    initial_ensemble: float | None = setting(
        None, "Norm of the differences of first states, by the ensemble.", example=0.505
    )
    initial_local: float | None = setting(None, "The same by each site's own model.", example=0.515)


class Study(Settings):
    """A study file, checked. Paths are as given until `read_study` resolves them."""

    name: Annotated[str, Field(min_length=1, max_length=200)] = Field(
        description="Name of the study."
    )
    seed: int = setting(1, "The same seed gives the same tables.", ge=0)
    n_jobs: Count | None = setting(
        None,
        "Processor cores to use; default: all. Results do not depend on it.",
        example=2,
    )
    synthetic: bool = setting(False, "Synthetic patients; the report says so.")
    sites: Annotated[dict[Name, Site], Field(min_length=1)]
    records: AllReading = AllReading()
    patients: Patients = Patients()
    observation: ObservationPeriods = ObservationPeriods()
    labs: Labs = Labs()
    concepts: dict[Text, list[int | Text]] | None = None
    rules: Rules = Rules()
    classes: ClassSettings = ClassSettings()
    pseudo_sites: PseudoSites = PseudoSites()
    model: ChainSettings = ChainSettings()
    ensemble: EnsembleSettings = EnsembleSettings()
    inference: InferenceSettings = InferenceSettings()
    covariates: CovariateSettings = CovariateSettings()
    outcomes: OutcomeSettings = OutcomeSettings()
    strata: StrataSettings = StrataSettings()
    outputs: Outputs = Outputs()
    table_one: TableOneSettings = TableOneSettings()
    privacy: Privacy = Privacy()
    centre: Centre = Centre()
    published: Published | None = None
    sensitivity: Sensitivity = Sensitivity()

    @model_validator(mode="after")
    def _by_steps(self) -> Self:
        if self.model.by == "course":
            raise InputError(
                'has by = "course" under [model], but a study describes mixtures of Markov chains; '
                "leave it out here, and use `mmlca select --by course`, `mmlca fit --by course` "
                "and `mmlca site fit --by course`"
            )
        return self

    _folder: Path = PrivateAttr(default_factory=Path)
    _agreed: dict[str, dict[str, str]] = PrivateAttr(default_factory=dict)

    @property
    def agreed(self) -> dict[str, dict[str, str]]:
        """What all sites agreed on, by section and key; empty if this is from no study file."""
        return self._agreed

    def plain(self) -> dict[str, Any]:
        """All settings, defaults included, as JSON can hold them; paths as the file gave them."""
        settings = self.model_dump(mode="json", exclude_none=True)
        for parts in (*settings["sites"].values(), settings["records"]):
            for kind in ("omop", "warehouse"):
                if kind in parts:
                    parts[kind] = self._relative_url(parts[kind])
            files = {*FILE_ROLES, *MAP_ROLES} - ({"labs"} if "omop" in parts else set())
            for role in files & parts.keys():
                if role != "drugs" or parts[role] not in MAPS:
                    parts[role] = self._relative(parts[role])
        return settings

    def _relative(self, files: Any) -> Any:
        if isinstance(files, list):
            return [self._relative(file) for file in files]
        return Path(os.path.relpath(files, self._folder)).as_posix()

    def _relative_url(self, url: str) -> str:
        from ehr_prep.databases.connect import check_url, local_path

        path = local_path(url)
        return url if path is None else f"{check_url(url)}:{self._relative(path)}"

    @property
    def form_rule(self) -> Literal["compare", "plain", "given"]:
        """How the form of the chains is decided: by `model.form`, or its default."""
        if self.model.form is not None:
            return self.model.form
        if self.classes.number == "vote":
            return "compare"
        return "given" if self.model.stays or self.model.periods else "plain"

    @property
    def given_form(self) -> Form:
        """The form of the chains that `stays` and `periods` give."""
        from mmlca.sequences.forms import make_form

        rules = self.model
        stays = _STAYS if rules.stays is None and not rules.periods else rules.stays
        return make_form(stays, rules.periods, rules.shared)

    @property
    def fit_settings(self) -> dict[str, Any]:
        """The settings of every fit, also of those that compare numbers of classes."""
        rules = self.model
        settings = {"n_init": rules.n_init, "search": rules.search, "prior": rules.reported_prior}
        return settings | {"min_patients": self.privacy.min_count}

    @property
    def from_records(self) -> bool:
        """Whether any site's sequences are built by the rules."""
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

    def alone(self, site: str) -> Study:
        """The study of one site only."""
        return self.model_copy(update={"sites": {site: self.sites[site]}})

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
            raise InputError(explain(error, settings, Study)) from None
        study._folder = self._folder
        return study
