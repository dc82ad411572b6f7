"""The study file: what it may say, and how it is read."""

from __future__ import annotations

import datetime as dt
import difflib
import os
import tomllib
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)

Count = Annotated[int, Field(ge=1)]
Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(pattern=r"^[\w][\w .-]*$", max_length=60)]
File = Annotated[Path, Field(strict=False)]
_FILES = {"records", "sequences", "patients", "labs", "truth", "drugs"}
Day = Annotated[dt.date, Field(strict=False)]


def _or_none(value: Any) -> Any:
    """TOML has no null; "none" stands for it."""
    return None if value == "none" else value


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Reading(_Part):
    """How record files are read; see `ehr_prep.read_records`."""

    drugs: Text | None = None
    patient: Text | None = None
    date: Text | None = None
    drug: Text | None = None
    end: Text | None = None
    supply: Text | None = None
    date_format: Text | None = None
    encoding: Text | None = None
    duplicates: Literal["drop", "keep"] | None = None
    latest: Day | None = None
    strict: bool | None = None

    def options(self) -> dict[str, Any]:
        """What was said, by name, as `ehr_prep.read_records` takes it."""
        said = {name: getattr(self, name) for name in Reading.model_fields}
        return {n: v for n, v in said.items() if v is not None and (n, v) != ("drugs", "ra")}


class Site(Reading):
    """The files of one hospital. What it says about reading goes before `[records]`."""

    records: File | None = None
    sequences: File | None = None
    patients: File | None = None
    labs: File | None = None
    truth: File | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Site:
        if (self.records is None) == (self.sequences is None):
            raise ValueError("needs either records or sequences, one of the two")
        return self


class Rules(_Part):
    """How records become sequences; see `ehr_prep.build_sequences`."""

    first_on_or_after: Annotated[Day | None, BeforeValidator(_or_none)] = dt.date(2008, 1, 1)
    washout_days: Count | None = None
    min_history_days: Count | None = None
    min_follow_up_days: Count | None = None
    min_age: float | None = None
    max_age: float | None = None
    follow_up: Literal["patients", "last_record"] | Day | None = None
    data_cut: Day | None = None
    months: Count = 3
    days: Annotated[float, Field(ge=1)] | None = None
    max_windows: Count = 16
    by: Literal["records", "days"] = "records"
    ties: Literal["first", "latest", "previous"] = "first"
    impute: Literal["carry_forward", "carry_forward_max", "missing"] = "carry_forward"
    max_carry: Annotated[int, Field(ge=0)] = 2
    none_state: Text = "none"


class Classes(_Part):
    """How many classes: a number, or the vote of the pseudo-sites."""

    number: Count | Literal["vote"] = "vote"
    candidates: Annotated[tuple[Count, ...], Field(min_length=1, strict=False)] = tuple(range(1, 9))
    criterion: Literal["bic", "aic", "sabic", "icl"] = "bic"
    count: Literal["sequences", "timepoints"] = "sequences"
    starts: Count = 4


class PseudoSites(_Part):
    """Resamples of each site; 0 a site: the sites' own models make the ensemble."""

    per_site: Annotated[int, Field(ge=0)] = 4
    fraction: Annotated[float, Field(gt=0)] = 0.8


class Model(_Part):
    """See `mmlca.MixtureMarkov`."""

    starts: Count = 40
    prior: Annotated[float, Field(ge=0)] = 1e-4


class EnsembleRules(_Part):
    """See `font.Ensemble`."""

    weights: Literal["spectral", "centred", "equal", "sparse"] = "spectral"
    distance: Literal["euclidean", "hellinger", "total-variation"] = "euclidean"
    method: Literal["kmeans", "kmeans-distance", "average", "complete", "ward", "spectral"] = (
        "kmeans"
    )


class Outputs(_Part):
    """What is written, and how it is worded."""

    figures: bool = True
    dpi: Annotated[int, Field(ge=50, le=1200)] = 200
    top: Count = 30
    bootstrap: Annotated[int, Field(ge=0)] = 200
    table_one: Annotated[tuple[Text, ...], Field(strict=False)] | None = None
    time: Text | None = None
    lab: Text | None = None
    lab_label: Text = "ESR (mm/h)"


class Privacy(_Part):
    """Smaller numbers of patients do not show in tables, figures and the report."""

    min_count: Count = 11


class Sensitivity(_Part):
    """Other choices to try; each list holds alternatives to what `[rules]` and others say."""

    months: Annotated[tuple[Count, ...], Field(strict=False)] = (2, 6)
    ties: Annotated[tuple[str, ...], Field(strict=False)] = ("latest", "previous")
    by: Annotated[tuple[str, ...], Field(strict=False)] = ("days",)
    impute: Annotated[tuple[str, ...], Field(strict=False)] = ("missing", "carry_forward_max")
    max_carry: Annotated[tuple[int, ...], Field(strict=False)] = (1, 4)
    classes: Annotated[tuple[Count, ...], Field(strict=False)] = (3, 5)
    per_site: Annotated[tuple[Count, ...], Field(strict=False)] = (2, 8)
    fraction: Annotated[tuple[float, ...], Field(strict=False)] = (0.5, 1.0)
    weights: Annotated[tuple[str, ...], Field(strict=False)] = ("centred", "equal")
    seeds: Annotated[tuple[int, ...], Field(strict=False)] = (2, 3, 4)
    crossed: bool = False


class Published(_Part):
    """Numbers of an earlier study, shown beside yours."""

    source: Text = "published"
    transition_ensemble: float | None = None
    transition_local: float | None = None
    initial_ensemble: float | None = None
    initial_local: float | None = None


