"""Pictures of rounds, from what `watch` has kept or from the records of a result."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

import numpy as np

from refimpl.core.errors import require, shown
from refimpl.core.values import is_list
from refimpl.decoding.trace import RoundRecord
from refimpl.viz.style import BLUE, ORANGE, PALE, new_axes
from refimpl.viz.watch import KINDS, WatchedRound, WatchedRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ToText = Callable[[list[int]], str]
COLORS = {
    "pad": "white", "free": "white", "hole": "#f6ece6", "prompt": PALE, "committed": "#b3b3b3",
    "accepted": BLUE, "dropped": "#9ec9e2", "rejected": ORANGE,
}  # fmt: skip
LABELS = {
    "pad": "pad", "free": "free", "hole": "rejected before, hidden", "prompt": "prompt",
    "committed": "committed before", "accepted": "draft, accepted",
    "dropped": "draft, accepted and dropped", "rejected": "draft, rejected",
    "next": "next token, from the target",
}  # fmt: skip
DARK = ("accepted", "rejected")
GAP = 1  # columns between the slots and the next token
CHARACTERS = 5  # of a token that fit into its cell


def ragged_batch(seen: WatchedRound, to_text: ToText | None = None, axes: "Axes | None" = None) -> "Axes":
    """Draw the slots of every row of a round, coloured by what they hold, and each row's next token behind them.

    Args:
        seen: from `watch`.
        to_text: writes each token into its cell, for example ``pair.decode``.
        axes: where to draw.

    Example::

        for seen in watch(pair, prompts, method="eqspec", batch_size=4, max_new_tokens=8):
            ragged_batch(seen, pair.decode)

    Raises:
        InputError: no round of `watch`, or one without rows.
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    _require_rows(seen)
    axes = axes or new_axes(max(6.0, 0.32 * (seen.width + 2)), 1.3 + 0.3 * len(seen.rows))
    codes = np.array([[KINDS.index(kind) for kind in row.kinds] for row in seen.rows])
    colors = ListedColormap([COLORS[kind] for kind in KINDS])
    axes.pcolormesh(codes, cmap=colors, vmin=-0.5, vmax=len(KINDS) - 0.5, edgecolors=PALE, linewidth=0.5)
    for i, row in enumerate(seen.rows):
        _draw_next_token(axes, seen.width + GAP, i, row, to_text)
        if to_text:
            _write_tokens(axes, i, row, to_text)
    _label_rows(axes, seen)
    axes.set(xlim=(0, seen.width + GAP + 1), xlabel="slot of the K/V cache")
    shown = [kind for kind in KINDS if (codes == KINDS.index(kind)).any()]
    handles = [Patch(facecolor=COLORS[kind], edgecolor=PALE, label=LABELS[kind]) for kind in shown]
    handles.append(Patch(facecolor="white", edgecolor=BLUE, label=LABELS["next"]))
    axes.figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return axes


def _require_rows(seen: WatchedRound) -> None:
    require(isinstance(seen, WatchedRound), f"give a round of watch, not {shown(seen)}")
    require(bool(seen.rows), f"round {seen.record.round} has cached prompts alone: there is no row to draw")


def _draw_next_token(axes: "Axes", column: int, i: int, row: WatchedRow, to_text: ToText | None) -> None:
    from matplotlib.patches import Rectangle

    if row.outcome and row.outcome.next_token != "draft":
        axes.add_patch(Rectangle((column + 0.05, i + 0.05), 0.9, 0.9, facecolor="white", edgecolor=BLUE, linewidth=1.5))
        if to_text:
            _write(axes, column, i, to_text([row.outcome.tokens[-1]]), "black")


def _write_tokens(axes: "Axes", i: int, row: WatchedRow, to_text: ToText) -> None:
    for column, (kind, token) in enumerate(zip(row.kinds, row.slot_tokens.tolist(), strict=True)):
        if kind not in ("pad", "free") and token >= 0:
            _write(axes, column, i, to_text([token]), "white" if kind in DARK else "black")


def _write(axes: "Axes", column: int, i: int, text: str, color: str) -> None:
    shown = text.replace("\n", "⏎").replace("\t", "→")
    shown = shown.strip() or shown.replace(" ", "·")
    shown = shown if len(shown) <= CHARACTERS else shown[: CHARACTERS - 1] + "…"
    shown = shown.replace("$", r"\$")
    axes.text(column + 0.5, i + 0.5, shown, ha="center", va="center", fontsize=6, color=color, clip_on=True)


