"""When each layout moves K/V, and how wide its rows are: the bookkeeping of `refimpl.layouts` without the tensors."""

from collections.abc import Sequence as Seq

from simulator.cost import CostModel
from simulator.memory import SLACK_COLUMNS
from simulator.records import Request


class Movement:
    """In place: a row's columns are its own, and nothing ever moves; but rows of scattered slots are gathered.

    Attributes:
        width: columns that the next round's first query could look back at.
        scattered: whether the members' slots are no neighbours, so that every pass copies their K/V.
        working_tokens: slots of the working batch beside the pool; 0 where there is none.
    """

    commits_minimum = False
    members: tuple[Request, ...] = ()
    scattered = False

    def __init__(self, cost: CostModel):
        self.cost, self.width, self.working_tokens = cost, 0, 0

    def begin(self, members: tuple[Request, ...], live: Seq[Request], span: int) -> float:
        """Prepare a round that appends up to `span` columns; return the seconds spent on moving K/V."""
        self.width = max([row.seq_len for row in live])
        if members != self.members:
            self.members = members
            slots = [row.slot for row in members]
            self.scattered = slots != list(range(slots[0], slots[0] + len(slots)))
        return 0.0

    def commit(self, live: Seq[Request], span: int) -> None:
        """Take note of a round that has run."""

    def regroup_s(self, rows: int, width: int) -> float:
        """Seconds of writing so many members back and gathering as many others."""
        return self.cost.line("concat", rows, 0).at(width) + self.cost.point("split", rows, 0)


class WorkingMovement(Movement):
    """A rectangle beside the pool, gathered anew when its members change."""

    columns = 0

    def begin(self, members: tuple[Request, ...], live: Seq[Request], span: int) -> float:
        """Keep the batch where the members are the same, else write back and gather."""
        if members == self.members:
            return self.realign(live, span)
        unsaved = len([row for row in self.members if not row.finished])
        self.members = members
        return (self.cost.point("split", unsaved, 0) if unsaved else 0.0) + self.load(live, span)

    def load(self, live: Seq[Request], span: int) -> float:
        """Gather the rows from the pool."""
        raise NotImplementedError

    def realign(self, live: Seq[Request], span: int) -> float:
        """Adapt the batch to the rows' new lengths."""
        raise NotImplementedError

    def lay_out(self, component: str, columns: int) -> float:
        """Seconds of moving every row of the batch into a fresh rectangle."""
        rows = len(self.members)
        self.columns, self.working_tokens = columns, rows * columns
        return self.cost.line(component, rows, 0).at(self.width)


class RealignedMovement(WorkingMovement):
    """Left-padded: moved unless every live row has kept as much as the rectangle has grown."""

    def load(self, live: Seq[Request], span: int) -> float:
        """Gather at the width of the longest live row."""
        self.width = max([row.seq_len for row in live])
        return self.lay_out("concat", self.width + span + SLACK_COLUMNS)

    def realign(self, live: Seq[Request], span: int) -> float:
        """Shift the rows to end together, when some shift is not 0 or the columns have run out."""
        before, self.width = self.width, max([row.seq_len for row in live])
        grown = self.width - before
        shifted = {row.last_kept for row in live} != {grown}
        if shifted or self.width + span > self.columns:
            return self.lay_out("realign" if shifted else "concat", self.width + span + SLACK_COLUMNS)
        return 0.0


class RollbackMovement(RealignedMovement):
    """Left-padded, and every live row commits the batch minimum."""

    commits_minimum = True


class MaskedMovement(WorkingMovement):
    """Columns are appended, holes stay until compaction frees more than a share of the columns.

    Args:
        threshold: that share.
    """

    def __init__(self, cost: CostModel, threshold: float):
        super().__init__(cost)
        self.threshold = threshold

    def load(self, live: Seq[Request], span: int) -> float:
        """Gather without holes."""
        self.width = max([row.seq_len for row in live]) - 1
        return self.lay_out("concat", self.width + self.width // 4 + span + SLACK_COLUMNS)

    def realign(self, live: Seq[Request], span: int) -> float:
        """Compact when that frees enough, or when the columns have run out."""
        longest = max([row.seq_len for row in self.members]) - 1
        if self.width + span > self.columns or self.width - longest > self.threshold * self.width:
            self.width = longest
            return self.lay_out("compact", longest + longest // 4 + span + SLACK_COLUMNS)
        return 0.0

    def commit(self, live: Seq[Request], span: int) -> None:
        """Every round appends its whole block."""
        self.width += span


def make_movement(layout: str, cost: CostModel, threshold: float) -> Movement:
    """Build the movement model of a layout by name."""
    if layout == "masked":
        return MaskedMovement(cost, threshold)
    return {"inplace": Movement, "realigned": RealignedMovement, "rollback": RollbackMovement}[layout](cost)
