"""What serves as the reference, what it may refuse, and what is never compared with it."""

from toy_engines import Change, Prompts, Toy, continuation, keyed_noise

from refimpl.conformance.cases import Limits
from refimpl.conformance.kit import check_engine
from refimpl.conformance.protocol import EngineSettings, NotSupported
from refimpl.conformance.subject import Subject
from refimpl.conformance.verdicts import Report


def test_a_prompt_that_is_refused_leaves_the_reference_without_drafts() -> None:
    """Here plain decoding is there; it is the prompt that the engine cannot take."""

    def short_prompts(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        if max(map(len, prompts)) > 8:
            raise NotSupported("prompts of more than 8 tokens")
        return outputs

    report = check_engine(Toy(short_prompts), properties=["stop_is_exact", "equals_reference"])
    assert report.reference == "itself with k=0"


def test_a_reference_that_refuses_is_told_from_the_engine() -> None:
    def no_batches(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        raise NotSupported("no model")

    (verdict,) = check_engine(Toy(), reference=Toy(no_batches), properties=["equals_reference"]).verdicts
    assert (verdict.status, verdict.reason) == ("not supported", "the reference refuses: no model")


def other_numbers(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
    """Samples that are keyed in a way of their own."""
    return [continuation(p, settings, (keyed_noise(settings, i), "other")) for i, p in enumerate(prompts)]


def test_keyed_samples_are_not_compared_with_another_engines() -> None:
    """One seed means other numbers there; what is promised is that batch and drafts do not matter."""
    greedy = Toy()

    def other_samples(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        return other_numbers(prompts, settings, outputs) if settings.temperature else outputs

    wanted = ["equals_reference", "samples_are_keyed"]
    assert check_engine(Toy(other_samples), reference=greedy, properties=wanted).passed
    own = Toy(other_samples, reference=Toy())
    assert check_engine(own, reference=greedy, properties=wanted).verdicts[1].status == "fail"


def test_the_reference_of_a_call_is_asked_once() -> None:
    asked: list[Prompts] = []

    def counted(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        asked.append(prompts)
        return outputs

    subject = Subject(Toy(), reference=Toy(counted))
    for _ in range(2):
        subject.reference(((1,), (2,), (1,)), EngineSettings())
    assert asked == [[[1]], [[2]]]


def test_a_reference_that_refuses_to_sample_leaves_the_law_to_the_engine_itself() -> None:
    def greedy(prompts: Prompts, settings: EngineSettings, outputs: Prompts) -> Prompts:
        if settings.temperature:
            raise NotSupported("sampling")
        return outputs

    def judged(change: Change | None) -> Report:
        wanted = ["equals_reference", "samples_follow_the_law"]
        limits = Limits(law_samples=512)
        return check_engine(Toy(change), reference=Toy(greedy), properties=wanted, limits=limits, max_examples=1)

    told = "judged by its own samples without drafts: the reference refuses: sampling"
    right, wrong = (
        judged(None),
        judged(lambda _, s, rows: [[0] * len(t) if s.num_speculative_tokens else t for t in rows]),
    )
    assert [report.verdicts[1].status for report in (right, wrong)] == ["pass", "fail"]
    assert all(told in report.verdicts[1].reason for report in (right, wrong))
    assert (right.reference, right.law_reference) == ("another engine", "itself with k=0")
    assert (
        "sampling against the reference, which refuses it: the engine was compared with itself" in right.not_looked_at
    )
    assert not any("compared with itself" in told for told in check_engine(Toy(), max_examples=1).not_looked_at)
