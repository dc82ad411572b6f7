"""How the documentation is built: `make docs`."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from docutils.nodes import SkipNode
from latex2mathml.converter import convert

import mmlca

project = "mmlca"
author = "The mmlca developers"
copyright = "the mmlca developers"
release = version = mmlca.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
myst_update_mathjax = False
nb_execution_mode = "force"
nb_execution_excludepatterns = ["notebooks/*"]  # their outputs are kept; the tests run them
nb_execution_timeout = 300
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_show_tb = True
default_role = "code"
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_use_rtype = False
napoleon_use_ivar = True
strip_signature_backslash = True  # keeps the last sign of names such as params_
html_theme = "pydata_sphinx_theme"
html_context = {"default_mode": "auto"}  # light or dark as the reader has it
html_title = "mmlca"
html_math_renderer = "mathml"  # browsers show it as it is; MathJax would come over the network
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_show_sourcelink = False
html_sidebars = {"**": []}  # pages have no sections of their own below them
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 6,
}

PACKAGES = {
    "mmlca": "Sequences, models, tables, figures and studies",
    "ehr_prep": "From medication records to sequences",
    "font": "Combining the models of several hospitals",
}


def write_reference(_app: object) -> None:
    """One page per package with all its public names."""
    folder = Path(__file__).parent / "reference"
    folder.mkdir(exist_ok=True)
    for package, title in PACKAGES.items():
        module = importlib.import_module(package)
        names = [n for n in dir(module) if not n.startswith("_")]
        lines = [package, "=" * len(package), "", f"{title}.", ""]
        for name in names:
            thing = getattr(module, name)
            if getattr(thing, "__module__", "").split(".")[0] != package:
                continue
            kind = "autoclass" if isinstance(thing, type) else "autofunction"
            if kind == "autofunction" and not callable(thing):
                continue
            lines += [f".. {kind}:: {package}.{name}"]
            lines += ["   :members:", ""] if kind == "autoclass" else [""]
        text = "\n".join(lines) + "\n"
        page = folder / f"{package}.rst"
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


def skip_borrowed(_app: object, _what: str, name: str, *_more: object) -> bool | None:
    """scikit-learn adds methods of its own that refer to its own pages."""
    return True if name.startswith("set_") and name.endswith("_request") else None


def one_name_per_line(
    _app: object, _what: str, _name: str, _thing: object, _options: object, lines: list[str]
) -> None:
    """Attributes that share a description, `a_, b_ : DataFrame`, get one each."""
    shared = r"^:(ivar|vartype) ([^:\n]+, [^:\n]+):(.*(?:\n +.*)*)"
    text = re.sub(
        shared,
        lambda field: "\n".join(f":{field[1]} {name}:{field[3]}" for name in field[2].split(", ")),
        "\n".join(lines),
        flags=re.M,
    )
    lines[:] = text.split("\n")


def show_formula(display: str) -> Callable[[Any, Any], None]:
    """Writes a formula as MathML, inside a line or as a block."""

    def visit(page: Any, node: Any) -> None:
        page.body.append(convert(node.astext(), display=display))
        raise SkipNode

    return visit


def setup(app: Any) -> None:
    app.add_html_math_renderer(
        "mathml", (show_formula("inline"), None), (show_formula("block"), None)
    )
    app.connect("builder-inited", write_reference)
    app.connect("autodoc-skip-member", skip_borrowed)
    app.connect("autodoc-process-docstring", one_name_per_line, priority=900)  # after napoleon
