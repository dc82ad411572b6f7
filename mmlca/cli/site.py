"""Commands of a hospital that works together with others by exchanging files.

One round is: every site sends its model files to all; every site labels its patients with all
models and sends the counts to the centre; the centre sends the ensemble to all. A refinement may
follow: every site sends sums to the centre, the centre a shared model to all, as often as agreed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from font.spelling import spelled
from mmlca.cli.data import read_sequences
from mmlca.cli.display import say, working, wrote
from mmlca.cli.options import (
    FILE,
    PLAIN,
    Columns,
    DrugsFile,
    KeysFile,
    PatientsFile,
    Quiet,
    RecordsFiles,
    SiteName,
    States,
    StudyFile,
    StudyMinCount,
    StudyName,
    StudyNInit,
    StudyNJobs,
    StudySearch,
    StudySeed,
    as_key,
    as_option,
    from_study,
    whole_numbers,
)

if TYPE_CHECKING:
    import pandas as pd

    from mmlca.federation.hospital import Hospital
    from mmlca.sequences.type import Sequences

site_app = typer.Typer(
    name="site",
    help="What a hospital does: keys, fit, mask-key, label, assign, refine, effects.",
    **PLAIN,
)

SiteSequences = Annotated[
    Path | None,
    typer.Option(
        "--sequences",
        help="This site's sequences, a .csv or .parquet file.",
        show_default="from the study file",
        **FILE,
    ),
]


SiteFolder = Annotated[
    Path,
    typer.Option(
        file_okay=False, help="This site's folder, with the ledger of what left; keep it."
    ),
]
SiteOut = Annotated[
    Path | None,
    typer.Option(*("--out", "-o"), help="Folder for the files.", show_default="in the folder"),
]
Floor = Annotated[
    int,
    typer.Option(
        min=1,
        envvar="MMLCA_FLOOR",
        help="Smallest --min-count that this site accepts; no study file changes it.",
    ),
]
Override = Annotated[
    str | None,
    typer.Option(
        help="Why something else should leave for the same study and round, in words.",
        show_default="refused",
    ),
]


@site_app.command("fit")
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
    study: StudyName = None,
    site: SiteName = None,
    classes: Annotated[
        int | None,
        from_study("the best of --try", "--classes", "-k", min=1, help="Number of classes."),
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
        float | None, from_study(0.8, help="Size of a resample as a share of the site.")
    ] = None,
    folder: SiteFolder = Path(),
    out: SiteOut = None,
    study_file: StudyFile = None,
    records: RecordsFiles = None,
    patients: PatientsFile = None,
    drugs: DrugsFile = None,
    min_count: StudyMinCount = None,
    fewer_classes: Annotated[
        bool,
        typer.Option(
            "--fewer-classes", help="Fit fewer classes where one would have too few patients."
        ),
    ] = False,
    floor: Floor = 11,
    override: Override = None,
    seed: StudySeed = None,
    n_init: StudyNInit = None,
    search: StudySearch = None,
    columns: Columns = None,
    states: States = None,
    n_jobs: StudyNJobs = None,
    quiet: Quiet = False,
) -> None:
    """Fit this site's models and write the model files for all sites."""
    from font.exchange.files import read_model

    if classes is None and also_try is None and study_file is None:
        raise ValueError("the number of classes is missing; give --classes, or --try several.")

    hospital = _hospital(
        *(study, study_file, site),
        _site_data(sequences, (records, patients, drugs), columns, states),
        n_classes=classes,
        candidates=None if also_try is None else whole_numbers(also_try, "--try"),
        pseudo_sites=pseudo_sites,
        fraction=fraction,
        min_count=min_count,
        fewer_classes=fewer_classes,
        folder=folder,
        floor=floor,
        override=override,
        seed=seed,
        starts=n_init,
        search=search,
        n_jobs=n_jobs,
    )
    with working("Fitting (the first fit also compiles)", quiet=quiet):
        inputs = [*(records or []), patients, drugs, *_study_inputs(study_file)]
        _list_unmapped(hospital.sequences, folder / "unmapped.csv", inputs)
        paths = hospital.fit(out)
    written = [read_model(path) for path in paths]
    sizes = ", ".join(map(str, sorted({file.n_classes for file in written})))
    them = paths[0].name if len(paths) == 1 else f"all {len(paths)}"
    say(
        quiet,
        f"{hospital.sequences}",
        f"{len(paths)} model{'s' * (len(paths) > 1)} with {sizes} classes.",
        wrote(paths),
        "Withheld: everything but counts by class, first state and step, each rounded at random to "
        f"a multiple of {hospital.min_count}; {hospital.ledger().path} keeps what was released.",
        f"Next: look at each file with `mmlca exchange check`, then send {them} to all sites and "
        "the centre; when you have everyone's, run `mmlca site label`.",
    )


