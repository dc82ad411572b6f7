"""Flower's messages carry the files; a grid in this process stands in for the network."""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from site_fakes import NAMES, SmallSite, in_process, sites_in

import font
from font.exchange import registry
from font.exchange.envelope import write_file
from font.exchange.masked import read_masked
from font.exchange.messages.labels import sum_of_labels
from font.exchange.rounds import Round

pytest.importorskip("flwr", reason="Flower is not installed (extra federated)")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    from font.exchange import flower

TROUBLE = "PID000123 has two rows"


@pytest.fixture(autouse=True)
def in_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower only makes messages inside a task; here it is none of its own."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class FakeGrid:
    """Hands each message to the app at once; some nodes never answer."""

    def __init__(self, app: Callable, nodes: dict[int, dict], silent: Iterable[int] = ()) -> None:
        self.app, self.nodes, self.silent = app, nodes, set(silent)
        self.seen: list[Message] = []

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def send_and_receive(self, messages: list[Message], *, timeout: float) -> list[Message]:
        self.seen += messages
        assert timeout > 0
        return [
            self.app(message, context(self.nodes[message.metadata.dst_node_id]))
            for message in messages
            if message.metadata.dst_node_id not in self.silent
        ]


def context(node: dict, **run: object) -> Context:
    return Context(1, 2, node, RecordDict(), run)


def play(folder: Path, site: Callable[[Context], SmallSite], **said: Any) -> tuple:
    more = said.pop("node", {})
    nodes = {i + 1: {"site": name} | more.get(name, {}) for i, name in enumerate(NAMES)}
    grid = FakeGrid(flower.client_app(site), nodes, said.pop("silent", ()))
    kept: list[Round] = []
    run = {"study": "ra", "sites": "north, south,west", "timeout": 0.5, "out": str(folder / "c")}
    run |= said.pop("run", {})
    app = flower.server_app(done=kept.append, **said)
    app(grid, context({}, **run))
    return kept[0], grid


def test_the_same_as_without_flower(tmp_path: Path) -> None:
    made: dict[str, SmallSite] = {}

    def site(at: Context) -> SmallSite:
        name = str(at.node_config["site"])
        made[name] = SmallSite(name, tmp_path / "flower")
        return made[name]

    result, grid = play(tmp_path, site)
    plain = font.run_round(
        in_process(sites_in(tmp_path / "plain")),
        font.Header(study="ra"),
        out=tmp_path / "p",
        sites=NAMES,
    )
    ours, theirs = tmp_path / "c" / "ensemble.json", tmp_path / "p" / "ensemble.json"
    assert ours.read_bytes() == theirs.read_bytes()
    assert result.absent == plain.absent == ()
    assert all(len(made[name].clusters) == 200 for name in NAMES)
    types = [message.metadata.message_type for message in grid.seen]
    assert types == ["query.fit"] * 3 + ["query.label"] * 3 + ["query.assign"] * 3


def test_secure_sums_are_those_of_the_files(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    willing = {name: {"secure": True} for name in NAMES}
    result, grid = play(
        tmp_path,
        lambda at: SmallSite(str(at.node_config["site"]), tmp_path),
        node=willing,
        run={"secure": True},
    )
    assert result.absent == ()
    types = [message.metadata.message_type for message in grid.seen]
    steps = ("fit", "key", "label", "assign")
    assert types == [f"query.{step}" for step in steps for _ in NAMES]
    masked = [read_masked(path) for path in sorted((tmp_path / "c" / "masked").iterdir())]
    assert [part.site for part in masked] == sorted(NAMES)
    assert not (tmp_path / "c" / "labels").exists()
    ensemble, _ = font.combine(result.models, [sum_of_labels(masked, result.models)])
    sent = font.write_ensemble(None, ensemble, result.models, font.Header(study="ra"))
    payload = json.loads(sent)["payload"]
    assert json.loads((tmp_path / "c" / "ensemble.json").read_bytes())["payload"] == payload


def test_any_message_that_answers_the_centre_travels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here a message of the tests' own, which the registry names."""
    monkeypatch.setitem(registry._MESSAGES, "sizes", "sizes_message:MESSAGE")
    asked = []

    class Answering(SmallSite):
        def answer(self, kind: str, source: bytes) -> Path:
            question = json.loads(source)
            asked.append((kind, question["kind"]))
            payload = {"of": question["sha256"], "min_count": 11, "patients": [110, 88]}
            path = self.folder / "answer.json"
            write_file(path, kind, payload, self.header)
            return path

    homes = {name: Answering(name, tmp_path) for name in NAMES}
    play(tmp_path, lambda at: homes[str(at.node_config["site"])], answers=["sizes"])
    assert asked == [("sizes", "ensemble")] * 3
    kept = {path.name for path in (tmp_path / "c" / "sizes").iterdir()}
    assert kept == {f"{name}.sizes.json" for name in NAMES}


@pytest.mark.parametrize("said", [{}, {"secure": False}, {"secure": "yes"}])
def test_no_site_masks_exact_counts_unless_it_says_so_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, said: dict
) -> None:
    """The centre asks for keys, and then tries with keys that it made itself."""
    pytest.importorskip("cryptography")
    site = SmallSite("north", tmp_path)
    grid = FakeGrid(flower.client_app(lambda at: site), {1: said})
    models = [path.read_bytes() for path in site.fit()]
    keys = [SmallSite(name, tmp_path).mask_key().read_bytes() for name in NAMES]
    logging.getLogger("flwr").propagate = True
    with caplog.at_level(logging.INFO):
        for step, files in (("key", []), ("label", [*models, *keys])):
            (reply,) = flower.ask(grid, step, files, ["1"], 1.0)
            assert reply.files == ()
            assert reply.trouble == "the step failed there with 'InputError'"
    assert "add secure=true to --node-config" in caplog.text
    (reply,) = flower.ask(grid, "label", models, ["1"], 1.0)
    assert json.loads(reply.files[0])["kind"] == "labels"


