"""A ragged batch as rows × positions, to be drawn on a page: what each token is, and where an output first parts."""

from collections.abc import Collection, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from refimpl.core.records import RowOutcome
from refimpl.core.tokens import first_difference
from refimpl.decoding.trace import RoundRecord

BEFORE, BEHIND = 24, 12  # positions drawn on either side of the first difference
MOST_ROWS = 16
KINDS = {
    "prompt": "prompt",
    "committed": "committed before",
    "accepted": "draft, accepted",
    "next": "next token, from the target",
    "rejected": "draft, rejected",
    "dropped": "draft, accepted and cut off",
    "wrong": "first token that differs, above the expected one",
}
Cell = tuple[str, str, str]  # kind, what is written in it, what is expected in its place
Rows = Seq[Seq[int]]
PROMPT: Cell = ("prompt", "", "")


@dataclass(frozen=True)
class DrawnRow:
    """One row: its number, and a cell for each position from the first that is drawn."""

    row: int
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class DrawnBatch:
    """Rows of a batch around the first difference.

    Attributes:
        caption: what is drawn.
        first: position of the first column.
        rows: cells of kinds that `KINDS` names; those of prompts are blank, since a prompt may be private.
    """

    caption: str
    first: int
    rows: tuple[DrawnRow, ...]

    @property
    def kinds(self) -> dict[str, str]:
        """What the cells are, of those that occur."""
        found = {kind for row in self.rows for kind, *_ in row.cells}
        return {kind: text for kind, text in KINDS.items() if kind in found}

    @property
    def positions(self) -> range:
        """Of the columns."""
        return range(self.first, self.first + max((len(row.cells) for row in self.rows), default=0))


def compared_batch(
    prompt_lens: Seq[int], found: Rows, expected: Rows, rows: Collection[int] | None = None
) -> DrawnBatch | None:
    """Draw outputs whose rounds are not known.

    Args:
        prompt_lens: tokens of each prompt.
        found, expected: generated tokens, row by row.
        rows: those whose differences count; None for all. Where none of them differs there is nothing to draw: None.
    """
    parts = _parts(found, expected, rows)
    if not parts:
        return None
    cells = {
        row: [PROMPT] * prompt_lens[row] + _marked([*map(_committed, tokens)], tokens, expected[row])
        for row, tokens in enumerate(found)
    }
    wrong, at = next(iter(parts.items()))
    return _around(f"row {wrong} differs from token {at} on", cells, wrong, prompt_lens[wrong] + at)


def round_batch(
    records: Seq[RoundRecord], prompt_lens: Seq[int], found: Rows, expected: Rows, rows: Collection[int] | None = None
) -> DrawnBatch | None:
    """Draw the round that committed the first token which is not the expected one; see `compared_batch`."""
    parts = _parts(found, expected, rows)
    for record in records:
        for row in record.rows:
            wrong, length = row.sequence, prompt_lens[row.sequence]
            if wrong in parts and length + parts[wrong] < row.seq_len + row.kept:
                told = f"round {record.round}: row {wrong} differs from token {parts[wrong]} on"
                cells = {
                    r.sequence: _of_round(r, prompt_lens[r.sequence], found[r.sequence], expected[r.sequence])
                    for r in record.rows
                }
                return _around(told, cells, wrong, length + parts[wrong])
    return compared_batch(prompt_lens, found, expected, rows)


def _parts(found: Rows, expected: Rows, rows: Collection[int] | None) -> dict[int, int]:
    """Where rows first differ, of those that do."""
    parts = [first_difference(*both) for both in zip(found, expected, strict=True)]
    return {row: at for row, at in enumerate(parts) if at is not None and (rows is None or row in rows)}


def _of_round(row: RowOutcome, prompt_len: int, found: Seq[int], expected: Seq[int]) -> list[Cell]:
    """A row at the end of a round; the next token stands where the first rejected draft was."""
    before = row.seq_len - prompt_len
    cells, done = [*map(_committed, found[:before]), *_new(row)], before + row.kept
    return [PROMPT] * prompt_len + _marked(cells, found[:done], expected if row.finished else expected[:done])


def _committed(token: int) -> Cell:
    return "committed", str(token), ""


def _new(row: RowOutcome) -> Iterator[Cell]:
    """Cells of what was drafted, and of the next token."""
    accepted = min(row.accepted, row.kept)
    for token in row.tokens[:accepted]:
        yield "accepted", str(token), ""
    yield from [("dropped", "", "")] * (row.accepted - accepted)
    if row.next_token != "draft":
        yield "next", str(row.tokens[-1]), ""
    yield from [("rejected", "", "")] * (row.drafted - row.accepted - (row.next_token == "recovered"))


def _marked(cells: list[Cell], found: Seq[int], expected: Seq[int]) -> list[Cell]:
    """Cells of what was generated, the first of them that is wrong marked; an output that is short gets one more."""
    at = first_difference(found, expected)
    if at is None or at > len(cells):
        return cells
    text, wanted = (str(tokens[at]) if at < len(tokens) else "end" for tokens in (found, expected))
    return [*cells[:at], ("wrong", text, wanted), *cells[at + 1 :]]


def _around(caption: str, rows: dict[int, list[Cell]], wrong: int, position: int) -> DrawnBatch:
    """Rows and columns near a difference."""
    numbers = sorted(sorted(rows, key=lambda row: (row != wrong, row))[:MOST_ROWS])
    first = max(0, position - BEFORE)
    drawn = tuple(DrawnRow(number, tuple(rows[number][first : position + BEHIND])) for number in numbers)
    return DrawnBatch(caption, first, drawn)
