"""The round over a real Flower network on this machine: a SuperLink and its SuperNodes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT
from ra_like import ra_like

import font
import mmlca
from font.exchange.masked import read_masked
from font.exchange.messages.labels import sum_of_labels
from font.exchange.messages.refinement import read_step, read_sums, share, share_masked
from mmlca.federation.centre_run import round_settings
from mmlca.study.study_file import read_network_study

pytest.importorskip("flwr", reason="Flower is not installed (extra federated)")

APP = ROOT / "examples" / "federated_flower"
SITES = {"north": 500, "south": 400, "west": 400}
ROUNDS = 2  # of the refinement
LIMIT = 600  # seconds for everything; about 40 are usual on an idle machine
STUDY = """
name = "switching"
[classes]
number = 3
[model]
n_init = 8
[pseudo_sites]
per_site = 2
[ensemble]
method = "latent"
refine = {rounds}
[outputs]
figures = false
[centre]
secure = {secure}
[privacy]
min_count = 11
"""


def write_homes(root: Path, secure: bool = False) -> Path:
    """Each hospital's folder, and one study file for all."""
    text = STUDY.format(rounds=ROUNDS, secure=str(secure).lower())
    for site, n in SITES.items():
        (root / site).mkdir(parents=True)
        ra_like(n, seed=n).write(root / site / "sequences.csv")
        for part in ("homes", "files", "simulated"):  # the same secret, to compare what they send
            (root / part / site).mkdir(parents=True, exist_ok=True)
            (root / part / site / "ledger.json").write_text(
                json.dumps(
                    {"format": "mmlca ledger", "version": 1, "secret": "5e" * 32, "releases": []}
                )
            )
        text += f'[sites.{site}]\nsequences = "{site}/sequences.csv"\n'
    (root / "study.toml").write_text(text)
    return root / "study.toml"


def by_files(root: Path, sites: list[str]) -> Path:
    """The same round with files; the centre's folder."""
    study = root / "study.toml"
    homes = {site: root / "files" / site for site in sites}
    for site, home in homes.items():
        mmlca.Hospital.from_study(study, site, folder=home).fit()
    models = sorted((root / "files").glob("*/to_all/*.json"))
    for site, home in homes.items():
        mmlca.Hospital.from_study(study, site, folder=home).label(models)
    files = font.read_models(models, font.Header(study="switching"))
    counts = sorted((root / "files").glob("*/to_centre/*.json"))
    tables = [font.read_labels(path, files, font.Header(study="switching")) for path in counts]
    ensemble, _ = font.combine(files, tables, **ensemble_settings(study))
    out = root / "files" / "centre"
    font.write_ensemble(out / "ensemble.json", ensemble, files, font.Header(study="switching"))
    for site, home in homes.items():
        sent = (out / "ensemble.json").read_bytes()
        mmlca.Hospital.from_study(study, site, folder=home).assign(sent)
    refine_by_files(study, homes, out)
    last = (out / "ensemble.json", out / f"shared-{ROUNDS}.json")
    for site, home in homes.items():
        mmlca.Hospital.from_study(study, site, folder=home).results(*last)
    return out


def ensemble_settings(study: Path) -> dict[str, Any]:
    """What the study file says to `font.combine`, whatever carries the files."""
    settings = round_settings(read_network_study(study))
    return {n: settings[n] for n in ("n_clusters", "seed", "weights", "distance", "method")}


def refine_by_files(study: Path, homes: dict[str, Path], out: Path) -> None:
    """All steps of the refinement with files, after which `clusters.csv` has probabilities."""
    source = out / "ensemble.json"
    while True:
        before = read_step(source)
        results = [
            mmlca.Hospital.from_study(study, site, folder=home).refine(source)
            for site, home in homes.items()
        ]
        if before.shared is not None and before.shared.last:
            return
        sums = [result.sums for result in results]
        source = out / f"shared-{before.step}.json"
        share(
            before,
            map(read_sums, sums),
            font.Header(study="switching"),
            rounds=ROUNDS,
            path=source,
        )


def payload(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))["payload"]


