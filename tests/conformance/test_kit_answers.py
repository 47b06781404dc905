"""What engines give back: tokens, and what looks like them."""

import numpy as np
import pytest
from toy_engines import Prompts, Toy

from refimpl.conformance.cases import Limits
from refimpl.conformance.kit import check_engine
from refimpl.conformance.protocol import EngineSettings
from refimpl.core.errors import InputError


def test_truth_values_are_no_tokens() -> None:
    def truths(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        return [[True] * settings.max_new_tokens for _ in prompts]

    (verdict,) = check_engine(Toy(truths), max_examples=1, properties=["equals_reference"]).verdicts
    assert (verdict.status, verdict.no_answer) == ("fail", True)
    assert "not a list of token ids: [True" in verdict.reason


def test_no_case_is_no_test() -> None:
    with pytest.raises(InputError, match="max_examples must be an integer ≥ 1, not 0"):
        check_engine(Toy(), max_examples=0)


@pytest.mark.parametrize("kind", [np.int32, np.uint8, np.int64])
def test_integers_of_numpy_are_tokens(kind: type) -> None:
    engine = Toy(lambda prompts, settings, outputs: [[kind(token) for token in row] for row in outputs])
    assert check_engine(engine, max_examples=1, properties=["equals_reference"]).passed


def test_the_limits_hold_for_the_reference() -> None:
    def one_row(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        assert settings.batch_size == 1
        return outputs

    engine, limits = Toy(one_row), Limits(max_batch=1, law_samples=100)
    report = check_engine(engine, max_examples=1, limits=limits, reference=Toy(one_row))
    assert not [v.reason for v in report.verdicts if v.no_answer]


def test_abilities_may_be_a_list_as_servers_give_them() -> None:
    (verdict,) = check_engine(Toy(supports=["sampling"]), properties=["seeds_give_different_samples"]).verdicts
    assert verdict.status == "pass"
