"""Figures as files: laid out once, and small on the page."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

from mmlca.study.report.exports import draw_figure, for_page, to_pictures


def heat(seed: int) -> Any:
    """Panels with long labels, a colour bar and a legend outside: all that a layout must fit."""
    values = np.random.default_rng(seed).random((4, 4))
    figure, axes = plt.subplots(1, 2, figsize=(4, 2), layout="constrained")
    image = axes[0].imshow(values)
    axes[1].plot(values[0], label="a rather long name")
    axes[1].set_ylabel("what is shown here")
    figure.colorbar(image, ax=axes[0])
    figure.legend(loc="outside upper center")
    figure.supxlabel("Quarter")
    return figure


def test_laying_out_beforehand_changes_no_pixel() -> None:
    pictures = to_pictures(lambda: heat(1), 90)
    look = {"font.size": 7, "axes.titlesize": 7, "xtick.labelsize": 6, "ytick.labelsize": 6}
    with mpl.rc_context(look):
        figure, buffer = heat(1), BytesIO()
        figure.savefig(buffer, dpi=90)
        plt.close(figure)
    first, second = (plt.imread(BytesIO(file)) for file in (pictures["png"], buffer.getvalue()))
    np.testing.assert_array_equal(first, second)


def test_settings_of_the_caller_have_no_part_in_it() -> None:
    plain = to_pictures(lambda: heat(1), 60)
    mine, before = plt.figure(), plt.get_fignums()
    with mpl.rc_context({"font.size": 20, "axes.facecolor": "red"}):
        assert to_pictures(lambda: heat(1), 60) == plain
        assert mpl.rcParams["font.size"] == 20
    assert plt.get_fignums() == before
    plt.close(mine)


def test_the_picture_of_the_page_is_small_and_of_the_same_size() -> None:
    files = draw_figure(lambda: heat(1), 90, ("png",))
    with Image.open(BytesIO(files["png"])) as png, Image.open(BytesIO(files["webp"])) as webp:
        assert webp.size == png.size
        assert len(webp.convert("RGB").getcolors()) <= 96
        exact, shown = (np.asarray(one.convert("RGB")).astype(int) for one in (png, webp))
    assert np.abs(exact - shown).mean() < 1  # of 255
    assert len(files["webp"]) < len(files["png"])
    assert files["webp"] == for_page(files["png"])
