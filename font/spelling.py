"""Advice in messages, spelled as the user writes it: in Python, in a command or in a study file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Spell = Callable[[str, object], str]


def _in_python(name: str, value: object) -> str:
    return f"{name}={'' if value is None else repr(value)}"


_spell: ContextVar[Spell] = ContextVar("spell", default=_in_python)


def option(name: str, value: object = None) -> str:
    """An option, with a value if there is one, for a message.

    >>> option("encoding", "latin-1")
    "encoding='latin-1'"
    >>> with spelled(lambda name, value: f"--{name} {value}"):
    ...     option("encoding", "latin-1")
    '--encoding latin-1'
    """
    return _spell.get()(name, value)


def option_name(name: str) -> str:
    """An option without a value, for a message.

    >>> option_name("data_cut")
    'data_cut'
    """
    return option(name).rstrip("= ")


def spelling() -> Spell:
    """How options are spelled now, for work that is done in another process."""
    return _spell.get()


@contextmanager
def spelled(spell: Spell) -> Iterator[None]:
    """Within the block, messages spell options with `spell(name, value)`."""
    token = _spell.set(spell)
    try:
        yield
    finally:
        _spell.reset(token)
