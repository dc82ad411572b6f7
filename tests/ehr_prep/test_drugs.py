from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import ehr_prep
from ehr_prep import RA_DRUGS, drug_map, drug_report


def classes(*texts: object) -> list[str | None]:
    return RA_DRUGS.classify(texts)["class"].to_list()


def test_the_map_has_five_classes_and_twelve_ingredients() -> None:
    assert RA_DRUGS.states == ("TNFi", "CTLA4-Ig", "IL6R", "JAK", "anti-CD20")
    assert RA_DRUGS.ingredients == {
        "TNFi": ["adalimumab", "etanercept", "infliximab", "certolizumab pegol", "golimumab"],
        "CTLA4-Ig": ["abatacept"],
        "IL6R": ["tocilizumab", "sarilumab"],
        "JAK": ["tofacitinib", "baricitinib", "upadacitinib"],
        "anti-CD20": ["rituximab"],
    }
    vocabularies = RA_DRUGS.table.groupby("ingredient")["vocabulary"].agg(set)
    assert vocabularies.map(lambda v: {"name", "brand", "atc", "rxcui", "omop"} <= v).all()
    assert (
        "RxNorm" in Path(ehr_prep.drugs.__file__).with_name("maps").joinpath("ra.csv").read_text()
    )


@pytest.mark.parametrize(
    ("text", "state", "rule"),
    [
        ("adalimumab", "TNFi", "name"),
        ("  CERTOLIZUMAB \t Pegol ", "TNFi", "name"),
        ("Orencia", "CTLA4-Ig", "brand"),
        ("Amjevita", "TNFi", "biosimilar"),
        ("adalimumab-aaty", "TNFi", "words"),
        ("RITUXIMAB-ABBS", "anti-CD20", "words"),
        ("l04ac07", "IL6R", "atc"),
        ("L04AA29", "JAK", "atc"),
        ("1357536", "JAK", "rxcui"),
        (614391, "CTLA4-Ig", "rxcui"),
        (614391.0, "CTLA4-Ig", "rxcui"),
        ("Humira(CF) Pen 40 mg/0.4 mL", "TNFi", "words"),
        ("infliximab-dyyb 100 mg IV", "TNFi", "words"),
        ("certolizumab pegol, 200 mg", "TNFi", "words"),
        ("0.4 ML adalimumab 100 MG/ML Auto-Injector [Humira]", "TNFi", "words"),
        ("1 ML etanercept 50 MG/ML Prefilled Syringe", "TNFi", "words"),
        ("infliximab IV infusion", "TNFi", "words"),
        ("10 ML rituximab 10 MG/ML Injection [Rituxan]", "anti-CD20", "words"),
        ("L04AF03 (upadacitinib)", "JAK", "words"),
    ],
)
def test_names_brands_codes_and_words_anywhere(text: object, state: str, rule: str) -> None:
    row = RA_DRUGS.classify([text]).iloc[0]
    assert (row["class"], row["rule"]) == (state, rule)


def test_what_is_not_a_drug_of_the_map_stays_unknown() -> None:
    unknown = ["methotrexate-aaty", "adalimumabum", "", "1186087", "L04A", "dose 327361 mg", "()"]
    assert classes(*unknown) == [None] * len(unknown)
    tests = ["infliximab antibodies", "Anti-adalimumab Ab", "Infliximab trough level", "TNF assay"]
    assert RA_DRUGS.classify(tests)["class"].isna().all()
    assert set(RA_DRUGS.classify(tests)["rule"]) == {"excluded"}
    assert classes("rituximab (monoclonal antibody)") == ["anti-CD20"]


DIABETES = pd.DataFrame(
    [
        ("metformin", "biguanide", "", ""),
        ("sitagliptin", "DPP-4", "", ""),
        ("Janumet", "biguanide + DPP-4", "brand", ""),
        ("insulin", "insulin", "", ""),
        ("insulin glargine", "basal insulin", "", ""),
        ("glargine lispro mix", "mixed insulin", "", ""),
        ("NovoRapid", "insulin", "brand", ""),
        ("A10BK*", "SGLT2", "atc", ""),
        ("0002-8215-01", "insulin", "", ""),
        ("", "GLP-1", "", r"\b(sema|lira|dula)glutide\b"),
        ("insulin pump", "-", "", ""),
    ],
    columns=["drug", "class", "vocabulary", "pattern"],
)


