"""Logits as a function of texts: every verified position is processed with the text that ends in its own drafts.

A row of k drafts has k + 1 texts in one pass: what was committed, with none of its drafts up to all of them. Penalties
need the distinct tokens of a text, and how often each stands there. Tables of the committed text grow with it and are
never rolled back: the drafts before a position are added on the device, for one pass.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from refimpl.core.invariants import require_invariant
from refimpl.core.processing import LogitsProcessor, Processing
from refimpl.core.sequence import Sequence
from refimpl.decoding.grammars import GrammarProcessor
from refimpl.decoding.sampling import rows_of, words_of

FIRST_TOKENS = 64  # distinct ones that a new table has room for
NOTHING = Processing()


class TokenTable:
    """Distinct tokens of a row's committed text: how often each stands in it, and how often it was generated."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._cells = np.zeros((3, FIRST_TOKENS), dtype=np.int64)
        self._length = 0

    def read(self, row: Sequence) -> np.ndarray:
        """The table after what was committed since the last reading ``[3, distinct]``."""
        text = row.token_ids
        for position in range(self._length, len(text)):
            self._add(text[position], generated=position >= row.prompt_len)
        self._length = len(text)
        return self._cells[:, : len(self._places)]

    def _add(self, token: int, *, generated: bool) -> None:
        place = self._places.setdefault(token, len(self._places))
        if place == self._cells.shape[1]:
            self._cells = np.concatenate([self._cells, np.zeros_like(self._cells)], axis=1)
        self._cells[:, place] += (0, 1, generated)
        self._cells[0, place] = token


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts of the rows of a batch at q consecutive positions.

    Attributes:
        rows: with what is committed.
        ids, times, generated: distinct tokens of the committed texts, how often they stand there, and how often they
            were generated ``[batch, distinct]``; filled up with a row's first token, which is not counted twice.
        drafts: of this round, so far ``[batch, n]``.
        before: whether a position comes after a draft ``[q, n]``.
    """

    rows: Seq[Sequence]
    ids: Int[Tensor, "batch distinct"]
    times: Int[Tensor, "batch distinct"]
    generated: Int[Tensor, "batch distinct"]
    drafts: Int[Tensor, "batch n"]
    before: Bool[Tensor, "q n"]

    @property
    def first(self) -> int:
        """Drafts before the first position."""
        return self.before.shape[1] + 1 - self.before.shape[0]

    def used(self, limit: int) -> range:
        """Positions that count for a row with so many drafts."""
        return range(min(self.before.shape[0], limit + 1 - self.first))

    def text(self, row: int, at: int) -> list[int]:
        """A row's text at a position."""
        return self.rows[row].token_ids + self.drafts[row][self.before[at]].tolist()

    def fingerprints(self) -> Int[Tensor, "batch q"]:
        """Sums of a word for each token, from the tables."""
        committed = (words_of(self.ids) * self.times).sum(dim=1)
        return committed[:, None] + (words_of(self.drafts)[:, None] * self.before).sum(dim=2)


