"""A round goes on without those who drop out, come late or send nonsense."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from site_fakes import NAMES, in_process, sites_in
from sklearn.cluster import KMeans

import font
from font.errors import InputError
from font.exchange.envelope import fingerprint
from font.exchange.messages.ensemble import ensemble_content
from font.exchange.replies import Absent, Reply
from font.exchange.rounds import Round, site_votes


def play(folder: Path, twist: Callable[[str, Reply], Reply] | None = None, **said: object) -> Round:
    sites = sites_in(folder)
    ask = in_process(sites) if twist is None else in_process(sites, twist)
    header = said.pop("header", font.Header(study="ra"))
    said = {"out": folder / "centre", "sites": NAMES} | said
    return font.run_round(ask, header, **said)


def only(result: Round) -> list[str]:
    return sorted({model.site for model in result.models.values()})


def test_the_result_is_that_of_the_file_exchange(tmp_path: Path) -> None:
    result = play(tmp_path)
    assert result.absent == ()
    assert "Nobody." in result.report
    files = font.read_models(tmp_path.glob("*/*.model.json"), font.Header(study="ra"))
    parts = [font.read_labels(p, files) for p in sorted(tmp_path.glob("*/*.labels.json"))]
    tables = font.CrossTables.merge(parts)
    by_hand = font.Ensemble(2, method="latent", seed=1).fit(files, tables)
    assert ensemble_content(result.ensemble) == ensemble_content(by_hand)
    sent = font.read_ensemble(tmp_path / "centre" / "ensemble.json", font.Header(study="ra"))
    assert ensemble_content(sent.ensemble) == ensemble_content(by_hand)
    for kind, folder in (("model", "models"), ("labels", "labels")):
        for site in NAMES:
            kept = tmp_path / "centre" / folder / f"{site}.{kind}.json"
            assert kept.read_bytes() == (tmp_path / site / f"{site}.{kind}.json").read_bytes()
    assert (tmp_path / "centre" / "report.md").read_text(encoding="utf-8") == result.report


def changed(data: bytes, **fields: object) -> bytes:
    """An exchange file with other fields, sealed again."""
    content = json.loads(data)
    for key, value in fields.items():
        (content if key in content else content["payload"])[key] = value
    content["sha256"] = fingerprint(content["payload"])
    return json.dumps(content).encode()


def other_columns(reply: Reply) -> Reply:
    content = json.loads(reply.files[0])
    model = content["payload"]["model"]
    return reply._replace(
        files=(changed(reply.files[0], model=model | {"variables": ["age", "x2"]}),)
    )


BAD_MODELS = {
    "silence": (lambda r: Reply(r.sender, trouble="it did not answer within 5 s"), "within 5 s"),
    "no files": (lambda r: Reply(r.sender), "it sent 0 files"),
    "many files": (lambda r: r._replace(files=r.files * 101), "it sent 101 files"),
    "nonsense": (lambda r: r._replace(files=(b"\x80\x04.",)), "not UTF-8|not JSON"),
    "the same twice": (lambda r: r._replace(files=r.files * 2), "comes twice"),
    "cut": (lambda r: r._replace(files=(r.files[0][:-50],)), "not JSON"),
    "damaged": (
        lambda r: r._replace(
            files=(r.files[0].replace(b'"variables":["x1"', b'"variables":["y1"'),)
        ),
        "checksum",
    ),
    "other study": (
        lambda r: r._replace(files=(changed(r.files[0], study="old"),)),
        "belongs to the study 'old'",
    ),
    "a stranger": (
        lambda r: r._replace(files=(changed(r.files[0], site="moon", name="moon"),)),
        "'moon' is not one of the sites",
    ),
    "other columns": (other_columns, "has|have the states 'age', 'x2' instead of 'x1', 'x2'"),
}


@pytest.mark.parametrize("case", BAD_MODELS)
def test_a_bad_model_stops_nobody_else(case: str, tmp_path: Path) -> None:
    twist, message = BAD_MODELS[case]
    result = play(
        tmp_path,
        lambda step, reply: twist(reply) if (step, reply.sender) == ("fit", "node 0") else reply,
    )
    assert only(result) == ["south", "west"]
    assert {who.site for who in result.absent} <= {"node 0", "north"}
    reasons = " ".join(who.reason for who in result.absent)
    assert re.search(message, reasons), reasons
    section = result.report.partition("## Who is missing")[2].partition("##")[0]
    assert "north" in section
    assert "\n| node 0 |" in section or "| north" in section


def test_who_claims_a_name_second_does_not_evict_the_first(tmp_path: Path) -> None:
    def twist(step: str, reply: Reply) -> Reply:
        if (step, reply.sender) == ("fit", "node 2"):
            return reply._replace(files=(changed(reply.files[0], site="north", name="north"),))
        return reply

    result = play(tmp_path, twist)
    assert only(result) == ["north", "south"]
    (refused,) = [who for who in result.absent if who.site == "node 2"]
    assert "earlier sender already uses the name 'north'" in refused.reason
    own = font.read_model(tmp_path / "north" / "north.model.json")
    assert result.models["north"].fingerprint == own.fingerprint


def test_one_odd_site_does_not_decide_the_states(tmp_path: Path) -> None:
    result = play(
        tmp_path,
        lambda step, r: other_columns(r) if (step, r.sender) == ("fit", "node 0") else r,
        sites=(),
    )
    assert only(result) == ["south", "west"]
    with pytest.raises(InputError, match=r"no site sent a model that can be used .*'a', 'b'"):
        play(tmp_path / "2", states=["a", "b"])


BAD_COUNTS = {
    "late": (lambda r: Reply(r.sender, trouble="it did not answer within 5 s"), "within 5 s"),
    "a model": (lambda r: r._replace(files=()), "0 files instead of one"),
    "nonsense": (lambda r: r._replace(files=(b"[]",)), "not an exchange file"),
    "small cell": (
        lambda r: r._replace(files=(changed(r.files[0], classes=[[1, 1]] * 3),)),
        "count 1, not a multiple",
    ),
    "lowered threshold": (
        lambda r: r._replace(files=(changed(r.files[0], min_count=1),)),
        "the study asks for 11|sum to|are counted",
    ),
    "other models": (
        lambda r: r._replace(
            files=(changed(r.files[0], models=[{"name": "x", "fingerprint": "0" * 64}] * 1),)
        ),
        "1 models, 3 lists|other models",
    ),
    "another's name": (
        lambda r: r._replace(files=(changed(r.files[0], site="south"),)),
        "a file of 'south', but models of 'north'",
    ),
}


@pytest.mark.parametrize("case", BAD_COUNTS)
def test_bad_counts_stop_nobody_else(case: str, tmp_path: Path) -> None:
    twist, message = BAD_COUNTS[case]
    result = play(
        tmp_path,
        lambda step, reply: twist(reply) if (step, reply.sender) == ("label", "node 0") else reply,
    )
    assert [str(site) for site in result.tables.sizes] == ["south", "west"]
    assert only(result) == list(NAMES)  # the others have labelled with its model
    (who,) = result.absent
    assert (who.site, who.step) == ("north", "label")
    assert re.search(message, who.reason), who.reason
    assert "No counts came from north" in result.report


def test_answers_that_were_not_asked_for_are_not_read(tmp_path: Path) -> None:
    sites = sites_in(tmp_path)
    plain = in_process(sites)

    def ask(step, files, senders):
        replies = plain(step, files, senders)
        return [*replies, replies[0]] if step == "label" else [*replies, Reply("ghost")]

    result = font.run_round(ask, font.Header(study="ra"), out=tmp_path / "centre", sites=NAMES)
    reasons = {who.site: who.reason for who in result.absent}
    assert reasons["north"] == "it answered 2 times"
    assert reasons["ghost"].startswith("it sent 0 files")


def test_who_did_not_confirm_the_ensemble_is_named(tmp_path: Path) -> None:
    def twist(step: str, reply: Reply) -> Reply:
        return Reply(reply.sender, trouble="it is gone") if step == "assign" else reply

    assert {who.step for who in play(tmp_path, twist).absent} == {"assign"}


def test_nobody_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no site replied"):
        font.run_round(lambda *_: [], font.Header(study="ra"), out=tmp_path / "centre")
    silent = {"label": "it is gone"}
    with pytest.raises(InputError, match=r"no site sent counts .*north: it is gone"):
        play(
            tmp_path, lambda step, r: Reply(r.sender, trouble=silent[step]) if step in silent else r
        )
    assert not (tmp_path / "centre" / "ensemble.json").exists()


def test_the_report_hides_small_numbers(tmp_path: Path) -> None:
    result = play(tmp_path)
    report = font.round_report(
        result.ensemble, result.models, result.tables, study="ra", min_count=150
    )
    sizes = report.partition("## Patients by cluster and site")[2].partition("##")[0]
    rows = [row.strip("| ").split("|") for row in sizes.strip().splitlines()[2:4]]
    for number, (cluster, *by_site, total, _) in enumerate(rows, start=1):
        assert int(cluster) == number  # people count from 1
        assert [cell.strip() for cell in by_site] == ["< 150"] * 3
        assert int(total) > 200
    assert "<" not in result.report.partition("## Weights")[0]


def test_the_report_shows_names_and_reasons_as_they_are(tmp_path: Path) -> None:
    result = play(tmp_path)
    evil = "<img src=x> [a](http://b.c) `x` | *y*\n# z ![p](q)"
    report = font.round_report(
        result.ensemble,
        result.models,
        result.tables,
        study=evil,
        absent=[Absent(evil, "fit", f"it said {evil}")],
    )
    shown = r"\<img src=x> \[a\](http\://b.c) \`x\` \| \*y\* # z !\[p\](q)"
    assert f"# Ensemble of the study {shown}\n" in report
    assert f"| {shown} | models | it said {shown} |" in report
    assert "\n# z" not in report
    assert "<img" not in report.replace(r"\<img", "")


def test_the_report_says_how_the_number_came_about_and_which_clusters_are_empty(
    tmp_path: Path,
) -> None:
    """Once a vote was called a request, and empty clusters passed in silence."""
    result = play(tmp_path)
    assert "is the sites' vote (north 2, south 2, west 2)" in result.report
    assert "has fewer than" not in result.report
    asked = play(tmp_path / "asked", n_clusters=2)
    assert "The number of clusters was given to the centre." in asked.report
    sizes = asked.ensemble.cluster_sizes_
    sizes.iloc[1] = 0
    for n, words in ((0, "has no patients"), (4, "has fewer than 11 patients")):
        sizes.iloc[1, 0] = n
        report = font.round_report(asked.ensemble, asked.models, asked.tables, study="ra")
        caution = report.partition("## What to be careful about")[2]
        assert f"- Cluster 2 {words} at all sites together" in caution
        assert "combine again with n_clusters=1." in caution


def test_models_with_one_class_do_not_make_one_cluster_of_everybody(tmp_path: Path) -> None:
    result = play(tmp_path)
    payloads = {name: dict(model.payload) for name, model in result.models.items()}
    for (name, payload), (number, n) in zip(
        payloads.items(), ((4, 990), (3, 660), (1, 110)), strict=True
    ):
        payload["bic"] = [{"n_classes": number, "above_best": 0}]
        payload["model"] = payload["model"] | {"patients": [n]}
        payloads[name] = payload
    models = {
        name: font.ModelFile(model.file.model_copy(update={"payload": payloads[name]}))
        for name, model in result.models.items()
    }
    assert site_votes(models) == (4, {"north": 4, "south": 3, "west": 1})


def test_a_model_of_one_class_is_no_third_reading(tmp_path: Path) -> None:
    """Latent clusters need three models that tell patients apart; with two K-means is used."""
    models, sites = dict(play(tmp_path).models), sites_in(tmp_path)
    data = {site: part.data for site, part in zip(NAMES, sites.values(), strict=True)}
    for method in ("latent", "kmeans"):
        labels = {
            site: font.label({name: file.model for name, file in models.items()}, part)
            for site, part in data.items()
        }
        classes = {name: file.n_classes for name, file in models.items()}
        tables = font.CrossTables.from_labels(labels, classes)
        ensemble, _ = font.combine(models, [tables])
        assert (ensemble.method, ensemble.n_clusters_) == (method, 2)
        assert (ensemble.cluster_sizes_.sum(axis=1) > 0).all()
        one = KMeans(1, n_init=1, random_state=1).fit(data["west"])
        models["west"] = font.write_model(
            None, one, data["west"], font.Header(study="ra", site="west")
        )


# --- one site must not outvote the others ------------------------------------------------


def copies(reply: Reply, n: int) -> Reply:
    """The one model of a site, sent under n names."""
    content = json.loads(reply.files[0])
    names = [f"{content['site']}/{i + 1}" for i in range(n)]
    return reply._replace(files=tuple(changed(reply.files[0], name=name) for name in names))


def test_a_site_with_many_models_is_left_out_unless_the_study_wants_it(tmp_path: Path) -> None:
    def twist(step: str, reply: Reply) -> Reply:
        return copies(reply, 40) if (step, reply.sender) == ("fit", "node 2") else reply

    result = play(tmp_path, twist)
    assert only(result) == ["north", "south"]
    assert any("it sent 40 models, most sites sent 1" in who.reason for who in result.absent)
    wanted = play(tmp_path / "2", twist, unequal=True)
    assert len(wanted.models) == 42
    weights = wanted.ensemble.weights_
    by_site = weights.groupby(weights.index.str.partition("/").get_level_values(0)).sum()
    assert by_site["west"] == pytest.approx(by_site["north"], rel=0.1)


def test_each_site_has_one_vote(tmp_path: Path) -> None:
    result = play(tmp_path)
    models = dict(result.models)
    west = models.pop("west")
    payload = west.payload | {"bic": [{"n_classes": 9, "above_best": 0}]}
    for i in range(10):
        name = f"west/{i + 1}"
        own = {"payload": payload | {"name": name}, "sha256": str(i)}
        models[name] = font.ModelFile(west.file.model_copy(update=own))
    labels = {
        site: font.label({n: m.model for n, m in models.items()}, data.data)
        for site, data in zip(NAMES, sites_in(tmp_path).values(), strict=True)
    }
    tables = font.CrossTables.from_labels(labels, dict.fromkeys(models, 2))
    with pytest.raises(InputError, match="different numbers of models"):
        font.combine(models, [tables])
    ensemble, _ = font.combine(models, [tables], unequal=True)
    assert ensemble.n_clusters_ == 2
