"""The error that says what a user can fix, and the warning that readers of results need."""

from __future__ import annotations


class InputError(ValueError):
    """What was given cannot be used: one sentence says what was found and how to fix it.

    Commands end with exit code 2 and this sentence. Any other exception is a bug of the program.
    """


class ReportWarning(UserWarning):
    """A warning that the readers of a study need as well; its report shows these and no others.

    Parameters
    ----------
    text : str
    public : str, optional
        What the report shows instead of a text that shows patients; "" for nothing. Whoever runs
        the study sees the text itself.
    """

    def __init__(self, text: str, public: str | None = None) -> None:
        super().__init__(text)
        self.public = text if public is None else public
        self.is_repeated = public is not None
