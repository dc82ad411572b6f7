"""Commands of a hospital that works together with others by exchanging files.

One round is: every site sends its model files to all; every site labels its patients with all
models and sends the counts to the centre; the centre sends the ensemble to all. A refinement may
follow: every site sends sums to the centre, the centre a shared model to all, as often as agreed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from font.errors import InputError
from mmlca.cli.display import say, working, wrote
from mmlca.cli.options import (
    FILE,
    PLAIN,
    KeysFile,
    Quiet,
    StudyNInit,
    StudyNJobs,
    StudySearch,
    StudySeed,
    from_study,
    listed_sites,
    whole_numbers,
    with_groups,
)
from mmlca.cli.site_input import (
    Home,
    Patients,
    Release,
    Secure,
    SiteOut,
    SiteSequences,
    Without,
    all_inputs,
    no_patients,
    open_hospital,
    read_keys_file,
    site_data,
)

if TYPE_CHECKING:
    from mmlca.federation.hospital import Hospital

site_app = typer.Typer(
    name="site",
    help="What a hospital does: keys, fit, mask-key, label, assign, refine, answer.",
    **PLAIN,
)


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
            "table with an id and the columns that the model uses.",
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
        float | None, from_study(0.8, help="Size of a resample as a share of the site.")
    ] = None,
    fewer_classes: Annotated[
        bool,
        typer.Option(
            "--fewer-classes", help="Fit fewer classes where one would have too few patients."
        ),
    ] = False,
    release: Release,
    patients: Patients,
    seed: StudySeed = None,
    n_init: StudyNInit = None,
    search: StudySearch = None,
    n_jobs: StudyNJobs = None,
    out: SiteOut = None,
    quiet: Quiet = False,
) -> None:
    """Fit this site's models and write the model files for all sites."""
    from font.exchange.messages.model import read_model
    from mmlca.federation.site_run import list_unmapped

    if classes is None and also_try is None and home.study_file is None:
        raise InputError("the number of classes is missing; give --classes, or --try several.")
    hospital = open_hospital(
        home,
        site_data(sequences, patients, family=family, quiet=quiet),
        release,
        family=family,
        n_classes=classes,
        candidates=None if also_try is None else whole_numbers(also_try, "--try"),
        pseudo_sites=pseudo_sites,
        fraction=fraction,
        fewer_classes=fewer_classes,
        seed=seed,
        starts=n_init,
        search=search,
        n_jobs=n_jobs,
    )
    with working("Fitting (the first fit also compiles)", quiet=quiet):
        list_unmapped(hospital, all_inputs(home, patients))
        paths = hospital.fit(out)
    written = [read_model(path) for path in paths]
    sizes = ", ".join(map(str, sorted({file.n_classes for file in written})))
    them = paths[0].name if len(paths) == 1 else f"all {len(paths)}"
    say(
        quiet,
        f"{hospital.sequences}" if family is None else f"{len(hospital.sequences):,} patients.",
        f"{len(paths)} model{'s' if len(paths) > 1 else ''} with {sizes} "
        f"class{'' if sizes == '1' else 'es'}.",
        wrote(paths),
        "Withheld: everything but what `mmlca exchange check` lists, every count rounded at random "
        f"to a multiple of {hospital.min_count}; {hospital.ledger().path} keeps what was released.",
        f"Next: look at each file with `mmlca exchange check`, then send {them} to all sites and "
        "the centre; when you have everyone's, run `mmlca site label`.",
    )