@site_app.command("mask-key")
def site_mask_key(
    study: StudyName = None,
    site: SiteName = None,
    study_file: StudyFile = None,
    min_count: StudyMinCount = None,
    floor: Floor = 11,
    override: Override = None,
    folder: SiteFolder = Path(),
    out: SiteOut = None,
    quiet: Quiet = False,
) -> None:
    """Write this site's public key for secure sums, for all sites."""
    hospital = _hospital(
        *(study, study_file, site),
        None if study_file is not None else _nobody(),
        min_count=min_count,
        folder=folder,
        floor=floor,
        override=override,
    )
    path = hospital.mask_key(out)
    say(
        quiet,
        wrote([path]),
        "Withheld: everything; the file has no patients' numbers. The private key comes from "
        f"{hospital.ledger().path}: keep it.",
        f"Next: send {path.name} to all sites; when you have everyone's, and the model files, run "
        "`mmlca site label --secure` with all of them.",
    )


@site_app.command("label")
def site_label(
    models: Annotated[
        list[Path],
        typer.Argument(
            metavar="MODELS",
            help="The model files of all sites, .json; with --secure their key files too.",
            **FILE,
        ),
    ],
    sequences: SiteSequences = None,
    study: StudyName = None,
    site: SiteName = None,
    study_file: StudyFile = None,
    records: RecordsFiles = None,
    patients: PatientsFile = None,
    drugs: DrugsFile = None,
    min_count: StudyMinCount = None,
    agreed: Annotated[
        str | None,
        typer.Option(
            help="Fingerprint of the list of models that the sites agreed on; a site without a "
            "model of its own needs it."
        ),
    ] = None,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure", help="Send exact counts under masks, of which the centre reads the sum."
        ),
    ] = False,
    floor: Floor = 11,
    override: Override = None,
    keys: KeysFile = None,
    columns: Columns = None,
    states: States = None,
    folder: SiteFolder = Path(),
    out: SiteOut = None,
    quiet: Quiet = False,
) -> None:
    """Label this site's patients with all models and write the counts for the centre."""
    from font.exchange.files import file_name, list_fingerprint, read_models
    from font.exchange.schema import claimed_kind
    from font.files import keep_inputs

    key_files = [path for path in models if claimed_kind(path) == "key"]
    if key_files and not secure:
        raise ValueError(f"{key_files[0]} is a key file, which goes with --secure; give both.")
    lists = [path for path in models if path not in key_files]
    if not lists:
        raise ValueError("there are no model files among these; give those of all sites.")
    hospital = _hospital(
        *(study, study_file, site),
        _site_data(sequences, (records, patients, drugs), columns, states, lists[0]),
        min_count=min_count,
        folder=folder,
        agreed=agreed,
        floor=floor,
        override=override,
        keys=read_keys_file(keys, study_file),
    )
    place = folder / "to_centre" if out is None else out
    kind = "masked-labels" if secure else "labels"
    keep_inputs([place / file_name(hospital.site, kind)], models)
    path = hospital.label(lists, out, secure=key_files if secure else None)
    agreed_on = list_fingerprint(read_models(lists))
    withheld = (
        "everything: the counts of labels by pairs of models are exact but masked, and the centre "
        f"reads only their sum over the {len(key_files)} sites"
        if secure
        else "everything but counts of labels by pairs of models, each rounded at random to a "
        f"multiple of {hospital.min_count}"
    )
    say(
        quiet,
        f"{len(hospital.sequences):,} patients labelled by {len(lists)} models.",
        wrote([path]),
        f"Withheld: {withheld}; {hospital.ledger().path} keeps what was released.",
        f"The list of models has the fingerprint {agreed_on[:16]}; it is the same at all sites.",
        *(
            [f"The set of sites has the fingerprint {_set_fingerprint(path)}; it is the same too."]
            if secure
            else []
        ),
        f"Next: look at it with `mmlca exchange check {path}`, then send {path.name} to the "
        "centre; keep the model files.",
    )