def free_ports(n: int) -> list[int]:
    taken = [socket.socket() for _ in range(n)]
    for one in taken:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in taken]
    for one in taken:
        one.close()
    return ports


class Network:
    """Processes of one test, ended with it."""

    def __init__(self, root: Path, encrypted: bool = False) -> None:
        self.root, self.started, self.encrypted = root, [], encrypted
        (self.port,) = free_ports(1)
        home = root / "flower"
        home.mkdir()
        if encrypted:
            write_certificate(root)
        trust = f'root-certificates = "{root / "ca.crt"}"' if encrypted else "insecure = true"
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = '
            f'"127.0.0.1:{self.port}"\n{trust}\n'
        )
        self.env = os.environ | {
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(Path(mmlca.__file__).parents[1]),
        }

    def start(self, name: str, *command: str) -> subprocess.Popen:
        with (self.root / f"{name}.log").open("w") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.env,
                cwd=self.root,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def link(self, *options: str) -> None:
        trust = ["--insecure"]
        if self.encrypted:
            files = {"certfile": "ca.crt", "keyfile": "ca.key", "ca-certfile": "ca.crt"}
            trust = [f"--ssl-{name}={self.root / file}" for name, file in files.items()]
        self.start(
            "link",
            *("flower-superlink", *trust, "--disable-runtime-dependency-installation"),
            *("--host", "127.0.0.1", "--port", str(self.port), *options),
        )
        wait_for(self.port)

    def node(self, site: str, more: str = "", key: Path | None = None) -> subprocess.Popen:
        study, folder = self.root / "study.toml", self.root / "homes" / site
        words = f'study="{study}" site="{site}" folder="{folder}" {more}'.strip()
        (port,) = free_ports(1)
        trust = ["--insecure"]
        if self.encrypted:
            trust = ["--root-certificates", str(self.root / "ca.crt")]
        known = [] if key is None else ["--auth-supernode-private-key", str(key)]
        return self.start(
            f"{site}-{len(self.started)}",
            *("flower-supernode", *trust, *known, "--superlink", f"127.0.0.1:{self.port}"),
            *("--host", "127.0.0.1", "--port", str(port), "--node-config", words),
        )

    def flwr(self, *words: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            ["flwr", *words],
            env=self.env,
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )

    def run(self, app: Path, timeout: int, *options: str) -> None:
        config = (
            f'timeout={timeout} out="{self.root / "centre"}" study="{self.root / "study.toml"}"'
        )
        done = self.flwr("run", str(app), "here", "--stream", "--run-config", config, *options)
        (self.root / "run.log").write_text(done.stdout + done.stderr)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    def end(self) -> None:
        for process in reversed(self.started):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.started:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(15)


def write_certificate(root: Path) -> None:
    """A certificate for this machine that signs itself, `ca.crt`, and its key."""
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        cwd=root,
        check=True,
        capture_output=True,
    )


def wait_for(port: int) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError(f"nothing listens on port {port}")


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    made = Network(tmp_path)
    yield made
    made.end()