@dataclass(frozen=True, slots=True)
class RowProcessors:
    """What processes the logits of a round's rows.

    Attributes:
        members: the rows.
        limits: drafts that each can use; logits behind them are arbitrary.
        tables: of the committed texts, see `Texts` ``[batch, 3, distinct]``.
        penalties: of repetition, frequency and presence ``[batch, 3]``, float64; None where no row has any.
        bias: added to the logits ``[batch, 1, vocab]``, float32; None where no row has any.
        others: functions of a row's text, for each row.
        checked: whether texts are compared with the rows (INV-23).
    """

    members: Seq[Sequence]
    limits: Seq[int]
    tables: Int[Tensor, "batch 3 distinct"]
    penalties: Float[Tensor, "batch 3"] | None
    bias: Float[Tensor, "batch 1 vocab"] | None
    others: Seq[Seq[LogitsProcessor]]
    checked: bool

    def cut(self, limits: Seq[int]) -> "RowProcessors":
        """Those of a round with fewer drafts."""
        return replace(self, limits=limits)

    def rows(self, index: list[int]) -> "RowProcessors":
        """Those of some rows."""
        lists = {name: [getattr(self, name)[i] for i in index] for name in ("members", "limits", "others")}
        return rows_of(self, index, **lists)

    def followed(self, found: list[list[int]]) -> list[list[int]]:
        """What was looked up for each row, up to the first token that its grammar forbids."""
        return [self._followed(row, tokens) for row, tokens in enumerate(found)]

    def _followed(self, row: int, tokens: list[int]) -> list[int]:
        grammars = [each for each in self.others[row] if isinstance(each, GrammarProcessor)]
        return grammars[0].followed(self.members[row].generated, tokens) if grammars else tokens

    def __call__(self, logits: Float[Tensor, "batch q vocab"], drafts: Seq[Tensor]) -> Float[Tensor, "batch q vocab"]:
        """Process the logits behind the last committed token and all of the drafts, or behind the last of these alone.

        Args:
            logits: of the last q of the positions behind 0, 1, … drafts.
            drafts: tokens ``[batch, n]`` that were proposed so far, in order.
        """
        drafted = torch.cat([self.tables[:, 0, :0], *drafts], dim=1)
        texts = texts_of(self.members, self.tables, drafted, logits.shape[1])
        if self.checked:
            for row, limit in enumerate(self.limits):
                check_texts(texts, row, limit, drafted)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        biased = wide if self.bias is None else wide + self.bias
        found = biased.clone() if self.penalties is None else penalized(biased, texts, self.penalties)
        for row in range(len(self.members)):
            self._process_row(row, found[row], texts)
        return found

    def _process_row(self, row: int, logits: Float[Tensor, "q vocab"], texts: Texts) -> None:
        """Apply what depends on more than counts, in place."""
        sequence, others = self.members[row], self.others[row]
        if sequence.processing is None or sequence.finished:
            return
        early = (sequence.processing.min_new_tokens or 0) - sequence.num_generated - texts.first
        stops = [token for token in sequence.stop_token_ids if token < logits.shape[1]]
        if early > 0 and stops:
            logits[:early, stops] = -torch.inf
        for at in texts.used(self.limits[row]) if others else ():
            ids, scores = torch.tensor([texts.text(row, at)], device=logits.device), logits[at : at + 1].clone()
            logits[at] = chained(others, ids, scores)[0]
            if self.checked:
                check_function(others, ids, scores, logits[at], sequence)


def is_processed(sequence: Sequence) -> bool:
    """Whether anything is done to a row's logits."""
    return sequence.processing is not None and not sequence.finished


def texts_of(
    members: Seq[Sequence], tables: Int[Tensor, "batch 3 distinct"], drafts: Int[Tensor, "batch n"], q: int
) -> Texts:
    """The rows' texts at the last q of the positions behind 0, 1, … drafts."""
    n = drafts.shape[1]
    position = torch.arange(n + 1 - q, n + 1, device=drafts.device)
    ids, times, generated = tables.unbind(dim=1)
    return Texts(members, ids, times, generated, drafts, torch.arange(n, device=drafts.device) < position[:, None])


def penalized(
    logits: Float[Tensor, "batch q vocab"], texts: Texts, penalties: Float[Tensor, "batch 3"]
) -> Float[Tensor, "batch q vocab"]:
    """Penalize tokens as often as they stand in the text of each position.

    Those of the committed text come first, then those of all drafts, with the numbers that they have by then. A draft
    that comes later has that of the committed text, so what is written twice is written alike.
    """
    found = logits.clone()
    _penalize(found, logits, texts.ids, texts.ids[:, None] >= 0, texts.generated[:, None], penalties)
    if texts.drafts.shape[1]:
        same = texts.drafts[..., None] == texts.drafts[:, None]
        new = (same[:, None] & texts.before[:, None]).sum(dim=-1)
        known = texts.drafts[..., None] == texts.ids[:, None]
        count = (known * texts.generated[:, None]).amax(dim=-1)[:, None] + new
        _penalize(found, logits, texts.drafts, known.any(dim=-1)[:, None] | (new > 0), count, penalties)
    return found


