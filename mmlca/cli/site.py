"""Commands of a hospital that works together with others: its turns, and the single steps.

`mmlca site run` does whatever comes next. The single steps are for those who want to choose the
options of each step, use other models or have no study file. One round is: every site sends its
model files to all; every site labels its patients with all models and sends the counts to the
centre; the centre sends the ensemble to all. A refinement may follow: every site sends sums to the
centre, the centre a shared model to all, as often as agreed.
"""

from __future__ import annotations

import getpass
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ehr_prep.settings import PRESETS, PseudoSites, Rules
from font.errors import InputError, spelled
from font.settings import change
from mmlca.cli.data import read_sequences
from mmlca.cli.options import (
    FILE,
    PLAIN,
    Columns,
    DrugMap,
    KeysFile,
    NetworkFolder,
    Preset,
    Quiet,
    SiteFileArgument,
    States,
    StudyArgument,
    StudyFile,
    StudyFormOptions,
    StudyMinCount,
    StudyModelOptions,
    StudyName,
    StudyNJobs,
    StudySeed,
    agreed_study,
    as_key,
    as_option,
    chosen_map,
    from_study,
    known_keys,
    listed_sites,
    map_file,
    note,
    say,
    whole_numbers,
    with_groups,
    working,
    wrote,
)
from mmlca.model.settings import FormSettings
from mmlca.study.settings import SiteFile

if TYPE_CHECKING:
    import pandas as pd

    from mmlca.federation.hospital import Hospital
    from mmlca.sequences.type import Sequences
    from mmlca.study.settings import Study

site_app = typer.Typer(
    name="site",
    help="What a hospital does: run, report, keys; fit, mask-key, label, assign, refine, answer.",
    **PLAIN,
)

# --- options ----------------------------------------------------------------------------------

SiteName = Annotated[
    str | None,
    typer.Option(
        "--site",
        metavar="NAME",
        help="Name of this hospital.",
        show_default="the only one in the study file",
    ),
]
SiteSequences = Annotated[
    Path | None,
    typer.Option(
        "--sequences",
        help="This site's sequences, a .csv or .parquet file.",
        show_default="from the study file",
        **FILE,
    ),
]
SiteOut = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Folder for the files.", show_default="in the folder"),
]
Secure = Annotated[
    bool,
    typer.Option(
        "--secure", help="Send exact numbers under masks, of which the centre reads only the sum."
    ),
]
Without = Annotated[
    str | None,
    typer.Option(
        metavar="SITES",
        help="Sites that dropped out of a secure sum, as you have confirmed with them; answer "
        "again without them.",
        show_default="none",
    ),
]
_FLOOR = SiteFile.model_fields["floor"].default
_FLOOR_OPTION: dict[str, Any] = {
    "min": 1,
    "envvar": "MMLCA_FLOOR",
    "help": SiteFile.model_fields["floor"].description,
}


@dataclass(frozen=True, kw_only=True)
class Home:
    """Which site of which study this is, and how counts are rounded before they leave."""

    study: StudyName = None
    site: SiteName = None
    study_file: StudyFile = None
    folder: Annotated[
        Path,
        typer.Option(
            file_okay=False, help="This site's folder, with the ledger of what left; keep it."
        ),
    ] = Path()
    min_count: StudyMinCount = None
    floor: Annotated[int, typer.Option(**_FLOOR_OPTION)] = _FLOOR
    keys: KeysFile = None
    override: Annotated[
        str | None,
        typer.Option(
            help="Reason for sending something different for the same study and round, in words.",
            show_default="refused",
        ),
    ] = None
    quiet: Quiet = False

    @cached_property
    def agreed(self) -> Study | None:
        """The study file; None where --study names the study."""
        return agreed_study(self.study, self.study_file)

    def inputs(self, *files: Path | None) -> list[Path | None]:
        """The study file, those that it names, and others: none of them may be overwritten."""
        from mmlca.study.study_file import input_files

        if self.study_file is None or self.agreed is None:
            return list(files)
        named = input_files(self.agreed, self.study_file.parent)
        return [*files, self.study_file, *named.values()]

    def open(self, sequences: Any, **options: Any) -> Hospital:
        """This site, from the study file or from the options; those that are None are left out."""
        from font.files import check_regular
        from mmlca.federation.hospital import Hospital, name_of_site

        own = {name: getattr(self, name) for name in ("folder", "min_count", "floor", "override")}
        agreed = self.agreed
        options |= own | {"sequences": sequences, "keys": known_keys(self.keys, agreed)}
        settings = {key: value for key, value in options.items() if value is not None}
        if self.study_file is not None and agreed is not None:
            site = name_of_site(self.study_file, agreed, self.site)
            for path in self.inputs():
                if path is not None and path.exists():  # those of other sites may be absent
                    check_regular(path)
            with spelled(as_key):
                return Hospital.from_study(self.study_file, site, **settings)
        if self.site is None:
            raise InputError("the name of this hospital is missing; give it with --site.")
        if sequences is None:
            raise InputError("there are no patients; give sequences, --records or --study-file.")
        return Hospital(study=self.study or "", site=self.site, **settings)


