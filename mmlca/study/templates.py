"""Templates of the files that a study writes."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_HYPHENED = re.compile(r"(?<![\w&#-])(?=[\w-]{3,14}(?![\w-]))\w+(?:-\w+)+")
"""Short words with a hyphen, such as names of drug classes."""


@cache
def environment() -> Environment:
    """All templates; what goes into HTML is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=PackageLoader("mmlca.study", "."),  # the folder report included
        autoescape=select_autoescape(["html", "html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["unbroken"] = unbroken
    return environment


def unbroken(text: str) -> Markup:
    """A text in which no line ends before a per cent sign or within "p = 0.01" or "anti-CD20".

    It may end after the sign of a combination, as in metformin+DPP-4.
    """
    from markupsafe import Markup, escape

    text = re.sub(r"\bp ([=≤<]) (?=\d)", "p\u00a0\\1\u00a0", text)
    text = re.sub(r"(?<=\d) %", "\u00a0%", text)
    text = str(escape(text)).replace("+", "+<wbr>")
    return Markup(_HYPHENED.sub(r'<span class="together">\g<0></span>', text))


def render(template: str, **values: Any) -> str:
    return environment().get_template(template).render(**values)
