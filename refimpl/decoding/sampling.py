"""Processed distributions, and random numbers that depend on a key and nothing else.

Every random number is a function of (seed, sequence, position, purpose, token): a counter-based generator in the
sense of Salmon et al. 2011. The key is folded part by part with the finalizer of SplitMix64 (Steele et al. 2014), a
bijection on 64 bits, so that keys that differ in one part never collide.
Tokens therefore never depend on batch size, order, layout or schedule (INV-12).
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields, replace
from enum import IntEnum, unique
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot, pad

from refimpl.core import kernels
from refimpl.core.config import SamplingConfig

Table = TypeVar("Table", bound=Any)
PART = 1024  # entries of a row that one program of a GPU scans for the largest
TIE = 1e-9  # relative; sums of the same masses differ by rounding, which no bound may turn on
_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


@unique
class Purpose(IntEnum):
    """What a random number is for; two purposes never share a stream."""

    COUPLED = 1
    DRAFT = 2
    ACCEPT = 3
    NEXT = 4
    FORCED = 5


def rows_of(table: Table, index: list[int] | Int[Tensor, " n"], **others: Any) -> Table:
    """Some rows of a dataclass: of all its tensors, which have one row each; `others` replace what is no tensor."""
    values = {each.name: getattr(table, each.name) for each in fields(table)}
    return replace(table, **{name: value[index] for name, value in values.items() if torch.is_tensor(value)}, **others)


def first_largest(values: Float[Tensor, "*rows size"]) -> Int[Tensor, "*rows"]:
    """Argmax of every row: NaN counts as larger than any number, and of equal entries the first is taken."""
    return largest_of_parts(values) if torch.compiler.is_compiling() else values.argmax(dim=-1)


def largest_of_parts(values: Float[Tensor, "*rows size"]) -> Int[Tensor, "*rows"]:
    """The same in two steps, since a compiler lets one program of a GPU scan all of a row for its argmax."""
    parts = pad(values, (0, -values.shape[-1] % PART), value=-torch.inf).unflatten(-1, (-1, PART))
    largest, place = parts.max(dim=-1)
    part = largest.argmax(dim=-1, keepdim=True)
    return (place.gather(-1, part) + PART * part)[..., 0]


@dataclass(frozen=True, slots=True)
class RowKeys:
    """Keys of the rows of a batch.

    Attributes:
        seed, sequence: seed and sequence id ``[batch]``.
        start: lengths at which the rows' rounds began ``[batch]``, for numbers that no other round uses; None for
            numbers that are the same whichever round asks for them.
    """

    seed: Int[Tensor, " batch"]
    sequence: Int[Tensor, " batch"]
    start: Int[Tensor, " batch"] | None = None


def _shift_right(bits: Tensor, n: int) -> Tensor:
    return (bits >> n).bitwise_and_((1 << (64 - n)) - 1)  # logical shift: torch's is arithmetic


def _mix_(bits: Tensor) -> Tensor:
    """Finalize in place: at a vocabulary of 150 k a pass without a new tensor costs a quarter."""
    bits.bitwise_xor_(_shift_right(bits, 30)).mul_(_MIX_1)
    bits.bitwise_xor_(_shift_right(bits, 27)).mul_(_MIX_2)
    return bits.bitwise_xor_(_shift_right(bits, 31))


def _stream(keys: RowKeys, position: Int[Tensor, "batch q"], purpose: Purpose) -> Int[Tensor, "batch q"]:
    state = _mix_(_mix_(keys.seed + _GOLDEN) ^ int(purpose))
    state = _mix_((state + _GOLDEN) ^ keys.sequence)
    if keys.start is not None:
        state = _mix_((state + _GOLDEN) ^ keys.start)
    return _mix_((state + _GOLDEN)[:, None] ^ position)


def words_of(tokens: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """A word of 64 bits for each token."""
    return _mix_((tokens + 1) * _GOLDEN)


def uniform(keys: RowKeys, position: Int[Tensor, "batch q"], purpose: Purpose) -> Float[Tensor, "batch q"]:
    """One number in [0, 1) per row and position, float64."""
    return _shift_right(_mix_(_stream(keys, position, purpose) + _GOLDEN), 11).double() * 2.0**-53


def exponentials(
    keys: RowKeys, position: Int[Tensor, "batch q"], purpose: Purpose, size: int
) -> Float[Tensor, "batch q size"]:
    """`size` independent Exp(1) numbers per row and position, float64, in [1e-16, 37].

    The logarithm is taken of odd multiples of 2^-53, which float64 holds exactly: neither 0 nor 1, so the numbers are
    positive and finite. Token indices are scattered before they are added, so that no two streams are shifted copies.
    """
    token = _mix_(torch.arange(1, size + 1, device=position.device) * _GOLDEN)
    bits = _shift_right(_mix_(_stream(keys, position, purpose)[..., None] + token), 12)
    return bits.double().add_(0.5).mul_(2.0**-52).log_().neg_()


class RandomSource:
    """The two places where chance enters. Proofs and tests enumerate both branches by overriding them."""

    def draw(
        self, weights: Float[Tensor, "batch q vocab"], keys: RowKeys, position: Int[Tensor, "batch q"], purpose: Purpose
    ) -> Int[Tensor, "batch q"]:
        """Draw a token in proportion to `weights` (they need not sum to 1).

        An exponential race: argmin of E/w, which is the Gumbel-max trick in the probability domain. With the purpose
        COUPLED the same noise serves draft and target, which makes the output independent of the draft (Daliri,
        Musco, Suresh 2024, "Coupling without communication and drafter-invariant speculative decoding").
        """
        return first_largest(weights / exponentials(keys, position, purpose, weights.shape[-1]))

    def accepts(
        self,
        target_probability: Float[Tensor, "batch k"],
        draft_probability: Float[Tensor, "batch k"],
        keys: RowKeys,
        position: Int[Tensor, "batch k"],
    ) -> Bool[Tensor, "batch k"]:
        """Accept each drafted token with probability min(1, p/q)."""
        return kernels.accepts(uniform(keys, position, Purpose.ACCEPT), target_probability, draft_probability)


@dataclass(frozen=True, slots=True)
class RowSampling:
    """What `SamplingConfig` says, for rows that differ in it: one value a row.

    Attributes:
        temperature, top_p, min_p: ``[batch, 1, 1]``, float64; a greedy row has temperature 1.
        top_k: ``[batch, 1, 1]``
        cold: rows at temperature 0 ``[batch, 1, 1]``.
        most_k: largest top-k of a row; 0 where no row has one.
        nucleus: whether some row has a top-p below 1.
    """

    temperature: Float[Tensor, "batch 1 1"]
    top_p: Float[Tensor, "batch 1 1"]
    min_p: Float[Tensor, "batch 1 1"]
    top_k: Int[Tensor, "batch 1 1"]
    cold: Bool[Tensor, "batch 1 1"]
    most_k: int
    nucleus: bool

    greedy = False  # not all rows

    @classmethod
    def of(cls, rows: Seq[SamplingConfig], device: torch.device) -> "RowSampling":
        """The settings of these rows."""
        table = [[row.temperature or 1.0, row.top_p, row.min_p, row.top_k, row.greedy] for row in rows]
        values = torch.tensor(table, dtype=torch.float64, device=device)[..., None, None]
        temperature, top_p, min_p, top_k, cold = values.unbind(dim=1)
        most_k, nucleus = max(row.top_k for row in rows), min(row.top_p for row in rows) < 1
        return cls(temperature, top_p, min_p, top_k.long(), cold > 0, most_k, nucleus)


Sampling = SamplingConfig | RowSampling


def sampling_of(rows: Seq[SamplingConfig | None], usual: Any, device: torch.device) -> Sampling | None:
    """What rows share, or a table of what each has; None where none has its own."""
    if not any(rows):
        return None
    each = [row or usual for row in rows]
    return each[0] if all(row == each[0] for row in each) else RowSampling.of(each, device)


def warmed(sampling: Sampling) -> Sampling:
    """The same, with temperature 1 in place of 0."""
    if isinstance(sampling, RowSampling):
        return replace(sampling, cold=torch.zeros_like(sampling.cold))
    return replace(sampling, temperature=1.0) if sampling.greedy else sampling


def probabilities(logits: Float[Tensor, "*rows vocab"], config: Sampling) -> Float[Tensor, "*rows vocab"]:
    """Distribution after temperature, top-k, top-p and min-p, in float64; the same for the draw and for the ratio.

    Order and ties follow transformers' logits warpers: top-k keeps every token as probable as the k-th, top-p keeps
    the smallest set that reaches its mass. Which of several equally probable tokens top-p keeps is open there; here
    it is the lowest ids. A mass within `TIE` of a bound has reached it, in whatever order it was added up.
    Temperature 0 puts all mass on the most probable token. A row with NaN, or whose largest logit is infinite, is NaN.
    Rows with settings of their own are ``[batch, q]``, and each gets the numbers that it would get alone.
    """
    if isinstance(config, RowSampling):
        return torch.where(config.cold, _certain(logits), _filtered_by_row(logits, config))
    if config.greedy:
        return _certain(logits)
    scaled = logits.double()
    scaled = (scaled - scaled.amax(dim=-1, keepdim=True)) / config.temperature  # ≤ 0: no temperature overflows
    if config.top_k and config.top_k < logits.shape[-1]:
        least = scaled.topk(config.top_k, dim=-1).values[..., -1:]
        scaled = scaled.masked_fill(scaled < least, -torch.inf)
    mass = scaled.softmax(dim=-1)
    if config.top_p < 1:
        mass = mass.masked_fill(_outside_nucleus(scaled, mass, (1 - TIE) * config.top_p), 0)
    if config.min_p > 0:
        mass = mass.masked_fill(mass < (1 - TIE) * config.min_p * mass.amax(dim=-1, keepdim=True), 0)
    return mass / mass.sum(dim=-1, keepdim=True)


def _certain(logits: Float[Tensor, "*rows vocab"]) -> Float[Tensor, "*rows vocab"]:
    """All mass on the most probable token."""
    largest = logits.amax(dim=-1, keepdim=True).double()
    return one_hot(first_largest(logits), logits.shape[-1]) * (largest - largest + 1)


def _filtered_by_row(logits: Float[Tensor, "batch q vocab"], rows: RowSampling) -> Float[Tensor, "batch q vocab"]:
    """The same steps as for one setting, with bounds that no token is beyond where a row does without a filter."""
    scaled = logits.double()
    scaled = (scaled - scaled.amax(dim=-1, keepdim=True)) / rows.temperature
    if rows.most_k:
        best = scaled.topk(min(rows.most_k, logits.shape[-1]), dim=-1).values
        last = (rows.top_k - 1).clamp(0, best.shape[-1] - 1).expand(*best.shape[:-1], 1)
        least = best.gather(-1, last).masked_fill(rows.top_k == 0, -torch.inf)
        scaled = scaled.masked_fill(scaled < least, -torch.inf)
    mass = scaled.softmax(dim=-1)
    if rows.nucleus:
        enough = ((1 - TIE) * rows.top_p).masked_fill(rows.top_p == 1, torch.inf)
        mass = mass.masked_fill(_outside_nucleus(scaled, mass, enough), 0)
    mass = mass.masked_fill(mass < (1 - TIE) * rows.min_p * mass.amax(dim=-1, keepdim=True), 0)
    return mass / mass.sum(dim=-1, keepdim=True)


def _outside_nucleus(
    logits: Float[Tensor, "*rows vocab"], mass: Float[Tensor, "*rows vocab"], enough: float | Float[Tensor, "batch 1 1"]
) -> Bool[Tensor, "*rows vocab"]:
    """Tokens whose more probable ones already have enough mass."""
    order = logits.sort(dim=-1, descending=True, stable=True).indices
    before = pad(mass.gather(-1, order).cumsum(dim=-1)[..., :-1], (1, 0))
    return torch.zeros_like(mass, dtype=torch.bool).scatter(-1, order, before >= enough)
