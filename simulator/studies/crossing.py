"""Where speculation stops paying: the largest batch at which it is faster than plain decoding, on each device."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, floor
from typing import Any

import numpy as np

from refimpl.core.errors import require
from refimpl.core.independent import tokens_per_round
from refimpl.placement import num_states
from simulator.intervals import MIDDLE, range_of_runs
from simulator.service.roofline import RooflineCost
from simulator.service.streams import Streams
from simulator.settings.fields import PROBABILITY, Spec
from simulator.settings.kinds import DEFAULT_PROBABILITY

LAYERS = ("compiled",)
DEVICES = ("a100-80", "h100", "h200", "l40s", "rtx-4090", "b200", "mi300x")
BATCH_SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
CONTEXTS = (256, 1024, 4096, 16384)  # tokens of each row
NUM_DRAFTS, MOST_DRAFTS = 5, 8
HEADINGS = {  # of a printed column, in place of the field's name
    "batch_size": f"{NUM_DRAFTS} drafts pay up to", "low": "5 %", "high": "95 %",
    "any_drafts": "best number pays up to", "fits": "rows that fit", "gain": "gain at batch 1",
}  # fmt: skip
LEGEND = (
    f"drafts pay up to: so many rows, of the batch sizes {', '.join(map(str, BATCH_SIZES))}\n"
    f"5 %, 95 %: of the same with {NUM_DRAFTS} drafts, as the constants are uncertain; best number: from 1 to "
    f"{MOST_DRAFTS}, chosen for each batch\n"
    f"rows that fit: into the memory; gain: times as fast as plain decoding, with {NUM_DRAFTS} drafts"
)


@dataclass(frozen=True)
class Crossing:
    """Of one device and context.

    Attributes:
        device, layers, context_tokens: where.
        batch_size: largest batch up to which `NUM_DRAFTS` drafts pay, of `BATCH_SIZES`; 0 where they never do.
        low, high: 90 % of what it may be lies between them, given the uncertainty of the constants.
        any_drafts: the same with the best number of drafts for each batch, from 1 to `MOST_DRAFTS`.
        fits: largest batch whose K/V, and recurrent states, fit into the memory.
        gain: speed over plain decoding at batch 1, with `NUM_DRAFTS`.
    """

    device: str
    layers: str
    context_tokens: int
    batch_size: int
    low: int
    high: int
    any_drafts: int
    fits: int
    gain: float


def speedups(cost: RooflineCost, acceptance_probability: float, contexts: Sequence[int]) -> np.ndarray:
    """Tokens per second over those without drafts ``[drafts 1 … MOST_DRAFTS, batch sizes, contexts]``."""
    widths = np.array(contexts)
    gains = [_gains(cost, rows, widths, acceptance_probability) for rows in BATCH_SIZES]
    return np.stack(gains, axis=1)


def _gains(cost: RooflineCost, rows: int, widths: np.ndarray, probability: float) -> np.ndarray:
    """Of one batch size ``[drafts, contexts]``."""

    def seconds(component: str, tokens: int) -> np.ndarray:
        return cost.seconds(component, rows, tokens, widths, False)

    host_s, drafts = cost.p["host_s"], range(1, MOST_DRAFTS + 1)
    plain_s = seconds("verify", 1) + host_s
    rounds_s = [seconds("draft", k) + seconds("verify", k + 1) + host_s for k in drafts]
    return np.array([tokens_per_round(probability, k) * plain_s / s for k, s in zip(drafts, rounds_s, strict=True)])


def find_crossings(
    cost: dict[str, Any],
    devices: Sequence[str],
    acceptance_probability: float = DEFAULT_PROBABILITY,
    draws: int = 20,
    layers: Sequence[str] = LAYERS,
) -> Iterator[Crossing]:
    """Crossings of a pair of models on devices.

    Args:
        cost: settings of a cost of kind roofline, but for the device and layers.
        devices: names or files.
        acceptance_probability: that a draft is right.
        draws: of the uncertain constants.
        layers: what runs the layers of both models.

    Raises:
        InputError: no draft, or a number that is no probability.
    """
    PROBABILITY.check(acceptance_probability, "acceptance_probability")
    require(bool(cost.get("draft")), "a crossing needs a draft: without one there is nothing that could pay")
    known = {key: value for key, value in cost.items() if key != "kind"}
    for device, run_by in product(devices, layers):
        spec = Spec.of("roofline", **known, device=device, layers=run_by)
        models = [RooflineCost(spec, None), *(RooflineCost(spec, Streams(0, draw)) for draw in range(draws))]
        gains = np.array([speedups(model, acceptance_probability, CONTEXTS) for model in models])
        room = models[0].kv_capacity_bytes or 0.0
        for place, context in enumerate(CONTEXTS):
            row_bytes = models[0].kv_bytes_per_token * (context + MOST_DRAFTS + 1)
            fits = int(room // (row_bytes + models[0].state_bytes_per_row * num_states(1, 1, MOST_DRAFTS + 1)))
            last = [_last_gain(gain[NUM_DRAFTS - 1, :, place], fits) for gain in gains]
            low, high = _range(last[1:])
            any_drafts = _last_gain(gains[0].max(axis=0)[:, place], fits)
            gain = float(gains[0][NUM_DRAFTS - 1, 0, place])
            yield Crossing(device, run_by, context, last[0], low, high, any_drafts, fits, gain)


def _range(sizes: Sequence[int]) -> tuple[int, int]:
    """Sizes between which 90 % of single draws lie, rounded outwards; of fewer than 19, the least and the greatest."""
    known = (0, *BATCH_SIZES)
    low, high = range_of_runs([known.index(size) for size in sizes], MIDDLE)
    return known[floor(low)], known[ceil(high)]


def _last_gain(gains: np.ndarray, fits: int) -> int:
    """Largest batch that fits and gains, with all smaller ones."""
    pays = 0
    for rows, gain in zip(BATCH_SIZES, gains, strict=True):
        if gain <= 1 or rows > fits:
            break
        pays = rows
    return pays