@site_app.command("assign")
def site_assign(
    ensemble: Annotated[
        Path, typer.Argument(metavar="ENSEMBLE", help="The centre's ensemble file, .json.", **FILE)
    ],
    sequences: SiteSequences = None,
    study: StudyName = None,
    site: SiteName = None,
    study_file: StudyFile = None,
    records: RecordsFiles = None,
    patients: PatientsFile = None,
    drugs: DrugsFile = None,
    columns: Columns = None,
    states: States = None,
    folder: SiteFolder = Path(),
    out: Annotated[
        Path | None,
        typer.Option(
            *("--out", "-o"),
            dir_okay=False,
            help="File for the patients' clusters, .csv; it stays.",
            show_default="clusters.csv in the folder",
        ),
    ] = None,
    override: Override = None,
    keys: KeysFile = None,
    quiet: Quiet = False,
) -> None:
    """Give this site's patients their clusters. The result stays here."""
    from font.files import keep_inputs

    path = folder / "clusters.csv" if out is None else out
    inputs = [ensemble, sequences, *(records or []), patients, drugs, *_study_inputs(study_file)]
    keep_inputs([path], inputs)
    if site is None and study_file is None:
        site = "this site"  # nothing leaves, so that no name is needed
    data = _site_data(sequences, (records, patients, drugs), columns, states, ensemble)
    pinned = read_keys_file(keys, study_file)
    hospital = _hospital(
        study, study_file, site, data, folder=folder, override=override, keys=pinned
    )
    table = hospital.assign(ensemble, path)
    sizes = table["cluster"].value_counts().sort_index()
    say(
        quiet,
        *(f"cluster {k}: {n:,} patients" for k, n in sizes.items()),
        f"Wrote {path}.",
        "Withheld: everything; this file names patients, so keep it at the site.",
    )


@site_app.command("refine")
def site_refine(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="The centre's ensemble file, or its shared file of the step before, .json.",
            **FILE,
        ),
    ],
    sequences: SiteSequences = None,
    study: StudyName = None,
    site: SiteName = None,
    study_file: StudyFile = None,
    records: RecordsFiles = None,
    patients: PatientsFile = None,
    drugs: DrugsFile = None,
    min_count: StudyMinCount = None,
    keys: KeysFile = None,
    floor: Floor = 11,
    override: Override = None,
    columns: Columns = None,
    states: States = None,
    folder: SiteFolder = Path(),
    out: SiteOut = None,
    quiet: Quiet = False,
) -> None:
    """Take part in a step of the refinement: sums for the centre, probabilities for patients."""
    from font.exchange.files import file_name
    from font.exchange.sums import read_step
    from font.files import keep_inputs

    hospital = _hospital(
        *(study, study_file, site),
        _site_data(sequences, (records, patients, drugs), columns, states, file),
        min_count=min_count,
        folder=folder,
        keys=read_keys_file(keys, study_file),
        floor=floor,
        override=override,
    )
    place = folder / "to_centre" if out is None else out
    step = read_step(file, study=hospital.study).step
    sums, clusters = place / file_name(hospital.site, f"sums-{step}"), folder / "clusters.csv"
    inputs = [file, sequences, *(records or []), patients, drugs, *_study_inputs(study_file)]
    keep_inputs([sums, clusters], inputs)
    result = hospital.refine(file, out)
    lines = []
    if result.clusters is not None:
        sizes = result.clusters["cluster"].value_counts().sort_index()
        lines += [f"cluster {k}: {n:,} patients" for k, n in sizes.items()]
        lines.append(f"Wrote {clusters}; it names patients, so keep it at the site.")
    if result.sums is None:
        lines.append(f"The refinement ended with step {result.step}; nothing more is to be sent.")
    else:
        lines += [
            f"Step {result.step} of the refinement.",
            wrote([result.sums]),
            "Withheld: everything but sums by cluster, each rounded at random to a multiple of "
            f"{hospital.min_count}; {hospital.ledger().path} keeps what was released.",
            f"Next: look at it with `mmlca exchange check {result.sums}`, then send "
            f"{result.sums.name} to the centre, which answers with shared-{result.step}.json; run "
            "`mmlca site refine` with that file.",
        ]
    say(quiet, *lines)


