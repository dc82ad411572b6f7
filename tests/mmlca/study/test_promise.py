"""Attacks on what a study writes beside its tables of courses: outcomes, fit, survival, hashes.

The attack on the courses themselves is in `test_run.py`.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from study_attack import (
    PublicAttack,
    count_of,
    inside_system,
    moved_system,
    number,
    table_one_system,
)
from study_sizes import collect_sizes, disagreeing

import ehr_prep
from mmlca.study import read_study, run_sensitivity, run_study
from mmlca.study.cache import Results
from mmlca.tables.disclosure import is_small

M = 11


# --- hashes --------------------------------------------------------------------------------


def test_a_small_number_cannot_be_tried_out_against_a_hash(tmp_path: Path) -> None:
    """A plain hash of a short private table tells its only unknown number."""
    template = "drug,records,patients\nplaquenil,{n},{n}\n"

    def tried_out(folder: Path, keyed: bool) -> list[int]:
        results = Results(folder, {}, keyed=keyed)
        with results.step("read", "k"):
            results.text("patients/MGB_unmapped.csv", template.format(n=7))
        record = json.loads((folder / "provenance.json").read_text())
        stored = record["steps"]["read"]["files"]["patients/MGB_unmapped.csv"]
        guesses = {n: template.format(n=n).encode() for n in range(1, 11)}
        return [n for n, text in guesses.items() if hashlib.sha256(text).hexdigest() == stored]

    assert tried_out(tmp_path / "plain", keyed=False) == [7]  # why there is a key
    assert tried_out(tmp_path / "keyed", keyed=True) == []
    again = Results(tmp_path / "keyed", {}, keyed=True)
    with again.step("read", "k") as needed:
        assert not needed  # the key is kept
    (tmp_path / "keyed" / "patients" / "hash.key").write_bytes(b"short")
    other = Results(tmp_path / "keyed", {}, keyed=True)
    with other.step("read", "k") as needed:
        assert needed


def test_the_key_of_the_hashes_is_private_and_goes_nowhere_else(tmp_path: Path) -> None:
    results = Results(tmp_path / "out", {}, keyed=True)
    assert not list((tmp_path / "out").iterdir())  # a run that is refused leaves nothing
    results.finish()
    key = tmp_path / "out" / "patients" / "hash.key"
    assert (key.stat().st_mode & 0o777, key.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "patients").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"cannot write to .* is a link"):
        Results(tmp_path / "other", {}, keyed=True)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_pictures_and_word_files_are_kept_and_removed_like_others(tmp_path: Path) -> None:
    names = ("figures/a.svg", "figures/a.pdf", "tables/table_one.docx")
    results = Results(tmp_path, {})
    with results.step("old", "k"):
        for name in names:
            results.write(name, b"x")
    again = Results(tmp_path, {})
    with again.step("old", "k") as needed:
        assert not needed
    again.keep_only([])
    assert not any((tmp_path / name).exists() for name in names)


# --- outcomes beside Table 1 -------------------------------------------------------------------


def people(seed: int, n_sites: int) -> tuple[dict[str, pd.DataFrame], dict[str, pd.Series]]:
    rng = np.random.default_rng(seed)
    tables, clusters = {}, {}
    for i in range(n_sites):
        n = int(rng.integers(80, 200))
        ids = [f"{i}-{j}" for j in range(n)]
        clusters[f"S{i}"] = pd.Series(rng.choice(["1", "2", "3"], n, p=[0.6, 0.25, 0.15]), ids)
        remission = np.where(rng.random(n) < 0.2, "yes", "no").astype(object)
        remission[rng.random(n) < 0.03] = None
        tables[f"S{i}"] = pd.DataFrame({"remission": remission}, index=ids)
    return tables, clusters


def shown_numbers(
    table: ehr_prep.TableOne, clusters: dict[str, pd.Series]
) -> dict[tuple[str, str, str], float | None]:
    """The counts of a printed Table 1; sizes of clusters are the levels "all"."""
    numbers: dict[tuple[str, str, str], float | None] = {}
    for column in table.frame:
        site, group = column if isinstance(column, tuple) else (next(iter(clusters)), column)
        for (title, level), cell in table.frame[column].items():
            count = None if cell == "–" else float(cell.split(" ")[0].replace(",", ""))
            numbers[site, level if not title.startswith("patients") else "all", str(group)] = count
    return numbers


@pytest.mark.parametrize("seed", range(6))
def test_outcomes_of_all_sites_do_not_tell_what_table_one_hides(seed: int) -> None:
    """The cases of a cluster at all sites, less those that Table 1 shows, once were 9."""
    tables, clusters = people(seed, 1 + seed % 3)
    one = ehr_prep.table_one(
        tables if len(tables) > 1 else tables["S0"],
        clusters if len(tables) > 1 else clusters["S0"],
        min_count=M,
        together=["remission"],
    )
    mask = one.hidden_together["remission"]
    everyone, labels = pd.concat(tables)["remission"], pd.concat(clusters)
    pooled = {
        (level, group): None if mask.at[level, group] else float(
            ((everyone == level) & ((labels == group) | (group == "all")).to_numpy()).sum()
        )
        for level in mask.index
        for group in mask
    }  # fmt: skip
    system = table_one_system(shown_numbers(one, clusters), pooled)
    n_small = 0
    for site, frame in tables.items():
        values = frame["remission"].fillna("missing")
        counts = pd.crosstab(values, clusters[site].to_numpy())
        for level in counts.index:
            for group in counts:
                if is_small(counts.at[level, group], M):
                    n_small += 1
                    low, high = system.range_of((site, level, group))
                    assert low - 1e-6 <= counts.at[level, group] <= high + 1e-6
                    # the size of a cluster shows, and bounds what each of its levels can be
                    open_to = counts[group].sum() - (counts[group] > 0).sum()
                    assert high - low > min(M - 2, open_to) - 1e-6, (site, level, group)
    assert n_small > 2


@pytest.mark.parametrize("seed", range(4))
def test_a_hidden_size_does_not_follow_from_its_levels(seed: int) -> None:
    """Of a size that was hidden for the sake of another, women and men were shown; so both were."""
    rng = np.random.default_rng(seed)
    sizes = {"A": [200, 100, 80], "B": [150, 3, 60], "C": [90, 70, 40]}
    tables, clusters = {}, {}
    for site, counts in sizes.items():
        ids = [f"{site}{i}" for i in range(sum(counts))]
        clusters[site] = pd.Series(np.repeat(["1", "2", "3"], counts), ids)
        tables[site] = pd.DataFrame({"sex": rng.choice(["F", "M"], len(ids))}, index=ids)
    one = ehr_prep.table_one(tables, clusters, min_count=M)
    everyone = pd.concat(clusters).value_counts()
    pooled: dict[tuple[str, str], float | None] = {
        ("all", group): float(n) for group, n in everyone.items()
    }
    system = table_one_system(shown_numbers(one, clusters), pooled | {("all", "all"): 793.0})
    low, high = system.range_of(("B", "all", "2"))
    assert low - 1e-6 <= 3 <= high + 1e-6
    assert high - low > M - 2 - 1e-6


# --- a whole study -----------------------------------------------------------------------------

RICH = """
[records]
drugs = "ra"
[rules]
first_on_or_after = 2008-01-01
impute = "carry_forward"
[classes]
number = 4
[pseudo_sites]
per_site = 2
[model]
n_init = 12
[covariates]
columns = ["age", "sex"]
[outcomes]
columns = ["score", "remission"]
event = "death_date"
[strata]
columns = ["sex", "age", "race"]
cut_points = {age = [55, 70]}
[inference]
simulations = 9
[outputs]
bootstrap = 20
dpi = 60
[sensitivity]
months = [6]
ties = []
by = []
impute = []
max_carry = []
classes = [3]
per_site = []
fraction = []
weights = []
seeds = [2]
"""
SITES = ("MGB", "VA", "OKL")


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both releases of three small sites with labs, covariates, outcomes, survival and more."""
    folder = tmp_path_factory.mktemp("rich")
    ehr_prep.ra_cohort(seed=1, scale=0.15).write(folder)
    ehr_prep.ra_cohort(seed=2, scale=0.06).write(folder / "other")
    shutil.copytree(folder / "other" / "VA", folder / "OKL")
    rng = np.random.default_rng(1)
    lines = ['name = "Rich"']
    for site in SITES:
        patients = pd.read_csv(folder / site / "patients.csv")
        n = len(patients)
        patients["score"] = np.where(rng.random(n) < 0.02, np.nan, rng.normal(size=n).round(3))
        patients["remission"] = np.where(rng.random(n) < 0.2, "yes", "no")
        patients["death_date"] = patients["follow_up_end"].where(rng.random(n) < 0.25)
        patients.to_csv(folder / site / "patients.csv", index=False)
        lines.append(f"[sites.{site}]")
        roles = {"records": "medications", "patients": "patients", "labs": "labs"}
        lines += [f'{role} = "{site}/{file}.csv"' for role, file in roles.items()]
    for kind, out, other in (
        ("inside", "out", "sensitivity"),
        ("public", "public", "public_sensitivity"),
    ):
        privacy = f'[privacy]\nrelease = "{kind}"\n'
        (folder / f"{kind}.toml").write_text("\n".join(lines) + RICH + privacy)
        study = read_study(folder / f"{kind}.toml")
        if kind == "public":  # the models are the same
            shutil.copytree(folder / "out", folder / "public")
        run_study(study, folder / out)
        run_sensitivity(study, folder / other)
    return folder


