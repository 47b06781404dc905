"""Hypothesis strategies: ragged prompts, scripted acceptances, budgets, schedules, cancellations.

Smaller means: fewer rows, shorter prompts, smaller tokens, the in-place layout, drafts that agree. So a shrunk case
keeps only what the failure needs.
"""

from dataclasses import asdict, replace
from typing import Any

from hypothesis import strategies as st

from refimpl.core.config import LAYOUTS, SCHEDULERS
from refimpl.core.drafting import DraftingConfig
from refimpl.core.tokens import EOS, PAD
from refimpl.models.table_model import VOCAB_SIZE
from refimpl.pairs.random_pairs import LEARNED_POSITIONS, TINY_ARCHITECTURES
from refimpl.selfcheck.cases import Case, Row, acceptance_lengths
from refimpl.selfcheck.pair_cases import PairCase
from refimpl.selfcheck.state_machine import StateMachine

DRAFTINGS = (  # a search begins with the first
    DraftingConfig(),
    DraftingConfig("ngram"),
    DraftingConfig("suffix"),
    DraftingConfig("hybrid"),
    DraftingConfig(draft_budget="by_load:2=2,3=0"),
    DraftingConfig("hybrid", "goodput:1=1.3/1.6/1.9"),
    DraftingConfig(draft_budget="capacity:4"),
    DraftingConfig(draft_budget="goodput:1=1.1/1.3/1.6,3=1.4/2.0"),
    DraftingConfig(draft_budget="confidence:0.05"),
    DraftingConfig("head"),
    DraftingConfig("head", "capacity:4"),
)
KINDS = tuple(dict.fromkeys((*LEARNED_POSITIONS, *TINY_ARCHITECTURES)))  # a search begins with the first


def token_ids(vocab_size: int = VOCAB_SIZE) -> st.SearchStrategy[int]:
    """Token ids, end-of-sequence and pad ids among them more often than others."""
    return st.integers(0, vocab_size - 1) | st.sampled_from([PAD, EOS])


def ragged_prompts(
    vocab_size: int = VOCAB_SIZE, *, max_prompts: int = 6, max_tokens: int = 12
) -> st.SearchStrategy[list[tuple[int, ...]]]:
    """Batches of prompts of different lengths: single tokens, duplicates, special ids inside and at both ends."""
    token = token_ids(vocab_size)
    prompt = st.lists(token, min_size=1, max_size=max_tokens).map(tuple)
    doubled = st.lists(prompt, min_size=1, max_size=max_prompts - 1).map(lambda prompts: [*prompts, prompts[0]])
    even = st.lists(
        st.lists(token, min_size=2, max_size=2).map(tuple), min_size=1, max_size=max_prompts
    )  # equal lengths, so that groups form
    return st.lists(prompt, min_size=1, max_size=max_prompts) | doubled | even


@st.composite
def agreements(draw: Any, budget: int, k: int) -> tuple[bool, ...]:
    """Scripts of acceptance: all, none, alternating, lengths round by round, free, or one full round, then none."""
    kind = draw(st.sampled_from(["all", "none", "alternating", "lengths", "free", "hole"]))
    if kind == "all":
        return ()
    if kind == "none":
        return (False,) * budget
    if kind == "alternating":
        return tuple(i % 2 == 0 for i in range(budget))
    if kind == "lengths":
        return acceptance_lengths(draw(st.lists(st.integers(0, k), max_size=budget)), k)[:budget]
    if kind == "hole":
        return acceptance_lengths([k, k, 0, k, 0], k)[:budget]
    return tuple(draw(st.lists(st.booleans(), max_size=budget)))


@st.composite
def rows(draw: Any, prompt: tuple[int, ...]) -> Row:
    """A row for a prompt; its stop token falls on any offset of any block."""
    budget, k = draw(st.integers(1, 14)), draw(st.integers(0, 5))
    stop_at = draw(st.none() | st.integers(0, budget - 1))
    return Row(prompt, budget, k, stop_at, draw(agreements(budget, k)))


OWN_SETTINGS: dict[
    str, st.SearchStrategy[Any]
] = {  # of a request; a shrunk one has none, and some tokens stay possible
    "repetition_penalty": st.sampled_from([1.3, 0.5, 9.0]),
    "frequency_penalty": st.sampled_from([0.7, -0.4]),
    "presence_penalty": st.sampled_from([2.0, -1.5]),
    "logit_bias": st.dictionaries(st.integers(0, VOCAB_SIZE - 1), st.sampled_from([-3.0, 0.1, 9.0]), max_size=3),
    "bad_words_ids": st.lists(st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=3).map(tuple), max_size=2),
    "allowed_token_ids": st.sampled_from([tuple(range(0, VOCAB_SIZE, 2)), tuple(range(VOCAB_SIZE))]),
    "min_new_tokens": st.just(1),
    "temperature": st.sampled_from([0.0, 1.0, 0.3, 2.0]),
    "top_k": st.sampled_from([0, 1, 4, 99]),
    "top_p": st.sampled_from([1.0, 0.7, 0.2]),
    "min_p": st.sampled_from([0.0, 0.5]),
}