@site_app.command("effects")
def site_effects(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="The centre's ensemble file, or its last shared file.", **FILE
        ),
    ],
    covariates: Annotated[
        Path,
        typer.Option(
            help="Table of an id and what membership may depend on, .csv or .parquet.", **FILE
        ),
    ],
    sequences: SiteSequences = None,
    study: StudyName = None,
    site: SiteName = None,
    study_file: StudyFile = None,
    records: RecordsFiles = None,
    patients: PatientsFile = None,
    drugs: DrugsFile = None,
    min_count: StudyMinCount = None,
    keys: KeysFile = None,
    floor: Floor = 11,
    override: Override = None,
    columns: Columns = None,
    states: States = None,
    folder: SiteFolder = Path(),
    out: SiteOut = None,
    quiet: Quiet = False,
) -> None:
    """Write how membership in the clusters depends on covariates here, for the centre."""
    from font.exchange.effects import read_effects
    from font.exchange.files import file_name
    from font.files import keep_inputs
    from mmlca.sequences.files import read_table

    hospital = _hospital(
        *(study, study_file, site),
        _site_data(sequences, (records, patients, drugs), columns, states, file),
        min_count=min_count,
        folder=folder,
        keys=read_keys_file(keys, study_file),
        floor=floor,
        override=override,
    )
    place = folder / "to_centre" if out is None else out
    inputs = [file, covariates, sequences, *(records or []), patients, drugs]
    keep_inputs(
        [place / file_name(hospital.site, "effects")], [*inputs, *_study_inputs(study_file)]
    )
    path = hospital.effects(file, read_table(covariates), out)
    table = read_effects(path).table
    table["cluster"] += 1
    say(
        quiet,
        "Log-odds of each cluster against cluster 1, as they leave:",
        table.to_string(index=False),
        wrote([path]),
        f"Withheld: effects that rest on fewer than {hospital.min_count} patients of a cluster, "
        f"and digits beyond the precision; {hospital.ledger().path} keeps what was released.",
        f"Next: look at it with `mmlca exchange check {path}`, then send {path.name} to the "
        "centre.",
    )


@site_app.command("keys")
def make_key_pair(
    folder: Annotated[
        Path,
        typer.Option(file_okay=False, help="Folder for the keys: this site's, or the centre's."),
    ] = Path(),
    quiet: Quiet = False,
) -> None:
    """Make a pair of keys, so that others can tell who wrote a file."""
    from font.exchange.signatures import KEY_FILE, PUBLIC_FILE, make_keys
    from font.files import hold

    with hold(folder, private=True):
        public = make_keys(folder)
    say(
        quiet,
        f"Wrote {folder / KEY_FILE}, which is private: it stays here and signs what leaves.",
        f"Wrote {folder / PUBLIC_FILE}, the public key: {public}",
        "Next: tell the others this key by another way than the files, such as the telephone; each "
        "adds it to the study file (key, under this site or under [centre]) or to a file for "
        "--keys.",
    )


# --- inside ---------------------------------------------------------------------------


def _nobody() -> pd.DataFrame:
    """No patients, where none are needed."""
    import pandas as pd

    return pd.DataFrame()


def _set_fingerprint(path: Path) -> str:
    """Of the set of sites in a masked file, with their keys, to compare by telephone."""
    from font.exchange.schema import fingerprint, read_file

    return fingerprint({"sites": read_file(path).payload["sites"]})[:16]


def study_name(study: str | None, study_file: Path | None) -> str:
    """The study's name from --study; "" where --study-file gives it."""
    if study is not None and study_file is not None:
        raise ValueError(
            f"found both --study {study} and --study-file {study_file}; the file names the study, "
            "so give one of them."
        )
    if study is None and study_file is None:
        raise ValueError("the study has no name; give --study NAME or --study-file FILE.")
    if study is not None and Path(study).is_file():
        raise ValueError(f"--study takes a name, found the file {study}; give it as --study-file.")
    return study or ""


def read_keys_file(path: Path | None, study_file: Path | None) -> dict[str, str] | None:
    """Public keys from the study file, then those from --keys; None if there are neither."""
    from font.exchange.signatures import read_keys
    from mmlca.study.config import read_study

    keys = {} if study_file is None else read_study(study_file, files=False).public_keys()
    return (keys | ({} if path is None else read_keys(path))) or None


