"""The error that says what a user can fix."""

from __future__ import annotations


class InputError(ValueError):
    """What was given cannot be used: one sentence says what was found and how to fix it.

    Commands end with exit code 2 and this sentence. Any other exception is a bug of the program.
    """