@st.composite
def state_machines(draw: Any) -> StateMachine:
    """Small grammars; some never end, and some come to where no token is allowed but those that stop a row."""
    states = st.integers(0, draw(st.integers(0, 3)))
    steps = st.dictionaries(st.integers(0, VOCAB_SIZE - 1), states, min_size=1, max_size=6)
    found = draw(st.lists(steps, min_size=4, max_size=4))
    return StateMachine(found, draw(st.lists(states, max_size=2)), VOCAB_SIZE)


OWN_GRAMMAR: dict[str, st.SearchStrategy[Any]] = {
    "grammar": state_machines(),
    **{name: OWN_SETTINGS[name] for name in ("repetition_penalty", "logit_bias", "temperature", "top_k")},
}

SAMPLING = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([1.0, 0.3, 2.0]),
        "top_k": st.sampled_from([0, 1, 4]),
        "seed": st.integers(0, 9),
    }
)


def table_layers(drafting: DraftingConfig, *, recurrent: bool) -> st.SearchStrategy[dict[str, Any]]:
    """What layers of the table pair are: full attention, windows, recurrent; and whether a head keeps K/V."""
    if drafting.drafter == "head":  # it sums up all that the target has cached
        return st.sampled_from([{}, {"attending_head": True}])
    states = [{"recurrent": True}] * 3 if recurrent else []
    windows = [{"sliding_window": size, "windowed_layers": layers} for layers in (1, 2) for size in (1, 3)]
    return st.sampled_from([{}, *windows, *states])


@st.composite
def cases(
    draw: Any,
    *,
    cancellations: bool = False,
    sampled: bool = False,
    own: dict[str, st.SearchStrategy[Any]] | None = None,
    recurrent: bool = False,
    max_prompts: int = 6,
) -> Case:
    """Cases on the table pair.

    Args:
        draw: given by Hypothesis.
        cancellations: also cancel rows between rounds.
        sampled: temperature above 0 under the coupled rule, where equality still holds token for token.
        own: settings that rows may have of their own.
        recurrent: also on models that keep a state of each row.
        max_prompts: rows at most.
    """
    members = [draw(rows(prompt)) for prompt in draw(ragged_prompts(max_prompts=max_prompts))]
    if own:
        settings = st.fixed_dictionaries({}, optional=own)
        members = [replace(row, own=tuple(draw(settings).items())) for row in members]
    batch_size = draw(st.integers(1, 4))
    extra: dict[str, Any] = {"acceptance": "coupled", **draw(SAMPLING)} if sampled else {}
    if cancellations:
        when = st.tuples(st.integers(0, 6), st.integers(0, len(members) - 1))
        extra["cancellations"] = tuple(sorted(draw(st.lists(when, min_size=1, max_size=3))))
    drafting = draw(st.sampled_from(DRAFTINGS))
    extra |= draw(table_layers(drafting, recurrent=recurrent))
    return Case(
        tuple(members),
        draw(st.sampled_from(["inplace", *(name for name in LAYOUTS if name != "inplace")])),
        draw(st.sampled_from(["fifo", *(name for name in SCHEDULERS if name != "fifo")])),
        batch_size,
        window_size=batch_size + draw(st.integers(0, 4)),
        aging_bound=draw(st.sampled_from([None, 0, 1, 4])),
        compaction_threshold=draw(st.sampled_from([0.25, 0.01, 1.0])),
        block_size=draw(st.sampled_from([16, 1, 2, 4])),
        spare_blocks=draw(st.none() | st.integers(0, 8)),
        spare_tokens=draw(st.none() | st.integers(0, 12)),
        prefix_sharing=draw(st.sampled_from([True, False])),
        joint_prefill=draw(st.sampled_from([False, True])),
        **asdict(drafting),
        **extra,
    )


@st.composite
def pair_cases(draw: Any, *, sampled: bool = False, own: bool = False, kinds: tuple[str, ...] = KINDS) -> PairCase:
    """Cases on tiny random Hugging Face pairs in float64, whose drafts are right often, always or hardly ever.

    Args:
        draw: given by Hypothesis.
        sampled: as for `cases`.
        own: rows may have settings of their own.
        kinds: architectures; a shrunk case has the first that fails. Learned positions come first, since rotary
            embeddings hide a constant shift of all positions.
    """
    case = draw(cases(sampled=sampled, own=OWN_SETTINGS if own else None, max_prompts=4))
    scale = draw(st.sampled_from([1, 3]))  # tokens beyond the table model's vocabulary
    members = [replace(row, prompt=tuple(scale * token for token in row.prompt), agreements=None) for row in case.rows]
    return PairCase(
        draw(st.sampled_from(kinds)),
        seed=draw(st.integers(0, 3)),
        draft_noise=draw(st.sampled_from([0.02, 0.0, 0.5])),
        vocab_size=draw(st.sampled_from([61, 53])),
        case=replace(case, rows=tuple(members)),
    )
