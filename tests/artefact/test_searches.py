"""The searches over the schedulers meet every transition, those into states that are known already, too."""

from collections import Counter

from proofs.conformance import schedulers
from proofs.conformance.scheduler_spec import Rules
from refimpl.scheduling import GroupedScheduler, Scheduler


def test_a_cancelled_row_that_stays_is_noticed_where_it_could_have_stopped_as_well(monkeypatch):
    search = 2, Rules("fifo", 2, 2), 4, True
    (right,) = schedulers.verdicts(iter([search]), Counter())
    assert right.ok, right.detail

    def stays(self, sequence, take_out=Scheduler._take_out):
        might_have_stopped = sequence.seq_len >= 3 and sequence.cache_state == 1
        return [] if might_have_stopped else take_out(self, sequence)

    monkeypatch.setattr(Scheduler, "_take_out", stays)
    (found,) = schedulers.verdicts(iter([search]), Counter())
    assert found.detail == "real ((), (0,), None, 1), relation ((), (), None, 2)"


def test_waits_that_are_forgotten_where_a_row_is_sent_back_are_noticed(monkeypatch):
    def forgets(self, sequence, preempt=GroupedScheduler.preempt):
        preempt(self, sequence)
        self._waited_at_most = 0

    monkeypatch.setattr(GroupedScheduler, "preempt", forgets)
    found = schedulers.verdicts((each for each in schedulers.with_blocks() if each[1].policy == "grouped"), Counter())
    assert any("somebody is overdue" in verdict.detail for verdict in found)
