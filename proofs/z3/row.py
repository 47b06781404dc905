"""A row before, in and after a round, in plain arithmetic: the vocabulary in which the claims are stated.

Nothing here calls a kernel: the specification must not lean on what it judges. One row with free lengths stands for
every row of every batch; `width` and `new_width` are whatever the longest rows make them.
"""

from dataclasses import dataclass, field

import z3

from proofs.z3.obligation import Obligation

Tokens = z3.FuncDeclRef  # position -> token


def _int(name: str) -> z3.ArithRef:
    return z3.Int(name)


@dataclass(frozen=True)
class Row:
    """Symbolic lengths of a row, and its text.

    Attributes:
        seq_len: real tokens before the round.
        width: longest row of the batch before the round.
        k: drafts of the round.
        accepted: of them, the prefix that survives.
        new_width: longest row after the round.
        text, drafts: tokens by position; `drafts` at position seq_len + i is draft i.
        next_token: the target's own token after the accepted drafts.
    """

    seq_len: z3.ArithRef = field(default_factory=lambda: _int("seq_len"))
    width: z3.ArithRef = field(default_factory=lambda: _int("width"))
    k: z3.ArithRef = field(default_factory=lambda: _int("k"))
    accepted: z3.ArithRef = field(default_factory=lambda: _int("accepted"))
    new_width: z3.ArithRef = field(default_factory=lambda: _int("new_width"))
    next_token: z3.ArithRef = field(default_factory=lambda: _int("next_token"))
    text: Tokens = field(default_factory=lambda: z3.Function("text", z3.IntSort(), z3.IntSort()))
    drafts: Tokens = field(default_factory=lambda: z3.Function("draft", z3.IntSort(), z3.IntSort()))

    @property
    def new_len(self) -> z3.ArithRef:
        return self.seq_len + self.accepted + 1

    @property
    def lengths(self) -> list[z3.BoolRef]:
        """A row of a round."""
        return [
            self.seq_len >= 1,
            self.width >= self.seq_len,
            self.k >= 0,
            self.accepted >= 0,
            self.accepted <= self.k,
            self.new_width >= self.new_len,
        ]

    def fed(self, position: z3.ArithRef) -> z3.ArithRef:
        """Token at a position of the text that the round's forward pass works on."""
        return z3.If(position < self.seq_len, self.text(position), self.drafts(position))

    def committed(self, position: z3.ArithRef) -> z3.ArithRef:
        """Token at a position of the text after the round."""
        return z3.If(position < self.seq_len + self.accepted, self.fed(position), self.next_token)


ROW = Row()
COLUMN, OTHER, POSITION, QUERY = z3.Ints("column other position query")


def store(name: str) -> Tokens:
    """K/V by column, each entry named by the token it was computed from (junk where nothing was written)."""
    return z3.Function(name, z3.IntSort(), z3.IntSort())


def between(low: z3.ArithRef | int, value: z3.ArithRef, high: z3.ArithRef | int) -> z3.BoolRef:
    """low ≤ value < high."""
    return z3.And(low <= value, value < high)


def claim(layout: str, name: str, given: list, that: z3.BoolRef) -> Obligation:
    """One claim about the row."""
    return Obligation(f"{layout}: {name}", [*ROW.lengths, *given], that)
