"""A language model made of integers: any wrong mask, position, missing or stale entry changes what it says.

It speaks the protocol of `adapter.CausalLM` and keeps its "K/V" in the same stores, through the same blocks, as a real
model, but every number is an exact integer below 2^53, so equality needs no tolerance and a run takes milliseconds.

| quantity                  | is a hash of                                                              |
|---------------------------|---------------------------------------------------------------------------|
| entry of layer 0          | the token and its position                                                |
| entry of layer 1          | the token, its position, and the sum of the layer-0 entries that it sees  |
| logits after a query      | the query's position, and the sum of the layer-1 entries that it sees     |

The sum stands for the multiset of visible (token, position) pairs, as attention does: it knows no order beyond the
positions, and the second layer remembers what was visible when an entry was written. Layer 0, or both, may look back
through a window. Layer 0 may be recurrent: then a short convolution's window holds the latest entries, and a sum those
that have left it. `fresh_row` and `fresh_kv` compute the same from the plain prefix, in Python integers, without masks,
positions tensors or stores.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from refimpl.layouts.spans import FULL, Span
from refimpl.layouts.store import Block, KVShape, StatePart
from refimpl.models.adapter import FeedRow, Pair
from refimpl.models.attending_head import AttendingHead
from refimpl.models.head import SteppingHead
from refimpl.models.head_rows import HeadRows

NUM_LAYERS = 2
ENTRY_BITS = 43  # the sum of 256 entries stays below 2^51, exact in float64
LOGIT_BITS, LOGIT_STEP = 10, 1 / 128  # 1024 different logits in [0, 8)
MAX_POSITIONS = 256
VOCAB_SIZE = 17
UNRELATED = 23  # of the salts up to 24, that of the draft by whose noise the kit's prompt is changed the most

CONV_WINDOW = 2
CONV = StatePart(0, "conv", 0, (2, CONV_WINDOW), torch.float64)
SUM = StatePart(0, "recurrent", 0, (2,), torch.float64)

_WORD = (1 << 64) - 1
_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_VALUE_SALT = 0x5851F42D4C957F2D  # separates values from keys


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def mix_word(word: int) -> int:
    """SplitMix64's finalizer on a 64-bit Python integer (Steele et al. 2014)."""
    word = ((word ^ (word >> 30)) * _MIX_1) & _WORD
    word = ((word ^ (word >> 27)) * _MIX_2) & _WORD
    return word ^ (word >> 31)