@pytest.fixture
def app(tmp_path: Path) -> Path:
    return Path(shutil.copytree(APP, tmp_path / "app"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the best of")
def test_three_hospitals_give_what_files_give(network: Network, app: Path) -> None:
    root = network.root
    run_three(network, app)
    expected = by_files(root, list(SITES))
    assert payload(root / "centre" / "ensemble.json") == payload(expected / "ensemble.json")
    for step in range(ROUNDS + 1):
        name = f"shared-{step}.json"
        assert payload(root / "centre" / name) == payload(expected / name)
    for site in SITES:
        ours, theirs = root / "homes" / site, root / "files" / site
        assert (ours / "clusters.csv").read_bytes() == (theirs / "clusters.csv").read_bytes()
        for part in ("to_all", "to_centre"):
            for path in (theirs / part).iterdir():
                assert payload(ours / part / path.name) == payload(path)
    text = (root / "centre" / "report.md").read_text(encoding="utf-8")
    assert "rounded at random after they were added up, under masks" not in text
    assert (root / "centre" / "labels").exists()
    assert not (root / "centre" / "masked").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the best of")
def test_secure_sums_over_a_network_are_those_of_the_masked_files(
    network: Network, app: Path
) -> None:
    """Masks are new in every folder, and sums are rounded with draws from the masked files, so
    that only the same masked files give the same ensemble."""
    root, centre, header = network.root, network.root / "centre", font.Header(study="switching")
    run_three(network, app, "secure=true")
    models = font.read_models(sorted(centre.glob("models/*.json")), header)
    sent = {site: root / "homes" / site / "to_centre" for site in SITES}
    masked = [read_masked(folder / f"{site}.masked-labels.json") for site, folder in sent.items()]
    settings = ensemble_settings(root / "study.toml")
    ensemble, _ = font.combine(models, [sum_of_labels(masked, models)], **settings)
    font.write_ensemble(root / "again.json", ensemble, models, header)
    assert payload(centre / "ensemble.json") == payload(root / "again.json")
    before = read_step(centre / "ensemble.json")
    for step in range(ROUNDS + 1):
        parts = [
            read_masked(folder / f"{site}.masked-sums-{step}.json") for site, folder in sent.items()
        ]
        share_masked(before, parts, header, rounds=ROUNDS, path=root / "step.json")
        assert payload(centre / f"shared-{step}.json") == payload(root / "step.json")
        before = read_step(centre / f"shared-{step}.json")
    text = (centre / "report.md").read_text(encoding="utf-8")
    assert "rounded at random after they were added up, under masks" in text
    assert (centre / "masked").exists()
    assert not (centre / "labels").exists()


def run_three(network: Network, app: Path, said: str = "") -> None:
    """The whole round of three hospitals, after which each has its patients' clusters."""
    write_homes(network.root, secure=bool(said))
    network.link()
    for site in SITES:
        network.node(site, said)
    network.run(app, timeout=200)
    for site in SITES:
        clusters = (network.root / "homes" / site / "clusters.csv").read_bytes()
        assert clusters.startswith(b"id,cluster,probability,")
    text = (network.root / "centre" / "report.md").read_text(encoding="utf-8")
    assert "6 models of 3 sites" in text
    assert "Nobody." in text
    page = (network.root / "centre" / "report" / "report.html").read_text(encoding="utf-8")
    assert "Differences between the sites" in page


ODD = '''

class Odd:
    """A hospital that sends nonsense, or takes too long."""

    def __init__(self, plain):
        self.plain = plain

    def fit(self):
        paths = self.plain.fit()
        if self.plain.site == "west":
            paths[0].write_text('{"format": "font exchange", "version": 2, "kind": "script"}')
        return paths

    def label(self, models):
        if self.plain.site == "south":
            import time

            time.sleep(600)
        return self.plain.label(models)

    def assign(self, ensemble):
        self.plain.assign(ensemble)

    def refine(self, source):
        return self.plain.refine(source)


hospitals = client_app(lambda context: Odd(hospital(context)))
'''


@pytest.mark.slow
def test_the_late_and_the_hostile_stop_nobody(network: Network, app: Path) -> None:
    root = network.root
    write_homes(root)
    with (app / "courses.py").open("a") as file:
        file.write(ODD)
    network.link()
    for site in SITES:
        network.node(site)
    network.run(app, timeout=45)
    result = font.read_ensemble(root / "centre" / "ensemble.json", font.Header(study="switching"))
    assert sorted(result.models) == ["north/1", "north/2", "south/1", "south/2"]
    assert result.ensemble.cluster_sizes_.columns.tolist() == ["north"]
    assert (root / "homes" / "north" / "clusters.csv").exists()
    text = (root / "centre" / "report.md").read_text(encoding="utf-8")
    missing = text.partition("## Who is missing")[2].partition("##")[0]
    assert "does not fit the specification at" in missing
    assert "| west" in missing
    assert "it did not answer within 45 s" in missing
    assert "No counts came from south" in missing


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the best of")
def test_a_simulation_gives_what_files_give(network: Network, tmp_path: Path, app: Path) -> None:
    pytest.importorskip("ray", reason="a simulation needs Ray: pip install 'flwr[simulation]'")
    write_homes(tmp_path)
    network.link("--simulation")
    network.run(app, 200, "--federation-config", "num-supernodes=3")
    expected = by_files(tmp_path, list(SITES))
    for name in ("ensemble.json", f"shared-{ROUNDS}.json"):
        assert payload(tmp_path / "centre" / name) == payload(expected / name)


# --- machines that nobody knows, and a centre that asks for more -------------------------------


HOSTILE = """

import json
import time

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

import font
from font.exchange.flower import ask

centre = ServerApp()


@centre.main()
def main(grid, context):
    seen = {"nodes": []}
    end = time.monotonic() + 60
    while len(seen["nodes"]) < 2 and time.monotonic() < end:
        time.sleep(0.5)
        seen["nodes"] = sorted(map(str, grid.get_node_ids()))
    time.sleep(8)  # for those who knock
    seen["nodes"] = sorted(map(str, grid.get_node_ids()))

    def answers(step, files):
        return ask(grid, step, files, None, 200.0, 2)

    def told(replies):
        return [
            [len(one.files), font.read_labels.__name__ if one.files else one.trouble]
            for one in replies
        ]

    models = [file for one in answers("fit", []) for file in one.files]
    first = answers("label", models)
    again = answers("label", models)
    seen["first"] = told(first)
    seen["replayed alike"] = [one.files for one in first] == [one.files for one in again]
    seen["one model fewer"] = told(answers("label", models[1:]))
    crafted = json.loads(models[0])
    crafted["payload"]["model"]["prior"] = 2.0
    crafted["sha256"] = font.fingerprint(crafted["payload"])
    seen["a model changed"] = told(answers("label", [json.dumps(crafted).encode(), *models[1:]]))
    seen["a huge file"] = told(answers("label", [*models, b" " * 9 * 2**20]))
    seen["many files"] = told(answers("label", [*models, *[b"{}"] * 2_000]))
    seen["a step of its own"] = told(answers("fit_all", []))
    with open(context.run_config["out"], "w") as file:
        json.dump(seen, file)
"""


def ec_key(root: Path, name: str) -> Path:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", "", "-f", name],
        cwd=root,
        check=True,
    )
    return root / name


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("ssh-keygen") is None or shutil.which("openssl") is None,
    reason="keys and certificates need OpenSSH and OpenSSL",
)
def test_unknown_machines_and_a_greedy_centre_get_nothing(tmp_path: Path, app: Path) -> None:
    """Attacks: a SuperNode whose key is not registered, and one without a key; a centre that
    repeats a request, asks again with other models, sends too much, or asks for a step that does
    not exist."""
    network = Network(tmp_path, encrypted=True)
    try:
        write_homes(tmp_path)
        with (app / "courses.py").open("a") as file:
            file.write(HOSTILE)
        network.link("--enable-supernode-auth")
        keys = {site: ec_key(tmp_path, site + "-key") for site in SITES}
        for site in ("north", "south"):
            done = network.flwr("supernode", "register", f"{keys[site]}.pub", "here")
            assert done.returncode == 0, done.stdout + done.stderr
        nodes = {site: network.node(site, key=key) for site, key in keys.items()}
        keyless = network.node("west")
        network.run(app, timeout=300)
        seen = json.loads((tmp_path / "centre").read_text())
        assert len(seen["nodes"]) == 2  # neither the unregistered nor the one without a key
        for intruder in (nodes["west"], keyless):
            assert intruder.poll() not in (None, 0)  # the SuperLink turned it away, and it ended
        logs = [path.read_text() for path in sorted(tmp_path.glob("west-*.log"))]
        assert "Failed to activate SuperNode" in logs[0]
        assert "All SuperNodes must be registered" in logs[1]
        assert not (tmp_path / "homes" / "west" / "to_all").exists()
        assert seen["first"] == [[1, "read_labels"]] * 2
        assert seen["replayed alike"]
        refused = [[0, "the step failed there with 'InputError'"]] * 2
        for attempt in ("one model fewer", "a model changed", "a huge file", "many files"):
            assert seen[attempt] == refused, attempt
        assert all(n == 0 for n, _ in seen["a step of its own"])
    finally:
        network.end()
