"""Branch-free index and sampling formulas.

Every formula here runs unchanged on Python integers, numpy arrays, torch tensors and Z3 terms: the engine
evaluates it on tensors, the invariant checks on host integers, and the proofs on symbolic terms. Nothing in this
file may branch on a value. Arguments named in the singular may be scalars or arrays of one broadcastable shape.

Notation: a row has `seq_len` real tokens at positions 0 … seq_len-1; a *column* is an index into a K/V tensor.
"""

import sys
from collections.abc import Iterable
from typing import Any

Value = Any  # int, bool, Fraction, numpy array, torch tensor or z3 term


def where(condition: Value, if_true: Value, if_false: Value) -> Value:
    """Select elementwise; the only place that knows which kind of value it was given."""
    kind = type(condition).__module__.partition(".")[0]
    if kind == "torch":
        return sys.modules["torch"].where(condition, if_true, if_false)
    if kind == "numpy":
        return sys.modules["numpy"].where(condition, if_true, if_false)
    if kind == "z3":
        return sys.modules["z3"].If(condition, if_true, if_false)
    return if_true if condition else if_false


def minimum(a: Value, b: Value) -> Value:
    """Return the smaller of two values, elementwise."""
    return where(a <= b, a, b)


# --- lengths -----------------------------------------------------------------------------------------------------


def lag(seq_len: Value, num_cached: Value) -> Value:
    """Real tokens that a model has not cached yet (INV-5: 1 for the target between rounds)."""
    return seq_len - num_cached


def draft_limit(num_speculative_tokens: Value, remaining: Value) -> Value:
    """Drafts a row can use: a round adds at least one token of the target's own, so at most remaining - 1."""
    return minimum(num_speculative_tokens, remaining - 1)


def num_accepted(matches: Iterable[Value], limit: Value) -> Value:
    """Length of the leading run of accepted drafts, capped by the row's own limit.

    `matches` yields, per drafted position, 1 where the draft is accepted and 0 where not.
    """
    run: Value = 1
    total: Value = 0
    for match in matches:
        run = run * match
        total = total + run
    return minimum(total, limit)


def last_accepted(matches: Iterable[Value], limit: Value) -> Value:
    """Depth of the last accepted draft within the row's own limit, whatever came before it; 0 if none is accepted.

    `matches` yields, per drafted position, 1 where the test passes and 0 where not.
    """
    found: Value = 0
    for depth, match in enumerate(matches, start=1):
        found = where((match == 1) & (depth <= limit), depth, found)
    return found


def num_kept(accepted: Value) -> Value:
    """Tokens a row commits in a round: the accepted drafts and the next token (recovered or bonus)."""
    return accepted + 1


def draft_cached_after(seq_len: Value, num_drafted: Value, new_seq_len: Value) -> Value:
    """Draft entries valid after a round that drafted `num_drafted` tokens from `seq_len` (INV-6).

    The draft was fed positions up to seq_len + num_drafted - 2: its last proposal is never fed, so after a full
    acceptance one entry is missing and the lag is 2.
    """
    return minimum(seq_len + num_drafted - 1, new_seq_len - 1)


# --- left-padded rows (realigned, rollback) ----------------------------------------------------------------------


def num_pad(width: Value, seq_len: Value) -> Value:
    """Left pads of a row in a rectangle of `width` columns (INV-1)."""
    return width - seq_len


def left_padded_column(position: Value, pads: Value) -> Value:
    """Column of a position in a left-padded row."""
    return position + pads


def left_padded_position(column: Value, pads: Value) -> Value:
    """Position held by a column of a left-padded row; negative on a pad (INV-2)."""
    return column - pads


def visible_left_padded(key_column: Value, query_column: Value, pads: Value) -> Value:
    """Whether a left-padded row's query sees a key column (INV-3)."""
    return (key_column >= pads) & (key_column <= query_column)


def realign_shift(old_pads: Value, new_pads: Value) -> Value:
    """Columns a row moves to the right when its pads change; 0 for all rows means nothing moves."""
    return new_pads - old_pads


def realign_source(column: Value, shift: Value) -> Value:
    """Old column whose entry belongs in `column` after realignment."""
    return column - shift


# --- slots that know their position (masked, inplace) ------------------------------------------------------------


def visible_by_position(slot_position: Value, query_position: Value) -> Value:
    """Whether a query sees a slot with position `slot_position`; dead slots have -1 (INV-3).

    For the in-place layout the slot's position is its column.
    """
    return (slot_position >= 0) & (slot_position <= query_position)


def in_window(slot_position: Value, query_position: Value, size: Value) -> Value:
    """Whether a slot is among the last `size` positions that end with the query's own (INV-3)."""
    return slot_position > query_position - size


def in_chunk(slot_position: Value, query_position: Value, size: Value) -> Value:
    """Whether a slot and a query are in one of the chunks of `size` positions that a row is cut into (INV-3)."""
    return slot_position // size == query_position // size


def window_start(query_position: Value, size: Value) -> Value:
    """First position that a window may hold: no query from this one on sees any before it (INV-26)."""
    return query_position + 1 - size


def chunk_start(query_position: Value, size: Value) -> Value:
    """First position of the query's chunk: no query from this one on sees any before it (INV-26)."""
    return query_position - query_position % size


def masked_slot_position(position: Value, num_cached: Value, seq_len_after: Value) -> Value:
    """Position that a freshly written slot claims: -1 where the entry is a pad, a duplicate or a rejected token."""
    live = (position >= num_cached) & (position >= 0) & (position < seq_len_after)
    return where(live, position, position * 0 - 1)


# --- blocks (paged) ----------------------------------------------------------------------------------------------


def paged_slot(block: Value, position: Value, block_size: Value) -> Value:
    """Flat slot of a position whose K/V are in `block`, of `block_size` tokens."""
    return block * block_size + position % block_size


# --- sampling ----------------------------------------------------------------------------------------------------


def accepts(uniform: Value, target_probability: Value, draft_probability: Value) -> Value:
    """Leviathan/Chen test u < p/q, written without the division. `uniform` lies in [0, 1)."""
    return uniform * draft_probability < target_probability


def overlap(target_probability: Value, draft_probability: Value) -> Value:
    """Mass of a token that the draft proposes and the target accepts: min(p, q)."""
    return minimum(target_probability, draft_probability)


def residual(target_probability: Value, draft_probability: Value) -> Value:
    """Unnormalised mass to draw from after a rejection: max(p - q, 0)."""
    difference = target_probability - draft_probability
    return where(difference > 0, difference, difference * 0)


def block_mass(mass: Value, target_probability: Value, draft_probability: Value) -> Value:
    """Probability that a prefix of drafts survives block verification, given that of the prefix without its last."""
    return minimum(mass * target_probability / draft_probability, 1)


def block_total(mass: Value, rest: Value) -> Value:
    """What `rest` is compared with: a prefix that survives with probability `mass` passes with rest / total.

    `rest` is the mass that the target has left after it: the sum of its residuals, themselves scaled by `mass`.
    """
    return rest + 1 - mass