PARTS = ("out", "sensitivity", "public", "public_sensitivity")


def public(folder: Path) -> dict[str, str]:
    """Every text outside the folders that stay inside a hospital."""
    return {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*"))
        if path.suffix in {".csv", ".json", ".html", ".md", ".tex"}
        and path.relative_to(folder).parts[0] not in {"patients", "models"}
    }


@pytest.mark.slow
def test_no_number_of_a_study_has_many_digits(rich: Path) -> None:
    """Twelve digits of a mean, a norm or a test statistic tell the counts that they are made of."""
    for part in PARTS:
        for name in public(rich / part):
            if not name.endswith(".csv"):
                continue
            table = pd.read_csv(rich / part / name)
            for column in table.select_dtypes("floating"):
                values = table[column].dropna()
                broken = values[values != values.round()]
                digits = [f"{v:.12e}".split("e")[0].strip("-").replace(".", "") for v in broken]
                long = [text for text in digits if len(text.rstrip("0")) > 3]
                assert not long, (part, name, column, long[:3])


@pytest.mark.slow
def test_lab_curves_of_a_public_release_have_one_grouping(rich: Path) -> None:
    """`test_curves_attack.py` shows what two tell."""
    curves = [sorted(p.name for p in (rich / part).glob("figures/lab*.csv")) for part in PARTS]
    assert curves == [["lab_ensemble.csv", "lab_local.csv"], [], ["lab_ensemble.csv"], []]


