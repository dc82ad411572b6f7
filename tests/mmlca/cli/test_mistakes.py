"""Mistakes of a hurried user: each gets one sentence that says how to fix it, and exit code 2."""

from __future__ import annotations

import contextlib
import os
import shlex
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import invoke, mmlca_does, refusal
from matplotlib.figure import Figure
from ra_like import ra_like

import mmlca
from mmlca.study import read_site, read_study

DRUGS = ("Humira", "Orencia", "Enbrel", "Actemra")
RECORDS = "patient_id,date,drug\n" + "".join(
    f"{i % 100},20{10 + i % 8}-0{1 + i % 9}-15,{DRUGS[i % 4]}\n" for i in range(1200)
)
STUDY = 'name = "S"\n[sites.MGB]\nrecords = "records.csv"\ndrugs = "ra"\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files as users bring them, and a round up to the ensemble."""
    root = tmp_path_factory.mktemp("clerk")
    ra_like(300, seed=1).write(root / "seq.csv")
    ra_like(300, seed=1).write(root / "seq.parquet")
    wide = ra_like(300, seed=2).to_frame().rename(columns=lambda t: f"t{t}").reset_index()
    tables = {
        "wide": wide,
        "covariates": wide.assign(sex="f", age=wide["id"] % 60),
        "months": wide.rename(
            columns={f"t{i}": "jfmasond"[i % 8] * i for i in range(1, 17)}
        ).assign(age=wide["id"] % 60 + 20),
        "no_id": wide.rename(columns={"id": "patient"}),
        "twice": wide.assign(id=1),
        "weights": wide.assign(weight="heavy"),
        "empty_row": wide.mask(wide["id"] == 4).assign(id=wide["id"]),
    }
    for name, table in tables.items():
        table.to_csv(root / f"{name}.csv", index=False)
    texts = {
        "empty.csv": "",
        "header.csv": "id,t1,t2\n",
        "ragged.csv": "id,t1,t2\n1,A,B\n2,A,B,C,D\n",
        "damaged.csv": '# mmlca sequences {"states": \nid,weight,length,t:1\n',
        "fake.parquet": "hello",
        "notes.txt": "hello",
        "records.csv": RECORDS,
        "other_names.csv": RECORDS.replace("patient_id", "Kennung"),
        "dates.csv": RECORDS.replace("-15", "-45"),
        "aspirin.csv": "patient_id,date,drug\n1,2010-01-01,aspirin\n",
        "study.toml": STUDY,
        "titled.csv": "Export\n2024\n" + RECORDS,
        "no_drug.csv": "patient_id,date\n1,2010-01-01\n",
        "excel_inside.csv": "PK\x03\x04",
        "serial.csv": "patient_id,date,drug\n1,40179,Humira\n1,40200,Humira\n",
        "zeros.csv": "patient_id,birth_date\n"
        + "".join(f"{i:04d},1950-01-01\n" for i in range(100)),
        "mixed.csv": RECORDS + "".join(f"{i},15.06.2012,Humira\n" for i in range(100)),
        "pattern.toml": 'name = "S"\n[sites.A]\nrecords = "nothing*.csv"\ndrugs = "ra"\n',
        "is_folder.toml": 'name = "S"\n[sites.A]\nrecords = "folder.csv"\ndrugs = "ra"\n',
        "columns_typo.toml": STUDY + '[records.columns]\npatiant = "x"\n',
        "no_birth.toml": STUDY
        + 'patients = "people.csv"\n[patients.columns]\nbirth_date = "Geb"\n',
        "people.csv": "patient_id,birth_date\n1,1950-01-01\n",
        "unseen_birth.toml": STUDY + 'patients = "geb.csv"\n[classes]\nnumber = 2\n',
        "age.toml": STUDY + 'patients = "geb.csv"\n[table_one]\nvariables = ["age"]\n',
        "geb.csv": "patient_id,Geb\n"
        + "".join(f"{i},{1 + i % 28:02d}.01.19{50 + i % 40}\n" for i in range(100)),
        "supply.toml": STUDY + "[records]\ndefault_supply = {aspirin = 3}\n",
        "no_supply.toml": STUDY + '[rules]\nstates = "combinations"\n',
        "many.toml": STUDY + "[classes]\nnumber = 60\n",
        "encoding.toml": STUDY + '[records]\nencoding = "latin1x"\n',
        "two.toml": STUDY + '[sites.VA]\nrecords = "records.csv"\ndrugs = "ra"\n',
        "covariates.toml": 'name = "S"\n[sites.A]\nsequences = "covariates.csv"\n',
        "broken.toml": "name = \n",
        "lost.toml": 'name = "S"\n[sites.MGB]\nrecords = "nowhere.csv"\ndrugs = "ra"\n',
    }
    for name, text in texts.items():
        (root / name).write_text(text)
    (root / "latin.csv").write_bytes("id,t1,t2\n1,Malmö,B\n2,B,B\n".encode("latin-1"))
    (root / "latin_records.csv").write_bytes(RECORDS.replace("Hum", "Hüm").encode("latin-1"))
    (root / "folder.csv").mkdir()
    with contextlib.chdir(root):  # the folder of MGB with its ledger
        places = {"MGB": Path(), "VA": Path("VA"), "XX": Path("XX")}
        for site, study in (("MGB", "s"), ("VA", "s"), ("XX", "other")):
            out = root / ("models" if study == "s" else study)
            mmlca_does(
                f"site fit {root}/seq.csv --study {study} --site {site} -k 2 "
                f"--folder {places[site]} --n-init 4 --out {out}"
            )
        models, labels = sorted((root / "models").iterdir()), root / "labels"
        for site in ("MGB", "VA"):
            mmlca_does(
                f"site label --sequences {root}/seq.csv --study s --site {site} --folder "
                f"{places[site]} --out {labels}",
                *models,
            )
        mmlca_does(f"centre combine --study s -k 2 --out {root}/centre", *models, *labels.iterdir())
    return root


