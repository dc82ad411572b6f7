"""Commands for one site's sequences: their classes, and how many there are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from font.errors import InputError, option_name
from font.settings import change
from mmlca.cli.options import (
    FILE,
    Classes,
    Columns,
    CriterionOptions,
    DatabaseOptions,
    DrugMap,
    DrugNames,
    FileColumn,
    FormOptions,
    ModelOptions,
    NJobs,
    Out,
    Preset,
    Quiet,
    ReadingOptions,
    RuleOptions,
    Seed,
    SequencesFile,
    SequencesFiles,
    States,
    by_file,
    chosen_map,
    map_file,
    note,
    roles,
    say,
    whole_numbers,
    with_groups,
    working,
    write_table,
    wrote,
)
from mmlca.model.settings import ClassSettings, FormSettings
from mmlca.study.settings import Privacy

if TYPE_CHECKING:
    import pandas as pd

    from ehr_prep.records import Records
    from mmlca.cli.options import Show
    from mmlca.model.course import CourseClasses
    from mmlca.model.estimator import MixtureMarkov
    from mmlca.sequences.type import Sequences


def read_sequences(path: Path, columns: str | None, states: str | None) -> Sequences:
    from mmlca.sequences.type import Sequences

    return Sequences.read(path, None if states is None else states.split(","), columns)


@with_groups
def fit(
    *,
    sequences: SequencesFile,
    classes: Classes,
    out: Out = Path("fit"),
    seed: Seed = 1,
    fitting: ModelOptions,
    chains: FormOptions,
    covariates: Annotated[
        Path | None,
        typer.Option(
            help="Table of an id and what makes classes more probable, .csv or .parquet.", **FILE
        ),
    ] = None,
    formula: Annotated[
        str | None,
        typer.Option(help="Covariates that enter, such as 'age * sex'.", show_default="all"),
    ] = None,
    missing: Annotated[
        Literal["error", "drop"],
        typer.Option(help="What to do with patients, or steps, without covariates."),
    ] = "error",
    step_covariates: Annotated[
        Path | None,
        typer.Option(
            help="Table of what changes the steps: an id, columns, and a time if they change.",
            **FILE,
        ),
    ] = None,
    transitions: Annotated[
        str | None,
        typer.Option(
            help="Covariates on which the steps depend, such as 'age + sex'.",
            show_default="all of --step-covariates",
        ),
    ] = None,
    common_effects: Annotated[
        bool, typer.Option("--common-effects", help="They have the same effects in all classes.")
    ] = False,
    se: Annotated[
        bool, typer.Option("--se", help="Write standard errors and intervals of all probabilities.")
    ] = False,
    bootstrap: Annotated[
        int, typer.Option(min=0, help="Refits to resampled patients, such as 500; 0: none.")
    ] = 0,
    figures: Annotated[
        bool, typer.Option("--figures/--no-figures", help="Draw the courses of each class.")
    ] = True,
    min_count: Annotated[
        int,
        typer.Option(min=0, help="Smallest patient count shown in figures and transitions.csv."),
    ] = Privacy().min_count,
    columns: Columns = None,
    states: States = None,
    n_jobs: NJobs = 1,
    quiet: Quiet = False,
) -> None:
    """Find the latent classes of one site's sequences.

    Fits a mixture of Markov chains, or with --by course latent classes of the time course, and
    writes the model, its summary, every patient's class, the transitions of each class and figures
    of their courses, in exact numbers that stay inside the hospital; `mmlca site fit` writes what
    may leave.
    """
    from font.files import keep_inputs, private_folder
    from mmlca.model.course import CourseClasses
    from mmlca.model.estimator import MixtureMarkov
    from mmlca.model.inference import count_parameters
    from mmlca.sequences.files import read_table
    from mmlca.sequences.forms import layout_of

    form = change(FormSettings(), chains).model_dump()
    by_course = fitting.pop("by") == "course"
    if by_course:
        others: dict[str, Any] = {"covariates": covariates, "formula": formula}
        others |= {"missing": missing == "drop", "se": se, "bootstrap": bootstrap}
        _refuse_beside_course(form | others | {"n_jobs": n_jobs != 1})
    names = ["model.json", "summary.csv", "patients.csv", "starts.csv"]
    names += ["leaving.csv"] if any(form.values()) else []
    names += ["intervals.csv"] if se else []
    names += ["bootstrap.csv", "stability.csv"] if bootstrap else []
    names += [] if covariates is None else ["coefficients.csv", "terms.csv"]
    of_steps = step_covariates is not None or transitions is not None
    if of_steps and (se or bootstrap):
        raise InputError(
            "--se and --bootstrap are about chains whose steps have no covariates; leave them out "
            "(step_coefficients.csv has the standard errors of the effects)."
        )
    if common_effects and not of_steps:
        raise InputError("--common-effects is about covariates of the steps; give them.")
    names += ["step_coefficients.csv", "step_terms.csv"] if of_steps else []
    names += ["transitions.csv", *_FIGURES] if figures else ["transitions.csv"]
    files = {name: out / name for name in names}
    keep_inputs(files.values(), [sequences, covariates, step_covariates])
    if bootstrap == 1:
        raise InputError("--bootstrap needs at least 2 refits, such as 500; found 1.")
    data = read_sequences(sequences, columns, states)
    table = None if covariates is None else read_table(covariates)
    if step_covariates is not None:
        given = read_table(step_covariates)
        data = data.with_step_covariates(given)
        columns_of = [name for name in given.columns if name not in ("id", "time")]
        transitions = transitions or " + ".join(
            name if name.isidentifier() else f"`{name}`" for name in columns_of
        )
    model: MixtureMarkov | CourseClasses
    if by_course:
        model = CourseClasses(classes, seed=seed, **fitting)
        n_parameters = classes - 1 + classes * _n_occurring(data)
    else:
        model = MixtureMarkov(
            classes,
            seed=seed,
            n_jobs=n_jobs,
            missing=missing,
            transitions=transitions,
            common_effects=common_effects,
            **fitting,
            **form,
        )
        n_parameters = count_parameters(layout_of(model.form, data.n_states), classes)
    if n_parameters > len(data) and classes <= data.n_distinct:
        note(
            quiet,
            f"{classes} classes have {n_parameters:,} free parameters for {len(data):,} "
            "patients; ask for fewer, or let `mmlca select` compare.",
        )
    with working("Fitting (the first fit also compiles)", quiet=quiet) as show:
        results: dict[str, pd.DataFrame] = {}
        if isinstance(model, MixtureMarkov):
            model.fit(data, covariates=table, formula=formula)
            results = _inference(model, data, table, se, bootstrap, seed, n_jobs, show)
        else:
            model.fit(data)
        summary = model.summary()
    private_folder(out)
    model.save(files["model.json"])
    if n_empty := int((summary["patients"] == 0).sum()):
        note(
            quiet,
            f"{n_empty} of {classes} classes are not the most probable class of any patient; ask "
            "for fewer.",
        )
    write_table(summary.reset_index(), files["summary.csv"])
    write_table(model.posterior_, files["patients.csv"], private=True)
    write_table(model.starts_, files["starts.csv"])
    if "leaving.csv" in files and isinstance(model, MixtureMarkov):
        write_table(model.leaving_, files["leaving.csv"])
    for name, result in results.items():
        write_table(result, files[name])
    written = _write_courses(model, data, sequences.stem, min_count, files)
    if len(written) < len(files):
        note(
            quiet,
            f"no class has {min_count} patients, so that neither figures nor transitions.csv are "
            "written; ask for fewer classes, or lower --min-count.",
        )
    more = [
        f"\n{results[name].to_string(index=False, float_format='{:.3f}'.format)}"
        for name in ("coefficients.csv", "step_coefficients.csv", "stability.csv")
        if name in results
    ]
    courses = summary.pop("course") if by_course else {}
    searches = "starts that were followed" if by_course else "independent searches"
    say(
        quiet,
        f"{data}\n",
        summary.to_string(float_format="{:.3f}".format, formatters={"patients": "{:,.6g}".format}),
        *(f"class {k}: {course}" for k, course in courses.items()),
        f"\nlog-likelihood {model.loglik_:,.2f}, BIC {model.bic():,.2f}, entropy R² "
        f"{model.entropy():.3f}; {model.n_replicated_} of {model.n_searches_} {searches} "
        "reached the maximum.",
        *more,
        wrote(written),
    )


def _refuse_beside_course(options: dict[str, Any]) -> None:
    """Refuse options that belong to mixtures of chains."""
    if wrong := [name for name, value in options.items() if value]:
        raise InputError(
            f"{option_name(wrong[0])} does not go with --by course; leave one of them out."
        )


def _n_occurring(data: Sequences) -> int:
    """Free parameters of one class of the time course: in each window the states but one."""
    occurring = [len(set(column[column >= 0].tolist())) for column in data.codes.T]
    return sum(n - 1 for n in occurring if n)


_FIGURES = ("state_distribution.png", "frequencies.png", "transitions.png")


def _write_courses(
    model: MixtureMarkov | CourseClasses,
    data: Sequences,
    site: str,
    min_count: int,
    files: dict[str, Path],
) -> list[Path]:
    """Write the transitions of each class and the figures; returns the files that there are now."""
    from font.files import atomic_write
    from mmlca.study.own_courses import class_courses
    from mmlca.study.report.exports import to_pictures

    courses = class_courses(model, data, site, min_count)
    if courses is None:
        return [path for name, path in files.items() if name not in ("transitions.csv", *_FIGURES)]
    transitions, draws = courses
    write_table(transitions, files["transitions.csv"])
    for name, draw in zip(_FIGURES, draws, strict=True):
        if name in files:
            atomic_write(files[name], to_pictures(draw, 200)["png"])
    return list(files.values())


def _inference(
    model: MixtureMarkov,
    data: Sequences,
    covariates: pd.DataFrame | None,
    se: bool,
    n_refits: int,
    seed: int,
    n_jobs: int,
    show: Show,
) -> dict[str, pd.DataFrame]:
    """The tables that were asked for, by the name of their file."""
    from mmlca.model.resampling import bootstrap

    tables = {}
    if se:
        tables["intervals.csv"] = model.standard_errors(data, covariates)
    if covariates is not None:
        tables["coefficients.csv"] = model.coefficient_table(data, covariates)
        tables["terms.csv"] = model.term_tests(data, covariates)
    if model.form.transitions:
        tables["step_coefficients.csv"] = model.step_coefficients(data, covariates)
        tables["step_terms.csv"] = model.step_tests(data, covariates)
    if n_refits:
        result = bootstrap(
            model,
            data,
            n_refits,
            seed,
            covariates=covariates,
            n_jobs=n_jobs,
            progress=lambda done, n: show(f"Refit {done} of {n}", done / n),
        )
        tables |= {"bootstrap.csv": result.intervals, "stability.csv": result.stability}
    return tables


@with_groups
def select(
    *,
    sequences: SequencesFiles,
    classes: Annotated[
        str, typer.Option("--classes", "-k", help="Numbers to try, such as 1-8 or 2,3,5.")
    ] = "1-8",
    choosing: CriterionOptions,
    blrt: Annotated[
        bool,
        typer.Option("--blrt", help="Test each number against one fewer, by simulation; slow."),
    ] = False,
    simulations: Annotated[
        int, typer.Option(min=1, help="Largest number of simulations for each test.")
    ] = 99,
    resamples: Annotated[
        int,
        typer.Option(
            min=0,
            help="Resamples of the patients that choose again, such as 20; each costs as much as "
            "the whole comparison.",
        ),
    ] = 0,
    out: Out = Path("selection"),
    seed: Seed = 1,
    fitting: ModelOptions,
    chains: FormOptions,
    columns: Columns = None,
    states: States = None,
    n_jobs: NJobs = 1,
    quiet: Quiet = False,
) -> None:
    """Choose the number of classes, and with --stays or --periods the form of the chains.

    Fits each number at each site and compares; several sites vote. With --stays or --periods,
    chains that depend on them are compared with plain ones; --by course compares latent classes of
    the time course. What it writes is exact and stays inside the hospital.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from font.files import atomic, keep_inputs, private_folder
    from mmlca.figures.models import plot_selection
    from mmlca.model.selection import compare_criteria, select_n_classes, vote

    ks, rules = whole_numbers(classes, "--classes"), change(ClassSettings(), choosing)
    keep_inputs([out / "selection.csv", out / "selection.png"], sequences)
    names = [path.stem for path in sequences]
    if len(set(names)) != len(names):
        raise InputError(f"two files have the same name ({', '.join(names)}); it names the site.")
    data = {
        name: read_sequences(path, columns, states)
        for name, path in zip(names, sequences, strict=True)
    }
    form = change(FormSettings(), chains).model_dump()
    if fitting["by"] == "course":
        _refuse_beside_course(form | {"blrt": blrt, "n_jobs": n_jobs != 1})
    else:
        fitting["n_jobs"] = n_jobs
    forms: list[Any] | None = ["plain", form] if any(form.values()) else None
    n_fits = len(ks) * len(data) * len(forms or [form])
    fits = iter(range(n_fits))
    with working("Fitting", quiet=quiet) as show:
        table = select_n_classes(
            data if len(data) > 1 else data[names[0]],
            ks,
            seed,
            forms=forms,
            criterion=rules.criterion,
            n=rules.count,
            blrt=simulations if blrt else 0,
            resamples=resamples,
            progress=lambda site, k: show(f"{site or names[0]}, K = {k}", next(fits) / n_fits),
            **fitting,
        )
    private_folder(out)  # exact log-likelihoods reveal small counts
    written = [write_table(table, out / "selection.csv", private=True), out / "selection.png"]
    with mpl.rc_context({"text.parse_math": False}):  # a site may be called "$x^$"
        figure = Figure(figsize=(3.5, 2.8), layout="constrained")
        plot_selection(table, rules.criterion, ax=figure.subplots())
        with atomic(out / "selection.png", private=True) as file:
            figure.savefig(file, dpi=300)
    chosen = vote(table)
    say(
        quiet,
        table.to_string(index=False, float_format="{:.3f}".format),
        f"\n{rules.criterion.upper()} chooses {chosen} class{'' if chosen == 1 else 'es'}.",
        compare_criteria(table),
        wrote(written),
    )


