"""What users read when something is wrong: errors, warnings, and options as users spell them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class InputError(ValueError):
    """What was given cannot be used: one sentence says what was found and how to fix it.

    Commands end with exit code 2 and this sentence. Any other exception is a bug of the program.
    """


class ReportWarning(UserWarning):
    """A warning that the readers of a study need as well; its report shows these and no others.

    Whoever runs the study sees `text`. The report shows `public` instead of a text that shows
    patients, and nothing if that is "".
    """

    def __init__(self, text: str, public: str | None = None) -> None:
        super().__init__(text)
        self.public = text if public is None else public
        self.is_repeated = public is not None


# --- advice spelled as the user writes it: in Python, a command or a study file ---------------


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
    """An option without a value, for a message."""
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
