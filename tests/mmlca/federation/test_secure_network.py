"""A round with secure sums over a network: the result is that of the files, with drop-outs too."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from site_folders import duplicate

import font
import mmlca
from font.errors import InputError
from font.exchange.masked import read_masked
from font.exchange.messages.labels import sum_of_labels
from font.exchange.messages.refinement import read_step, share_masked
from font.exchange.replies import Reply, in_memory
from font.exchange.rounds import Round, run_round

STUDY = "ra switching"
CHAINS = mmlca.MarkovParams(
    [0.6, 0.4],
    [[0.8, 0.15, 0.05], [0.2, 0.3, 0.5]],
    [
        [[0.85, 0.1, 0.05], [0.4, 0.5, 0.1], [0.4, 0.1, 0.5]],
        [[0.4, 0.3, 0.3], [0.1, 0.8, 0.1], [0.05, 0.05, 0.9]],
    ],
)
SIZES = {"north": 260, "south": 240, "west": 220, "east": 200}
Twist = Callable[[str, int, Reply], Reply]


def home(root: Path, site: str, without: Sequence[str] = ()) -> mmlca.Hospital:
    n = SIZES[site]
    drawn, _ = mmlca.simulate(CHAINS, n, 8, seed=n, states=["a", "b", "c"])
    about: dict[str, Any] = {"sequences": drawn, "n_classes": 2, "starts": 5, "without": without}
    return mmlca.Hospital(study=STUDY, site=site, folder=root / site, **about)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of the sites, whose models and keys are in their ledgers."""
    root = tmp_path_factory.mktemp("fitted")
    for site in SIZES:
        home(root, site).fit()
        home(root, site).mask_key()
    return root


def network(
    root: Path, twist: Twist = lambda step, time, reply: reply, without: Sequence[str] = ()
) -> Any:
    """Asks the hospitals as Flower's app does; `twist` may change a reply, by step and time.

    Sites `without` are those of whom all others know that they may drop out.
    """
    homes = {site: home(root, site, without) for site in SIZES}
    times: dict[str, int] = {}

    def ask(step: str, files: Sequence[bytes], senders: Sequence[str] | None) -> list[Reply]:
        times[step] = times.get(step, 0) + 1
        replies = in_memory(homes)(step, files, senders)
        return [twist(step, times[step], reply) for reply in replies]

    return ask


def play(
    root: Path,
    twist: Twist = lambda step, time, reply: reply,
    without: Sequence[str] = (),
    **settings: Any,
) -> Round:
    settings = {"n_clusters": 2, "refine": 1} | settings
    return run_round(
        network(root, twist, without),
        font.Header(study=STUDY),
        out=root / "centre",
        secure=True,
        **settings,
    )


def payload(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))["payload"]


def by_files(root: Path, labelling: Sequence[str], refining: Sequence[str]) -> None:
    """The same round with files, among the sites that answered in the end."""
    keys = {site: home(root, site).mask_key() for site in SIZES}
    models = [next((root / site / "to_all").glob("*.model.json")) for site in sorted(SIZES)]
    files = font.read_models(models)
    chosen = [keys[site] for site in labelling]
    parts = [read_masked(home(root, site).label(models, secure=chosen)) for site in labelling]
    ensemble, _ = font.combine(files, [sum_of_labels(parts, files)], n_clusters=2)
    source = root / "ensemble.json"
    font.write_ensemble(source, ensemble, files, font.Header(study=STUDY))
    chosen = [keys[site] for site in refining]
    for step in range(2):
        gone = [site for site in SIZES if site not in refining]
        sums = [home(root, site, gone).refine(source, secure=chosen).sums for site in refining]
        shared = root / f"shared-{step}.json"
        share_masked(
            read_step(source), map(read_masked, sums), font.Header(study=STUDY), path=shared
        )
        source = shared


@pytest.mark.parametrize("gone", ["nobody", "label", "refine"])
def test_the_result_is_that_of_the_files(tmp_path: Path, fitted: Path, gone: str) -> None:
    """Whoever does not answer is left out, and the others answer again as a smaller set."""
    for part in ("network", "files"):  # the same ledgers, and so the same draws and masks
        duplicate(fitted, tmp_path / part)

    def silent(step: str, time: int, reply: Reply) -> Reply:
        late = (step, time, reply.sender) == (gone, 1, "east")
        return Reply("east", trouble="it did not answer") if late else reply

    result = play(tmp_path / "network", silent, without=["east"])
    three = [site for site in SIZES if site != "east"]
    by_files(
        tmp_path / "files",
        three if gone == "label" else list(SIZES),
        list(SIZES) if gone == "nobody" else three,
    )
    for name in ("ensemble.json", "shared-0.json", "shared-1.json"):
        ours, theirs = tmp_path / "network" / "centre" / name, tmp_path / "files" / name
        assert payload(ours) == payload(theirs)
    assert result.shared is not None
    assert result.shared.last
    assert sorted(result.shared.sites) == sorted(SIZES if gone == "nobody" else three)
    expected = [] if gone == "nobody" else [("east", gone)]
    assert [(who.site, who.step) for who in result.absent] == expected
    masked = {path.name for path in (tmp_path / "network" / "centre" / "masked").iterdir()}
    assert {f"{site}.masked-labels.json" for site in three} <= masked
    assert ("east.masked-labels.json" in masked) == (gone != "label")
    assert not (tmp_path / "network" / "centre" / "labels").exists()
    assert "all sites" in result.report


def test_who_sends_something_else_is_left_out(tmp_path: Path, fitted: Path) -> None:
    duplicate(fitted, tmp_path / "a")
    first: dict[str, Reply] = {}

    def odd(step: str, time: int, reply: Reply) -> Reply:
        if (step, reply.sender) == ("key", "south"):
            first["key"] = reply
        if (step, reply.sender) == ("key", "west"):
            return Reply("west", first["key"].files)  # in another site's name
        return reply

    result = play(tmp_path / "a", odd, refine=None)
    ((site, step, reason),) = result.absent
    assert (site, step) == ("west", "key")
    assert "it sent a file of 'south', but models of 'west'" in reason
    assert "| west" in result.report

    duplicate(fitted, tmp_path / "b")

    def old(step: str, time: int, reply: Reply) -> Reply:
        """East answers the second request with its file for the first set."""
        if (step, reply.sender, time) == ("label", "north", 1):
            return Reply("north", trouble="it did not answer")
        if (step, reply.sender) == ("label", "east"):
            first.setdefault("label", reply)
            return first["label"]
        return reply

    with pytest.raises(InputError, match=r"at least 3 sites, and 2 can take part .*other sites"):
        play(tmp_path / "b", old, without=["north"], refine=None)
    assert not (tmp_path / "b" / "centre" / "ensemble.json").exists()
    assert not (tmp_path / "b" / "centre" / "masked").exists()


def test_two_sites_are_too_few(tmp_path: Path, fitted: Path) -> None:
    duplicate(fitted, tmp_path / "a")

    def few(step: str, time: int, reply: Reply) -> Reply:
        return reply if reply.sender in ("north", "south") else Reply(reply.sender, trouble="late")

    with pytest.raises(InputError, match=r"at least 3 sites, and 2 can take part .*west: late"):
        play(tmp_path / "a", few)