@pytest.mark.slow
def test_no_small_number_of_patients_shows_in_a_study(rich: Path) -> None:
    patients = {"patients", "n", "count", "cases", "moved", "changed", "events", "left", "at_risk"}
    patients |= {
        "event",
        "competing",
        "included",
        "all",
        "others",
        "ensemble",
        "refined",
        "n_then",
    }
    for part in PARTS:
        for name in public(rich / part):
            if name.endswith(".csv") and "issues" not in name:
                table = pd.read_csv(rich / part / name)
                for column in patients & set(table.select_dtypes("number")):
                    assert not is_small(table[column].fillna(0), M).any(), (part, name, column)


@pytest.mark.slow
def test_no_id_and_no_hash_of_patients_is_in_the_page(rich: Path) -> None:
    private = [
        path
        for folder in ("out/patients", "out/models", *SITES)
        for path in (rich / folder).rglob("*")
        if path.is_file()
    ]
    hashes = {hashlib.sha256(path.read_bytes()).hexdigest() for path in private}
    for part in PARTS:
        for name, text in public(rich / part).items():
            assert "SYN-" not in text, name
            assert not hashes & set(re.findall(r"[0-9a-f]{64}", text)), name


@pytest.mark.slow
def test_the_outcomes_of_a_study_do_not_tell_what_its_table_one_hides(rich: Path) -> None:
    out = rich / "out"
    table = pd.read_csv(out / "tables/table_one.csv", dtype=str)
    shown: dict[tuple[str, str, str], float | None] = {}
    pooled: dict[tuple[str, str], float | None] = {}
    rows = table[table["variable"].str.startswith(("patients", "remission"))]
    for column in table.columns[2:]:
        site, group = column.split(", ", 1)
        group = "all" if group == "all" else number(group)
        for level, cell in zip(rows["level"].fillna("all"), rows[column], strict=True):
            count = None if cell == "–" else float(cell.split(" ")[0].replace(",", ""))
            if site != "all sites":
                shown[site, level, group] = count
            elif count is not None:
                pooled[level, group] = count
    outcomes = pd.read_csv(out / "tables/outcomes.csv").query("outcome == 'remission'")
    for group, n, cases in zip(
        outcomes["class"], outcomes["patients"], outcomes["cases"], strict=True
    ):
        if not np.isnan(cases):
            pooled["yes", number(group)], pooled["no", number(group)] = cases, n - cases
    assert pooled
    system = table_one_system(shown, pooled)
    for site in SITES:
        clusters = pd.read_csv(out / f"patients/{site}_clusters.csv", index_col="id")["cluster"]
        values = pd.read_csv(rich / site / "patients.csv").set_index("patient_id")["remission"]
        counts = pd.crosstab(values.reindex(clusters.index), clusters)
        for level in counts.index:
            for group in counts:
                if is_small(counts.at[level, group], M):
                    low, high = system.range_of((site, level, str(group)))
                    assert low - 1e-6 <= counts.at[level, group] <= high + 1e-6
                    assert high - low > M - 2 - 1e-6