@dataclass(frozen=True, kw_only=True)
class Patients:
    """Where the site's patients are, unless the study file or --sequences says so."""

    records: Annotated[
        list[Path] | None,
        typer.Option(
            help="Medication records instead of sequences, one or several files; see `mmlca prep`.",
            **FILE,
        ),
    ] = None
    patients: Annotated[
        Path | None, typer.Option(help="Patients' table that goes with the records.", **FILE)
    ] = None
    drugs: DrugMap = None
    preset: Preset = None
    columns: Columns = None
    states: States = None

    def files(self) -> list[Path | None]:
        return [*(self.records or []), self.patients, map_file(self.drugs)]

    def read(
        self,
        sequences: Path | None,
        exchange_file: Path | None = None,
        *,
        family: str | None = None,
        quiet: bool = False,
    ) -> Sequences | pd.DataFrame | None:
        """The patients as the options name them; None leaves them to the study file.

        Families of models that look at the columns of a table read one: those columns that the
        models in an exchange file need, or all, if `family` names the one to fit.
        """
        if sequences is not None and self.records:
            raise InputError(f"found both sequences ({sequences}) and --records; give one.")
        for name in ("patients", "drugs", "preset"):
            if getattr(self, name) is not None and not self.records:
                raise InputError(f"--{name} goes with --records; give both, or neither.")
        if self.records:
            return self._build(self.records, quiet)
        if sequences is None:
            return None
        from font.exchange.registry import family_named

        columns = None if exchange_file is None else _columns_of_models(exchange_file)
        if columns is not None or (family is not None and family_named(family).data == "table"):
            return _read_patient_table(sequences, columns)
        return read_sequences(sequences, self.columns, self.states)

    def _build(self, records: list[Path], quiet: bool) -> Sequences:
        """The sequences that `mmlca prep` makes of the records; the rules are printed."""
        from ehr_prep.build import build_sequences
        from ehr_prep.records import read_records

        def spell(name: str, value: object) -> str:
            called = as_option(name, value)
            return called if name in ("patients", "drugs", "preset") else f"`mmlca prep {called}`"

        with spelled(spell):
            known = chosen_map(self.drugs, self.preset)
            source = records if len(records) > 1 else records[0]
            read = read_records(source, known, patients=self.patients)
            built = build_sequences(read, preset=self.preset)
        own = self.preset is None
        whose = "the defaults of `mmlca prep`" if own else f"those of --preset {self.preset}"
        rules = Rules() if self.preset is None else PRESETS[self.preset]
        settings = rules.model_dump(mode="json", exclude_none=True)
        values = ", ".join(f"{name} = {value}" for name, value in settings.items())
        say(
            quiet,
            f"Rules for the sequences: {whose} ({values}); for other rules run `mmlca prep` first.",
        )
        return built


def _columns_of_models(path: Path) -> list[str] | None:
    """The columns of a table that the models in an exchange file need; None for sequences."""
    from font.exchange.envelope import read_file
    from font.exchange.registry import family_of

    payload = read_file(path).payload
    content = (payload["models"][0] if "models" in payload else payload).get("model")
    if content is None:
        return None
    family = family_of(content["format"])
    return list(family.variables(content)) if family.data == "table" else None


