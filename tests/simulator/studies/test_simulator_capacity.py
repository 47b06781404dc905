"""The largest rate that keeps a promise, against a queue whose answer is known."""

import pytest

from refimpl.core.errors import InputError
from simulator.cli import main
from simulator.settings.fields import Spec
from simulator.settings.scenario import Engine, Scenario, Service, Study, Workload
from simulator.studies.capacity import find_capacity

ROUND_S = 0.01
ONE_SERVER = Scenario(  # one row, no drafts, 10 tokens of 10 ms: 10 requests a second at most
    study=Study(kind="open", num_requests=400),
    workload=Workload(Spec.of("fixed", tokens=1), Spec.of("fixed", tokens=10)),
    engine=Engine(batch_size=1, num_speculative_tokens=0),
    cost=Spec.of("linear", verify_base_s=ROUND_S),
    service=Service(slo_first_token_s=0.5),
)


def test_regular_arrivals_can_fill_the_server():
    """Gamma arrivals of hardly any spread: nobody waits below the server's own rate, everybody far above it."""
    regular = ONE_SERVER.but({"study.arrivals": {"kind": "gamma", "rate_per_s": 1.0, "cv": 0.01}})
    found = find_capacity(regular, tolerance=0.01, replications=2)
    assert 10 <= found.rate_per_s < found.broken_at_per_s < 10.3
    assert found.broken_at_per_s / found.rate_per_s <= 1.01
    assert found.table.index.is_monotonic_increasing
    assert (found.table.loc[: found.rate_per_s, "slo_attainment"] >= 0.99).all()
    assert (found.table.loc[found.broken_at_per_s :, "slo_attainment"] < 0.99).all()


def test_a_rate_that_no_server_keeps_up_with_is_told(capsys, tmp_path):
    """A limit of 3 s: 100 requests keep it at up to 14 a second, though 10 a second are served; 1000 do not."""
    patient = ONE_SERVER.but({"service.slo_first_token_s": 3.0, "study.num_requests": 100})
    found = find_capacity(patient, tolerance=0.1, replications=3)
    assert found.rate_per_s > 12
    assert found.queue_grew
    assert found.table.loc[found.rate_per_s, "behind"] == pytest.approx(1 - 10 / found.rate_per_s, abs=0.1)
    assert "still growing" in repr(found)
    enough = find_capacity(patient.but({"study.num_requests": 1000}), tolerance=0.1, replications=2)
    assert enough.rate_per_s < 11
    assert not enough.queue_grew
    patient.save(tmp_path / "a.yaml")
    assert main(["plan", str(tmp_path / "a.yaml"), "-n", "2", "--tolerance", "0.2"]) == 0
    assert "the queue was still growing when the last request came" in capsys.readouterr().out


def test_random_arrivals_leave_the_server_partly_idle():
    told = []
    found = find_capacity(ONE_SERVER, replications=4, progress=lambda done, planned: told.append((done, planned)))
    assert 4 < found.rate_per_s < 9
    assert [done for done, _ in told] == list(range(1, len(found.table) + 1))
    assert told[-1][1] == len(found.table)
    stricter = find_capacity(ONE_SERVER.but({"service.slo_first_token_s": 0.2}), replications=4)
    assert stricter.rate_per_s < found.rate_per_s


def test_a_promise_that_is_kept_exactly_is_kept():
    exactly, just_below = (find_capacity("example", share, replications=2) for share in (0.9, 0.9 - 1e-9))
    assert exactly.rate_per_s == just_below.rate_per_s  # a mean of two shares there is 0.8999…


def test_the_start_does_not_matter():
    rates = [
        find_capacity(ONE_SERVER.but({"study.arrivals.rate_per_s": rate}), replications=2).rate_per_s
        for rate in (0.5, 8.0, 128.0)
    ]
    assert max(rates) == pytest.approx(min(rates))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"study": {"num_requests": 5}}, "plan needs a study of kind open, not offline"),
        ({"study.arrivals": {"kind": "fixed", "interval_s": 1.0}}, "plan needs study.arrivals with a rate"),
        ({"study.warmup": "mser5"}, "plan needs study.warmup none, not mser5: a server that breaks the promise"),
        ({"service.slo_first_token_s": None}, "plan needs service.slo_first_token_s or slo_per_token_s"),
        ({"service.slo_first_token_s": 1e6}, "all of the rates .* reach an attainment of 0.99"),
        ({"service.slo_first_token_s": 1e-6}, "none of the rates .* reach an attainment of 0.99"),
    ],
)
def test_searches_that_cannot_end_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        find_capacity(ONE_SERVER.but({"study.num_requests": 20}).but(changes), replications=1)


def test_the_command_tells_rates(capsys, tmp_path):
    ONE_SERVER.save(tmp_path / "a.yaml")
    assert main(["plan", str(tmp_path / "a.yaml"), "-n", "1", "--tolerance", "0.3", "--json"]) == 0
    printed = capsys.readouterr()
    assert "99 % of the requests finish within the limits at" in printed.err
    assert printed.out.startswith('{"rate_per_s": ')
    assert "low … high: 95 % interval of slo_attainment; behind: " in printed.err
    rates = [line.split()[0] for line in printed.err.splitlines() if line[0].isdigit()]
    assert len(rates) > 2
    assert max(len(rate) for rate in rates) <= len("1.234")
    assert " while on, " not in printed.err
    bursts = "study.arrivals={kind: on_off, rate_per_s: 8.0, mean_on_s: 1.0, mean_off_s: 1.0}"
    assert main(["plan", str(tmp_path / "a.yaml"), "-s", bursts, "-n", "1", "--tolerance", "0.9"]) == 0
    assert " requests/s while on, fewer at " in capsys.readouterr().out
    assert main(["plan", str(tmp_path / "a.yaml"), "--attainment", "1.5"]) == 2
    assert main(["plan", str(tmp_path / "a.yaml"), "--axis", "batch_size=8,16"]) == 2
    assert "give --device, too" in capsys.readouterr().err