class Study(_Part):
    """A study file, checked. Paths are as given until `read_study` resolves them."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    seed: Annotated[int, Field(ge=0)] = 1
    threads: Count | None = None
    synthetic: bool = False
    sites: Annotated[dict[Name, Site], Field(min_length=1)]
    records: Reading = Reading()
    rules: Rules = Rules()
    classes: Classes = Classes()
    pseudo_sites: PseudoSites = PseudoSites()
    model: Model = Model()
    ensemble: EnsembleRules = EnsembleRules()
    outputs: Outputs = Outputs()
    privacy: Privacy = Privacy()
    published: Published | None = None
    sensitivity: Sensitivity = Sensitivity()

    _folder: Path = PrivateAttr(default_factory=Path)

    def plain(self) -> dict[str, Any]:
        """All settings, defaults included, as JSON can hold them; paths as the file gave them."""
        settings = self.model_dump(mode="json", exclude_none=True)
        for parts in (*settings["sites"].values(), settings["records"]):
            for role in _FILES & parts.keys():
                if role != "drugs" or parts[role] != "ra":
                    parts[role] = Path(os.path.relpath(parts[role], self._folder)).as_posix()
        return settings

    @property
    def from_records(self) -> bool:
        """Whether any site's sequences are built here, by the rules."""
        return any(site.records is not None for site in self.sites.values())

    def site_options(self, site: str) -> dict[str, Any]:
        """How to read the records of a site: what it says itself, else what all say."""
        return {**self.records.options(), **self.sites[site].options()}

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
    """Read and check a study file; paths in it are relative to its folder.

    With `site` the study has that site alone, and only its files must be there: a hospital can
    use the study file of all hospitals. With `files=False` none need be there.

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
    try:
        said = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name} cannot be read as TOML: {error}.") from None
    try:
        study = Study.model_validate(said)
    except ValidationError as error:
        raise ValueError(f"{path.name}: {_one_sentence(error, said)}") from None
    if site is not None and site not in study.sites:
        raise ValueError(f"{path.name} has no site {site!r}; it has {', '.join(study.sites)}.")
    if not files:
        return study
    kept = study.sites if site is None else {site: study.sites[site]}
    sites = {name: _resolved(path, name, part) for name, part in kept.items()}
    reading = _resolved_map(path, "records", study.records)
    study = study.model_copy(update={"sites": sites, "records": reading})
    study._folder = path.parent
    return study


def write_study_file(
    path: str | os.PathLike[str],
    sites: Sequence[str] = ("MGB", "VA"),
    *,
    name: str = "Treatment courses",
    seed: int = 1,
    synthetic: bool = False,
) -> None:
    """Write a commented study file that lists every setting with its default."""
    from mmlca.files import atomic
    from mmlca.study.templates import render

    text = render("study.toml.j2", sites=list(sites), name=name, seed=seed, synthetic=synthetic)
    with atomic(Path(path)) as file:
        file.write(text.encode())


# --- inside ----------------------------------------------------------------------------


def _resolved(path: Path, name: str, site: Site) -> Site:
    found = {}
    for role in ("records", "sequences", "patients", "labs", "truth"):
        given = getattr(site, role)
        if given is not None:
            found[role] = path.parent / given
            if not found[role].is_file():
                raise ValueError(
                    f"{path.name}: sites.{name}.{role} is {str(given)!r}, and there is no such "
                    f"file in {path.parent}; mend the path."
                )
    changed: Site = _resolved_map(path, f"sites.{name}", site.model_copy(update=found))
    return changed


def _resolved_map(path: Path, key: str, part: Any) -> Any:
    if part.drugs in (None, "ra"):
        return part
    drugs = path.parent / part.drugs
    if not drugs.is_file():
        raise ValueError(
            f'{path.name}: {key}.drugs is {part.drugs!r}, which is neither "ra" nor a file in '
            f"{path.parent}."
        )
    return part.model_copy(update={"drugs": str(drugs)})


def _one_sentence(error: ValidationError, said: dict[str, Any]) -> str:
    """The first key at fault, with all that pydantic says about it."""
    faults: dict[tuple[str, ...], list[Any]] = {}
    for fault in error.errors(include_url=False):
        faults.setdefault(_place(fault, said), []).append(fault)
    (place, (first, *rest)), *others = faults.items()
    key, more = ".".join(place), f" ({len(others)} more at fault)" if others else ""
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
    found = "" if isinstance(first["input"], dict | BaseModel) else f" is {first['input']!r} and"
    return f"{key}{found} {needs}{more}."


def _place(fault: Any, said: dict[str, Any]) -> tuple[str, ...]:
    """The keys that lead to a fault; pydantic also names the branches of a union it tried."""
    kept: list[str] = []
    node: Any = said
    for part in fault["loc"]:
        if isinstance(node, dict) and part in node:
            node = node[part]
        elif fault["type"] != "missing":
            break
        kept.append(str(part))
    return tuple(kept)


def _need(fault: Any) -> str:
    text = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] == "string_pattern_mismatch":
        return "may hold letters, digits, spaces, points and dashes only"
    return text[text.index("should") :] if "should" in text else text


def _keys_at(place: Sequence[str]) -> list[str]:
    """What may stand at this place of a study file."""
    if not place:
        return list(Study.model_fields)
    if place[0] == "sites":
        return list(Site.model_fields)
    kind = Study.model_fields[place[0]].annotation
    parts = [a for a in (kind, *typing.get_args(kind)) if isinstance(a, type)]
    return [name for a in parts if issubclass(a, BaseModel) for name in a.model_fields]
