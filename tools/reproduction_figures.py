"""Figures of docs/reproduction.md; each file knows the digest of the data that it was drawn from."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from refimpl.viz.style import BLUE, GREY, ORANGE, Picture, captioned, new_axes, series_styles

DOCS = Path(__file__).parent.parent / "docs"
DPI = 120
KEY = "Description"  # of the PNG's texts
SHARES = {"prefill_percent": "prefill", "align_percent": "realign"}  # in percent of a round -> stage


def figure_waterfall(data: dict[str, Any]) -> Picture:
    """Each behaviour's share on the way from EQSPEC to the engine, up to recorded graphs."""
    steps = [step for step in data["steps"] if step["tokens_per_s"] < 3 * data["steps"][0]["tokens_per_s"]]
    axes = new_axes(7.0, 4.0)
    before = 0.0
    for at, step in enumerate(steps):
        gain = step["gain"] if at else step["tokens_per_s"]
        color = GREY if at == 0 else BLUE if gain >= 0 else ORANGE
        axes.barh(at, gain, left=before, color=color)
        if at:
            axes.plot([before + step["low"], before + step["high"]], [at, at], color="black", linewidth=1.2)
        axes.text(step["tokens_per_s"] + 3, at, f"{step['tokens_per_s']:.0f}", va="center", fontsize=8)
        before = step["tokens_per_s"]
    axes.set_yticks(range(len(steps)), [step["name"] for step in steps], fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel="tokens/s\neach change on top of those above; black: 95 % intervals", xlim=(0, 225))
    refill, grouping = (data["steps"][at]["gain"] for at in (1, 3))
    graphs = next(step for step in data["steps"] if step["name"].startswith("passes"))["tokens_per_s"]
    sentence = (
        f"Replacing finished rows brings {refill:.0f} tokens/s, running equal lengths together {grouping:.1f}; "
        f"recorded graphs would bring the last line to {graphs:.0f}"
    )
    return captioned(axes, sentence)


def figure_throughput(data: dict[str, Any]) -> Picture:
    """Tokens per second on all prompts against the batch size."""
    axes = new_axes(6.0, 3.4)
    for style, method in zip(series_styles(2), ("eqspec", "exspec"), strict=True):
        lines = [line for line in data["throughput"] if line["method"] == method]
        sizes, middle, low, high = (
            [line[name] for line in lines] for name in ("batch_size", "tokens_per_s", "low", "high")
        )
        axes.fill_between(sizes, low, high, color=style["color"], alpha=0.25, linewidth=0)
        axes.plot(sizes, middle, marker="o", markersize=4, label=method.upper(), **style)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set(xlabel="batch size; shaded: all of 6 runs", ylabel="tokens/s on 480 prompts", ylim=(0, None))
    axes.legend(frameon=False)
    best = max(
        (line for line in data["throughput"] if line["method"] == "exspec"), key=lambda line: line["tokens_per_s"]
    )
    return captioned(
        axes,
        f"EXSPEC as published is fastest at batch {best['batch_size']}: beyond it dropped caches are prefilled again",
    )


FIGURES: dict[str, Callable[[dict[str, Any]], Picture]] = {
    "reproduction-waterfall.png": figure_waterfall,
    "reproduction-throughput.png": figure_throughput,
}


def digest(data: dict[str, Any]) -> str:
    """Of the data behind all figures."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def write(name: str, data: dict[str, Any]) -> None:
    """Draw a figure."""
    FIGURES[name](data).figure.savefig(DOCS / name, dpi=DPI, metadata={KEY: digest(data)})


def is_fresh(name: str, data: dict[str, Any]) -> bool:
    """Whether the file was drawn from these data."""
    path = DOCS / name
    if not path.exists():
        return False
    with Image.open(path) as image:
        return image.info.get(KEY) == digest(data)