def test_an_error_stays_at_the_site_but_for_its_type(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def site(at: Context) -> SmallSite:
        if at.node_config["site"] == "west":
            raise ValueError(TROUBLE)
        return SmallSite(str(at.node_config["site"]), tmp_path)

    logging.getLogger("flwr").propagate = True
    with caplog.at_level(logging.INFO):
        result, _ = play(tmp_path, site)
    reasons = [who.reason for who in result.absent]
    assert reasons == ["the step failed there with 'ValueError'", "sent no model that can be used"]
    assert TROUBLE not in result.report
    assert TROUBLE in caplog.text  # at the site


def test_a_silent_node_is_named(tmp_path: Path) -> None:
    result, _ = play(
        tmp_path, lambda at: SmallSite(str(at.node_config["site"]), tmp_path), silent=[3]
    )
    assert result.absent[0] == ("3", "fit", "it did not answer within 0.5 s")
    assert result.absent[1].site == "west"
    assert sorted(result.models) == ["north", "south"]


def hostile(kind: str) -> Callable[[Message, Context], Message]:
    """An app whose replies are anything but files."""

    def reply(message: Message, at: Context) -> Message:
        if kind == "error":
            return Message(Error(2, TROUBLE), reply_to=message)
        content = {
            "nothing": RecordDict(),
            "arrays": RecordDict({"font": ArrayRecord()}),
            "texts": RecordDict({"font": ConfigRecord({"files": ["{}"]})}),
            "number": RecordDict({"font": ConfigRecord({"files": 3})}),
            "no files": RecordDict({"font": ConfigRecord({})}),
            "many": RecordDict({"font": ConfigRecord({"files": [b"{}"] * 601})}),
            "large": RecordDict({"font": ConfigRecord({"files": [b" " * 2**23] * 9})}),
            "shouting": RecordDict({"font": ConfigRecord({"trouble": "\x1b[31m" + "A" * 10_000})}),
        }[kind]
        return Message(content, reply_to=message)

    return reply


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("error", "Flower reports an error (code 2)"),
        ("nothing", "it sent something other than files."),
        ("arrays", "it sent something other than files."),
        ("texts", "it sent something other than files."),
        ("number", "it sent something other than files."),
        ("no files", "it sent something other than files."),
        ("many", "it sent 601 files of 1,202 bytes in all, at most 600 of"),
        ("large", "it sent 9 files of 75,497,472 bytes in all, at most"),
        ("shouting", "the step failed there with '\\x1b[31mAAA"),
    ],
)
def test_a_hostile_reply_is_a_reason(kind: str, reason: str) -> None:
    grid = FakeGrid(hostile(kind), {7: {}})
    (reply,) = flower.ask(grid, "fit", (), None, 1.0)
    assert reply.files == ()
    assert (reply.trouble or "").startswith(reason)
    assert len(reply.trouble or "") < 120


def test_the_site_refuses_what_is_no_ensemble(tmp_path: Path) -> None:
    app = flower.client_app(lambda at: SmallSite("north", tmp_path))
    grid = FakeGrid(app, {1: {}})
    attempts: list[tuple[str, list[bytes]]]
    attempts = [("assign", []), ("assign", [b"{}"]), ("label", [b"[]"]), ("label", [b"{}"] * 601)]
    for step, files in attempts:
        (reply,) = flower.ask(grid, step, files, ["1"], 1.0)
        assert reply.trouble == "the step failed there with 'InputError'"


def test_a_flood_from_the_centre_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower passes messages of 2 GB, and each file in them may have 8 MB; all were parsed."""

    def parsed(file: bytes) -> str:
        raise AssertionError("a file of a flood was parsed")

    monkeypatch.setattr(flower, "claimed_kind", parsed)
    app = flower.client_app(lambda at: SmallSite("north", tmp_path))
    grid = FakeGrid(app, {1: {}})
    for flood in ([b"{}"] * 601, [b" " * 2**23] * 9):
        (reply,) = flower.ask(grid, "label", flood, ["1"], 1.0)
        assert reply.trouble == "the step failed there with 'InputError'"


def test_nobody_is_told_about_us() -> None:
    assert os.environ["FLWR_TELEMETRY_ENABLED"] == "0"
    assert os.environ["FLWR_DISABLE_UPDATE_CHECK"] == "1"


def test_what_a_node_did_not_sign_is_left_out(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    from font.exchange.signatures import sign_file

    public = {name: font.make_keys(tmp_path / "keys" / name) for name in (*NAMES, "centre")}
    known = tmp_path / "keys.toml"
    known.write_text("".join(f'{name} = "{key}"\n' for name, key in public.items()))

    class Signing(SmallSite):
        def fit(self) -> list[Path]:
            return self.signed(super().fit())

        def label(self, models: Sequence[bytes]) -> Path:
            return self.signed([super().label(models)])[0]

        def signed(self, paths: list[Path]) -> list[Path]:
            key = tmp_path / "keys" / ("north" if self.site == "west" else self.site)
            for path in paths:
                path.write_bytes(sign_file(path.read_bytes(), key / "signing.key"))
            return paths

    def site(at: Context) -> SmallSite:
        return Signing(str(at.node_config["site"]), tmp_path)

    sign = str(tmp_path / "keys" / "centre" / "signing.key")
    result, _ = play(tmp_path, site, run={"keys": str(known), "signing-key": sign})
    assert sorted(result.models) == ["north", "south"]
    assert "is signed with the key" in result.absent[0].reason
    font.read_ensemble(tmp_path / "c" / "ensemble.json", font.Header(study="ra", keys=public))
