"""Who waits is checked in every round, on the host already."""

import pytest

from refimpl import generate, stream
from refimpl.core.invariants import InvariantViolation
from refimpl.decoding import invariants
from refimpl.decoding.memory import pool_gib
from refimpl.faults import FAULTS
from refimpl.scheduling import SequencePool

SETTINGS = {"batch_size": 2, "max_new_tokens": 4, "num_speculative_tokens": 2}


@pytest.mark.parametrize("level", ["host", "device"])
def test_all_who_wait_are_looked_at(llama, monkeypatch, level):
    seen, check = [], invariants.check_preempted
    monkeypatch.setattr(invariants, "check_preempted", lambda sequence: seen.append(sequence.index) or check(sequence))
    stream(llama, [[1]] * 50, checks=level, **SETTINGS).run_one_round()
    assert seen == [*range(2, 50)]


@pytest.mark.parametrize("level", ["host", "device"])
def test_a_sequence_that_is_in_two_places_is_found(llama, monkeypatch, level):
    """Their number alone is right."""
    admit = SequencePool.admit

    def twice(self, *arguments):
        entered = admit(self, *arguments)
        if self.waiting and self.window:
            self.waiting[-1] = next(iter(self.window.values()))
        return entered

    monkeypatch.setattr(SequencePool, "admit", twice)
    with pytest.raises(InvariantViolation, match="INV-9"):
        generate(llama, [[1]] * 5, checks=level, **SETTINGS)


@pytest.mark.parametrize("level", ["host", "device"])
@pytest.mark.parametrize("name", ["cached-length-survives-preemption", "sequence-lost-on-refill"])
def test_what_was_lost_or_kept_is_found_at_both_levels(llama, name, level):
    fault, settings = FAULTS[name], SETTINGS | {"batch_size": 4, "max_new_tokens": 40}
    short = {"method": "paged", "block_size": 4, "kv_memory_gib": pool_gib(llama, 20, 4)}
    with fault.injected(), pytest.raises(InvariantViolation, match=fault.invariant):
        generate(llama, [[7, 1 + i, 2] for i in range(8)], checks=level, **settings, **short)