def mix_tensor(bits: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """Compute `mix_word` elementwise; numpy's unsigned words are much quicker than torch on a handful of numbers."""
    word = bits.contiguous().numpy().view(np.uint64)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(_MIX_1)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(_MIX_2)
    return torch.from_numpy((word ^ (word >> np.uint64(31))).view(np.int64))


class TableModel:
    """The integer model.

    Args:
        vocab_size: width of its logits.
        salt: two models of different salt have nothing in common.
        sliding_window: positions that the first `windowed_layers` see; None for all.
        recurrent: whether layer 0 keeps states of a row's entries, in place of looking back at them.
    """

    def __init__(
        self,
        vocab_size: int = VOCAB_SIZE,
        salt: int = 0,
        sliding_window: int | None = None,
        recurrent: bool = False,
        windowed_layers: int = 1,
    ):
        self.vocab_size = vocab_size
        self.max_positions = MAX_POSITIONS
        self.recordable, self.mixes_rows, self.forward_packed, self.maskless_queries = True, False, None, 0
        window = Span("window", sliding_window) if sliding_window else FULL
        self.spans = tuple(window if layer < windowed_layers else FULL for layer in range(NUM_LAYERS))
        spans = self.spans if sliding_window else ()
        states = (CONV, SUM) if recurrent else ()
        self.kv_shape = KVShape(NUM_LAYERS, 1, 2, torch.float64, torch.device("cpu"), spans=spans, states=states)
        self._salt = mix_word(salt + 1)
        self._token_words = torch.arange(1, vocab_size + 1) * _signed(_GOLDEN)

    def forward(self, block: Block, num_logits: int) -> Float[Tensor, "batch num_logits vocab"]:
        """Run a block; channel 0 of an entry is its hash, channel 1 marks the row's first token."""
        _, seen = self._attend(block, num_logits)
        return self._logits(seen, block.position_ids[:, -num_logits:])

    def fresh_row(self) -> FeedRow:
        """Start a row: running sums of the entries, one token after the other."""
        row = _PlainRow(self)

        def feed(tokens: list[int]) -> Tensor:
            for token in tokens:
                row.append(token)
            return torch.tensor(row.logits(), dtype=torch.float64)

        return feed

    def fresh_kv(self, tokens: list[int]) -> Tensor:
        """Entries of a row computed from the plain prefix ``[2, 2, 1, len(tokens), 2]``."""
        entries = _PlainRow(self, tokens).entries
        return torch.tensor(entries, dtype=torch.float64).permute(1, 2, 0, 3)[:, :, None]

    def fresh_states(self, tokens: list[int]) -> dict[StatePart, Tensor]:
        """The states behind a row, computed from the plain prefix."""
        row = _PlainRow(self, tokens)
        keys, values = zip(
            *[(0, 0)] * CONV_WINDOW, *((key, value) for ((key, _), (value, _)), _ in row.entries), strict=True
        )
        latest = [keys[-CONV_WINDOW:], values[-CONV_WINDOW:]]
        gone = [total - sum(each) for total, each in zip(row.sums[0], latest, strict=True)]
        return {CONV: torch.tensor(latest, dtype=torch.float64), SUM: torch.tensor(gone, dtype=torch.float64)}

    def _attend(self, block: Block, last: int) -> tuple[Float[Tensor, "batch last"], Int[Tensor, "batch last"]]:
        """Write both layers; return the first tokens seen, and the state of the last queries."""
        marker = torch.where(block.position_ids == 0, block.tokens + 1, 0).double()
        state = torch.zeros_like(block.tokens)
        hidden = [marker, block.position_ids.double()]
        for layer, span in enumerate(self.spans):
            visible = block.seen_by(span)[:, 0].double()
            entries = self.entries(layer, state, block.tokens, block.position_ids)
            keys, values = (torch.stack([e.double(), marker], dim=-1)[:, None] for e in entries)
            all_keys, all_values = block.append(layer, keys, values)
            seen_keys, seen_values = visible @ all_keys[:, 0], visible @ all_values[:, 0]
            if layer == 0 and self.kv_shape.states:
                seen_keys[..., 0], seen_values[..., 0] = self._sums(block, torch.stack(entries, dim=-1)).unbind(dim=-1)
            state = mix_tensor(seen_keys[..., 0].long()) + seen_values[..., 0].long()
            hidden = [seen_keys[..., 1], *hidden[1:], seen_keys[..., 0], seen_values[..., 0]]
        if block.note_hidden:
            block.note_hidden.note(torch.stack(hidden, dim=-1))
        return hidden[0][:, -last:], state[:, -last:]

    def _sums(self, block: Block, entries: Int[Tensor, "batch q 2"]) -> Float[Tensor, "batch q 2"]:
        """Keys and values of layer 0 up to each token, summed up from the states before it."""
        sums, states = list[Tensor](), block.states
        for at, entry in enumerate(entries.double().unbind(dim=1)):
            if at % states.step == 0:
                latest, gone = states.read(CONV), states.read(SUM)
            latest, gone = torch.cat([latest[..., 1:], entry[..., None]], dim=-1), gone + latest[..., 0]
            states.write(CONV, latest)
            states.write(SUM, gone)
            sums.append(gone + latest.sum(dim=-1))
        return torch.stack(sums, dim=1)

    def entries(
        self, layer: int, state: Int[Tensor, "*rows"], tokens: Int[Tensor, "*rows"], position: Int[Tensor, "*rows"]
    ) -> tuple[Int[Tensor, "*rows"], Int[Tensor, "*rows"]]:
        """Hashes that a layer caches for tokens: those of their keys, and of their values."""
        word = mix_tensor(state + tokens * NUM_LAYERS + layer + _signed(self._salt))
        word = mix_tensor(word + position * _signed(_GOLDEN))
        return _shorten(word), _shorten(mix_tensor(word ^ _VALUE_SALT))

    def _logits(self, state: Int[Tensor, "batch q"], position: Int[Tensor, "batch q"]) -> Float[Tensor, "batch q v"]:
        word = mix_tensor(state + position * _signed(_MIX_2))
        bits = mix_tensor(word[..., None] + self._token_words)
        return ((bits >> (64 - LOGIT_BITS)) & ((1 << LOGIT_BITS) - 1)).double() * LOGIT_STEP


def _shorten(word: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    return (word >> (64 - ENTRY_BITS)) & ((1 << ENTRY_BITS) - 1)


class _PlainRow:
    """The same model on Python integers: no mask, no columns, positions counted."""

    def __init__(self, model: TableModel, tokens: Seq[int] = ()):
        self.model = model
        self.entries: list[list[list[list[int]]]] = []  # [position][layer][key, value][channel]
        self.sums = [[0, 0] for _ in range(NUM_LAYERS)]
        self._state = 0
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        position, self._state, entry = len(self.entries), 0, []
        marker = token + 1 if position == 0 else 0
        for layer, sums in enumerate(self.sums):
            word = mix_word((self._state + token * NUM_LAYERS + layer + self.model._salt) & _WORD)
            word = mix_word((word + position * _GOLDEN) & _WORD)
            key, value = (w >> (64 - ENTRY_BITS) for w in (word, mix_word(word ^ _VALUE_SALT)))
            entry.append([[key, marker], [value, marker]])
            sums[0] += key
            sums[1] += value
            size = self.model.spans[layer].size
            if size and position >= size:
                (gone_key, _), (gone_value, _) = self.entries[position - size][layer]
                sums[0] -= gone_key
                sums[1] -= gone_value
            self._state = (mix_word(sums[0]) + sums[1]) & _WORD
        self.entries.append(entry)

    def logits(self) -> list[float]:
        word = mix_word((self._state + (len(self.entries) - 1) * _MIX_2) & _WORD)
        words = (mix_word((word + (token + 1) * _GOLDEN) & _WORD) for token in range(self.model.vocab_size))
        return [(w >> (64 - LOGIT_BITS)) * LOGIT_STEP for w in words]


Script = Mapping[int, Seq[bool]]


class ScriptedDraft(TableModel):
    """A draft that knows the target's continuation and agrees with it exactly where the script says so.

    It computes the target's own logits from *its own* cache, so it agrees on cue only while that cache is right; where
    the script says no, it puts the target's choice last.

    Args:
        script: first token of a row → agreement by position of the proposed token; True beyond the end. Rows that
            begin with another token agree everywhere; where windows hide it, rows follow the first script.
        vocab_size: that of the target.
        settings: the target's others.
    """

    def __init__(self, script: Script, vocab_size: int = VOCAB_SIZE, **settings: Any):
        super().__init__(vocab_size, **settings)
        self._agrees = torch.ones(vocab_size + 1, MAX_POSITIONS + 1, dtype=torch.bool)
        for first, pattern in [*script.items(), *((-1, pattern) for pattern in [*script.values()][:1])]:
            self._agrees[first, : len(pattern)] = torch.tensor(list(pattern), dtype=torch.bool)

    def agrees(self, first: int, position: int) -> bool:
        """Whether the draft proposes the target's token at `position` of a row that begins with `first`."""
        return bool(self._agrees[first, position])

    def forward(self, block: Block, num_logits: int) -> Float[Tensor, "batch num_logits vocab"]:
        """Give the target's logits, its best token moved to the end where the script disagrees."""
        first, state = self._attend(block, num_logits)
        return self.scripted(first, state, block.position_ids[:, -num_logits:])

    def scripted(
        self, first: Float[Tensor, "batch q"], state: Int[Tensor, "batch q"], position: Int[Tensor, "batch q"]
    ) -> Float[Tensor, "batch q v"]:
        """Logits of rows that begin with the token `first` - 1."""
        hidden = 0 if FULL in self.spans else -1
        logits, lane = self._logits(state, position), (first.long() - 1).clamp(hidden, self.vocab_size - 1)
        spoiled = logits.scatter(-1, logits.argmax(-1, keepdim=True), -1.0)
        return torch.where(self._agrees[lane, position + 1][..., None], logits, spoiled)


class ScriptedHead(SteppingHead):
    """A draft head that agrees as the scripted draft does, while the state that it begins with is the right one.

    What the integer model hands out as its hidden state is the row's first token, the position, and the sums of what
    each layer has cached. The head adds what one more token would have cached.
    """

    def __init__(self, draft: ScriptedDraft):
        self.draft = draft

    def step(
        self, state: Float[Tensor, "batch hidden"], tokens: Int[Tensor, "batch 1"]
    ) -> tuple[Float[Tensor, "batch hidden"], Float[Tensor, "batch 1 vocab"]]:
        """See `SteppingHead`."""
        first, position, *sums = (each[:, None] for each in state.unbind(dim=-1))
        after, word = [first, position + 1], torch.zeros_like(tokens)
        for layer in range(NUM_LAYERS):
            entries = self.draft.entries(layer, word, tokens, position.long() + 1)
            after += [known + new for known, new in zip(sums[2 * layer :], entries, strict=False)]
            word = mix_tensor(after[-2].long()) + after[-1].long()
        return torch.cat(after, dim=-1), self.draft.scripted(first, word, position.long() + 1)


class AttendingScriptedHead(AttendingHead):
    """The scripted head with K/V: of each token its position, and the sums behind it.

    A step goes on from what it sees at its token's own position: entries of drafts that were rejected are seen there
    beside the right one.
    """

    def __init__(self, draft: ScriptedDraft):
        super().__init__()
        self._steps = ScriptedHead(draft)

    def advance(
        self,
        index: int,
        tokens: Int[Tensor, "batch q"],
        positions: Int[Tensor, "batch q"],
        states: Float[Tensor, "batch q hidden"],
        rows: HeadRows,
    ) -> Float[Tensor, "batch q hidden"]:
        """See `AttendingHead`."""
        flat, _ = self._steps.step(states.flatten(0, 1), tokens.flatten()[:, None])
        places, behind = positions[:, None, :, None].double(), flat.view(states.shape)
        slots, entries = rows.cache.update(places, behind[:, None], index)
        seen = (rows.mask(slots.shape[2], tokens.shape[1], torch.float64) == 0) & (slots.mT == places)
        return torch.cat([behind[..., :2], (seen.double() @ entries)[:, 0, :, 2:]], dim=-1)

    def logits(self, states: Float[Tensor, "batch 1 hidden"]) -> Float[Tensor, "batch 1 vocab"]:
        """Those of the scripted draft behind the sums."""
        first, position, *_, key, value = states.unbind(dim=-1)
        return self._steps.draft.scripted(first, mix_tensor(key.long()) + value.long(), position.long())


class Letters:
    """The tokenizer of the integer model: every token is a letter."""

    def decode(self, token_ids: Seq[int], skip_special_tokens: bool = True) -> str:
        """One letter a token."""
        return "".join(chr(ord("a") + token) for token in token_ids)


def table_pair(script: Script | None = None, *, attending_head: bool = False, **settings: Any) -> Pair:
    """Pair an integer model of these settings with a scripted draft; without a script, every draft is accepted."""
    target, draft = TableModel(**settings), ScriptedDraft(script or {}, **settings)
    head = AttendingScriptedHead(draft) if attending_head else ScriptedHead(draft)
    return Pair(target, draft, vocab_size=target.vocab_size, name="table", head=head)


def unrelated_pair() -> Pair:
    """Pair the integer model with one that has nothing in common with it.

    Drafts are rejected half of the time, and the residual has many tokens: with a scripted draft it has one, so that
    noise that is used twice changes nothing.
    """
    head = ScriptedHead(ScriptedDraft({}, salt=UNRELATED))
    return Pair(TableModel(), TableModel(salt=UNRELATED), vocab_size=VOCAB_SIZE, name="unrelated", head=head)


def greedy_continuation(prompt: Seq[int], num_tokens: int, **settings: Any) -> list[int]:
    """Tokens that the integer model of these settings generates greedily after a prompt: ties go to the lowest id."""
    row, generated = _PlainRow(TableModel(**settings), prompt), list[int]()
    for _ in range(num_tokens):
        logits = row.logits()
        generated.append(logits.index(max(logits)))
        row.append(generated[-1])
    return generated
