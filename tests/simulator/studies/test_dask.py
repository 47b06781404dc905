"""A sweep on a Dask scheduler: what it says where none answers, and where a task fails."""

import pytest

from refimpl.core.errors import InputError
from simulator.settings.scenario import Scenario
from simulator.studies.designs import build_sweep
from simulator.studies.sweeps import sweep

SWEEP = build_sweep(Scenario(study={"num_requests": 2}), replications=1, grid={"seed": [0]})


class Unreachable:
    """In place of a Dask client: no scheduler answers."""

    def __init__(self, *_, **__):
        raise self.error


@pytest.mark.parametrize(("error", "why"), [(TimeoutError(), "TimeoutError"), (OSError("no\nroute"), "no")])
def test_a_dask_scheduler_that_does_not_answer_is_one_line(monkeypatch, error, why):
    monkeypatch.setattr("distributed.Client", type("Client", (Unreachable,), {"error": error}))
    with pytest.raises(InputError, match=f"^--dask tcp://nowhere:1: cannot connect: {why}$"):
        sweep(SWEEP, dask="tcp://nowhere:1")


class Broken:
    """In place of a Dask client, and of the task that it runs: the worker's disk is full."""

    def __init__(self, *_, **__):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def map(self, *_, **__):
        return [self]

    def result(self):
        raise OSError(28, "No space left on device")


def test_an_error_of_a_task_is_no_failure_to_connect(monkeypatch):
    monkeypatch.setattr("distributed.Client", Broken)
    monkeypatch.setattr("distributed.as_completed", iter)
    with pytest.raises(OSError, match="No space left on device") as raised:
        sweep(SWEEP, dask="tcp://there:1")
    assert not isinstance(raised.value, InputError)