def _list_unmapped(sequences: Any, path: Path, inputs: list[Path | None]) -> None:
    """Write the drugs that the map does not know, for this site's eyes."""
    import warnings

    from ehr_prep.unmapped import unmapped_caution
    from font.files import keep_inputs, private_folder
    from mmlca.cli.display import write_table

    account = getattr(sequences, "account", None)
    if account is None or account.unmapped is None or not len(account.unmapped):
        return
    keep_inputs([path], inputs)
    private_folder(path.parent)
    write_table(account.unmapped, path, private=True)
    lost = account.settings["unmapped"]["lost"]
    if caution := unmapped_caution(account.unmapped, lost, str(path)):
        warnings.warn(caution, stacklevel=2)


def _study_inputs(study_file: Path | None) -> list[Path]:
    """The study file and the files that it names, of all sites."""
    from mmlca.study.config import read_study
    from mmlca.study.folder import input_files

    if study_file is None:
        return []
    named = input_files(read_study(study_file, files=False), study_file.parent)
    return [study_file, *named.values()]


def _hospital(
    study: str | None, study_file: Path | None, site: str | None, sequences: Any, **options: Any
) -> Hospital:
    """This site, from the study file or from the options."""
    from font.checks import some
    from font.files import check_regular
    from mmlca.federation.hospital import Hospital
    from mmlca.study.config import read_study

    name = study_name(study, study_file)
    settings = {key: value for key, value in options.items() if value is not None}
    if sequences is not None:
        settings["sequences"] = sequences
    if study_file is not None:
        sites = list(read_study(study_file, files=False).sites)
        for path in _study_inputs(study_file):
            if path.exists():  # those of other sites may be absent
                check_regular(path)
        if site is None and len(sites) > 1:
            raise ValueError(f"{study_file} has the sites {some(sites)}; choose one with --site.")
        with spelled(as_key):
            return Hospital.from_study(study_file, site, **settings)
    if site is None:
        raise ValueError("the name of this hospital is missing; give it with --site.")
    if sequences is None:
        raise ValueError("there are no patients; give sequences, --records or --study-file.")
    return Hospital(study=name, site=site, **settings)


def _site_data(
    sequences: Path | None,
    files: tuple[list[Path] | None, Path | None, Path | None],
    columns: str | None,
    states: str | None,
    exchange_file: Path | None = None,
) -> Sequences | pd.DataFrame | None:
    """The site's patients as the options name them; None leaves them to the study file.

    `files` are the records, the patients' table and the drug map.
    """
    records, patients, drugs = files
    if sequences is not None and records:
        raise ValueError(f"found both sequences ({sequences}) and --records; give one.")
    for name, file in (("--patients", patients), ("--drugs", drugs)):
        if file is not None and not records:
            raise ValueError(f"{name} goes with --records; give both, or neither.")
    if records:
        from ehr_prep.build import build_sequences
        from ehr_prep.drugs import RA_DRUGS, drug_map
        from ehr_prep.records import read_records

        with spelled(lambda name, value: f"`mmlca prep {as_option(name, value)}`"):
            read = read_records(
                records if len(records) > 1 else records[0],
                RA_DRUGS if drugs is None else drug_map(drugs),
                patients=patients,
            )
            return build_sequences(read, preset="ra" if drugs is None else None)
    if sequences is None:
        return None
    if exchange_file is not None and (variables := _variables(exchange_file)):
        return _table(sequences, variables)
    return read_sequences(sequences, columns, states)


def _variables(path: Path) -> list[str]:
    """The columns that the models in an exchange file look at; none if they are Markov chains."""
    from font.exchange.registry import kind_of
    from font.exchange.schema import read_file

    payload = read_file(path).payload
    content = (payload["models"][0] if "models" in payload else payload).get("model")
    if content is None or "states" in content:
        return []
    return list(kind_of(content["format"]).variables(content))


def _table(path: Path, columns: list[str]) -> pd.DataFrame:
    import pandas as pd

    from font.checks import some

    table = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    lacking = [name for name in ["id", *columns] if name not in table.columns]
    if lacking:
        raise ValueError(f"{path} lacks the columns {some(lacking)}; add them or mend the names.")
    return table.set_index("id")[columns]