@pytest.mark.slow
def test_sizes_table_one_and_outcomes_inside_tell_no_small_number_together(rich: Path) -> None:
    """A hidden size once followed from its women and men, and from the sizes of the others."""
    out, n_small = rich / "out", 0
    system = inside_system(out, SITES)
    for site in SITES:
        clusters = clusters_of(out, site)["cluster"]
        people = pd.read_csv(rich / site / "patients.csv").set_index("patient_id")
        people = people.reindex(clusters.index)
        numbers: dict[tuple[Any, ...], int] = {
            ("size", site, str(k)): n for k, n in clusters.value_counts().items()
        }
        room = dict.fromkeys(numbers, M)
        for name in ("sex", "race", "remission"):
            counts = pd.crosstab(people[name], clusters)
            for level in counts.index:
                for g in counts:
                    numbers[name, site, level, str(g)] = counts.at[level, g]
                    # the size of a cluster may show, and bounds what its levels can be
                    room[name, site, level, str(g)] = counts[g].sum() - (counts[g] > 0).sum()
        for name, n in numbers.items():
            if is_small(n, M):
                n_small += 1
                low, high = system.range_of(name)
                assert low - 1e-6 <= n <= high + 1e-6, name
                assert high - low > min(M - 2, room[name]) - 1e-6, (name, n, low, high)
    assert n_small > 10


@pytest.mark.slow
def test_refined_sizes_do_not_tell_how_few_moved(rich: Path) -> None:
    """Sizes by site, the table of who moved and how many moved at each site, solved together."""
    out = rich / "out"
    moved, sizes, by_site = (
        pd.read_csv(out / f"tables/refined_{name}.csv") for name in ("moved", "sizes", "by_site")
    )
    assert not is_small(moved.drop(columns="ensemble").fillna(0).to_numpy(), M).any()
    change = (sizes["refined"] - sizes["ensemble"]).abs()
    assert not is_small(change.fillna(0), M).any()
    system = moved_system(moved, sizes, by_site)
    n_small = 0
    clusters = {site: clusters_of(out, site) for site in SITES}
    for site, table in ({"all": pd.concat(clusters)} | clusters).items():
        counts = pd.crosstab(table["cluster"], table["refined_cluster"])
        for before in counts.index:
            for after in counts:
                if is_small(counts.at[before, after], M):
                    n_small += 1
                    low, high = system.range_of((site, str(before), str(after)))
                    assert low - 1e-6 <= counts.at[before, after] <= high + 1e-6
                    assert high - low > M - 2 - 1e-6, (site, before, after)
    assert n_small > 5


@pytest.mark.slow
@pytest.mark.parametrize("part", ["out", "public"])
def test_a_cluster_has_one_size_on_the_whole_page(rich: Path, part: str) -> None:
    """A class of a single-site report once had three: exact, and rounded in two ways."""
    sizes = collect_sizes(rich / part)
    assert len(sizes) == 4 * (len(SITES) + 1)
    assert all(len(places) > 2 for places in sizes.values())
    assert not disagreeing(sizes)


# --- a public release ---------------------------------------------------------------------------

NOT_COUNTS = {
    "bic_gain", "classes", "cluster", "clusters", "df", "duration", "followed", "followed_q25",
    "followed_q75", "from", "group", "groups", "line", "models", "n_boot", "nearest", "parameters",
    "parameters_all", "rank", "replicated", "rows_left_out", "searches", "simulations", "sites",
    "time", "to", "until_switch", "value", "years",
}  # fmt: skip
"""Columns of whole numbers that count no patients, nor what is theirs."""


def is_whole(values: pd.Series) -> bool:
    known = values.dropna()
    return len(known) > 0 and bool((known == known.round()).all()) and bool((known > 1).any())


