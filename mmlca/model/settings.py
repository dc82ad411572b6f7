"""The settings of models: the number of classes, the fit, and what is inferred from it."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from font.errors import InputError
from font.settings import Alternatives, Settings, setting

Criterion = Literal["bic", "aic", "sabic", "caic", "icl"]
CRITERIA = get_args(Criterion)
SampleSize = Literal["sequences", "timepoints"]
SearchKind = Literal["default", "thorough"]
By = Literal["steps", "course"]

Count = Annotated[int, Field(ge=1)]
Text = Annotated[str, Field(min_length=1)]
Columns = Annotated[tuple[Text, ...], Field(strict=False)]


def _or_none(value: Any) -> Any:
    """TOML has no null: the text "none" replaces it."""
    return None if value == "none" else value


Correction = Annotated[Literal["BCH", "ML"] | None, BeforeValidator(_or_none)]


class ClassSettings(Settings):
    """The number of classes: given, or chosen by the vote of the sites."""

    number: Count | Literal["vote"] = setting(
        "vote",
        "Number of classes; vote: the sites choose it, each by its own data.",
        alternatives=Alternatives("classes", (3, 5), "classes"),
    )
    candidates: Annotated[tuple[Count, ...], Field(min_length=1, strict=False)] = setting(
        tuple(range(1, 9)), "Numbers of classes to compare."
    )
    criterion: Criterion = setting("bic", "Criterion that chooses the number of classes.")
    count: SampleSize = setting(
        "sequences", "What the criterion counts as n: sequences, or time points as seqHMM does."
    )
    stability: bool = setting(
        True, "Choose a number for each resample too: slower, but shows how stable the choice is."
    )


class ModelSettings(Settings):
    """How each model is fitted; see `mmlca.MixtureMarkov` and `mmlca.CourseClasses`."""

    by: By = setting(
        "steps",
        "What patients of one class share: steps, how they move between states (mixture of Markov "
        "chains); course, which state they are in when (latent classes of the time course).",
    )
    n_init: int = setting(
        40, "Number of random starts; the best are followed, then perturbed.", ge=1
    )
    search: SearchKind = setting(
        "default",
        "A thorough search takes several times as long and misses the best maximum less often.",
    )
    prior: float | None = setting(
        None,
        "Dirichlet pseudo-count of each probability, 0 for maximum likelihood; default: too small "
        "to matter, and 0.5 or less in models that are sent to other sites.",
        example=1e-4,
        ge=0,
    )

    @property
    def reported_prior(self) -> float:
        """The prior of models whose probabilities a study reports: too small to matter."""
        from font.probabilities import PRIOR_OF_FITS

        return PRIOR_OF_FITS if self.prior is None else self.prior


def _numbers(value: Any) -> Any:
    """The numbers of a text such as "2,4", as options of commands give them."""
    if isinstance(value, str) and re.fullmatch(r"\s*\d{1,4}(\s*,\s*\d{1,4})*\s*", value):
        return tuple(int(part) for part in value.split(","))
    return value


CutPoints = Annotated[tuple[int, ...], Field(strict=False), BeforeValidator(_numbers)]


class FormSettings(Settings):
    """Which parts the chains have besides the present state; see `mmlca.MixtureMarkov`."""

    stays: CutPoints | None = setting(
        None,
        "Cut points of time in state, on which leaving depends: 2,4 for windows 1, 2–3 and 4+.",
        example=(2, 4),
        alternatives=Alternatives("cut points of time in state"),
    )
    periods: CutPoints | None = setting(
        None,
        "Cut points of time since the start: 5 for windows 1–4 and 5+, which differ in all steps.",
        example=(5,),
    )
    shared: Literal["destinations"] | None = setting(
        None,
        "What periods share: destinations, so that they change the leaving of states alone.",
        example="destinations",
    )


class ChainSettings(FormSettings, ModelSettings):
    """How each model is fitted, and which parts its chains have; see `mmlca.MixtureMarkov`."""

    form: Literal["compare", "plain", "given"] | None = setting(
        None,
        "Form of the chains: plain; given by stays and periods (stays = [2, 4] if there are none); "
        "or compare: the lower criterion decides between the two. Default: compare where numbers "
        "of classes are compared, otherwise given if there are stays or periods, else plain; "
        "between hospitals never compare.",
        example="plain",
        alternatives=Alternatives("form of the chains", ("plain", "given"), "forms"),
    )

    @model_validator(mode="after")
    def _makes_a_form(self) -> ChainSettings:
        if self.stays or self.periods or self.shared:
            from mmlca.sequences.forms import make_form

            make_form(self.stays, self.periods, self.shared)
        return self


class InferenceSettings(Settings):
    """How certain the models are, and how well they fit."""

    standard_errors: bool = setting(
        True, "Standard errors of the probabilities of each site's own model."
    )
    diagnostics: bool = setting(
        True, "Tests of the fit: residuals, memory, lengths of stays, halves of the time."
    )
    second_opinion: bool = setting(
        True,
        "Compare the clusters with latent classes of the time course and with distances, and look "
        "for several courses in one cluster.",
    )
    simulations: int = setting(
        199, "Simulated data sets for each test of shared courses and of the fit.", ge=1
    )
    bootstrap: int = setting(0, "Refits of each site's own model, such as 500; 0: none.", ge=0)
    blrt: int = setting(
        0, "Samples of the tests against one class fewer and more, such as 99; 0: none.", ge=0
    )

    choices: int = setting(
        0,
        "Resamples of each site's patients for which the number of classes is chosen again, such "
        "as 50; each costs as much as the site's choice. 0: none.",
        ge=0,
    )

    @model_validator(mode="after")
    def _enough_refits(self) -> InferenceSettings:
        if self.bootstrap == 1:
            raise InputError("has bootstrap = 1; at least 2 refits are needed, or 0 for none")
        if self.choices == 1:
            raise InputError("has choices = 1; at least 2 resamples are needed, or 0 for none")
        return self


class CovariateSettings(Settings):
    """Who is in which cluster?"""

    columns: Columns = setting(
        (),
        "Columns of the patients' tables on which membership may depend.",
        example=["age", "sex"],
    )
    method: Literal["three-step", "one-step"] = setting(
        "three-step", "After classification, or inside each site's model."
    )
    correction: Correction = setting(
        "ML", "Correction of three steps for wrong assignments: ML, BCH or none."
    )


class OutcomeSettings(Settings):
    """How do the clusters differ afterwards?"""

    columns: Columns = setting(
        (),
        "Columns of the patients' tables to compare: numbers, yes or no, categories.",
        example=["remission"],
    )
    correction: Correction = setting("BCH", "Correction for wrong assignments: BCH, ML or none.")
    event: Text | None = setting(
        None,
        "Column of dates, empty for patients without the event: time from the landmark to it.",
        example="death_date",
    )
    competing: Text | None = setting(
        None, "Column of dates of a competing event.", example="transplant_date"
    )
    landmark: float | None = setting(
        None,
        "Years after the first window from which time is counted; default: the end of the last "
        "window.",
        example=4,
        gt=0,
    )

    @model_validator(mode="after")
    def _event_first(self) -> OutcomeSettings:
        if self.event is None and (self.competing or self.landmark):
            raise InputError("has competing or landmark, which need event")
        if self.event is not None and self.event == self.competing:
            raise InputError(f"names {self.event!r} as event and as competing event")
        return self