def _read_patient_table(path: Path, columns: list[str] | None) -> pd.DataFrame:
    """The columns of a table by patient; all of them if none are named."""
    from font.checks import some
    from mmlca.sequences.files import read_table

    table = read_table(path)
    lacking = [name for name in ["id", *(columns or [])] if name not in table.columns]
    if lacking:
        raise InputError(
            f"{path} lacks the columns {some(lacking)}; add them or correct the names."
        )
    table = table.set_index("id")
    return table if columns is None else table[columns]


# --- turns ------------------------------------------------------------------------------------


@site_app.command("run")
def site_run(
    study_file: StudyArgument,
    site_file: SiteFileArgument = None,
    *,
    site: SiteName = None,
    folder: NetworkFolder = Path(),
    approve: Annotated[
        bool,
        typer.Option(
            "--approve",
            envvar="MMLCA_APPROVE",
            help="Show what leaves, and let nothing leave before somebody has agreed to it.",
        ),
    ] = False,
    approved_by: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Who agrees that the files leave, having read private/leaving.html.",
            show_default="asked with --approve",
        ),
    ] = None,
    without: Without = None,
    floor: Annotated[
        int | None,
        typer.Option(show_default=f"from the site file, else {_FLOOR}", **_FLOOR_OPTION),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Do what comes next at a hospital: fit, label, assign, refine."""
    from mmlca.federation.site_run import run_site
    from mmlca.study.study_file import read_site_file

    approve = approve or (site_file is not None and read_site_file(site_file).approve)

    def agreed(files: Sequence[Path], page: Path) -> str:
        return _ask_for_approval(files, page, approved_by)

    with working("Working (the first fit also compiles)", quiet=quiet or approve):
        turn = run_site(
            study_file,
            site_file,
            folder,
            site=site,
            approve=agreed if approve or approved_by is not None else None,
            without=listed_sites(without),
            **({} if floor is None else {"floor": floor}),
        )
    for text in turn.notes:
        note(quiet, text)
    lines = turn.done or ["Nothing new is to be done."]
    if turn.leaving:
        names = ", ".join(path.name for path in turn.leaving)
        lines.append(f"Next: send to the centre what is in {folder / 'outbox'}: {names}.")
    if turn.waiting:
        lines.append(
            f"Then wait for {turn.waiting}; put what comes into {folder / 'inbox'} and run the "
            "command again."
        )
    else:
        lines.append(
            "Nothing more is to be sent; the centre sends the report of all sites. `mmlca site "
            "report` makes one of this site alone, with exact numbers."
        )
    say(quiet, *lines)


def _ask_for_approval(files: Sequence[Path], page: Path, approved_by: str | None) -> str:
    """Show what is about to leave; returns who approved it."""
    from font.exchange.explain import explain

    if approved_by is not None:
        return approved_by
    if not sys.stdin.isatty():
        raise InputError(
            f"nobody can be asked here; read {page}, which shows what would leave, and run the "
            "command again with --approved-by NAME."
        )
    for file in files:
        typer.echo(f"{file.name}\n{explain(file)}\n")
    typer.echo(f"The page {page} shows every number.")
    if not typer.confirm(f"May {'this file' if len(files) == 1 else 'these files'} leave?"):
        raise InputError("nothing left; the same command asks again.")
    return getpass.getuser()


@site_app.command("report")
def site_report(
    study_file: StudyArgument,
    site_file: SiteFileArgument = None,
    *,
    site: SiteName = None,
    folder: NetworkFolder = Path(),
    out: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Folder of the report.", show_default="private/report"),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Report on this hospital alone, with exact numbers, once it has sent its results."""
    from mmlca.federation.site_run import report_site

    with working("Making the report of this site", quiet=quiet):
        page = report_site(study_file, site_file, folder, site=site, out=out)
    say(quiet, f"The report is {page}. Its numbers are exact: keep it inside the hospital.")


@site_app.command("keys")
def make_key_pair(
    folder: Annotated[
        Path,
        typer.Option(file_okay=False, help="Folder for the keys: this site's, or the centre's."),
    ] = Path(),
    quiet: Quiet = False,
) -> None:
    """Make a pair of keys, so that others can see who wrote a file."""
    from font.exchange.signatures import KEY_FILE, PUBLIC_FILE, make_keys
    from font.files import hold

    with hold(folder, private=True):
        public = make_keys(folder)
    say(
        quiet,
        f"Wrote {folder / KEY_FILE}, which is private: it stays here and signs what leaves.",
        f"Wrote {folder / PUBLIC_FILE}, the public key: {public}",
        "Next: give the others this key apart from the files, for example by telephone; each "
        "adds it to the study file (key, under this site or under [centre]) or to a file for "
        "--keys.",
    )


# --- single steps -----------------------------------------------------------------------------


@site_app.command("fit")
@with_groups
def site_fit(
    sequences: Annotated[
        Path | None,
        typer.Argument(
            metavar="SEQUENCES",
            help="This site's sequences, a .csv or .parquet file; not needed with --records or "
            "--study-file.",
            **FILE,
        ),
    ] = None,
    *,
    home: Home,
    classes: Annotated[
        int | None,
        from_study("the best of --try", "--classes", "-k", min=1, help="Number of classes."),
    ] = None,
    family: Annotated[
        str | None,
        typer.Option(
            help="Family of the models, such as k-means or latent-class-model; SEQUENCES is then a "
            "table with an id and the columns that the model uses. --by course stands for "
            "time-course-model, which uses sequences.",
            show_default="mixture-of-markov-chains",
        ),
    ] = None,
    also_try: Annotated[
        str | None,
        from_study("none", "--try", help="Numbers whose BIC is sent along, such as 1-6."),
    ] = None,
    pseudo_sites: Annotated[
        int | None,
        from_study(0, min=0, help="Number of resamples to fit; 0: the patients themselves."),
    ] = None,
    fraction: Annotated[
        float | None,
        from_study(PseudoSites().fraction, help=PseudoSites.model_fields["fraction"].description),
    ] = None,
    fewer_classes: Annotated[
        bool,
        typer.Option(
            "--fewer-classes", help="Fit fewer classes where one would have too few patients."
        ),
    ] = False,
    patients: Patients,
    fitting: StudyModelOptions,
    form: StudyFormOptions,
    seed: StudySeed = None,
    n_jobs: StudyNJobs = None,
    out: SiteOut = None,
) -> None:
    """Fit this site's models and write the model files for all sites."""
    from font.exchange.messages.model import read_model
    from mmlca.federation.site_run import list_unmapped
    from mmlca.sequences.forms import PLAIN as PLAIN_CHAINS

    if classes is None and also_try is None and home.agreed is None:
        raise InputError("the number of classes is missing; give --classes, or --try several.")
    if fitting.pop("by", None) == "course":
        if family is not None:
            raise InputError("--by course names the family of the models; leave out --family.")
        family = "time-course-model"
    hospital = home.open(
        patients.read(sequences, family=family, quiet=home.quiet),
        family=family,
        n_classes=classes,
        candidates=None if also_try is None else whole_numbers(also_try, "--try"),
        pseudo_sites=pseudo_sites,
        fraction=fraction,
        fewer_classes=fewer_classes,
        seed=seed,
        starts=fitting.pop("n_init", None),
        n_jobs=n_jobs,
        **fitting,
        **change(FormSettings(), form).model_dump(include=set(form)),
    )
    with working("Fitting (the first fit also compiles)", quiet=home.quiet):
        list_unmapped(hospital, home.inputs(*patients.files()))
        paths = hospital.fit(out)
    sizes = sorted({read_model(path).n_classes for path in paths})
    models = "1 model" if len(paths) == 1 else f"{len(paths)} models"
    chains = "" if hospital.form == PLAIN_CHAINS else f", chains {hospital.form.title}"
    them = paths[0].name if len(paths) == 1 else f"all {len(paths)}"
    say(
        home.quiet,
        f"{hospital.sequences}"
        if family in (None, "time-course-model")
        else f"{len(hospital.sequences):,} patients.",
        f"{models} with {', '.join(map(str, sizes))} class{'' if sizes == [1] else 'es'}{chains}.",
        wrote(paths),
        "Withheld: everything but what `mmlca exchange check` lists, every count rounded at random "
        f"to a multiple of {hospital.min_count}; {hospital.ledger().path} keeps what was released.",
        f"Next: look at each file with `mmlca exchange check`, then send {them} to all sites and "
        "the centre; when you have everyone's, run `mmlca site label`.",
    )


@site_app.command("mask-key")
@with_groups
def site_mask_key(*, home: Home, out: SiteOut = None) -> None:
    """Write this site's public key for secure sums, for all sites."""
    import pandas as pd

    hospital = home.open(pd.DataFrame())  # no patients are needed
    path = hospital.mask_key(out)
    say(
        home.quiet,
        wrote([path]),
        "Withheld: everything; the file has no patients' numbers. The private key stays "
        f"in {hospital.ledger().path.parent}: keep that folder, and do not copy it, because masks "
        "must not be used twice.",
        f"Next: send {path.name} to all sites; when you have everyone's, and the model files, run "
        "`mmlca site label --secure` with all of them. `mmlca site refine --secure` takes the same "
        "key files.",
    )


@site_app.command("label")
@with_groups
def site_label(
    models: Annotated[
        list[Path],
        typer.Argument(
            metavar="MODELS",
            help="The model files of all sites, .json; with --secure their key files too.",
            **FILE,
        ),
    ],
    *,
    sequences: SiteSequences = None,
    home: Home,
    agreed: Annotated[
        str | None,
        typer.Option(
            help="Fingerprint of the list of models that the sites agreed on; a site without a "
            "model of its own needs it."
        ),
    ] = None,
    secure: Secure = False,
    without: Without = None,
    patients: Patients,
    out: SiteOut = None,
) -> None:
    """Label this site's patients with all models and write the counts for the centre."""
    from font.exchange.disclosure import label_unit
    from font.exchange.messages.model import list_fingerprint, read_models

    key_files, lists = _split_keys(models, secure)
    if not lists:
        raise InputError("there are no model files among these; give those of all sites.")
    data = patients.read(sequences, lists[0], quiet=home.quiet)
    hospital = home.open(data, agreed=agreed, without=listed_sites(without))
    _keep_apart(hospital, "masked labels" if secure else "labels", out, models)
    path = hospital.label(lists, out, secure=key_files)
    agreed_on = list_fingerprint(read_models(lists))
    unit = label_unit(hospital.min_count, len(lists))
    say(
        home.quiet,
        f"{len(hospital.sequences):,} patients labelled by {len(lists)} models.",
        *_about_counts(hospital, path, "counts of labels by pairs of models", unit, key_files),
        f"The list of models has the fingerprint {agreed_on[:16]}; it is the same at all sites.",
        f"{_look_and_send(path)}; keep the model files.",
    )


@site_app.command("assign")
@with_groups
def site_assign(
    ensemble: Annotated[
        Path, typer.Argument(metavar="ENSEMBLE", help="The centre's ensemble file, .json.", **FILE)
    ],
    *,
    sequences: SiteSequences = None,
    home: Home,
    patients: Patients,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            dir_okay=False,
            help="File for the patients' clusters, .csv; it stays.",
            show_default="clusters.csv in the folder",
        ),
    ] = None,
) -> None:
    """Give this site's patients their clusters. The result stays here."""
    from font.files import keep_inputs
    from mmlca.federation.ledger import UNNAMED

    path = home.folder / "clusters.csv" if out is None else out
    keep_inputs([path], home.inputs(ensemble, sequences, *patients.files()))
    if home.site is None and home.agreed is None:
        home = replace(home, site=UNNAMED)
    hospital = home.open(patients.read(sequences, ensemble, quiet=home.quiet))
    table = hospital.assign(ensemble, path)
    say(
        home.quiet,
        *_sizes(table),
        f"Wrote {path}.",
        "Withheld: everything; this file names patients, so keep it at the site.",
    )