@pytest.mark.slow
def test_every_count_of_a_public_release_is_rounded(rich: Path) -> None:
    """Any column of whole numbers, but for those that are known to count nothing of patients."""
    seen = set()
    for name in public(rich / "public"):
        if not name.endswith(".csv") or "checklist" in name:
            continue
        table = pd.read_csv(rich / "public" / name)
        for column in table.select_dtypes("number"):
            if is_whole(table[column]) and column not in NOT_COUNTS | {"loglik", "bic", "bic_all"}:
                seen.add(column)
                known = table[column].dropna()
                assert (known % M == 0).all(), (name, column, known[known % M != 0].head())
    assert {"n", "count", "patients", "records", "patients_left", "moved", "at_risk"} <= seen
    headline = pd.read_csv(rich / "public/tables/headline.csv")
    of_patients = headline["kind"].isin(["patients", "distinct sequences"])
    assert (headline.loc[of_patients, "value"] % M == 0).all()
    one = pd.read_csv(rich / "public/tables/table_one.csv", dtype=str).fillna("")
    counts = one[~one["variable"].str.contains("mean") | (one["level"] == "missing")]
    assert (counts.iloc[:, 2:].map(count_of) % M == 0).all(axis=None)


@pytest.mark.slow
def test_every_number_of_patients_in_the_texts_of_a_public_release_is_rounded(rich: Path) -> None:
    content = json.loads((rich / "public/results.json").read_text(encoding="utf-8"))
    captions = [item["caption"] for part in content["sections"] for item in part["items"]]
    texts = [*content["summary"], *content["careful"], content["methods"], *captions]
    found = [
        int(n.replace(",", ""))
        for text in texts
        for n in re.findall(r"([0-9][0-9,]*) (?:synthetic )?(?:patients|values|records)", text)
    ]
    assert len(found) > 5
    assert all(n % M == 0 or n == 5 for n in found), found  # courses that at least 5 share


@pytest.fixture(scope="module")
def attack(rich: Path) -> PublicAttack:
    return PublicAttack(rich / "public", SITES)


def check_open(attack: PublicAttack, numbers: dict[tuple[Any, ...], int], n: int) -> None:
    """So many of the small numbers, drawn at random, have ten possible values or more."""
    small = {name: count for name, count in numbers.items() if is_small(count, M)}
    assert len(small) >= n
    names = list(small)
    for place in np.random.default_rng(1).choice(len(names), n, replace=False):
        low, high = attack.range_of(names[place])
        assert low - 1e-6 <= small[names[place]] <= high + 1e-6, names[place]
        assert high - low > M - 2 - 1e-6, names[place]


@pytest.mark.slow
def test_courses_in_public_tell_no_small_number_beside_all_other_tables(
    rich: Path, attack: PublicAttack
) -> None:
    """All tables of all sites in one system: views, steps, paths, moves, Table 1, survival."""
    views = {"ensemble": "cluster", "refined": "refined_cluster", "local": "own_class"}
    numbers: dict[tuple[Any, ...], int] = {}
    for site in SITES:
        states = pd.read_csv(rich / f"public/patients/{site}_sequences.csv", index_col=0)
        clusters = clusters_of(rich / "public", site)
        for view, column in views.items():
            long = states.assign(group=clusters[column])
            counts = long.melt("group", var_name="time", value_name="state").dropna().value_counts()
            numbers |= {
                (view, site, str(group), int(time), state): n
                for (group, time, state), n in counts.items()
            }
    check_open(attack, numbers, 15)


@pytest.mark.slow
def test_who_they_are_and_who_moved_in_public_tell_no_small_number(
    rich: Path, attack: PublicAttack
) -> None:
    numbers: dict[tuple[Any, ...], int] = {}
    for site in SITES:
        clusters = clusters_of(rich / "public", site)
        people = pd.read_csv(rich / site / "patients.csv").set_index("patient_id")
        people = people.reindex(clusters.index)
        for name in ("sex", "race", "remission"):
            counts = pd.crosstab(people[name], clusters["cluster"])
            numbers |= {
                (name, site, level, str(group)): counts.at[level, group]
                for level in counts.index
                for group in counts
            }
        moved = pd.crosstab(clusters["cluster"], clusters["refined_cluster"])
        numbers |= {
            ("moved", site, str(a), str(b)): moved.at[a, b] for a in moved.index for b in moved
        }
    check_open(attack, numbers, 15)


