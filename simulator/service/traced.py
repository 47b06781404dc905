"""What a run of the engine says of its own rounds, and of no others."""

from typing import Any

from refimpl.core.errors import InputError
from simulator.service.records import Request
from simulator.settings.traces import read_engine_trace


class Places:
    """A column of a trace by sequence and length at which a round of it began.

    Where acceptance, drafts or a budget are not those of the run, rounds soon begin elsewhere: what would have been
    found there is not known, and no round without drafts may stand in for it.

    Args:
        path: of the trace.
        column: of its rows.
    """

    def __init__(self, path: str, column: str):
        self.path, self.values = path, read_engine_trace(path).by_place(column)

    def at(self, request: Request) -> Any:
        """What the trace has; raises InputError where no round began."""
        place = request.sequence, request.seq_len
        if place not in self.values:
            began = f"no round of sequence {place[0]} began at {place[1]} tokens, so that its drafts are not known"
            raise InputError(f"{self.path}: {began}: keep the run's requests, acceptance, drafts and budget")
        return self.values[place]
