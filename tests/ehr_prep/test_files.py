"""Files as hospitals write them: encodings, delimiters, decimals, Excel, packed, several."""

from __future__ import annotations

import gzip
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openpyxl
import pandas as pd
import pyarrow as pa
import pytest
from paths import SHARED

import ehr_prep
from ehr_prep.values import decimal_sign, to_numbers
from font.errors import spelled
from font.sniff import sniff
from mmlca.cli.options import as_key, as_option

pytestmark = pytest.mark.filterwarnings("ignore:.* is not UTF-8 and was read as cp1252")

N = 40
GOOD = pd.DataFrame(
    {
        "patient_id": np.arange(N) % 8 + 1,
        "date": [f"20{10 + i % 5}-0{1 + i % 9}-{13 + i % 15}" for i in range(N)],
        "drug": [("Humira", "Orencia", "Rinvoq", "für später")[i % 4] for i in range(N)],
        "days_supply": [30.5] * N,
    }
)


def same(a: ehr_prep.Records, b: ehr_prep.Records) -> bool:
    return (
        list(a.ids) == list(b.ids)
        and bool((a.date == b.date).all() and (a.end == b.end).all())
        and bool((a.state == b.state).all())
        and a.unmapped.equals(b.unmapped)
    )


def zstd(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return bytes(sink.getvalue())


def german(frame: pd.DataFrame) -> str:
    dates = pd.to_datetime(frame["date"]).dt.strftime("%d.%m.%Y")
    return frame.assign(date=dates).to_csv(index=False, sep=";", decimal=",")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16"])
@pytest.mark.parametrize("ending", ["csv", "txt", "csv.gz", "csv.zst"])
def test_a_german_file_reads_like_the_table(encoding: str, ending: str, tmp_path: Path) -> None:
    content = german(GOOD).encode(encoding)
    pack = {"csv.gz": gzip.compress, "csv.zst": zstd}.get(ending, bytes)
    path = tmp_path / f"r.{ending}"
    path.write_bytes(pack(content))
    records = ehr_prep.read_records(path, drugs="ra")
    assert same(records, ehr_prep.read_records(GOOD, drugs="ra"))
    (file,) = records.settings["files"]
    assert file["delimiter"] == "semicolon"
    assert file["encoding"] == {"utf-8-sig": "utf-8"}.get(encoding, encoding)
    assert f"{path.name} (encoding {file['encoding']}, delimiter semicolon)" in repr(records)


def test_letters_beyond_the_first_bytes_decide_the_encoding_too(tmp_path: Path) -> None:
    many = pd.concat([GOOD[GOOD["drug"] != "für später"]] * 3000, ignore_index=True)
    late = pd.concat([many, GOOD], ignore_index=True)
    path = tmp_path / "r.csv"
    path.write_bytes(late.to_csv(index=False).encode("cp1252"))
    assert path.stat().st_size > 1 << 20
    records = ehr_prep.read_records(path, drugs="ra")
    assert records.settings["files"][0]["encoding"] == "cp1252"
    assert records.unmapped["drug"].to_list() == ["für später"]


def test_excel_takes_the_sheet_with_the_columns(tmp_path: Path) -> None:
    path = tmp_path / "r.xlsx"
    with pd.ExcelWriter(path) as book:
        pd.DataFrame({"note": ["made up"]}).to_excel(book, sheet_name="about", index=False)
        dated = GOOD.assign(date=pd.to_datetime(GOOD["date"]))
        dated.to_excel(book, sheet_name="data", index=False)
    records = ehr_prep.read_records(path, drugs="ra")
    assert same(records, ehr_prep.read_records(GOOD, drugs="ra"))
    assert records.settings["files"] == [{"file": "r.xlsx", "sheet": "data"}]
    with pytest.raises(
        ValueError, match=r"no sheet of r\.xlsx \('about', 'data'\) can be used; in"
    ):
        ehr_prep.read_records(path, drugs="ra", drug="Wirkstoff")


def stray_cell(path: Path) -> None:
    book = openpyxl.Workbook()
    book.active.append(["patient_id", "date", "drug"])
    book.active["XFD1048576"] = "x"
    book.save(path)


def zip_bomb(path: Path) -> None:
    """A sheet with 200 MB of spaces, which are 0.2 MB in the archive."""
    book = openpyxl.Workbook()
    book.active.append(["patient_id", "date", "drug"])
    book.save(path.with_name("good.xlsx"))
    with (
        zipfile.ZipFile(path.with_name("good.xlsx")) as good,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bomb,
    ):
        for name in good.namelist():
            content = good.read(name)
            with bomb.open(name, "w") as file:
                file.write(content[: -len("</worksheet>")])
                if "worksheets" in name:
                    file.writelines([b" " * 1_000_000] * 200)
                file.write(content[-len("</worksheet>") :])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (stray_cell, r"reaches to row 1,048,576 and column 16,384 but has 4 cells; delete"),
        (zip_bomb, "unpacks to more than 200 times its size"),
    ],
)
def test_workbooks_that_would_fill_the_memory_are_refused(
    make: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    """A table of 17 billion cells from one stray cell, or gigabytes from a small archive."""
    path = tmp_path / "records.xlsx"
    make(path)
    assert path.stat().st_size < 500_000
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=words):
            ehr_prep.read_records(path, drugs=ehr_prep.RA_DRUGS)
        assert tracemalloc.get_traced_memory()[1] < 50 * 2**20
    finally:
        tracemalloc.stop()