def _label_rows(axes: "Axes", seen: WatchedRound) -> None:
    axes.set_yticks([i + 0.5 for i in range(len(seen.rows))], [f"sequence {row.sequence}" for row in seen.rows])
    axes.set_ylim(len(seen.rows), 0)
    _number_slots(axes, seen.width)


def _number_slots(axes: "Axes", width: int) -> None:
    slots = range(0, width, 1 if width <= 20 else 5)
    axes.set_xticks([slot + 0.5 for slot in slots], [str(slot) for slot in slots])


def mask_map(row: WatchedRow, axes: "Axes | None" = None) -> "Axes":
    """Draw which slots each fed token of a row sees.

    Example::

        mask_map(next(watch(pair, prompts, method="masked", batch_size=4)).rows[0])

    Raises:
        InputError: no row of a round.
    """
    from matplotlib.colors import ListedColormap

    require(isinstance(row, WatchedRow), f"give a row of a round of watch, not {shown(row)}")
    axes = axes or new_axes(6.0, 1.0 + 0.22 * len(row.tokens))
    axes.pcolormesh(row.visible, cmap=ListedColormap(["white", BLUE]), vmin=0, vmax=1, edgecolors=PALE, linewidth=0.5)
    queries = [f"position {position}" for position in row.position_ids]
    axes.set_yticks([i + 0.5 for i in range(len(queries))], queries)
    _number_slots(axes, row.visible.shape[1])
    axes.set(ylim=(len(queries), 0), xlabel="slot of the K/V cache (blue: seen)", ylabel="token that is fed")
    return axes


def position_map(seen: WatchedRound, axes: "Axes | None" = None) -> "Axes":
    """Draw the position that each slot was written for, as a heat map; slots that no token sees stay white.

    Example::

        position_map(next(watch(pair, prompts, method="inplace", batch_size=4)))

    Raises:
        InputError: no round of `watch`, or one without rows.
    """
    from matplotlib.ticker import MaxNLocator

    _require_rows(seen)
    axes = axes or new_axes(max(6.0, 0.32 * seen.width), 1.0 + 0.3 * len(seen.rows))
    values = np.array([np.where(row.visible.any(axis=0), row.slot_positions, -1) for row in seen.rows])
    shown = np.ma.masked_less(values, 0)
    image = axes.pcolormesh(shown, cmap="viridis", edgecolors="white", linewidth=1)
    for (i, column), position in np.ndenumerate(values):
        if position >= 0:
            color = "white" if position < 0.6 * values.max() else "black"
            axes.text(column + 0.5, i + 0.5, position, ha="center", va="center", fontsize=6, color=color)
    _label_rows(axes, seen)
    axes.set_xlabel("slot of the K/V cache")
    axes.figure.colorbar(image, ax=axes, label="position in the row", ticks=MaxNLocator(integer=True))
    return axes


def timeline(rounds: Seq[RoundRecord], axes: "Axes | None" = None, *, seconds: bool = False) -> "Axes":
    """Draw which sequences ran in which round, coloured by the tokens that the round committed to them.

    Args:
        rounds: of a result.
        axes: where to draw.
        seconds: the width of a round is its measured time.

    Example::

        timeline(generate(pair, prompts, method="exspec", batch_size=2).rounds)

    Raises:
        InputError: something else than rounds, or none of them, as after `autoregressive`.
    """
    are_rounds = is_list(rounds) and all(isinstance(record, RoundRecord) for record in rounds)
    require(are_rounds, f"give the rounds of a result, not {shown(rounds)}")
    require(bool(rounds), "there is no round to draw: autoregressive decoding has none")
    count = 1 + max((row.sequence for record in rounds for row in record.rows), default=0)
    kept = np.full((count, len(rounds)), np.nan)
    for i, record in enumerate(rounds):
        for row in record.rows:
            kept[row.sequence, i] = row.kept
    axes = axes or new_axes(6.5, 1.2 + 0.18 * count)
    ends = [record.stage_s["round_s"] for record in rounds] if seconds else [1.0] * len(rounds)
    image = axes.pcolormesh(np.cumsum([0, *ends]), np.arange(count + 1), np.ma.masked_invalid(kept), cmap="viridis")
    axes.set_yticks([i + 0.5 for i in range(count)], [str(i) for i in range(count)])
    axes.set(ylim=(count, 0), xlabel="time (seconds)" if seconds else "round", ylabel="sequence")
    axes.figure.colorbar(image, ax=axes, label="tokens committed")
    return axes