@pytest.mark.parametrize(
    ("text", "state", "rule", "matched"),
    [
        ("TAB METFORMIN 500MG", "biguanide", "words", "metformin"),
        (
            "24 HR Metformin hydrochloride 500 MG Extended Release Oral Tablet",
            "biguanide",
            "words",
            "metformin",
        ),
        ("NovoRapid FlexPen", "insulin", "words", "NovoRapid"),
        (
            "metformin/sitagliptin 850/50",
            "biguanide + DPP-4",
            "words",
            "metformin + sitagliptin",
        ),
        (
            "sitagliptin 50 MG / metformin hydrochloride 1000 MG Oral Tablet",
            "biguanide + DPP-4",
            "words",
            "sitagliptin + metformin",
        ),
        ("JANUMET XR", "biguanide + DPP-4", "words", "Janumet"),
        ("Insulin Glargine 100 UNT/ML", "basal insulin", "words", "insulin glargine"),
        ("insulin glargine lispro mix", "insulin + mixed insulin", "words", None),
        ("A10BK03", "SGLT2", "prefix", "A10BK*"),
        ("a10bk01 dapagliflozin", "SGLT2", "prefix", "A10BK*"),
        ("A10B", None, None, None),
        ("0002-8215-01", "insulin", "ndc", "0002-8215-01"),
        ("00002821501", "insulin", "ndc", "0002-8215-01"),
        ("Semaglutide 1 mg pen", "GLP-1", "pattern", r"\b(sema|lira|dula)glutide\b"),
        ("metformin + liraglutide", "biguanide + GLP-1", "words and pattern", None),
        ("insulin pump battery", None, "words", "insulin pump"),
        ("metforminum", None, None, None),
    ],
)
def test_combinations_prefixes_patterns_and_the_longest_match(
    text: str, state: str | None, rule: str | None, matched: str | None
) -> None:
    row = drug_map(DIABETES).classify([text]).iloc[0]
    assert (row["class"], row["rule"]) == (state, rule)
    if matched is not None:
        assert row["matched"] == matched


def test_a_fixed_combination_counts_for_both_classes_and_as_one_record() -> None:
    frame = pd.DataFrame(
        {
            "id": 1,
            "date": ["2010-01-01", "2010-02-01", "2010-03-01", "2010-04-01"],
            "drug": ["metformin", "metformin/sitagliptin", "sitagliptin", "sitagliptin"],
        }
    )
    records = ehr_prep.read_records(frame, DIABETES)
    assert len(records) == 4
    sequences = ehr_prep.build_sequences(records, months=1, ties="latest")
    assert sequences.to_frame().iloc[0].dropna().to_list() == [
        "biguanide",
        "biguanide",
        "DPP-4",
        "DPP-4",  # of equals the first state
    ]
    whole = ehr_prep.build_sequences(records, months=6)
    assert whole.to_frame().iloc[0].dropna().to_list() == ["DPP-4"]  # 3 against 2
    assert whole.flow["records_left"].iat[-1] == 4


def test_omop_concepts_are_matched_only_on_request() -> None:
    omop = RA_DRUGS.only("omop")
    assert omop.classify([1186087, "abatacept"])["class"].to_list() == ["CTLA4-Ig", None]
    assert omop.states == RA_DRUGS.states
    with pytest.raises(ValueError, match="'nonsense'"):
        RA_DRUGS.only("nonsense")