def test_without_openpyxl_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    GOOD.to_excel(tmp_path / "r.xlsx", index=False)
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(ValueError, match=r"`pip install 'mmlca\[files\]'`"):
        ehr_prep.read_records(tmp_path / "r.xlsx", drugs="ra")


def test_several_files_are_one_table_however_each_is_written(tmp_path: Path) -> None:
    first, second, third = GOOD[:10], GOOD[10:25], GOOD[25:]
    (tmp_path / "r_1.csv").write_text(first.to_csv(index=False))
    (tmp_path / "r_2.csv").write_bytes(
        second.rename(columns={"patient_id": "PatientID"})
        .to_csv(index=False, sep=";")
        .encode("cp1252")
    )
    third.to_parquet(tmp_path / "r_3.parquet")
    expected = ehr_prep.read_records(GOOD, drugs="ra")
    names = ["r_1.csv", "r_2.csv", "r_3.parquet"]
    records = ehr_prep.read_records([tmp_path / name for name in names], drugs="ra")
    assert same(records, expected)
    assert [file["file"] for file in records.settings["files"]] == names
    assert records.settings["source"] == "r_1.csv and 2 other files"
    assert same(ehr_prep.read_records(str(tmp_path / "r_*"), drugs="ra"), expected)
    third.to_excel(tmp_path / "r_3.xlsx", index=False)
    assert same(
        ehr_prep.read_records(
            [*(tmp_path / n for n in names[:2]), tmp_path / "r_3.xlsx"], drugs="ra"
        ),
        expected,
    )


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("none_*.csv", "no file matches '.*none_"),
        (".", r"is a folder; name the files in it, as in '.*/\*.csv'"),
        ("r.zip", "unpack it first"),
        ("r.xls", "save it as .xlsx"),
        ("damaged.csv.gz", "cannot be unpacked"),
        ("binary.csv", "holds zero bytes"),
        ("title.csv", r"a later line \('patient_id', .*\) looks like it; delete the lines"),
    ],
)
def test_files_that_cannot_be_read(source: str, words: str, tmp_path: Path) -> None:
    text = GOOD.to_csv(index=False)
    (tmp_path / "a.csv").write_text(text)
    (tmp_path / "damaged.csv.gz").write_bytes(b"no gzip at all")
    (tmp_path / "binary.csv").write_bytes(b"a,b\n\0\0\0")
    (tmp_path / "title.csv").write_text(f"Export of 2024-05-01\nPharmacy\n{text}")
    with pytest.raises(ValueError, match=words):
        ehr_prep.read_records(str(tmp_path / source), drugs="ra")
    with pytest.raises(ValueError, match="named twice"):
        ehr_prep.read_records([tmp_path / "a.csv", tmp_path / "a.csv"], drugs="ra")


