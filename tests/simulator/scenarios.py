"""Scenarios and strategies that tests of the simulator share."""

from hypothesis import strategies as st

from refimpl.core.config import LAYOUTS, SCHEDULERS
from simulator.settings.fields import Spec
from simulator.settings.scenario import Engine, Scenario, Study, Switches, Workload

COST = Spec.of(
    "linear",
    verify_base_s=0.02,
    draft_base_s=0.002,
    realign_base_s=0.01,
    concat_base_s=0.01,
    split_base_s=0.002,
    noise_cv=0.05,
)


def scenario(changes=None, **more):
    base = Scenario(
        study=Study(num_requests=40),
        workload=Workload(prompt_tokens=Spec.of("uniform", low_tokens=4, high_tokens=60)),
        engine=Engine(layout="realigned", scheduler="static", batch_size=4, max_new_tokens=40),
        cost=COST,
    )
    return base.but(changes, **more)


switches = st.builds(
    Switches,
    refill=st.booleans(),
    zombies=st.booleans(),
    k_policy=st.sampled_from(["per_row", "batch_min"]),
    keep_bonus=st.booleans(),
    draft_cache=st.booleans(),
    group_key=st.sampled_from(["length_and_lag", "padded_length"]),
    discard_mixed_caches=st.booleans(),
    pad_prompts=st.booleans(),
    copy_groups=st.booleans(),
    realign_read_s=st.sampled_from([0.0, 1e-5]),
    free_realign=st.booleans(),
)
engines = st.builds(
    Engine,
    layout=st.sampled_from([*LAYOUTS]),
    scheduler=st.sampled_from([*SCHEDULERS]),
    batch_size=st.integers(1, 6),
    window_size=st.sampled_from([None, 6, 17]),
    aging_bound=st.sampled_from([None, 0, 3]),
    num_speculative_tokens=st.integers(0, 6),
    max_new_tokens=st.integers(1, 30),
)


decisions = st.sampled_from([
    {"draft_budget": "by_load:2=3,4=1"},
    {"draft_budget": "by_load:3=0"},
    {"draft_budget": "capacity:7"},
    {"draft_budget": "goodput:1=1.2/1.5/1.8/2.1,3=1.5/2.2"},
    {"draft_budget": "confidence:0.4"},
    {"drafter": "ngram"},
    {"drafter": "head"},
    {"drafter": "hybrid", "draft_budget": "by_load:3=2"},
])  # fmt: skip


def rarely_finishing(verify_base_s):
    """So few requests that in some replications none finishes: those have no latency."""
    return Scenario(
        study=Study(kind="open", duration_s=12.0, arrivals=Spec.of("poisson", rate_per_s=0.2)),
        workload=Workload(output_tokens=Spec.of("geometric", mean_tokens=6.0)),
        engine=Engine(batch_size=1, num_speculative_tokens=0),
        cost=Spec.of("linear", verify_base_s=verify_base_s),
    )


def brief(**study):
    """Twenty requests that come within a second or two, and whatever else the study is told."""
    arrivals = {"kind": "poisson", "rate_per_s": 20.0}
    return scenario({"engine.scheduler": "fifo"}).but(study={"kind": "open", "arrivals": arrivals, **study})


PLAIN = Engine(batch_size=8, num_speculative_tokens=0)


def fixed(prompt, output):
    return Workload(Spec.of("fixed", tokens=prompt), Spec.of("fixed", tokens=output))