def _penalize(
    found: Tensor, logits: Tensor, ids: Int[Tensor, "batch n"], seen: Tensor, count: Tensor, penalties: Tensor
) -> None:
    """Write the logits of some tokens: what they are penalized for is `seen`, and their `count`, at each position."""
    repetition, frequency, presence = penalties[..., None, None].unbind(dim=1)
    index = ids[:, None].expand(-1, logits.shape[1], -1)
    logit = logits.gather(2, index)
    factor = repetition.to(logit.dtype)
    less = torch.where(logit < 0, logit * factor, logit / factor)
    less = less - (frequency * count + presence * (count > 0)).to(logit.dtype)
    found.scatter_(2, index, torch.where(seen, less, logit))


class Processors:
    """What is known of the rows of a run whose logits are processed, as long as they are resident.

    Args:
        vocab_size: leading logits that count.
        device: of the logits.
        checked: see `RowProcessors`.
    """

    def __init__(self, vocab_size: int, device: torch.device, *, checked: bool):
        self._vocab_size, self._device, self._checked = vocab_size, device, checked
        self._tables: dict[int, TokenTable] = {}  # by sequence
        self._biases: dict[int, Tensor] = {}
        self._grammars: dict[int, GrammarProcessor] = {}

    def of(self, members: Seq[Sequence], limits: Seq[int]) -> RowProcessors | None:
        """Those of a round; None where nothing is processed."""
        if not any(map(is_processed, members)):
            return None
        each = [m.processing if is_processed(m) and m.processing else NOTHING for m in members]
        penalties = [processing.penalties for processing in each]
        some = any(row != NOTHING.penalties for row in penalties)
        table = torch.tensor(penalties, dtype=torch.float64, device=self._device) if some else None
        others = [others_of(own) + self._grammar_of(m, own) for m, own in zip(members, each, strict=True)]
        return RowProcessors(members, limits, self._stacked(members), table, self._bias(members), others, self._checked)

    def forget(self, sequence: Sequence) -> None:
        """Drop what is known of a row that has left."""
        self._tables.pop(sequence.index, None)
        self._biases.pop(sequence.index, None)
        self._grammars.pop(sequence.index, None)

    def after_commit(self, members: Seq[Sequence]) -> None:
        """Check the grammars of a round's rows."""
        for row in members if self._checked else ():
            if row.index in self._grammars:
                self._grammars[row.index].check(row)

    def _grammar_of(self, row: Sequence, processing: Processing) -> tuple[LogitsProcessor, ...]:
        if processing.grammar is None:
            return ()
        if row.index not in self._grammars:
            assert callable(processing.grammar)
            self._grammars[row.index] = GrammarProcessor(processing.grammar, row.prompt_len, row.stop_token_ids)
        return (self._grammars[row.index],)

    def _stacked(self, members: Seq[Sequence]) -> Int[Tensor, "batch 3 distinct"]:
        read = {i: self._table_of(m).read(m) for i, m in enumerate(members) if is_processed(m)}
        found = np.zeros((len(members), 3, max(table.shape[1] for table in read.values())), dtype=np.int64)
        for row, table in read.items():
            found[row, ::2] = table[::2, :1]
            found[row, :, : table.shape[1]] = table
        return torch.from_numpy(found).to(self._device)

    def _table_of(self, row: Sequence) -> TokenTable:
        return self._tables.setdefault(row.index, TokenTable())

    def _bias(self, members: Seq[Sequence]) -> Float[Tensor, "batch 1 vocab"] | None:
        found = [self._bias_of(m) if is_processed(m) else None for m in members]
        if all(each is None for each in found):
            return None
        none = torch.zeros(self._vocab_size, device=self._device)
        return torch.stack([none if each is None else each for each in found])[:, None]

    def _bias_of(self, row: Sequence) -> Tensor | None:
        """What is added to a row's logits whatever its text: minus infinity for what cannot be generated."""
        processing = row.processing
        assert processing is not None
        if processing.logit_bias or processing.banned or processing.allowed_token_ids is not None:
            if row.index not in self._biases:
                self._biases[row.index] = bias_of(processing, self._vocab_size).to(self._device)
            return self._biases[row.index]
        return None