@site_app.command("mask-key")
@with_groups
def site_mask_key(
    *,
    home: Home,
    release: Release,
    out: SiteOut = None,
    quiet: Quiet = False,
) -> None:
    """Write this site's public key for secure sums, for all sites."""
    patients = None if home.study_file is not None else no_patients()
    hospital = open_hospital(home, patients, release)
    path = hospital.mask_key(out)
    say(
        quiet,
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
    release: Release,
    patients: Patients,
    keys: KeysFile = None,
    out: SiteOut = None,
    quiet: Quiet = False,
) -> None:
    """Label this site's patients with all models and write the counts for the centre."""
    from font.exchange.disclosure import label_unit
    from font.exchange.messages.model import list_fingerprint, read_models

    key_files, lists = _split_keys(models, secure)
    if not lists:
        raise InputError("there are no model files among these; give those of all sites.")
    hospital = open_hospital(
        home,
        site_data(sequences, patients, lists[0], quiet=quiet),
        release,
        agreed=agreed,
        without=listed_sites(without),
        keys=read_keys_file(keys, home.study_file),
    )
    _keep_apart(hospital, "masked labels" if secure else "labels", out, models)
    path = hospital.label(lists, out, secure=key_files if secure else None)
    agreed_on = list_fingerprint(read_models(lists))
    withheld = (
        "everything: the counts of labels by pairs of models are exact but masked, and the centre "
        f"reads only their sum over the {len(key_files)} sites"
        if secure
        else "everything but counts of labels by pairs of models, each rounded at random to a "
        f"multiple of {label_unit(hospital.min_count, len(lists))}"
    )
    say(
        quiet,
        f"{len(hospital.sequences):,} patients labelled by {len(lists)} models.",
        wrote([path]),
        f"Withheld: {withheld}; {hospital.ledger().path} keeps what was released.",
        f"The list of models has the fingerprint {agreed_on[:16]}; it is the same at all sites.",
        *([_set_fingerprint(path)] if secure else []),
        f"Next: look at it with `mmlca exchange check {path}`, then send {path.name} to the "
        "centre; keep the model files.",
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
    keys: KeysFile = None,
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
    quiet: Quiet = False,
) -> None:
    """Give this site's patients their clusters. The result stays here."""
    from font.files import keep_inputs
    from mmlca.federation.ledger import UNNAMED

    path = home.folder / "clusters.csv" if out is None else out
    keep_inputs([path], all_inputs(home, patients, ensemble, sequences))
    if home.site is None and home.study_file is None:
        home = replace(home, site=UNNAMED)
    data = site_data(sequences, patients, ensemble, quiet=quiet)
    hospital = open_hospital(home, data, keys=read_keys_file(keys, home.study_file))
    table = hospital.assign(ensemble, path)
    sizes = table["cluster"].value_counts().sort_index()
    say(
        quiet,
        *(f"cluster {k}: {n:,} patients" for k, n in sizes.items()),
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
    release: Release,
    patients: Patients,
    keys: KeysFile = None,
    out: SiteOut = None,
    quiet: Quiet = False,
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
    hospital = open_hospital(
        home,
        site_data(sequences, patients, file, quiet=quiet),
        release,
        without=listed_sites(without),
        keys=read_keys_file(keys, home.study_file),
    )
    clusters, inputs = home.folder / "clusters.csv", all_inputs(home, patients, *files, sequences)
    keep_inputs([clusters], inputs)
    step = read_step(file, hospital.header()).step
    _keep_apart(hospital, f"masked sums {step}" if secure else f"sums {step}", out, inputs)
    result = hospital.refine(file, out, secure=key_files if secure else None)
    lines = []
    if result.clusters is not None:
        sizes = result.clusters["cluster"].value_counts().sort_index()
        lines += [f"cluster {k}: {n:,} patients" for k, n in sizes.items()]
        lines.append(f"Wrote {clusters}; it names patients, so keep it at the site.")
    if result.sums is None:
        lines.append(f"The refinement ended with step {result.step}; nothing more is to be sent.")
    else:
        option, and_keys = (" --secure", " and the key files") if secure else ("", "")
        withheld = (
            "everything: the sums by cluster are exact but masked, and the centre reads only what "
            f"they add up to over the {len(key_files)} sites"
            if secure
            else "everything but sums by cluster, each rounded at random to a multiple of "
            f"{hospital.min_count}"
        )
        lines += [
            f"Step {result.step} of the refinement.",
            wrote([result.sums]),
            f"Withheld: {withheld}; {hospital.ledger().path} keeps what was released.",
            *([_set_fingerprint(result.sums)] if secure else []),
            f"Next: look at it with `mmlca exchange check {result.sums}`, then send "
            f"{result.sums.name} to the centre, which answers with shared-{result.step}.json; run "
            f"`mmlca site refine{option}` with that file{and_keys}.",
        ]
    say(quiet, *lines)


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
    release: Release,
    patients: Patients,
    keys: KeysFile = None,
    out: SiteOut = None,
    quiet: Quiet = False,
) -> None:
    """Write one message for the centre, of any kind that answers its file."""
    from font.exchange.messages.refinement import read_step

    data = site_data(sequences, patients, file, quiet=quiet)
    hospital = open_hospital(home, data, release, keys=read_keys_file(keys, home.study_file))
    step = read_step(file, hospital.header()).step
    _keep_apart(hospital, f"{kind} {step}", out, all_inputs(home, patients, file, sequences))
    path = hospital.answer(kind, file, out)
    say(
        quiet,
        wrote([path]),
        f"{hospital.ledger().path} keeps what was released.",
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


def _keep_apart(
    hospital: Hospital, entry: str, out: Path | None, inputs: Sequence[Path | None]
) -> None:
    """Refuse to write a file for the centre over one of those that the command reads."""
    from font.exchange.envelope import file_name
    from font.files import keep_inputs

    place = hospital.folder / "to_centre" if out is None else out
    keep_inputs([place / file_name(hospital.site, entry)], inputs)


def _split_keys(files: list[Path], secure: bool) -> tuple[list[Path], list[Path]]:
    """The key files, which go with --secure, and the other files."""
    from font.exchange.envelope import claimed_kind

    keys = [path for path in files if claimed_kind(path) == "key"]
    if keys and not secure:
        raise InputError(f"{keys[0]} is a key file, which goes with --secure; give both.")
    return keys, [path for path in files if path not in keys]


def _set_fingerprint(path: Path) -> str:
    """What to compare by telephone: the set of sites in a masked file, with their keys."""
    from font.exchange.envelope import fingerprint, read_file

    mark = fingerprint({"sites": read_file(path).payload["sites"]})[:16]
    return f"The set of sites has the fingerprint {mark}; it is the same at all sites."
