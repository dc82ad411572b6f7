"""How many classes: fits for several K, at one site or many, and the vote."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar, get_args

import numpy as np
import pandas as pd
from scipy.stats import beta
from sklearn.base import clone

from font.checks import counted, listed, one_of, whole_number
from font.errors import InputError, ReportWarning
from mmlca.model.course import CourseClasses
from mmlca.model.estimator import MixtureMarkov
from mmlca.model.forms import LEFT_OUT, left_out_text, too_fine
from mmlca.model.params import AnyParams, AnySequences, Floats, Seed, as_sequences, draw_like
from mmlca.model.resampling import STABLE, bootstrap
from mmlca.model.search import in_threads
from mmlca.model.settings import CRITERIA, By, ClassSettings, Criterion, SampleSize
from mmlca.sequences.forms import PLAIN, Form, make_form
from mmlca.sequences.type import Sequences

AnyModel: TypeAlias = MixtureMarkov | CourseClasses
Fitted = TypeVar("Fitted", MixtureMarkov, CourseClasses)
AnyForm: TypeAlias = Form | Mapping[str, Any] | str

_DEFAULTS = ClassSettings()
_PASSED_ON = ("prior", "zeros", "max_iter", "tol", "n_jobs")  # settings that tests share with fits


def select_n_classes(
    sequences: AnySequences | Mapping[str, Sequences],
    ks: Iterable[int] = _DEFAULTS.candidates,
    seed: Seed = None,
    *,
    by: By = "steps",
    forms: Iterable[AnyForm] | None = None,
    criterion: Criterion = _DEFAULTS.criterion,
    n: SampleSize = _DEFAULTS.count,
    blrt: int = 0,
    resamples: int = 0,
    progress: Callable[[str, int], None] | None = None,
    **settings: Any,
) -> pd.DataFrame:
    """Fit each K at each site and compare.

    Parameters
    ----------
    sequences : Sequences or {site: Sequences}
    ks : numbers of classes to try
    seed : int or Generator, optional
        Every fit uses the same one, so that adding a site or a K changes no other fit, and
        each fit is that of `MixtureMarkov(K, seed=seed)`.
    by : "steps" or "course"
        Fit mixtures of Markov chains, or latent classes of the time course (`CourseClasses`). Their
        BIC and that of chains cannot be compared with each other to choose between the two, which
        answer different questions.
    forms : forms of chains to compare as well, optional
        Each "plain", or a dictionary of `stays`, `periods` and `shared` of `MixtureMarkov`, as in
        ["plain", {"stays": (2, 4)}]. One of all forms and K is chosen. If windows are missing, all
        forms leave out the steps that any of them does, plain chains too, since likelihoods of
        different steps cannot be compared; a warning counts them.
    criterion : the one that chooses; smaller is better for all of them
    n : what BIC, SABIC, CAIC and ICL count (see `MixtureMarkov.bic`)
    blrt : int
        Simulations of the bootstrap likelihood-ratio test of each K against K − 1, at most; 0: no
        test. See `bootstrap_lrt`.
    resamples : int
        Sets of as many patients, drawn with replacement, for each of which the criterion chooses
        again; each costs as much as the whole table without them. 0: none.
    progress : called with site and K before each fit
    **settings : passed to `MixtureMarkov`, or to `CourseClasses`

    Returns
    -------
    DataFrame
        One row per site and K: `loglik`, `parameters` (those that the data inform, see
        `MixtureMarkov`), `parameters_all` (the textbook's count), `aic`, `bic`, `bic_all` (BIC by
        `parameters_all`), `sabic`, `caic`, `icl`, `entropy` (entropy R² of Ramaswamy et al. 1993),
        `posterior` (mean probability of a patient's own class), `smallest` (share of the smallest
        class), `sizes` (shares of all classes in percent), with `blrt` also `blrt_p` and its
        Monte-Carlo error `blrt_error` (NaN for K = 1), with `resamples` also `resampled` (how many
        of the resamples choose this K) and, for chains, `jaccard` (of the class that `bootstrap`
        finds again least well, its mean Jaccard index with its counterpart in as many refits),
        `replicated` and `searches` (so many of the independent searches reached the maximum, see
        `MixtureMarkov`), `converged`, and `chosen`, true for the best K of the site.
        With `forms` the column `form` names them, and `chosen` marks one row of all forms.
        `vote` gives the sites' majority; it is also in `.attrs["n_classes"]`.
        `compare_criteria` says in words where the criteria disagree.

    Examples
    --------
    >>> from mmlca import MarkovParams, simulate
    >>> two = MarkovParams([0.5, 0.5], [[1, 0], [0, 1]], [[[0.9, 0.1], [0.5, 0.5]],
    ...                                                   [[0.5, 0.5], [0.1, 0.9]]])
    >>> data, _ = simulate(two, 400, 12, seed=1)
    >>> table = select_n_classes(data, range(1, 4), seed=1)
    >>> vote(table)
    2
    """
    whole_number(blrt, 0, "blrt")
    whole_number(resamples, 0, "resamples")
    if resamples == 1 or (resamples and forms is not None):
        raise InputError(
            "resamples are at least 2, and of one form of chains: leave out forms, and give stays "
            "or periods instead."
        )
    one_of(by, get_args(By), "by")
    if by == "course" and (forms is not None or blrt):
        raise InputError(
            "by='course' fits no chains: it has neither forms nor bootstrap likelihood-ratio tests."
        )
    several = isinstance(sequences, Mapping)
    sites = sequences if isinstance(sequences, Mapping) else {"": as_sequences(sequences)}
    if not isinstance(seed, (int, np.integer)):
        seed = int(np.random.default_rng(seed).integers(2**63))
    kept = {name: settings[name] for name in _PASSED_ON if name in settings}
    if by == "course":
        fits = {}
        for site, k in candidates(sites, ks, criterion, None):
            if progress is not None:
                progress(str(site), k)
            fits[site, k] = fit_quietly(CourseClasses(k, seed=seed, **settings), sites[site])
        table = _criteria_of(fits, n, None)
        if resamples:
            table = _support(table, fits, sites, resamples, seed, criterion, n)
        table = _choose(table, criterion)
        return table if several else table.drop(columns="site")
    own = make_form(*(settings.pop(name, None) for name in Form._fields))
    tried = [own] if forms is None else _read_forms(forms, own)
    finest = find_finest(tried, sites)
    ks, parts = list(ks), []
    for form in tried:
        fits, tests = {}, {}
        parts_of = form._asdict()
        for site, k in candidates(sites, ks, criterion, form):
            if progress is not None:
                progress(str(site), k)
            if blrt and k > 1:
                tests[site, k] = bootstrap_lrt(sites[site], k, blrt, seed, **kept, **parts_of)
            model = MixtureMarkov(k, seed=seed, **parts_of, **settings)
            fits[site, k] = fit_quietly(model, sites[site], finest)
        table = _criteria_of(fits, n, tests if blrt else None)
        if resamples:
            table = _support(table, fits, sites, resamples, seed, criterion, n)
        parts.append(table if forms is None else table.assign(form=form.title))
    table = _choose(pd.concat(parts, ignore_index=True), criterion)
    return table if several else table.drop(columns="site")


def _read_forms(forms: Iterable[AnyForm], own: Form) -> list[Form]:
    """The forms to compare, checked; `own` is the one that the settings of fits give."""
    if own != PLAIN:
        raise InputError("stays and periods stand beside forms; give them as one of the forms.")
    tried = []
    for form in forms:
        if isinstance(form, Mapping):
            form = make_form(**form)
        elif form == "plain":
            form = PLAIN
        if not isinstance(form, Form):
            raise InputError(
                f"each form must be 'plain' or a dictionary such as {{'stays': (2, 4)}}, found "
                f"{form!r}."
            )
        tried.append(form)
    if not tried or len(set(tried)) < len(tried):
        raise InputError("forms must name at least one form, and each of them once.")
    return tried


def find_finest(forms: Sequence[Form], sites: Mapping[str, Sequences]) -> Form | None:
    """The form with the cut points of all, whose steps several forms are compared on.

    None where no window is missing, or for a single form, since all steps count then.
    """
    if len(forms) == 1:
        return None
    finest = Form(tuple(sorted({cut for form in forms for cut in form.stays})))
    is_missing = False
    for site, data in sites.items():
        if text := left_out_text(data.patterns_of(PLAIN, finest), len(data)):
            is_missing = True
            where = f"site {site}: " if site else ""
            warnings.warn(
                ReportWarning(
                    f"{where}{text.split(';')[0]}; so that forms can be compared, all of them "
                    "leave out these.",
                    LEFT_OUT,
                ),
                stacklevel=3,
            )
    return finest if is_missing else None


def candidates(
    sites: Mapping[str, Sequences],
    ks: Iterable[int],
    criterion: Criterion,
    form: Form | None = PLAIN,
) -> list[tuple[str, int]]:
    """Every site with every K that can be fitted there; warns of those that cannot.

    A form of None stands for classes of the time course.
    """
    if criterion not in CRITERIA:
        raise InputError(f"criterion must be one of {', '.join(CRITERIA)}, found {criterion!r}.")
    tried = sorted({int(k) for k in ks})
    if not tried or tried[0] < 1:
        raise InputError(f"ks must be whole numbers of at least 1, found {tried}.")
    if not sites:
        raise InputError("there are no sites to compare: the mapping is empty.")
    pairs = []
    for site, data in sites.items():
        used = data if (data.weights > 0).all() else data[data.weights > 0]
        most, what = used.n_distinct, "courses"
        if form is not None:
            most, what = int((data.patterns_of(form).weights > 0).sum()), "transition patterns"
        left_out = [k for k in tried if k > most]
        if left_out:
            warnings.warn(
                f"{f'site {site}' if site else 'the data'} has only {most} distinct {what}; "
                f"K = {', '.join(map(str, left_out))} cannot be fitted.",
                ReportWarning,
                stacklevel=3,
            )
        pairs += [(site, k) for k in tried if k not in left_out]
    if not pairs:
        raise InputError(f"none of K = {tried} can be fitted to so few different sequences.")
    return pairs


def fit_quietly(model: Fitted, data: Sequences, finest: Form | None = None) -> Fitted:
    """Fit without the warnings that a table of models has columns for (replicated, converged).

    With `finest` on the steps that forms are compared on, see `find_finest`.
    """
    if isinstance(model, MixtureMarkov):
        model._finest = finest
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the best of|EM stopped")
        if finest is not None:  # the comparison has counted them
            warnings.filterwarnings("ignore", ".* are left out because windows are missing")
        return model.fit(data)


def compare_fits(
    fits: Mapping[tuple[str, int], MixtureMarkov],
    criterion: Criterion,
    n: SampleSize,
) -> pd.DataFrame:
    """The table of `select_n_classes` from the fits, by site and K."""
    return _choose(_criteria_of(fits, n, None), criterion)


def _criteria_of(
    fits: Mapping[tuple[str, int], AnyModel],
    n: SampleSize,
    tests: Mapping[tuple[str, int], LikelihoodRatioTest] | None,
) -> pd.DataFrame:
    """The table without the choice."""
    rows = [{"site": site, **_row(m, k, n)} for (site, k), m in fits.items()]
    table = pd.DataFrame(rows)
    if tests is not None:
        found = [tests.get(pair) for pair in fits]
        table["blrt_p"] = [np.nan if test is None else test.p_value for test in found]
        table["blrt_error"] = [np.nan if test is None else test.mc_error for test in found]
    last = ["replicated", "searches", "converged"]
    return table[[name for name in table.columns if name not in last] + last]


def _choose(table: pd.DataFrame, criterion: Criterion) -> pd.DataFrame:
    """The same table with the choice of each site; a column of forms goes to the front."""
    if "form" in table:
        first = ["site", "form", "classes"]
        table = table[first + [name for name in table.columns if name not in first]].copy()
    table["chosen"] = table.index.isin(table.groupby("site", sort=False)[criterion].idxmin())
    table.attrs |= {"n_classes": vote(table), "criterion": criterion}
    return table


def best_form(table: pd.DataFrame, criterion: Criterion) -> str:
    """The form that describes all sites best: that with the smallest sum of the criterion.

    The sum is over the sites, each with its own best number of classes for the form: the sites'
    models together are one model of all patients. Of equals, the first in the table.

    Examples
    --------
    >>> best_form(pd.DataFrame({"site": ["A", "A", "B", "B"], "form": ["plain", "other"] * 2,
    ...                         "classes": 2, "bic": [10.0, 7.0, 20.0, 22.0]}), "bic")
    'other'
    """
    return str(sum_by_form(table, criterion).idxmin())


def sum_by_form(table: pd.DataFrame, criterion: str) -> pd.Series:
    """The sum over sites of the smallest value of the criterion, by form."""
    best = table.groupby(["form", "site"], sort=False)[criterion].min()
    return best.groupby("form", sort=False).sum()


# --- the choice in resamples --------------------------------------------------------------


def resampled_choices(
    models: Mapping[int, AnyModel],
    data: Sequences,
    n: int,
    seed: int,
    criterion: Criterion,
    count: SampleSize,
    n_jobs: int = 1,
) -> list[int]:
    """The number of classes that the criterion chooses for each of n resamples of the patients.

    `models` by number of classes, which need not be fitted, give the settings. Left out are numbers
    of classes for which a resample has too few different patients, and resamples of which no model
    can be fitted.
    """
    used = data if (data.weights > 0).all() else data[data.weights > 0]
    even = np.full(len(used), 1 / len(used))

    def choose(rng: np.random.Generator) -> int | None:
        part = used.reweight(used.weights * rng.multinomial(len(used), even))
        values = {}
        for k, model in models.items():
            try:
                fit = fit_quietly(clone(model), part)
            except InputError:
                continue
            values[k] = fit.criteria(count)[criterion]
        return min(values, key=lambda k: (values[k], k)) if values else None

    chosen = in_threads(choose, np.random.default_rng(seed).spawn(n), n_jobs)
    return [k for k in chosen if k is not None]


def _support(
    table: pd.DataFrame,
    fits: Mapping[tuple[str, int], AnyModel],
    sites: Mapping[str, Sequences],
    n: int,
    seed: int,
    criterion: Criterion,
    count: SampleSize,
) -> pd.DataFrame:
    """The table with how often resamples choose each number, and whether its classes are found."""
    resampled, jaccard = {}, {}
    for site, data in sites.items():
        models = {k: model for (name, k), model in fits.items() if name == site}
        chosen = resampled_choices(models, data, n, seed, criterion, count)
        for k, model in models.items():
            resampled[site, k] = chosen.count(k)
            if isinstance(model, MixtureMarkov):
                jaccard[site, k] = _least_stable(model, data, n, seed)
    last = ["replicated", "searches", "converged"]
    table["resampled"] = [resampled[pair] for pair in fits]
    if jaccard:
        table["jaccard"] = [jaccard[pair] for pair in fits]
    return table[[name for name in table.columns if name not in last] + last]


def _least_stable(model: MixtureMarkov, data: Sequences, n: int, seed: int) -> float:
    """Mean Jaccard index of the least stable class; 0 where nearly all refits lose a class."""
    try:
        return float(bootstrap(model, data, n, seed).stability["jaccard"].min())
    except InputError:
        return 0.0


def vote(table: pd.DataFrame) -> int:
    """The number of classes that most sites chose; of equals, the smaller one."""
    counts = table.loc[table["chosen"], "classes"].value_counts()
    return int(counts.index[counts == counts.max()].min())


def compare_criteria(table: pd.DataFrame) -> str:
    """What each criterion chooses, and how well resamples support it, in sentences per site.

    Parameters
    ----------
    table : DataFrame
        From `select_n_classes`. "The textbook's BIC" is the column `bic_all`.

    Examples
    --------
    >>> compare_criteria(pd.DataFrame({"classes": [1, 2, 3], "bic": [9.0, 7.0, 8.0],
    ...                                "aic": [9.0, 7.0, 6.0]}))
    'BIC chooses 2 classes, AIC 3, the largest number tried: try more.'
    """
    criterion = table.attrs.get("criterion", "bic")

    def describe(rows: pd.DataFrame) -> str:
        if "form" in table.columns:
            return _forms_sentence(rows, criterion)
        return " ".join([_criteria_sentence(rows), *support_sentences(rows, criterion)])

    if "site" not in table.columns:
        return describe(table)
    parts = table.groupby("site", sort=False)
    return " ".join(f"{site}: {describe(rows)}" for site, rows in parts)


def _forms_sentence(table: pd.DataFrame, criterion: str) -> str:
    """Which form is chosen with how many classes, and what each of the others would give."""
    best = table.loc[table[criterion].idxmin()]
    parts = [
        f"{criterion.upper()} chooses {best['form']} chains with "
        f"{counted(int(best['classes']), 'class', 'classes')}"
    ]
    for form, rows in table.groupby("form", sort=False):
        other = rows.loc[rows[criterion].idxmin()]
        if form != best["form"]:
            parts.append(
                f"{form} chains would have {counted(int(other['classes']), 'class', 'classes')} "
                f"and a {criterion.upper()} larger by {other[criterion] - best[criterion]:,.1f}"
            )
    return f"{'; '.join(parts)}."


def number_by_criterion(table: pd.DataFrame) -> dict[str, int]:
    """The number of classes that each criterion of a site chooses, and the bootstrap test."""
    names = {name: name.upper() for name in CRITERIA} | {"bic_all": "the textbook's BIC"}
    numbers = {
        title: int(table.loc[table[name].idxmin(), "classes"])
        for name, title in names.items()
        if name in table.columns
    }
    if "blrt_p" in table.columns:
        numbers["the bootstrap test"] = _choose_by_tests(table)
    return numbers


def support_sentences(table: pd.DataFrame, criterion: str) -> list[str]:
    """How often resamples choose the number of a site, and whether its classes are found again."""
    best = table.loc[table[criterion].idxmin()]
    k, sentences = int(best["classes"]), []
    if "resampled" in table.columns:
        pairs = zip(table["classes"].astype(int), table["resampled"].astype(int), strict=True)
        counts = dict(sorted(pairs))
        n, same = sum(counts.values()), counts.pop(k)
        others = "".join(f", {m:,} {j}" for j, m in counts.items() if m)
        doubt = "; most do not choose the number of all patients" if 2 * same < n else ""
        sentences.append(
            f"Of {n:,} resamples of the patients, {same:,} choose "
            f"{counted(k, 'class', 'classes')}{others}{doubt}."
        )
    if k > 1 and "jaccard" in table.columns and best["jaccard"] < STABLE:
        sentences.append(
            f"Not all of the {k} classes are stable: one has a mean Jaccard index of "
            f"{best['jaccard']:.2f} with its counterpart in refits (stable: at least {STABLE})."
        )
    return sentences


def _criteria_sentence(table: pd.DataFrame) -> str:
    choices: dict[int, list[str]] = {}
    for name, number in number_by_criterion(table).items():
        choices.setdefault(number, []).append(name)
    most = int(table["classes"].max())
    edge = ", the largest number tried: try more" if most in choices and len(table) > 1 else ""
    if len(choices) == 1:
        number = next(iter(choices))
        return f"All criteria choose {counted(number, 'class', 'classes')}{edge}."
    parts: list[str] = []
    for number, names in sorted(choices.items()):
        choice, verb = str(number), ""
        if not parts:
            choice = counted(number, "class", "classes")
            verb = " chooses" if len(names) == 1 else " choose"
        parts.append(f"{listed(names)}{verb} {choice}{edge if number == most else ''}")
    return f"{', '.join(parts)}."


def _choose_by_tests(table: pd.DataFrame) -> int:
    """The last number before the first that is not better than one fewer, at the level 0.05."""
    for k, p in zip(table["classes"], table["blrt_p"], strict=True):
        if k > 1 and not p <= 0.05:
            return int(k) - 1
    return int(table["classes"].max())


def _row(model: AnyModel, k: int, n: SampleSize) -> dict[str, Any]:
    criteria = model.criteria(n) | {"bic_all": model.criteria(n, all_cells=True)["bic"]}
    return {
        "classes": k,
        "loglik": model.loglik_,
        "parameters": model.n_parameters_,
        "parameters_all": model.n_cells_,
        **{name: criteria[name] for name in ("aic", "bic", "bic_all", "sabic", "caic", "icl")},
        "entropy": model.entropy(),
        "posterior": model.average_posterior(),
        "smallest": float(model.weights_.min()),
        "sizes": " / ".join(f"{100 * share:.1f}" for share in model.weights_),
        "replicated": model.n_replicated_,
        "searches": model.n_searches_,
        "converged": model.converged_,
    }


# --- the test of k against k − 1 classes ----------------------------------------------

_ALPHA = 0.05  # the level that a test that ends early is clear about
_FEWEST = 10  # simulations before a test may end early
_CLEAR = 0.99  # coverage of the interval of the p-value that must exclude the level


@dataclass(frozen=True, eq=False)
class LikelihoodRatioTest:
    """What `bootstrap_lrt` gives.

    Parameters
    ----------
    k : int
        The larger number of classes; the hypothesis is that k − 1 are enough.
    statistic : float
        Twice the difference of the log-likelihoods.
    p_value : float
        (1 + simulated statistics at least as large) / (1 + simulations).
    mc_error : float
        How far the p-value may be off because simulations are few: the standard deviation of the
        share of larger statistics, given those seen and a uniform prior.
    low, high : float
        95 % interval of the p-value that endless simulation would give.
    simulated : (n,)
        The simulated statistics.
    ended_early : bool
        Whether fewer simulations than asked for made the answer clear.
    loglik : float
        Log-likelihood of the smaller model.
    """

    k: int
    statistic: float
    p_value: float
    mc_error: float
    low: float
    high: float
    simulated: Floats
    ended_early: bool
    loglik: float

    def __repr__(self) -> str:
        more = "are better than" if self.p_value <= _ALPHA else "are not clearly better than"
        early = ", ended early" if self.ended_early else ""
        return (
            f"{self.k} classes {more} {self.k - 1}: 2·log ratio {self.statistic:.2f}, "
            f"p = {self.p_value:.3f} ± {self.mc_error:.3f} "
            f"({len(self.simulated)} simulations{early})"
        )


def bootstrap_lrt(
    sequences: AnySequences,
    k: int,
    n: int = 99,
    seed: Seed = None,
    *,
    n_init: int = 8,
    stop_early: bool = True,
    n_jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
    **settings: Any,
) -> LikelihoodRatioTest:
    """Test whether k classes fit better than k − 1, by simulation from k − 1 classes.

    Data of the same size, with the same lengths and the same missing states, are simulated from
    the model with k − 1 classes; both models are fitted to them. The observed ratio is compared
    with those of the simulated data. All fits, that to the observed data too, search equally hard,
    so that the comparison is fair.

    Parameters
    ----------
    sequences : Sequences, DataFrame (wide) or integer array
    k : the larger number of classes, at least 2
    n : number of simulations, at most
    seed : int or Generator, optional
    n_init : starts of each fit
    stop_early : bool
        End as soon as it is clear on which side of 0.05 the p-value lies: after ten simulations or
        more, when its 99 % interval does not contain 0.05.
    n_jobs : threads; −1: one per processor. They do not change the result
    progress : called with the number of simulations done and n
    **settings : passed to `MixtureMarkov`, or to `CourseClasses`

    Returns
    -------
    LikelihoodRatioTest
        With `statistic`, `p_value` and `mc_error`.

    Examples
    --------
    >>> from mmlca import MarkovParams, simulate
    >>> two = MarkovParams([0.5, 0.5], [[1, 0], [0, 1]], [[[0.9, 0.1], [0.5, 0.5]],
    ...                                                   [[0.5, 0.5], [0.1, 0.9]]])
    >>> bootstrap_lrt(simulate(two, 200, 12, seed=1)[0], 2, n=19, seed=1).p_value
    0.05
    """
    whole_number(k, 2, "k")
    whole_number(n, 1, "n")
    data = as_sequences(sequences)
    if not data.weights.sum() > 0:
        raise InputError("there is nothing to test: no sequence has a weight above 0.")
    data = data if (data.weights > 0).all() else data[data.weights > 0]
    rng = np.random.default_rng(seed)

    def fit(data: Sequences, k: int, seed: int) -> MixtureMarkov:
        return fit_quietly(MixtureMarkov(k, n_init=n_init, seed=seed, **settings), data)

    start = int(rng.integers(2**63))
    fewer = fit(data, k - 1, start)
    observed = max(0.0, 2 * (fit(data, k, start).loglik_ - fewer.loglik_))
    one = partial(_simulate_statistic, fewer.params_, data, k, fit)
    simulated: list[float] = []
    ended_early = False
    for value in in_threads(one, rng.spawn(n), n_jobs):
        simulated.append(value)
        if progress is not None:
            progress(len(simulated), n)
        if stop_early and _FEWEST <= len(simulated) < n:
            low, high = _share_limits(_count_above(simulated, observed), len(simulated), _CLEAR)
            ended_early = not low <= _ALPHA <= high
            if ended_early:
                break
    above, done = _count_above(simulated, observed), len(simulated)
    p = (1 + above) / (1 + done)
    error = float(beta.std(above + 1, done - above + 1))
    limits = _share_limits(above, done, 0.95)
    return LikelihoodRatioTest(
        k, observed, p, error, *limits, np.array(simulated), ended_early, fewer.loglik_
    )


def _simulate_statistic(
    params: AnyParams,
    data: Sequences,
    k: int,
    fit: Callable[[Sequences, int, int], MixtureMarkov],
    rng: np.random.Generator,
) -> float:
    """The statistic of simulated data; 0 where they are too alike for k classes.

    Also where, by chance, nobody is in a state for as long as the last bin of time in state.
    """
    copy = Sequences.from_codes(draw_like(params, data, rng), data.states, weights=data.weights)
    patterns = copy.patterns_of(params.form)
    if k > len(patterns) or too_fine(patterns):
        return 0.0
    seed = int(rng.integers(2**63))
    return float(max(0.0, 2 * (fit(copy, k, seed).loglik_ - fit(copy, k - 1, seed).loglik_)))


def _count_above(simulated: list[float], observed: float) -> int:
    return sum(value >= observed - 1e-6 for value in simulated)


def _share_limits(above: int, done: int, coverage: float) -> tuple[float, float]:
    """Interval of Clopper and Pearson for a share of `above` in `done`."""
    tail = (1 - coverage) / 2
    low = float(beta.ppf(tail, above, done - above + 1)) if above else 0.0
    high = float(beta.ppf(1 - tail, above + 1, done - above)) if above < done else 1.0
    return low, high