def bias_of(processing: Processing, vocab_size: int) -> Float[Tensor, " vocab"]:
    """The bias of every token."""
    bias = torch.zeros(vocab_size)
    if processing.allowed_token_ids is not None:
        bias.fill_(-torch.inf)[list(processing.allowed_token_ids)] = 0
    for token, value in (processing.logit_bias or {}).items():
        bias[token] += value
    bias[list(processing.banned)] = -torch.inf
    return bias


def others_of(processing: Processing) -> tuple[LogitsProcessor, ...]:
    """What depends on more of a text than its counts."""
    words = [word for word in processing.bad_words_ids or () if len(word) > 1]
    return (*([partial(ban_words, words)] if words else []), *(processing.logits_processors or ()))


def ban_words(words: Seq[Seq[int]], ids: Int[Tensor, "1 length"], scores: Float[Tensor, "1 vocab"]) -> Tensor:
    """Make the last token of each word impossible where the text ends in those before it."""
    text = ids[0].tolist()
    last = [word[-1] for word in words if text[1 - len(word) :] == list(word[:-1])]
    return scores.index_fill(1, torch.tensor(last, dtype=torch.long, device=scores.device), -torch.inf)


@dataclass(frozen=True, slots=True)
class ThinkingBudget:
    """A logits processor: a row that thinks for `budget` tokens stops thinking.

    Attributes:
        start, end: tokens before and after what is thought.
        budget: tokens between them, at most.
    """

    start: int
    end: int
    budget: int

    def __call__(self, ids: Int[Tensor, "1 length"], scores: Float[Tensor, "1 vocab"]) -> Float[Tensor, "1 vocab"]:
        """The end alone is possible where the budget is used up."""
        text = ids[0].tolist()
        thought = text[len(text) - text[::-1].index(self.start) :] if self.start in text else [self.end]
        if len(thought) < self.budget or self.end in thought:
            return scores
        only = torch.full_like(scores, -torch.inf)
        only[:, self.end] = scores[:, self.end]
        return only


def chained(functions: Seq[LogitsProcessor], ids: Tensor, scores: Tensor) -> Tensor:
    """Scores that one function after the other has processed; those given are left as they are."""
    scores = scores.clone()
    for function in functions:
        scores = function(ids, scores)
    return scores


def check_function(others: Seq[LogitsProcessor], ids: Tensor, scores: Tensor, found: Tensor, row: Sequence) -> None:
    """INV-23: a function of a text gives for the same text the same scores again."""
    again = chained(others, ids, scores)[0]
    same = torch.equal(again, found)
    require_invariant(same, "INV-23", row=row.index, expected="the same scores for the same text", found="others")


def check_texts(texts: Texts, row: int, limit: int, drafts: Int[Tensor, "batch n"]) -> None:
    """INV-23, at the positions of a row that count: what tables say, and what functions of a text are called with."""
    sequence, found = texts.rows[row], texts.fingerprints()[row]
    for at in texts.used(limit) if is_processed(sequence) else ():
        want = sequence.token_ids + drafts[row, : texts.first + at].tolist()
        right = int(found[at]) == int(words_of(torch.tensor(want)).sum()) and texts.text(row, at) == want
        told = f"{int(texts.times[row].sum())} and {int(texts.before[at].sum())}, or others"
        wanted = f"{sequence.seq_len} committed tokens and {texts.first + at} drafts"
        require_invariant(right, "INV-23", row=sequence.index, expected=wanted, found=told)
