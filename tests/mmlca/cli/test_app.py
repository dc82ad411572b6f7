"""What all commands have in common: help, exit codes, progress."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import invoke, mmlca_does
from paths import ROOT

import mmlca
from mmlca.cli import options

HERE = os.environ | {"PYTHONPATH": str(ROOT)}
COMMANDS = ["demo", "study", "prep", "fit", "select", "site", "centre", "network"]
COMMANDS += ["exchange", "simulate"]
ALL = ["demo", "study init", "study run", "study sensitivity", "prep", "fit", "select"]
ALL += ["site fit", "site label", "site assign", "centre combine", "exchange check", "simulate"]
ALL += ["site run", "centre run", "network status"]


def test_version() -> None:
    assert mmlca_does("--version") == f"mmlca {mmlca.__version__}\n"


def test_help_lists_what_a_newcomer_needs_first() -> None:
    listed = mmlca_does("--help").split("Commands:")[1]
    assert re.findall(r"^  (\w+)", listed, flags=re.M) == COMMANDS


@pytest.mark.parametrize("command", ALL)
def test_help_of_each_command_speaks_one_language(command: str) -> None:
    text = mmlca_does(*command.split(), "--help")
    assert not re.search(r"if not said|--starts|--jobs", text)
    assert "--help" in text


def test_exit_codes_of_a_real_process(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mmlca", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=tmp_path, env=HERE
        )

    assert run("--version").returncode == 0
    (tmp_path / "a.csv").write_text("id,t1\n1,X\n")
    refused = run("fit", "a.csv", "-k", "2")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("mmlca: ")
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("fit", "{file}", "-k", 2), "stopped before the end; run the command again."),
        (
            ("study", "run", "{file}"),
            "stopped; the same command continues after the last finished step.",
        ),
    ],
)
def test_ctrl_c_is_a_sentence_and_exit_code_1(
    arguments: tuple[object, ...], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(mmlca.Sequences, "read", interrupted)
    monkeypatch.setattr("mmlca.study.run.run_study", interrupted)
    file = tmp_path / "study.toml"
    file.write_text('name = "x"\n[sites.A]\nsequences = "study.toml"\n')
    done = invoke(*(str(a).format(file=file) for a in arguments))
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == f"mmlca: {sentence}\n"


def test_a_bug_is_not_called_the_users_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(mmlca.Sequences, "read", broken)
    result = invoke("fit", ROOT / "pyproject.toml", "-k", 2)
    assert result.exit_code == 1
    assert "this is a bug in mmlca (ZeroDivisionError in test_app.py, line" in result.stderr
    with pytest.raises(ZeroDivisionError):
        invoke("--debug", "fit", ROOT / "pyproject.toml", "-k", 2)


def test_an_unforeseen_value_error_is_a_bug_and_shows_nothing_of_the_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every ValueError was called the user's fault, with its text."""

    def broken(*_: object) -> None:
        raise ValueError("cannot insert patient 4711, already exists")

    monkeypatch.setattr(mmlca.Sequences, "read", broken)
    result = invoke("fit", ROOT / "pyproject.toml", "-k", 2)
    assert result.exit_code == 1
    assert "4711" not in result.stderr
    assert "this is a bug in mmlca (ValueError" in result.stderr


def test_progress_shows_on_terminals_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(**settings: bool) -> str:
        stream = io.StringIO()
        monkeypatch.setattr(sys, "stderr", stream)
        with options.working("Fitting", **settings) as show:
            show("MGB [bold], K = 2", 0.5)
        return stream.getvalue()

    assert shown() == ""
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    assert "MGB [bold], K = 2" in shown()
    assert shown(quiet=True) == ""


def test_warnings_become_notes_once(capsys: pytest.CaptureFixture[str]) -> None:
    import warnings

    for quiet, notes in ((False, "note: few patients\n"), (True, "")):
        with options.working("Fitting", quiet=quiet):
            for _ in range(2):
                warnings.warn("few patients", UserWarning, stacklevel=1)
        assert capsys.readouterr().err == notes


def interrupted_import() -> None:
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise ValueError("cannot import") from None


def test_ctrl_c_that_comes_out_as_another_error_is_ctrl_c() -> None:
    """A compiled module whose import is interrupted raises an error of its own."""
    with pytest.raises(KeyboardInterrupt, match="stopped"), options.working("…", quiet=True):
        interrupted_import()
    with pytest.raises(ValueError, match="a real one"), options.working("…", quiet=True):
        raise ValueError("a real one")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
