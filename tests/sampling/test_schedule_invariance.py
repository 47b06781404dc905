"""INV-12: tokens depend on prompt, seed and sequence id, never on what else runs, in what order or how."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refimpl import generate
from refimpl.core.config import LAYOUTS, SCHEDULERS
from refimpl.core.request import Request
from refimpl.pairs import random_pair

PAIR = random_pair("llama", draft_noise=0.01)
_rng = random.Random(11)
REQUESTS = [
    Request([_rng.randrange(61) for _ in range(n)], budget, k, stop_token_ids=stops, seed=seed, sequence_id=10 + i)
    for i, (n, budget, k, stops, seed) in enumerate(
        [(1, 9, 3, [], 0), (3, 7, 0, [5], 1), (3, 9, 5, [], 0), (6, 1, 2, [], 0), (4, 8, 1, [2, 9], 2)]
    )
]
RULES = {
    "greedy": {},
    "coupled": {"temperature": 1.0, "top_p": 0.95},
    "rejection": {"temperature": 1.0, "top_p": 0.95},
}


def by_id(acceptance: str, requests=REQUESTS, **how) -> dict[int | None, list[int]]:
    result = generate(PAIR, requests, acceptance=acceptance, checks="host", **RULES[acceptance], **how)
    return {r.sequence_id: s.token_ids for r, s in zip(requests, result.sequences, strict=True)}


ALONE = {rule: by_id(rule, method="speculative") for rule in RULES}

schedules = st.builds(
    lambda scheduler, batch_size, slack: {
        "scheduler": scheduler,
        "batch_size": batch_size,
        "window_size": batch_size + slack,
    },
    st.sampled_from([*SCHEDULERS]),
    st.integers(1, 5),
    st.integers(0, 4),
)
orders = st.lists(st.sampled_from(range(len(REQUESTS))), min_size=1, unique=True)


def in_company(acceptance: str, layout: str, schedule: dict, order: list[int]) -> dict[int | None, list[int]]:
    """Tokens of some of the requests, decoded together."""
    rest = {name: value for name, value in schedule.items() if name != "scheduler"}
    return by_id(acceptance, [REQUESTS[i] for i in order], method=f"{layout}+{schedule['scheduler']}", **rest)


def alone(acceptance: str, order: list[int]) -> dict[int | None, list[int]]:
    """The same requests, each decoded on its own."""
    return {REQUESTS[i].sequence_id: ALONE[acceptance][REQUESTS[i].sequence_id] for i in order}


@settings(max_examples=12)
@given(st.sampled_from(["greedy", "coupled"]), st.sampled_from(LAYOUTS), schedules, orders)
def test_greedy_and_coupled_tokens_never_depend_on_the_schedule(acceptance, layout, schedule, order):
    assert in_company(acceptance, layout, schedule, order) == alone(acceptance, order)


@settings(max_examples=12)
@given(st.sampled_from([name for name in LAYOUTS if name != "rollback"]), schedules, orders)
def test_rejection_tokens_never_depend_on_the_schedule_but_under_rollback(layout, schedule, order):
    assert in_company("rejection", layout, schedule, order) == alone("rejection", order)


def test_rollback_moves_the_round_boundaries_of_rejection():
    """The exception that the documentation of DecodeConfig.acceptance names: only the law is kept."""
    together = by_id("rejection", method="rollback+static", batch_size=5)
    assert together != ALONE["rejection"]
    assert by_id("rejection", method="rollback+static", batch_size=1) == ALONE["rejection"]


@pytest.mark.parametrize("acceptance", ["coupled", "rejection"])
@pytest.mark.parametrize("change", [{"seed": 77}, {"sequence_id": 77}])
def test_seed_and_sequence_id_do_change_the_tokens(acceptance, change):
    changed = replace(REQUESTS[0], **change)
    result = generate(PAIR, [changed], acceptance=acceptance, **RULES[acceptance])
    assert result.sequences[0].token_ids != ALONE[acceptance][10]


def test_the_oracle_agrees_with_the_requests_alone():
    assert by_id("coupled", method="autoregressive") == ALONE["coupled"]