def test_own_map_from_a_two_column_file(tmp_path: Path) -> None:
    path = tmp_path / "map.csv"
    path.write_text("# diabetes\nDrug name,Group\nMetformin,biguanide\n0002-8215-01,insulin\n")
    own = drug_map(path)
    assert own.states == ("biguanide", "insulin")
    assert own.ingredients == {"biguanide": ["Metformin"], "insulin": ["0002-8215-01"]}
    assert own.classify(["metformin", "0002-8215-01"])["class"].to_list() == list(own.states)
    frame = pd.DataFrame({"id": [1], "date": ["2010-01-01"], "drug": ["METFORMIN"]})
    assert ehr_prep.read_records(frame, drugs=path).states == own.states


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"a": "X", "A ": "Y"}, "'a' into more than one class"),
        ({"a": ""}, "1 lack a drug or a class"),
        ({}, "0 rows"),
        (pd.DataFrame({"x": ["a"], "y": ["b"], "z": ["c"]}), "'x', 'y', 'z'"),
        ({"L04*B": "X"}, r"a \* that is not at the end .*'l04\*b'"),
        (pd.DataFrame({"drug": [""], "class": ["X"], "pattern": ["(a"]}), "regular expression"),
    ],
)
def test_bad_maps(source: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        drug_map(source)  # type: ignore[arg-type]


def test_an_empty_map_file(tmp_path: Path) -> None:
    (tmp_path / "map.csv").write_text("# nothing\n")
    with pytest.raises(ValueError, match=r"map\.csv is empty"):
        drug_map(tmp_path / "map.csv")


def test_report_of_unknown_drugs_with_near_misses() -> None:
    frame = pd.DataFrame(
        {
            "patient_id": [1, 1, 2, 2, 3, 3, 3],
            "date": ["2010-01-01"] * 7,
            "drug": ["aspirin", "adalimunab", "Humira", None, "aspirin", "Remicaid 100 mg", ""],
        }
    )
    full = drug_report(ehr_prep.read_records(frame, drugs="ra"))
    report = full[full["class"].isna()]
    assert report[["drug", "records", "did_you_mean"]].to_numpy().tolist() == [
        ["aspirin", 2, None],
        ["adalimunab", 1, "adalimumab"],
        ["Remicaid 100 mg", 1, "Remicade"],
    ]
    full = full.set_index("drug")
    assert full.index.to_list() == [*report["drug"], "Humira"]
    assert full.loc["Humira", ["class", "rule", "matched"]].to_list() == ["TNFi", "brand", "Humira"]
    assert repr(RA_DRUGS).startswith("DrugMap: ")


def test_codes_in_columns_of_the_map_and_without_leading_zeros() -> None:
    own = ehr_prep.drug_map(
        pd.DataFrame(
            {
                "drug": ["metformin", "insulin"],
                "class": ["biguanide", "insulin"],
                "rxcui": [6809, None],
                "ndc": ["0093-1048-01|0093-1048-10", "0002-8215-01"],
                "atc": ["A10BA02", "A10A*"],
            }
        )
    )
    texts = [6809, "0093-1048-10", "00002821501", 2821501, "A10AB05", "A10BA02", "93104899"]
    table = own.classify(texts)
    assert table["class"].fillna("").to_list() == [
        "biguanide",
        "biguanide",
        "insulin",
        "insulin",
        "insulin",
        "biguanide",
        "",
    ]
    assert table["rule"].to_list()[:6] == ["rxcui", "ndc", "ndc", "ndc", "prefix", "atc"]
    assert set(table["ingredient"].dropna()) == {"metformin", "insulin"}


def test_a_strength_may_be_glued_to_the_name() -> None:
    table = ehr_prep.RA_DRUGS.classify(["HUMIRA40MG", "Xeljanz5mg tab", "humiraX40"])
    assert table["class"].fillna("").to_list() == ["TNFi", "JAK", ""]


def test_what_is_of_no_interest_is_known_and_resembles_nothing() -> None:
    known = {"adalimumab": "TNFi", "methotrexate": "-"}
    frame = pd.DataFrame(
        {
            "patient_id": [1, 1, 1],
            "date": ["2010-01-05", "2010-03-01", "2010-04-01"],
            "drug": ["adalimumab", "methotrexate", "adalimunab"],
        }
    )
    records = ehr_prep.read_records(frame, drugs=known)
    report = ehr_prep.drug_report(records).set_index("drug")["did_you_mean"]
    assert report.index[0] == "adalimunab"
    assert report["adalimunab"] == "adalimumab"
    assert report.drop("adalimunab").isna().all()