@site_app.command("refine")
@with_groups
def site_refine(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="The centre's ensemble file, or its shared file of the step before, .json; with "
            "--secure the sites' key files too.",
            **FILE,
        ),
    ],
    *,
    sequences: SiteSequences = None,
    home: Home,
    secure: Secure = False,
    without: Without = None,
    patients: Patients,
    out: SiteOut = None,
) -> None:
    """Take part in a step of the refinement: sums for the centre, probabilities for patients."""
    from font.exchange.messages.refinement import read_step
    from font.files import keep_inputs

    key_files, answered = _split_keys(files, secure)
    if len(answered) != 1:
        raise InputError(
            f"found {len(answered)} files to answer; give one, the centre's ensemble file or its "
            "shared file of the step before."
        )
    file = answered[0]
    data = patients.read(sequences, file, quiet=home.quiet)
    hospital = home.open(data, without=listed_sites(without))
    clusters, inputs = home.folder / "clusters.csv", home.inputs(*files, sequences)
    keep_inputs([clusters], [*inputs, *patients.files()])
    step = read_step(file, hospital.header()).step
    _keep_apart(hospital, f"masked sums {step}" if secure else f"sums {step}", out, inputs)
    result = hospital.refine(file, out, secure=key_files)
    lines = []
    if result.clusters is not None:
        lines += _sizes(result.clusters)
        lines.append(f"Wrote {clusters}; it names patients, so keep it at the site.")
    if result.sums is None:
        lines.append(f"The refinement ended with step {result.step}; nothing more is to be sent.")
    else:
        option, and_keys = (" --secure", " and the key files") if secure else ("", "")
        lines += [
            f"Step {result.step} of the refinement.",
            *_about_counts(hospital, result.sums, "sums by cluster", hospital.min_count, key_files),
            f"{_look_and_send(result.sums)}, which answers with shared-{result.step}.json; run "
            f"`mmlca site refine{option}` with that file{and_keys}.",
        ]
    say(home.quiet, *lines)