@with_groups
def prep(
    *,
    records: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RECORDS",
            help="Medication records, one or several files: .csv (also .gz or .zst), .parquet or "
            ".xlsx; none with --omop or --warehouse.",
            **FILE,
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", dir_okay=False, help="File for the sequences, .csv or .parquet."
        ),
    ],
    database: DatabaseOptions,
    condition: Annotated[
        str | None,
        typer.Option(help="Concept ids, such as 80809, or Atlas file of the entry (OMOP)."),
    ] = None,
    patients: Annotated[
        Path | None,
        typer.Option(help="Patients' table: end of follow-up, date of birth, …", **FILE),
    ] = None,
    labs: Annotated[
        Path | None,
        typer.Option(help="Lab tests, which show that a patient was still followed.", **FILE),
    ] = None,
    drugs: DrugMap = None,
    drug_names: DrugNames = None,
    reading: ReadingOptions,
    file_column: FileColumn = None,
    patients_column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT=COLUMN",
            help="Column of the patients' table, such as birth_date=Geb; repeat it for others.",
        ),
    ] = None,
    labs_column: Annotated[
        list[str] | None,
        typer.Option(metavar="WHAT=COLUMN", help="Column of the labs, such as date=Datum."),
    ] = None,
    observation_column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT=COLUMN",
            help="Column of the observation periods: patient, observation_start, observation_end.",
        ),
    ] = None,
    observation: Annotated[
        Path | None,
        typer.Option(help="Observation periods: patient, start and end, one or more each.", **FILE),
    ] = None,
    preset: Preset = None,
    rules: RuleOptions,
    quiet: Quiet = False,
) -> None:
    """Turn medication records into treatment sequences.

    Prints and writes a flow table that accounts for every record and patient dropped, and the
    drugs that the map does not know.
    """
    from ehr_prep.build import build_sequences, follow_up_text
    from ehr_prep.databases.omop import read_omop
    from ehr_prep.databases.warehouse import read_warehouse
    from ehr_prep.drugs import unmapped_caution
    from ehr_prep.records import read_records
    from ehr_prep.settings import Reading
    from font.files import keep_inputs, private_folder
    from mmlca.sequences.files import holds_sequences

    options = change(Reading(), reading).options()
    records = records or []
    if sum([bool(records), "omop" in database, "warehouse" in database]) != 1:
        raise InputError("give exactly one of a file of records, --omop URL and --warehouse URL.")
    tables: dict[str, Any] = {
        "patients_columns": roles(patients_column, "--patients-column"),
        "observation_columns": roles(observation_column, "--observation-column"),
    }
    files: dict[str, Any] = {"patients": patients, "observation": observation, "labs": labs}
    files |= {"drug_names": drug_names, "file_columns": file_column, "labs_columns": labs_column}
    _check_source({**files, **tables, **options, **database, "condition": condition})
    for path in records:
        if holds_sequences(path):
            raise InputError(f"{path} holds sequences already; use `mmlca select` or `fit`.")
    endings = (".flow.csv", ".issues.csv", ".settings.json", ".unmapped.csv")
    beside = [out.with_suffix(end) for end in endings]
    keep_inputs(
        [out, *beside], [*records, patients, labs, map_file(drugs), drug_names, observation]
    )
    known = chosen_map(drugs, preset)
    with working("Reading", quiet=quiet):
        read: Records
        if "omop" in database:
            entry = None if condition is None else condition.split(",")
            read = read_omop(
                database["omop"],
                database.get("cdm_schema"),
                known,
                None if entry is None else [int(c) if c.strip().isdecimal() else c for c in entry],
                database.get("cohort"),
                table=database.get("table", "drug_exposure"),
                **options,
            )
        elif "warehouse" in database:
            read = read_warehouse(
                database["warehouse"],
                database.get("table"),
                database.get("cdm_schema"),
                known,
                patients=database.get("patients_table"),
                observation=database.get("observation_table"),
                **tables,
                **options,
            )
        else:
            read = read_records(
                records if len(records) > 1 else records[0],
                known,
                patients=patients,
                labs=labs,
                labs_columns=roles(labs_column, "--labs-column"),
                file_columns=by_file(file_column),
                drug_names=drug_names,
                observation=observation,
                **tables,
                **options,
            )
        built = build_sequences(read, preset=preset, **rules)
    private_folder(out.parent)
    written = built.write_all(out)
    lines = [f"{read}\n", built.flow.to_string(index=False), f"\n{follow_up_text(built.settings)}"]
    if len(built.issues):
        lines.append(f"\nUnusual records:\n{built.issues.to_string(index=False)}")
    if len(read.unmapped):
        first = read.unmapped.head(10).fillna({"did_you_mean": ""})
        lines.append(f"\nDrugs not in the map:\n{first.to_string(index=False)}")
    say(quiet, *lines, f"\n{built}\n", wrote(written))
    lost = read.settings["unmapped"]["lost"]
    if caution := unmapped_caution(read.unmapped, lost, str(out.with_suffix(".unmapped.csv"))):
        note(quiet, caution)


def _check_source(options: dict[str, Any]) -> None:
    """Refuse options that do not go with where the records are."""
    from mmlca.study.settings import WRONG_SOURCE

    kind = next((name for name in ("omop", "warehouse") if name in options), "files")
    wrong = {*WRONG_SOURCE[kind]} | ({"labs", "file_columns"} if kind != "files" else set())
    if extra := [name for name, value in options.items() if value and name in wrong]:
        source = "a file of records" if kind == "files" else f"--{kind}"
        raise InputError(f"{option_name(extra[0])} does not go with {source}; leave it out.")