@pytest.mark.slow
def test_who_is_observed_in_public_tells_no_small_number(rich: Path, attack: PublicAttack) -> None:
    """Neither how few are observed at a time nor how few left, beside all other tables."""
    out = rich / "public"
    table = pd.read_csv(out / "tables/follow_up.csv").set_index(["site", "group"])
    shown = table.filter(regex="[0-9]$")
    times = [int(column.split()[-1]) for column in shown]
    by_time = pd.read_csv(out / "figures/state_distribution_ensemble.csv")
    n = by_time.groupby(["site", "group", "time"])["n"].first().unstack()[times]
    np.testing.assert_array_equal(shown.sort_index(), n.sort_index())  # it tells nothing new
    for site in SITES:
        states = pd.read_csv(out / f"patients/{site}_sequences.csv", index_col=0)
        there = states.notna().groupby(clusters_of(out, site)["cluster"]).sum()
        for group in there.index:
            left = there.at[group, str(times[0])] - there.at[group, str(times[-1])]
            numbers = {("left", "ensemble", site, str(group)): left}
            numbers |= {
                ("observed", "ensemble", site, str(group), t): there.at[group, str(t)]
                for t in times
            }
            for name, count in numbers.items():
                if is_small(count, M):
                    low, high = attack.range_of(name)
                    assert low - 1e-6 <= count <= high + 1e-6, name
                    assert high - low > M - 2 - 1e-6, name


def clusters_of(out: Path, site: str) -> pd.DataFrame:
    return pd.read_csv(out / f"patients/{site}_clusters.csv", index_col="id")


@pytest.mark.slow
def test_proportions_and_fits_in_public_have_the_precision_of_counts(rich: Path) -> None:
    """A cluster of 3 patients at a site was shown as 0, beside its share in three digits."""
    out = rich / "public"
    sizes = pd.read_csv(out / "tables/refined_sizes.csv").query("site != 'all'")
    by_site = pd.read_csv(out / "tables/refined_by_site.csv").set_index("site")
    for site, rows in sizes.groupby("site"):
        near = by_site.at[site, "patients"] + M * np.arange(-8, 9)  # a sum of many cells
        for shares in (rows["proportion"], by_site.loc[[site], "same by own model"]):
            counts = np.outer(near, shares) / M  # of some total near that of the site
            assert (np.abs(counts - counts.round()).max(axis=1) < 5e-4 * near / M + 1e-9).any()
    for site in SITES:
        for name in (f"figures/residuals_{site}", f"tables/steps_{site}"):
            table = pd.read_csv(out / f"{name}.csv")
            assert "residual" in table
            assert not {"observed", "expected"} & set(table)


def first_states(out: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]:
    """Patients by site, cluster and first state: exact and shown; and the shown sizes."""
    table = pd.read_csv(out / "figures/state_distribution_ensemble.csv")
    table = table[table["time"] == 1].assign(group=lambda t: t["group"].map(number))
    states, groups = list(dict.fromkeys(table["state"])), sorted(table["group"].unique())
    by_cell = table.set_index(["site", "group", "state"])
    shown = np.array(
        [[[by_cell.at[(s, g, x), "count"] for x in states] for g in groups] for s in SITES]
    )
    sizes = np.array(
        [[by_cell.at[(s, g, states[0]), "rounded_size"] for g in groups] for s in SITES]
    )
    exact = []
    for site in SITES:
        first = pd.read_csv(out / f"patients/{site}_sequences.csv", index_col=0)["1"]
        counts = pd.crosstab(clusters_of(out, site)["cluster"].astype(str), first.to_numpy())
        exact.append(counts.reindex(groups, columns=states, fill_value=0).to_numpy())
    return np.array(exact), shown, sizes, [f"{a} − {b}" for a, b in combinations(SITES, 2)]


@pytest.mark.slow
def test_norms_of_differences_follow_from_the_counts_of_a_public_release(rich: Path) -> None:
    """They are of rounded counts, so that they tell nothing more; small rows are not compared."""
    _, shown, sizes, pairs = first_states(rich / "public")
    norms = pd.read_csv(rich / "public/tables/site_differences_norms.csv")
    norms = norms.query("membership == 'ensemble' and quantity == 'initial'").set_index("sites")
    shares = shown / np.maximum(shown.sum(axis=-1, keepdims=True), 1)
    for name, (a, b) in zip(pairs, combinations(range(len(SITES)), 2), strict=True):
        enough = np.minimum(sizes[a], sizes[b]) >= 3 * M
        assert norms.at[name, "clusters"] == enough.sum()
        known = np.linalg.norm(shares[a] - shares[b], axis=-1)[enough]
        if len(known):
            assert norms.at[name, "norm"] == pytest.approx(known.mean(), abs=6e-4)