MISTAKES = {
    # sequences
    "fit folder.csv -k 2": "'folder.csv' is a directory",
    "fit notes.txt -k 2": "must end in .csv or .parquet",
    "fit empty.csv -k 2": "empty.csv is empty",
    "fit header.csv -k 2": "header.csv has a header but no rows",
    "fit ragged.csv -k 2": "ragged.csv is not a table: ",
    "fit damaged.csv -k 2": "its description is damaged",
    "fit fake.parquet -k 2": "fake.parquet is not a Parquet file",
    "fit no_id.csv -k 2": "no_id.csv has no column 'id', found 'patient', 't1'",
    "fit twice.csv -k 2": "each patient needs one row",
    "fit weights.csv -k 2": "weights must be numbers",
    "fit empty_row.csv -k 2": "no observed state",
    "fit records.csv -k 2": "Medication records become sequences with `mmlca prep`",
    "fit covariates.csv -k 2": "do not look like times: 'sex', 'age' (most columns are called like "
    "'t1'); name those that hold states, as in --columns t1:t16",
    "fit months.csv -k 2": "'age' (their values occur in no other column)",
    "fit covariates.csv -k 2 --columns t1:t99": "the table has no column 't99'",
    "fit covariates.csv -k 2 --columns t9:t2": "'t9' comes after 't2'",
    "fit seq.csv -k 2 --columns t1:t3": "says itself which columns hold the states",
    "fit seq.csv -k 2 --states A,B": "where the states are 'A', 'B'; add them to --states",
    "fit seq.csv wide.csv -k 2": "unexpected extra argument",
    "fit seq.csv -k two": "Invalid value for '--classes' / '-k'",
    "fit seq.csv -k 2 --out notes.txt": "'notes.txt' is a file",
    "select seq.csv -k 1-": "--classes takes whole numbers",
    # records
    "prep records.csv": "Missing option '--out' / '-o'",
    "prep records.csv -o s.txt": "must end in .csv or .parquet",
    "prep records.csv -o folder.csv": "'folder.csv' is a directory",
    "prep records.csv -o s.csv --since yesterday": "--since is 'yesterday' and should be a date",
    "prep records.csv -o s.csv --since 2030-01-01": "none of the 100 patients",
    "prep records.csv -o s.csv --by weeks": "'weeks' is not one of 'records', 'days'",
    "prep records.csv -o s.csv --drugs seq.parquet": "seq.parquet is not text but a Parquet file",
    "prep records.csv -o s.csv --patients notes.txt": "no column of notes.txt",
    "prep other_names.csv -o s.csv": "as in --patient-column Kennung",
    "prep latin_records.csv -o s.csv --encoding utf-8": "as in --encoding latin-1",
    "prep latin_records.csv -o s.csv --encoding latin1x": "the encoding 'latin1x' is not known",
    "prep dates.csv -o s.csv": "with --date-format",
    "prep aspirin.csv -o s.csv": "--drugs map.csv",
    "prep empty.csv -o s.csv": "empty.csv is empty",
    "prep seq.csv -o s.csv": "seq.csv holds sequences already",
    "prep seq.parquet -o s.csv": "seq.parquet holds sequences already",
    "prep folder.csv -o s.csv": "'folder.csv' is a directory",
    "prep records.csv records.csv -o s.csv": "are named twice",
    "prep titled.csv -o s.csv": "a later line ('patient_id', 'date', 'drug') looks like it",
    "prep no_drug.csv -o s.csv": "it has 'patient_id', 'date'; add a column 'drug'",
    "prep excel_inside.csv -o s.csv": "is not text but an Excel or zip file; give it the ending",
    "prep serial.csv -o s.csv": "are day numbers of Excel (found '40179', ",
    "prep records.csv -o s.csv --patients zeros.csv": "with or without leading zeros, which Excel",
    "prep records.csv -o s.csv --delimiter ;": "leave --delimiter out, or state it",
    "prep records.csv -o s.csv --delimiter semi": "--delimiter must be one character",
    "prep records.csv -o s.csv --decimal x": "'x' is not one of '.', ','",
    "prep records.csv -o s.csv --date-column Date": "the closest are 'date', ",
    "prep records.csv -o s.csv --patients zeros.csv --patients-column Geb": "as in patient=PatNr",
    "prep records.csv -o s.csv --patients zeros.csv --patients-column birth=b": "names 'birth'; kn",
    "prep records.csv -o s.csv --drug-names zeros.csv": "rename 'patient_id' to concept_id",
    "prep mixed.csv -o s.csv": "mix formats",
    # studies
    "study run pattern.toml --out r": "sites.A.records: no file matches 'nothing*.csv'",
    "study run is_folder.toml --out r": "folder.csv is a folder; name the files in it, as in",
    "study run columns_typo.toml --out r": "did you mean records.columns.patient?",
    "study run no_birth.toml --out r": 'as in [patients.columns] birth_date = "birth_date"',
    "prep records.csv -o s.csv --follow-up forever": "--follow-up is 'forever' and should be",
    "prep records.csv -o s.csv --data-cut soon": "--data-cut is 'soon' and should be a date",
    "prep records.csv -o s.csv --file-column b.csv": "as in b.csv:patient=PatNr",
    "prep records.csv -o s.csv --file-column b.csv:date=x": "names the file 'b.csv', which is not",
    "study init new.toml --patient-column x": "--patient-column goes with --records",
    "study init new.toml --records records.csv --labs-column x": "as in patient=PatNr, or for one",
    "study init new.toml --records A=records.csv --date-format B=%Y": "--date-format names the si",
    "study run unseen_birth.toml --out r": 'as in [patients.columns] birth_date = "Geb"',
    "study run age.toml --out r": "table_one.variables names age, but the patients' tables",
    "study run supply.toml --out r": "records.default_supply names 'aspirin', which are neither",
    "study run no_supply.toml --out r": "as in records.default_supply = 30",
    "prep records.csv -o s.csv --default-supply aspirin=3": "--default-supply names 'aspirin'",
    "prep records.csv -o s.csv --off-treatment TNFi": "--off-treatment TNFi is a class of the drug",
    "study run many.toml --out r": "100 patients, too few for 60 classes of 11",
    "study run records.csv": "cannot be read as TOML",
    "study run broken.toml": "cannot be read as TOML",
    "study run lost.toml": "sites.MGB.records is 'nowhere.csv'",
    "study run encoding.toml --out r": 'not known; records.encoding = "latin-1" is one',
    "study run covariates.toml --out r": 'as in sites.A.columns = "t1:t16"',
    "study init study.toml": "replace it with --force",
    "study init new.toml --site a/b": "may hold letters, digits",
    "demo --out notes.txt": "'notes.txt' is a file",
    # a site's part
    "site fit seq.csv --site M -k 2": "give --study NAME or --study-file FILE",
    "site fit seq.csv --study study.toml --site M -k 2": "give it as --study-file",
    "site fit seq.csv --study s --study-file study.toml": "the file names the study",
    "site fit seq.csv --study s --site M": "give --classes, or --try several",
    "site fit --study s --site M -k 2": "give sequences, --records or --study-file",
    "site fit seq.csv --records records.csv --study s --site M -k 2": "found both sequences",
    "site fit --records other_names.csv --drugs ra --study s --site M -k 2": "`mmlca prep --pati",
    "site fit --patients records.csv --study s --site M -k 2": "--patients goes with --records",
    "site fit --study-file two.toml": "has the sites 'MGB', 'VA'; choose one with --site",
    "site fit --study-file two.toml --site C": "two.toml has no site 'C'",
    "site label seq.csv --sequences seq.csv --study s --site M": "seq.csv is not JSON",
    "site label {models} --sequences centre/ensemble.json --study s --site M": "must end in .csv",
    "site label {models} --sequences seq.csv --study t --site M": "belongs to the study 's'",
    "site label {models} other/XX.model.json --sequences seq.csv --study s --site M": "'other'",
    "site label {models} {labels} --sequences seq.csv --study s --site M": "kind 'labels'",
    "site label {models} --sequences covariates.csv --study s --site M": "--columns t1:t16",
    "site assign models/MGB.model.json --sequences seq.csv --study s": "kind 'model'",
    "site assign seq.csv --sequences seq.csv --study s": "seq.csv is not JSON",
    "site assign centre/ensemble.json --study s": "give sequences, --records or --study-file",
    # the centre's
    "centre combine {models} --study s": "there is no labels file",
    "centre combine {labels} --study s": "there are no model files",
    "centre combine {models} {labels} centre/ensemble.json --study s": "is an ensemble already",
    "centre combine {models} {labels} seq.csv --study s": "seq.csv is not JSON",
    "centre combine {models} {labels} --study s --weights heavy": "'heavy' is not one of",
    "exchange check seq.csv": "seq.csv is not JSON",
    "exchange check empty.csv": "empty.csv is not JSON",
    "exchange chekc seq.csv": "Did you mean 'check'?",
}


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_is_one_sentence_and_writes_nothing(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    files = {
        name: " ".join(sorted(str(p.relative_to(folder)) for p in (folder / name).iterdir()))
        for name in ("models", "labels")
    }
    words = shlex.split(command.format(**files))
    if words[0] == "prep" and "--drugs" not in words:
        words += ["--drugs", "ra"]
    assert MISTAKES[command] in refusal(*words)
    after = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert after == before


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_other_delimiters_and_a_byte_order_mark(
    separator: str, folder: Path, tmp_path: Path
) -> None:
    text = (folder / "wide.csv").read_text().replace(",", separator)
    (tmp_path / "a.csv").write_text(text, encoding="utf-8-sig")
    said = mmlca_does("fit", tmp_path / "a.csv", "-k", 1, "--out", tmp_path)
    assert "300 patients × 16 times (t1 … t16), 5 states" in said


def test_named_columns_leave_the_others_out(folder: Path, tmp_path: Path) -> None:
    data = folder / "covariates.csv"
    said = mmlca_does("fit", data, "-k", 1, "--columns", "t1:t4,t6", "--out", tmp_path)
    assert "300 patients × 5 times (t1 … t6)" in said


def test_a_site_lists_the_drugs_that_its_map_does_not_know(folder: Path, tmp_path: Path) -> None:
    records = tmp_path / "r.csv"
    records.write_text(RECORDS.replace("Enbrel", "Enbrol"))
    done = invoke(
        f"site fit --records {records} --study s --site M -k 1 --drugs ra --folder "
        f"{tmp_path}/site --n-init 2"
    )
    assert done.exit_code == 0, done.output
    assert "note: 25.0 % of the records" not in done.stderr  # those patients have no other drug
    table = pd.read_csv(tmp_path / "site/unmapped.csv")
    assert table.iloc[0].to_list() == ["Enbrol", 300, 25, "Enbrel"]
    assert (tmp_path / "site/unmapped.csv").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("preset", [None, "ra"])
def test_records_of_a_site_follow_the_rules_of_prep(
    folder: Path, tmp_path: Path, preset: str | None
) -> None:
    """They once followed the rules of the RA study, which nobody had asked for."""
    frame = pd.read_csv(folder / "records.csv")
    frame["date"] = frame["date"].str.replace("2010-", "2007-").str.replace("2014-", "2022-")
    frame.to_csv(tmp_path / "r.csv", index=False)
    asked = ["--drugs", "ra"] if preset is None else ["--preset", preset]
    mmlca_does("prep", tmp_path / "r.csv", "--out", tmp_path / "s.csv", *asked)
    prepared = mmlca.Sequences.read(tmp_path / "s.csv")
    said = mmlca_does(
        f"site fit --records {tmp_path}/r.csv --study s --site M -k 1 --folder "
        f"{tmp_path}/site --n-init 2",
        *asked,
    )
    assert f"Sequences: {len(prepared)} patients × 16 times" in said
    assert f"{len(prepared.states)} states" in said
    whose = "the defaults of `mmlca prep`" if preset is None else "those of --preset ra"
    first = "death = end" if preset is None else "first_on_or_after = 2008-01-01"
    assert f"Rules for the sequences: {whose} ({first}, " in said
    assert (len(prepared), len(prepared.states)) == ((100, 6) if preset is None else (75, 5))
    wrong = ("site", "fit", tmp_path / "s.csv", "--study", "s", "--site", "M", "-k", 1)
    assert "--preset goes with --records" in refusal(*wrong, "--preset", "ra")


def test_the_other_columns_of_a_table_are_covariates(folder: Path, tmp_path: Path) -> None:
    data = mmlca.Sequences.read(folder / "covariates.csv", columns="t1:t16")
    table = pd.read_csv(folder / "covariates.csv", index_col="id")
    assert data.covariates is not None
    assert data.covariates["age"].to_list() == table["age"].to_list()  # as numbers
    assert list(data.covariates.columns) == ["sex", "age"]
    chosen = data.select(list(data.ids[5:9]))
    assert chosen.covariates is not None
    assert chosen.covariates.index.equals(chosen.ids)
    assert chosen.covariates["age"].to_list() == table["age"].iloc[5:9].to_list()
    assert data.reweight(data.weights * 2).covariates is data.covariates
    assert mmlca.Sequences.read(folder / "wide.csv").covariates is None
    frame = pd.read_csv(folder / "wide.csv")
    fitted = mmlca.MixtureMarkov(1).fit(frame)
    assert fitted.n_sequences_ == len(frame)


def test_tables_of_sequences_in_another_encoding(tmp_path: Path) -> None:
    text = "id;t1;t2\n" + "".join(f"{i};Malmö;{'AB'[i % 2]}\n" for i in range(40))
    (tmp_path / "s.csv").write_bytes(text.encode("cp1252"))
    assert "Malmö" in mmlca_does("fit", tmp_path / "s.csv", "-k", 1, "--out", tmp_path / "out")


def test_python_is_told_in_python(folder: Path) -> None:
    frame = pd.read_csv(folder / "covariates.csv")
    with pytest.raises(
        ValueError, match=r"not look like times: 'sex', 'age' .* columns='t1:t16'\.$"
    ):
        mmlca.MixtureMarkov(2).fit(frame)
    named = mmlca.Sequences.from_frame(frame, columns="t1:t16")
    assert named.times == tuple(f"t{i}" for i in range(1, 17))
    study = folder / "columns.toml"
    study.write_text((folder / "covariates.toml").read_text() + 'columns = "t1:t16"\n')
    assert (read_site(read_study(study), "A").codes == named.codes).all()


def test_too_many_classes_are_noted(folder: Path, tmp_path: Path) -> None:
    done = invoke("fit", folder / "seq.csv", "-k", 30, "--n-init", 1, "--out", tmp_path)
    assert done.exit_code == 0
    assert "30 classes have 749 free parameters for 300 patients; ask for fewer" in done.stderr


def test_init_writes_names_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    mmlca_does("study", "init", path, "--site", "Malmö", "--site", "Malmö", "--name", 'A "B" & C')
    text = path.read_text(encoding="utf-8")
    assert '[sites."Malmö"]' in text
    assert r'name = "A \"B\" & C"' in text


# --- files that are not what they seem --------------------------------------------------


def parquet(path: Path, metadata: dict[bytes, bytes], **columns: list[object]) -> Path:
    table = pa.table(columns or {"id": [1, 2], "t1": ["A", "B"], "t2": ["A", "B"]})
    pq.write_table(table.replace_schema_metadata(metadata), path)
    return path


@pytest.mark.parametrize(
    ("metadata", "columns", "words"),
    [
        ({b"mmlca": b"\xff\xfe"}, {}, "its description is damaged"),
        ({b"mmlca": b'{"states": 1, "times": 2, "ids": 3}'}, {}, "its description is damaged"),
        (
            {b"mmlca": b'{"states": ["A"], "times": [1], "ids": "integer"}'},
            {"id": ["x"], "weight": [1.0], "length": [1], "t:1": ["A"]},
            "has ids, weights or lengths of another kind than its description says",
        ),
        ({}, {"id": [1], "t1": [[1]]}, "has lists or structures in 't1'; give plain columns"),
    ],
)
def test_strange_parquet_files(
    metadata: dict[bytes, bytes], columns: dict[str, list[object]], words: str, tmp_path: Path
) -> None:
    path = parquet(tmp_path / "s.parquet", metadata, **columns)
    assert words in refusal("fit", path, "-k", 1, "--out", tmp_path / "out")


def test_what_pandas_says_about_a_file_is_not_needed(tmp_path: Path) -> None:
    path = parquet(tmp_path / "s.parquet", {b"pandas": b"not json"})
    assert "2 patients" in mmlca_does("fit", path, "-k", 1, "--out", tmp_path / "out")


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="files of Linux")
@pytest.mark.parametrize("target", [None, "/proc/self/mem", "/proc/self/environ", "/dev/zero"])
def test_pipes_devices_and_the_running_system_are_no_input(
    target: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "x.csv"
    os.mkfifo(path) if target is None else path.symlink_to(target)
    (tmp_path / "r.csv").write_text(RECORDS)
    for command in (
        ("fit", path, "-k", 1),
        ("select", tmp_path / "r.csv", path),
        ("prep", path, "--out", tmp_path / "o.csv"),
        ("prep", tmp_path / "r.csv", "--patients", path, "--out", tmp_path / "o.csv"),
        ("study", "run", path),
        ("exchange", "check", path),
    ):
        assert "x.csv is not a plain file but a pipe, a device or part" in refusal(*command)
    if target is not None and target.startswith("/proc"):
        (tmp_path / "s.toml").write_text(STUDY.replace("records.csv", "x.csv"))
        for command in (
            ("study", "run", tmp_path / "s.toml", "--out", tmp_path / "out"),
            ("site", "fit", "--study-file", tmp_path / "s.toml", "--folder", tmp_path / "site"),
        ):
            assert "x.csv is not a plain file" in refusal(*command)


@pytest.mark.parametrize("encoding", ["utf-16", "nope", "rot13", "utf\0"])
def test_encodings_that_do_not_fit(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text(RECORDS)
    out = ("--out", tmp_path / "o.csv")
    said = refusal("prep", tmp_path / "r.csv", "--drugs", "ra", "--encoding", encoding, *out)
    assert "is not utf-16 text" in said or "is not known; --encoding latin-1 is one" in said


def test_files_that_are_nested_too_deeply(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(f'name = "S"\nx = {"[" * 3000}{"]" * 3000}\n')
    assert "nested too deeply" in refusal("study", "run", tmp_path / "s.toml")


def test_names_that_look_like_mathematics(tmp_path: Path) -> None:
    from mmlca.study.report.exports import to_pictures

    pictures = to_pictures(lambda: Figure().suptitle("$x^$").figure, 50)
    assert pictures["png"][:4] == b"\x89PNG"
    for name in ("$x^$", "$y^$"):
        ra_like(60, seed=1).write(tmp_path / f"{name}.csv")
    files = [tmp_path / f"{name}.csv" for name in ("$x^$", "$y^$")]
    mmlca_does("select", *files, "-k", "1-2", "--n-init", 2, "--out", tmp_path / "out")


def test_sequences_without_a_single_step(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text("id,t1\n" + "".join(f"{i},{'AB'[i % 2]}\n" for i in range(40)))
    assert "40 patients" in mmlca_does("fit", path, "-k", 1, "--out", tmp_path / "out")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"format":"font exchange","x":"' + "a" * 9_000_000 + '"}', "at most 8,388,608 are read"),
        ('{"format":"font exchange","x":[' + "1," * 700_000 + "1]}", "more than 600,000 values"),
    ],
)
def test_files_that_are_too_large_are_no_bug_of_the_program(
    content: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "big.json"
    path.write_text(content)
    assert words in refusal("exchange", "check", path)


def test_a_name_of_ten_million_letters_is_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(f'name = "{"x" * 10_000_000}"\n[sites.A]\nrecords = "r.csv"\ndrugs = "ra"\n')
    sentence = refusal("study", "run", path, "--out", tmp_path / "out")
    assert len(sentence) < 2_100
