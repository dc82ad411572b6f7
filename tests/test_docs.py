"""The examples in the docstrings run and give what they show."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

PACKAGES = ("mmlca", "font", "ehr_prep")
MODULES = [
    info.name
    for package in PACKAGES
    for info in pkgutil.walk_packages(
        importlib.import_module(package).__path__, prefix=f"{package}."
    )
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=flags)
    assert failed == 0