@site_app.command("answer")
@with_groups
def site_answer(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Kind of message, such as sums.")],
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="The centre's ensemble file or its last shared file.", **FILE
        ),
    ],
    *,
    sequences: SiteSequences = None,
    home: Home,
    patients: Patients,
    out: SiteOut = None,
) -> None:
    """Write one message for the centre, of any kind that answers its file."""
    from font.exchange.messages.refinement import read_step

    hospital = home.open(patients.read(sequences, file, quiet=home.quiet))
    step = read_step(file, hospital.header()).step
    inputs = home.inputs(file, sequences, *patients.files())
    _keep_apart(hospital, f"{kind} {step}", out, inputs)
    path = hospital.answer(kind, file, out)
    released = f"{hospital.ledger().path} keeps what was released."
    say(home.quiet, wrote([path]), released, f"{_look_and_send(path)}.")


def _keep_apart(
    hospital: Hospital, entry: str, out: Path | None, inputs: Sequence[Path | None]
) -> None:
    """Refuse to write a file for the centre over one of those that the command reads."""
    from font.exchange.envelope import file_name
    from font.files import keep_inputs

    place = hospital.folder / "to_centre" if out is None else out
    keep_inputs([place / file_name(hospital.site, entry)], inputs)


def _split_keys(files: list[Path], secure: bool) -> tuple[list[Path] | None, list[Path]]:
    """The key files, which go with --secure (None without it), and the other files."""
    from font.exchange.envelope import claimed_kind

    keys = [path for path in files if claimed_kind(path) == "key"]
    if keys and not secure:
        raise InputError(f"{keys[0]} is a key file, which goes with --secure; give both.")
    return keys if secure else None, [path for path in files if path not in keys]


def _sizes(clusters: pd.DataFrame) -> list[str]:
    sizes = clusters["cluster"].value_counts().sort_index()
    return [f"cluster {k}: {n:,} patients" for k, n in sizes.items()]


def _about_counts(
    hospital: Hospital, path: Path, what: str, unit: int, key_files: list[Path] | None
) -> list[str]:
    """Which file of counts was written, what was withheld, and with whom it was masked."""
    from font.exchange.envelope import fingerprint, read_file

    kept = f"{hospital.ledger().path} keeps what was released."
    if key_files is None:
        rounded = f"everything but {what}, each rounded at random to a multiple of {unit}"
        return [wrote([path]), f"Withheld: {rounded}; {kept}"]
    masked = f"everything: the {what} are exact but masked, and the centre reads only their sum"
    mark = fingerprint({"sites": read_file(path).payload["sites"]})[:16]
    return [
        wrote([path]),
        f"Withheld: {masked} over the {len(key_files)} sites; {kept}",
        f"The set of sites has the fingerprint {mark}; it is the same at all sites.",
    ]


def _look_and_send(path: Path) -> str:
    look = f"Next: look at it with `mmlca exchange check {path}`"
    return f"{look}, then send {path.name} to the centre"
