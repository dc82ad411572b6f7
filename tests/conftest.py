"""What all tests share."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import pytest
from hypothesis import settings

mpl.use("Agg")
os.environ.setdefault("LOKY_MAX_CPU_COUNT", "1")  # the tests themselves use all cores
settings.register_profile("mmlca", deadline=None, derandomize=True)
settings.load_profile("mmlca")
sys.path.insert(0, str(Path(__file__).parent / "helpers"))

from browser import browser  # noqa: E402, F401 - a fixture
from servers import postgres, spark  # noqa: E402, F401 - fixtures


@pytest.fixture(scope="session", autouse=True)
def secret(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Public releases are rounded with a secret of the tests, not with that of the user."""
    path = tmp_path_factory.mktemp("secret") / "secret"
    path.write_text("5ec2e7" * 10 + "5ec2\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MMLCA_SECRET", str(path))
        yield


@pytest.fixture(scope="session", autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Commands write beside the user: never into the checkout, where a ledger would stay."""
    with contextlib.chdir(tmp_path_factory.mktemp("elsewhere")):
        yield
