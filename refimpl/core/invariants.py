"""The register of invariants: what each states, and the error that says that one is broken."""

from functools import partial
from typing import Any

STATEMENTS: dict[str, str] = {
    "INV-1": "padded layouts are rectangular: num_pad + seq_len == width",
    "INV-2": "the j-th real token of a row has position j",
    "INV-3": "a query sees exactly its own row's tokens up to its position, as far back as its layer looks",
    "INV-4": "each visible slot holds the K/V of the token at the position it claims",
    "INV-5": "the target has cached all tokens but the last between rounds",
    "INV-6": "the draft lags by 1 token, or by 2 after a full acceptance",
    "INV-7": "nothing after the first stop token, never more than the budget",
    "INV-8": "raggedness is carried by integer lengths",
    "INV-9": "every sequence is in one place, the members of a round are distinct",
    "INV-10": "no sequence waits more than A + floor(M/B) rounds between two of its rounds",
    "INV-11": "a group's members have equal length and equal cache state",
    "INV-12": "tokens do not depend on batch, order, layout or schedule",
    "INV-13": "a block is free or referenced, and its count is the number of tables that name it",
    "INV-14": "a row writes to blocks of its own alone",
    "INV-15": "free blocks and those in use are all blocks; between rounds a table is as long as the cached tokens",
    "INV-16": "a row has blocks for every position that is fed, before the pass",
    "INV-17": "a round stays within its budget of tokens; all rows that decode run, and the oldest prompt goes on",
    "INV-18": "a full block that can be found is read only, and holds the tokens of every row that names it",
    "INV-19": "a preempted sequence keeps its tokens and nothing else",
    "INV-20": "whether a draft is verified does not depend on the draft itself or on those after it",
    "INV-21": "what is verified was drafted for the text as it is, and a row is verified or drafted for, not both",
    "INV-22": "a head goes on from its row's state behind the last committed token that was fed, and K/V before it",
    "INV-23": "a processor of logits reads the row's committed text and its own drafts before the position",
    "INV-24": "the recurrent state of a row is that of its committed text and of nothing else",
    "INV-25": "a grammar allows the committed text of its row, and its matcher is in the state behind that text",
    "INV-26": "a block that a row has given back while it goes on holds no position that a later query of it sees",
}


class InvariantViolation(RuntimeError):  # noqa: N818 (the name states what happened, not that an error object exists)
    """A synchronization invariant is broken.

    Raised explicitly, never through `assert`, so `python -O` keeps the checks.

    Attributes:
        invariant: register id, for example ``"INV-3"``; `STATEMENTS` has it in words.
        row: row of the batch (or index of the sequence) at fault, None when the whole batch is.
        expected: what the invariant demands.
        found: what the engine has instead.
    """

    def __init__(self, invariant: str, *, row: int | None, expected: object, found: object):
        self.invariant, self.row, self.expected, self.found = invariant, row, expected, found
        where = "" if row is None else f" in row {row}"
        super().__init__(f"{invariant}{where}: {STATEMENTS[invariant]}; expected {expected}, found {found}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Violations travel between processes."""
        return partial(type(self), row=self.row, expected=self.expected, found=self.found), (self.invariant,)


def require_invariant(holds: bool, invariant: str, *, row: int | None, expected: Any, found: Any) -> None:
    """Raise the violation of `invariant` unless it holds; never an `assert`, which `python -O` removes."""
    if not holds:
        raise InvariantViolation(invariant, row=row, expected=expected, found=found)
