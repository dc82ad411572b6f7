"""The round of `font.exchange.rounds` over Flower (extra `federated`).

Each hospital runs a SuperNode, the centre a SuperLink, and one app connects them: `client_app`
at the hospitals, `server_app` at the centre. Messages carry the exchange files byte for byte, so
that the result is that of the file exchange, and the same readers stand guard.

What to know before hospitals join:

- Flower sends the app's code from the centre to the SuperNodes, which run it. Hospitals that do
  not want that let a SuperNode run signed apps only (`--trusted-entities`), or start the app
  themselves (`--isolation process`).
- What protects patients (`min_count` and the site's floor) is set at the hospital, in the object
  that is given to `client_app`; nothing in a message changes it. A hospital masks exact counts
  (`font.exchange.masked`) only if its own SuperNode says so (`--node-config 'secure=true'`).
- The public keys of secure sums pass through the centre. One that is not honest could put its own
  in their place, unless the hospitals sign their files and pin each other's keys.
- Of an error at a hospital the centre learns the type, never the text, which may name patients.
- Whoever may connect can answer in any site's name. Let only known SuperNodes connect
  (`--enable-supernode-auth`), and pin the sites' keys (`font.exchange.signatures`): the first shows
  which machine sent a message, the second which site wrote a file.
- Every file that leaves goes through the hospital's ledger first: `mmlca.Hospital` gives the same
  bytes when asked again, and refuses another request for the same study and round.

Telemetry and the search for updates are switched off when this module is imported, unless the
environment says otherwise.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from font.errors import InputError
from font.exchange.envelope import Header, claimed_kind
from font.exchange.fields import FILE_LIMIT, MOST_MODELS, MOST_SITES
from font.exchange.replies import Reply, Site, answer_step
from font.exchange.rounds import Round, run_round, steps
from font.exchange.signatures import read_keys

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
try:
    from flwr.app import ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError as error:  # pragma: no cover - depends on what is installed
    raise ImportError(
        "Flower is not installed; install it with: pip install 'mmlca[federated]'."
    ) from error

_RECORD, _FILES, _TROUBLE = "font", "files", "trouble"
_MOST_FILES = MOST_MODELS + MOST_SITES  # of a message: models, and keys for masks
_MOST_BYTES = 8 * FILE_LIMIT
_log = logging.getLogger("flwr")  # what `flwr run --stream` and the SuperNode show


def client_app(site: Callable[[Context], Site]) -> ClientApp:
    """The app of a hospital; `site` makes it from the context of each message.

    `context.node_config` holds what the hospital gave to its own SuperNode, such as `--node-config
    'study="study.toml" site="MGB"'`. With `secure=true` there the hospital takes part in secure
    sums, if the centre asks for them.
    """
    app = ClientApp()
    for step in steps():
        app.query(_query(step))(_handler(site, step))
    return app


def _query(step: str) -> str:
    """What Flower calls a step."""
    return step.replace(" ", "_")


def _handler(site: Callable[[Context], Site], step: str) -> Callable[[Message, Context], Message]:
    def handle(message: Message, context: Context) -> Message:
        try:
            files = _files_in(message)
            if step == "key" or any(claimed_kind(file) == "key" for file in files):
                _check_secure(context)
            paths = answer_step(site(context), step, files)
            record = ConfigRecord({_FILES: [path.read_bytes() for path in paths]})
        except Exception as error:  # whatever it is, its text stays here
            _log.exception("the step %r failed at this site", step)
            record = ConfigRecord({_TROUBLE: type(error).__name__[:60]})
        return Message(RecordDict({_RECORD: record}), reply_to=message)

    return handle


def _check_secure(context: Context) -> None:
    """Exact counts leave, under masks, only where the hospital said so itself."""
    if context.node_config.get("secure", False) is not True:
        raise InputError(
            "the centre asks for secure sums, in which exact counts leave under masks, but this "
            "site was not started for them; to take part add secure=true to --node-config, or ask "
            "the centre to run the round without secure=true."
        )


def server_app(
    header: Header | None = None,
    *,
    sites: Sequence[str] | None = None,
    out: str | Path | None = None,
    n_clusters: int | None = None,
    timeout: float | None = None,
    refine: int | str | None = None,
    secure: bool | None = None,
    done: Callable[[Round], Any] | None = None,
    plan: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
    **settings: Any,
) -> ServerApp:
    """The app of the centre: one round, its refinement if the study wants one, then the end.

    What is None is taken from the run's configuration (`flwr run --run-config 'study="ra"'`):
    `study`, `keys` (a file for `font.read_keys`) and `signing-key` for the header; `sites`, such as
    "MGB,VA"; `out`, else "results"; `clusters`, where 0 stands for the sites' vote; `timeout`, the
    seconds to wait for the sites in each step, else 3600; `refine`, where "" stands for none;
    `secure`. The round begins when as many as `sites` are connected, or when the time is up. `done`
    is called with the `Round`; `settings` go to `run_round`. `plan` is called with the
    configuration when the round begins, since a hospital that has the same app does not have the
    centre's files; the arguments that it returns take the place of these.
    """
    app = ServerApp()
    given = {
        "header": header,
        "sites": sites,
        "out": out,
        "n_clusters": n_clusters,
        "timeout": timeout,
        "refine": refine,
        "secure": secure,
        "done": done,
        **settings,
    }

    @app.main()  # type: ignore[untyped-decorator, unused-ignore]
    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        _run(grid, config, **(given | dict({} if plan is None else plan(config))))

    return app


def _run(
    grid: Grid,
    config: Mapping[str, Any],
    *,
    header: Header | None,
    sites: Sequence[str] | None,
    out: str | Path | None,
    n_clusters: int | None,
    timeout: float | None,
    refine: int | str | None,
    secure: bool | None,
    done: Callable[[Round], Any] | None,
    **settings: Any,
) -> None:
    """The round, with the arguments of `server_app`."""
    if sites is None:
        sites = [s.strip() for s in str(config.get("sites", "")).split(",") if s.strip()]
    n_sites = len(sites)
    wait = float(config.get("timeout", 3600.0)) if timeout is None else timeout
    steps: Any = str(config.get("refine", "")) if refine is None else refine
    result = run_round(
        lambda step, files, to: ask(grid, step, files, to, wait, n_sites),
        header or _header(config),
        sites=sites,
        out=Path(str(config.get("out", "results")) if out is None else out),
        n_clusters=n_clusters or int(config.get("clusters", 0)) or None,
        refine=int(steps) if str(steps).isdecimal() else steps or None,
        secure=config.get("secure", False) is True if secure is None else secure,
        **settings,
    )
    _log.info("%s", result.report)
    if done is not None:
        done(result)


def _header(config: Mapping[str, Any]) -> Header:
    """The centre's header, from the run's configuration."""
    keys, signing_key = config.get("keys"), config.get("signing-key")
    return Header(
        study=str(config["study"]),
        keys=read_keys(str(keys)) if keys else None,
        signing_key=str(signing_key) if signing_key else None,
    )


def ask(
    grid: Grid,
    step: str,
    files: Sequence[bytes],
    senders: Sequence[str] | None,
    timeout: float,
    n_sites: int = 0,
) -> list[Reply]:
    """Send files to nodes and collect what comes back in time.

    `senders` are node ids as texts; None asks everyone, once `n_sites` are connected.
    """
    end = time.monotonic() + timeout
    if senders is None:
        senders = _connected(grid, max(1, n_sites), end)
    record = ConfigRecord({_FILES: list(files)})
    left = max(1.0, end - time.monotonic())
    messages = [
        Message(RecordDict({_RECORD: record}), int(node), f"query.{_query(step)}", ttl=left + 60)
        for node in senders
    ]
    replies = {}
    for message in grid.send_and_receive(messages, timeout=left):
        node = str(message.metadata.src_node_id)
        replies[node] = _read(message, node)
    late = f"it did not answer within {timeout:g} s"
    return [replies.get(node, Reply(node, trouble=late)) for node in senders]


def _connected(grid: Grid, n: int, end: float) -> list[str]:
    """The nodes, as soon as n are there or half of the time is over."""
    half = time.monotonic() + (end - time.monotonic()) / 2
    while len(nodes := sorted(grid.get_node_ids())) < n and time.monotonic() < half:
        time.sleep(0.5)
    return [str(node) for node in nodes]


def _read(message: Message, node: str) -> Reply:
    """A reply of a node that may be anything."""
    if message.has_error():
        return Reply(node, trouble=f"Flower reports an error (code {message.error.code})")
    try:
        record = message.content.config_records.get(_RECORD)
        trouble = None if record is None else record.get(_TROUBLE)
        if trouble is not None:
            return Reply(node, trouble=f"the step failed there with {ascii(trouble)[:60]}")
        return Reply(node, tuple(_files_in(message)))
    except ValueError as error:  # also of Flower itself, for a message without content
        return Reply(node, trouble=str(error))


def _files_in(message: Message) -> list[bytes]:
    record = message.content.config_records.get(_RECORD)
    files = None if record is None else record.get(_FILES)
    if isinstance(files, list):
        received = [file for file in files if isinstance(file, bytes)]
        if len(received) == len(files):
            _check_amount(received)
            return received
    raise InputError("it sent something other than files.")


def _check_amount(files: list[bytes]) -> None:
    """Refuse a message larger than any round needs; Flower itself passes messages of up to 2 GB."""
    n_bytes = sum(map(len, files))
    if len(files) > _MOST_FILES or n_bytes > _MOST_BYTES:
        raise InputError(
            f"it sent {len(files):,} files of {n_bytes:,} bytes in all, at most {_MOST_FILES:,} of "
            f"{_MOST_BYTES:,} are read."
        )