def test_rows_of_one_site_among_several() -> None:
    both = GOOD.assign(site=["MGB", "VA"] * (N // 2))
    expected = ehr_prep.read_records(both[both["site"] == "VA"], drugs="ra")
    assert same(ehr_prep.read_records(both, drugs="ra", where={"site": "VA"}), expected)
    with pytest.raises(ValueError, match="no row with site = 'XX'; it has 'MGB', 'VA'"):
        ehr_prep.read_records(both, drugs="ra", where={"site": "XX"})


# --- columns ------------------------------------------------------------------------------


def test_advice_names_the_likeliest_columns_as_the_user_writes_them(tmp_path: Path) -> None:
    columns = {"patient_id": "Kennung", "date": "Tag", "drug": "Arznei", "days_supply": "x"}
    path = tmp_path / "r.csv"
    path.write_text(
        GOOD.rename(columns=columns)[["x", "Arznei", "Tag", "Kennung"]].to_csv(index=False)
    )

    def said(**named: str) -> str:
        with pytest.raises(ValueError, match="looks like the") as caught:
            ehr_prep.read_records(path, "ra", **named)
        return str(caught.value)

    everything = said()  # all that is needed in one message, not one column at a time
    assert "looks like the patient, the date or the drug: it has 'x', " in everything
    assert everything.endswith("as in patient='Kennung', date='Tag' and drug='Arznei'.")
    with spelled(as_option):
        text = said(patient="Kennung")
        assert text.endswith("as in --date-column Tag and --drug-column Arznei.")
        assert said(patient="Kennung", drug="Arznei").endswith("as in --date-column Tag.")
    with spelled(as_key):
        text = said(patient="Kennung", date="Tag")
        assert "the closest are 'Arznei', 'x'" in text
        assert text.endswith('as in [records.columns] drug = "Arznei".')
        people = pd.DataFrame({"Kennung": [1], "sex": ["F"]})
        with pytest.raises(ValueError, match=r'as in \[patients.columns\] patient = "Kennung"\.'):
            ehr_prep.read_records(GOOD, drugs="ra", patients=people)
    with pytest.raises(ValueError, match=r"has no column 'drugs'; .* the closest are 'drug', "):
        ehr_prep.read_records(GOOD, drugs="ra", drug="drugs")
    with pytest.raises(ValueError, match=r"no columns 'dat' and 'drugs'; .* name them as in date="):
        ehr_prep.read_records(GOOD, drugs="ra", drug="drugs", date="dat")


@pytest.mark.parametrize(
    ("role", "column"),
    [
        *(("death_date", name) for name in ("DateOfDeath", "DeathDate", "dod", "death_dt")),
        *(("death_date", name) for name in ("deceased_date", "Date of death", "PATIENT_DEATH_DT")),
        *(("death_date", name) for name in ("died_on", "deathtime", "DTHDTC")),
        *(("follow_up_end", name) for name in ("LastContact", "FollowUpEnd", "last_seen")),
        *(("follow_up_end", name) for name in ("last_encounter", "last_visit", "LastFollowupDate")),
        *(("follow_up_end", name) for name in ("end_of_followup", "enrollment_end", "CensorDate")),
        *(("follow_up_end", name) for name in ("disenrollment_date", "exit_dt", "DTEND")),
        *(("birth_date", name) for name in ("DateOfBirth", "BirthDate", "patient_dob", "BIRTH_DT")),
    ],
)
def test_dates_of_patients_are_recognised(role: str, column: str) -> None:
    """Death and follow-up in columns of other names were ignored without a word."""
    people = pd.DataFrame({"id": [1, 2], column: ["2001-02-03", None], "sex": ["F", "M"]})
    table = ehr_prep.read_patients(people)
    assert list(table.columns) == [role, "sex"]
    assert str(table.loc[1, role])[:10] == "2001-02-03"


@pytest.mark.parametrize(
    "columns",
    [
        ("PatNr", "admin_datetime", "Medication"),
        ("member_id", "SERVICE_DATE", "NDC"),
        ("ENROLID", "svcdate", "ndcnum"),
        ("BENE_ID", "SRVC_DT", "PROD_SRVC_ID"),
        ("Subject ID", "starttime", "DrugName"),
    ],
)
def test_records_of_ehrs_and_claims_are_recognised(columns: tuple[str, str, str]) -> None:
    frame = GOOD[["patient_id", "date", "drug"]].set_axis(list(columns), axis=1)
    read = ehr_prep.read_records(frame, drugs="ra")
    assert tuple(read.settings["columns"].values()) == columns


def test_a_column_that_says_whether_somebody_died_is_not_a_date() -> None:
    people = pd.DataFrame({"id": range(1, 9), "death": [0, 1] * 4, "born": ["1950-01-01"] * 8})
    read = ehr_prep.read_records(GOOD, drugs="ra", patients=people)
    assert read.patients is not None
    assert read.patients["death"].to_list() == [(i - 1) % 2 for i in read.ids]
    assert read.settings["patients_columns"] == {
        "patient": "id",
        "follow_up_end": None,
        "birth_date": "born",
        "death_date": None,
        "others": ["death"],
    }
    assert (
        "birth_date = 'born', death_date = none found\n            other columns: 'death'"
        in str(read)
    )
    both = people.assign(dod=["2020-01-01", None] * 4)
    assert "death_date" in ehr_prep.read_patients(both)


def test_another_column_than_the_one_with_the_usual_name() -> None:
    """It was "cannot insert death_date, already exists"."""
    people = pd.DataFrame({"id": [1], "death_date": ["2001-01-01"], "registry": ["2002-02-02"]})
    table = ehr_prep.read_patients(people, death_date="registry")
    assert [str(value)[:10] for value in table.loc[1]] == ["2002-02-02", "2001-01-01"]
    assert list(table.columns) == ["death_date", "other_death_date"]


# --- several files ------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "parquet", "xlsx"])
@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_days_of_supply_in_one_of_two_files(
    ending: str, order: tuple[str, str], tmp_path: Path
) -> None:
    """They were lost if the first file had none, and a KeyError if the second had none."""
    first = GOOD[: N // 2].drop(columns="days_supply")
    second = GOOD[N // 2 :].rename(columns={"patient_id": "person_id", "days_supply": "supply"})
    for name, frame in (("a", first), ("b", second)):
        path = tmp_path / f"{name}.{ending}"
        if ending == "csv":
            frame.to_csv(path, index=False)
        elif ending == "parquet":
            frame.to_parquet(path)
        else:
            frame.to_excel(path, index=False)
    paths = [tmp_path / f"{name}.{ending}" for name in order]
    whole = GOOD.assign(days_supply=[None] * (N // 2) + [30.5] * (N // 2))
    assert same(ehr_prep.read_records(paths, drugs="ra"), ehr_prep.read_records(whole, drugs="ra"))
    read = ehr_prep.read_records(paths, drugs="ra", default_supply=14)
    assert same(read, ehr_prep.read_records(whole, drugs="ra", default_supply=14))
    issue = read.issues.set_index("issue").loc["file without an end or a supply"]
    assert (issue["n"], issue["examples"]) == (1, f"'a.{ending}'")
    assert f"columns   b.{ending}: patient = 'person_id'" in str(read)


def test_columns_of_single_files(tmp_path: Path) -> None:
    """Two files with columns of other names could not be read together."""
    first, second = GOOD[: N // 2], GOOD[N // 2 :]
    second = second.rename(columns={"patient_id": "Kennung", "date": "Tag", "drug": "Arznei"})
    first.to_csv(tmp_path / "a.csv", index=False)
    second.to_csv(tmp_path / "b_2019.csv", index=False)
    paths = [tmp_path / "a.csv", tmp_path / "b_2019.csv"]
    named = {"patient": "Kennung", "date": "Tag", "drug": "Arznei"}
    whole = ehr_prep.read_records(GOOD, drugs="ra")
    assert same(ehr_prep.read_records(paths, drugs="ra", file_columns={"b_2019.csv": named}), whole)
    assert same(ehr_prep.read_records(paths, drugs="ra", file_columns={"b_*.csv": named}), whole)
    with spelled(as_option), pytest.raises(ValueError, match="looks like") as caught:
        ehr_prep.read_records(paths, drugs="ra")
    assert str(caught.value).endswith(
        "as in --file-column b_2019.csv:patient=Kennung --file-column b_2019.csv:date=Tag "
        "--file-column b_2019.csv:drug=Arznei."
    )
    for wrong, message in (
        ({"c.csv": named}, r"names the file 'c.csv', which is not read; the files are 'a.csv', "),
        ({"a.csv": {"Tag": "date"}}, "names 'Tag' of 'a.csv'; known are patient, date, "),
    ):
        with pytest.raises(ValueError, match=message):
            ehr_prep.read_records(paths, drugs="ra", file_columns=wrong)


def test_patients_in_two_files_keep_the_columns_of_both(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,sex,bmi\n1,F,20\n2,M,21\n")
    (tmp_path / "b.csv").write_text("person_id,bmi,race,dod\n3,20.5,x,2020-01-01\n")
    table = ehr_prep.read_patients([tmp_path / "a.csv", tmp_path / "b.csv"])
    assert table["bmi"].to_list() == [20, 21, 20.5]
    assert table["sex"].to_list()[:2] == ["F", "M"]
    assert table[["sex", "race", "death_date"]].isna().sum().to_list() == [1, 2, 2]
    (tmp_path / "b.csv").write_text("PatNr,id\n3,20.5\n")
    with pytest.raises(ValueError, match=r"b\.csv has a column 'id', which is the patient in ano"):
        ehr_prep.read_patients([tmp_path / "a.csv", tmp_path / "b.csv"])


def test_columns_of_every_table_can_be_named() -> None:
    people = pd.DataFrame({"Nr": range(1, 9), "Geb": ["1950-01-01"] * 8, "sex": ["F"] * 8})
    labs = pd.DataFrame({"Nr": [1], "Tag": ["2020-01-05"]})
    records = ehr_prep.read_records(
        GOOD,
        drugs="ra",
        patients=people,
        patients_columns={"patient": "Nr", "birth_date": "Geb"},
        labs=labs,
        labs_columns={"patient": "Nr", "date": "Tag"},
    )
    assert records.patients is not None
    assert list(records.patients.columns) == ["birth_date", "sex"]
    assert records.last_seen[0] == np.datetime64("2020-01-05").astype(int)
    with pytest.raises(ValueError, match="patients_columns names 'geb'; known are patient, "):
        ehr_prep.read_records(GOOD, drugs="ra", patients=people, patients_columns={"geb": "Geb"})


# --- numbers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "sign"),
    [
        (["12,5", "7", ">3"], ","),
        (["12.5", "7"], "."),
        (["1,234", "12.5"], "."),
        (["7", "8"], "."),
        (["1.234,5"], "."),
        (["0,125"], ","),
    ],
)
def test_the_decimal_sign_shows_in_the_values(texts: list[str], sign: str) -> None:
    assert decimal_sign(texts, "t") == sign


def test_decimals_by_hand() -> None:
    assert to_numbers(["1.234,5", "0,5", "7", 3, " 2,0 "], ",").tolist() == [1234.5, 0.5, 7, 3, 2]
    assert to_numbers(["1,234.5", ".5", "7", 3.5], ".").tolist() == [1234.5, 0.5, 7, 3.5]
    assert np.isnan(to_numbers(["1,5", "<2", "", "1,23.4"], ".")).all()
    with pytest.raises(ValueError, match=r"decimal comma or sets thousands apart.*decimal=','"):
        decimal_sign(["1,234", "2,000"], "labs.csv")
    with pytest.raises(ValueError, match="decimal is ';' and should be"):
        ehr_prep.read_records(GOOD, drugs="ra", decimal=";")


def test_labs_with_commas_and_dots(tmp_path: Path) -> None:
    path = tmp_path / "labor.csv"
    path.write_bytes(
        "PatNr;Tag;Wert;Test\n1;13.01.2020;7,4;Größe\n1;14.01.2020;<2;Größe\n".encode("cp1252")
    )
    labs = ehr_prep.read_labs(path, patient="PatNr", date="Tag", value="Wert")
    assert labs["value"].to_list() == [7.4, "<2"]
    assert labs["date"].dt.day.to_list() == [13, 14]
    assert labs["test"].to_list() == ["Größe", "Größe"]


def test_a_delimiter_and_an_encoding_may_be_stated(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_bytes(GOOD.to_csv(index=False, sep="~").encode("cp1252"))
    assert len(ehr_prep.read_records(path, drugs="ra", delimiter="~")) == 30
    path.write_text(GOOD.to_csv(index=False, sep="\t"))
    assert sniff(path, delimiter="tab").delimiter == sniff(path).delimiter == "\t"
    for wrong in ("", "ab", "x", '"'):
        with pytest.raises(ValueError, match=r"delimiter (must be one|is .* at least 1) character"):
            ehr_prep.read_records(path, drugs="ra", delimiter=wrong)


# --- drugs --------------------------------------------------------------------------------


def test_codes_get_their_names() -> None:
    frame = GOOD.assign(drug_concept_id=[1, 2, 3, 4] * (N // 4), drug="7.0")
    names = pd.DataFrame({"concept_id": [1, 2, 3], "concept_name": ["Humira", "Orencia", "x"]})
    records = ehr_prep.read_records(frame, drugs="ra", drug_names=names)
    assert records.settings["columns"]["drug"] == "drug_concept_id"
    assert records.drugs["class"].to_list() == ["TNFi", "CTLA4-Ig", None, None]
    assert records.unmapped["drug"].to_list() == ["x", 4]
    with pytest.raises(ValueError, match="say what the codes stand for, as in drug_names="):
        ehr_prep.read_records(
            frame.assign(drug="308182.0").drop(columns="drug_concept_id"), drugs="ra"
        )
    with pytest.raises(ValueError, match="rename 'x' to concept_name"):
        ehr_prep.read_records(
            frame, drugs="ra", drug_names=pd.DataFrame({"concept_id": [1], "x": ["a"]})
        )


def test_a_drug_map_may_be_written_in_any_way(tmp_path: Path) -> None:
    table = pd.DataFrame({"drug": ["für später", "Humira"], "class": ["B", "A"]})
    (tmp_path / "a.csv").write_bytes(f"# ä\n{table.to_csv(index=False, sep=';')}".encode("cp1252"))
    (tmp_path / "b.csv").write_text(table.to_csv(index=False), encoding="utf-8-sig")
    table.to_excel(tmp_path / "c.xlsx", index=False)
    for name in ("a.csv", "b.csv", "c.xlsx"):
        known = ehr_prep.drug_map(tmp_path / name)
        assert known.table["drug"].to_list() == table["drug"].to_list(), name
        assert known.states == ("B", "A")


def test_code_columns_by_rxcui_and_ndc() -> None:
    drugs = pd.DataFrame(
        {
            "drug": ["327361", "0074-3799-02", "L04AB*"],
            "class": ["A", "A", "B"],
            "vocabulary": ["rxcui", "ndc", "atc"],
        }
    )
    for column, values in {
        "RxCUI": [327361, 5],
        "rxnorm": ["327361.0", "5.0"],
        "NDC": ["00074379902", "1"],
        "ndc_code": ["0074-3799-02", "1"],
        "ATC": ["L04AB04", "M01"],
    }.items():
        frame = pd.DataFrame({"id": [1, 1], "date": ["2010-01-05", "2010-02-05"], column: values})
        read = ehr_prep.read_records(frame, drugs)
        assert read.drugs["class"].notna().to_list() == [True, False], column
        assert ehr_prep.drug_report(read)["class"].isna().to_list() == [True, False]


# --- exports that nobody here made --------------------------------------------------------

OWN = {"lisinopril": "ACE", "simvastatin": "statin", "hydrochlorothiazide": "diuretic"}


@pytest.mark.skipif(not (SHARED / "synthea").exists(), reason="no reference data")
def test_a_synthea_export() -> None:
    folder = SHARED / "synthea"
    read = ehr_prep.read_records(folder / "medications.csv", OWN, patients=folder / "patients.csv")
    assert read.settings["columns"] == {
        "patient": "PATIENT",
        "date": "START",
        "drug": "DESCRIPTION",
        "end": "STOP",
    }
    table = pd.read_csv(folder / "medications.csv")
    ours = table["DESCRIPTION"].str.lower().str.contains("|".join(OWN))
    assert len(read.ids) == table.loc[ours, "PATIENT"].nunique()
    assert len(ehr_prep.build_sequences(read, first_on_or_after=None)) > 0


@pytest.mark.skipif(not (SHARED / "omop").exists(), reason="no reference data")
def test_tables_of_an_omop_database() -> None:
    folder = SHARED / "omop"
    read = ehr_prep.read_records(
        folder / "drug_exposure.parquet",
        OWN,
        patients=folder / "person.parquet",
        labs=folder / "measurement.parquet",
        drug_names=folder / "concept.parquet",
    )
    exposure = pd.read_parquet(folder / "drug_exposure.parquet")
    names = pd.read_parquet(folder / "concept.parquet").set_index("concept_id")["concept_name"]
    text = exposure["drug_concept_id"].map(names).str.lower()
    ours = text.str.contains("|".join(OWN)).fillna(False).astype(bool)
    assert list(read.ids) == sorted(exposure.loc[ours, "person_id"].unique())
    assert read.flow["records_left"].iloc[0] == len(exposure)
    labs = ehr_prep.read_labs(folder / "measurement.parquet")
    assert labs["value"].map(lambda v: isinstance(v, float)).mean() > 0.5


def test_a_quotation_mark_that_is_never_closed(tmp_path: Path) -> None:
    """The last record would swallow all lines after it without a word."""
    path = tmp_path / "records.csv"
    path.write_text('patient_id,date,drug\n1,2010-01-01,"humira\n2,2011-01-01,enbrel\n')
    with pytest.raises(ValueError, match=r"records\.csv has a quotation mark that is never closed"):
        ehr_prep.read_records(path, drugs=ehr_prep.RA_DRUGS)
    path.write_text('patient_id,date,drug\n1,2010-01-01,"humira\npen"\n')
    assert len(ehr_prep.read_records(path, drugs=ehr_prep.RA_DRUGS)) == 1


def test_a_decimal_sign_that_cannot_be_is_refused() -> None:
    frame = GOOD.assign(days_supply="30,5")
    with pytest.raises(ValueError, match=r"decimal='\.' cannot read 1 of the 1 different numbers"):
        ehr_prep.read_records(frame, drugs="ra", decimal=".")
    assert ehr_prep.read_records(frame, drugs="ra", decimal=",").end is not None


def test_a_column_has_one_meaning() -> None:
    with pytest.raises(ValueError, match=r"'date' .* both as the date and as the drug; name a"):
        ehr_prep.read_records(GOOD, drugs="ra", drug="date", date="date")
    frame = GOOD.set_axis(["patient_id", *GOOD.columns[1:]], axis=1)
    with pytest.raises(ValueError, match="is named as the date, and no other looks like the pat"):
        ehr_prep.read_records(frame, drugs="ra", date="patient_id")


def test_rows_are_chosen_by_a_column_that_is_there() -> None:
    with pytest.raises(ValueError, match=r"has no column 'hospital', by which where chooses rows"):
        ehr_prep.read_records(GOOD, drugs="ra", where={"hospital": "A"})
