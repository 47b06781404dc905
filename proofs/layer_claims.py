"""The layers that `proofs.layers` asks: each says which claim the altered engine breaks, or what the engine raised.

Only a claim counts as seen by a proof stage. So these runs have the run-time checks off, and an error that the engine
raises all the same is told apart: it is the engine's own refusal. The claims after it are asked, too.

Imports are inside: a child must load the altered code.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import islice
from typing import Any
from unittest.mock import patch

from proofs.report import Verdict, ended_by

Seen = str | None
Claims = Callable[[], Iterable[Verdict]]
RAISED, ENDLESS = "raised ", "does not end"
NO_FINDING = (ImportError, NameError, AttributeError, TypeError)  # the layer does not fit the altered code
SAMPLED = ("inplace+fifo", "realigned+static", "rollback+fifo", "masked+grouped", "paged+grouped")


def failures(asked: Iterable[Claims]) -> Iterator[Verdict]:
    """Claims that fail; where an error ends some, that error.

    Raises:
        NO_FINDING: an error that says that a claim could not be asked.
    """
    for claims in asked:
        try:
            yield from (verdict for verdict in claims() if not verdict.ok)
        except (*NO_FINDING, TimeoutError):
            raise
        except Exception as error:
            yield ended_by(error, "")


def first_seen(asked: Iterable[Claims]) -> Seen:
    """The first claim that fails by what the engine did; if there is none, the first error that it raised."""
    raised = None
    try:
        for verdict in failures(asked):
            told = ": ".join(filter(None, [verdict.name, verdict.detail]))
            if not verdict.raised:
                return told
            raised = raised or RAISED + told
    except TimeoutError:
        return raised or ENDLESS
    return raised


@contextmanager
def unchecked() -> Iterator[None]:
    """Inside, engines check nothing, whatever their settings say: what they do is left to be judged."""
    from refimpl.core.config import DecodeConfig
    from refimpl.decoding.acceptance.records import DrawnMass
    from refimpl.scheduling import BlockPool

    with (
        patch.object(DecodeConfig, "check_level", lambda self, device_type: "off"),
        patch.object(DrawnMass, "require", lambda self, names: None),
        patch.object(BlockPool, "_refuse", lambda self, expected, found: None),
    ):
        yield


def by_solver(about: str) -> Seen:
    """The first claim, on `kernels` or on the `placement` of rows, that Z3 refutes."""
    from proofs.z3 import claims, placements
    from proofs.z3.obligation import Obligation, prove
    from refimpl import placement
    from refimpl.core import kernels

    def refuted(claim: Obligation) -> Iterator[Verdict]:
        found = prove(claim, second_opinion=False)
        yield Verdict(found.name, "z3: sat" not in found.detail)  # no answer in time is no counterexample

    some = claims.obligations(kernels) if about == "kernels" else placements.obligations(placement)
    return first_seen(partial(refuted, claim) for claim in some)


def by_search() -> Seen:
    """The first of a third of the searches that meets a wrong transition."""
    from proofs.conformance import cohorts
    from proofs.conformance import schedulers as s

    some = [*islice(s.with_blocks(), 0, None, 3), *islice(s.configurations(), 0, None, 3)]
    searches: list[Claims] = [partial(s.verdicts, iter([each]), Counter()) for each in some]
    return first_seen([cohorts.check, *searches, lambda: [s.by_default(Counter())]])


def by_law() -> Seen:
    """The first law that is off."""
    from proofs.conformance import filtered, numbers

    with unchecked():
        return first_seen([*small_laws(), numbers.check, filtered.check])


def small_laws() -> Iterator[Claims]:
    """Laws of a few methods, drafters and budgets."""
    from proofs.conformance import laws
    from refimpl.core.drafting import DraftingConfig

    def law(*arguments: Any, **settings: Any) -> Claims:
        return lambda: [laws.verdict(*arguments, **settings)]

    for method in ("inplace+fifo", "realigned+static", "masked+grouped", "paged+fifo", "rollback+static"):
        yield law(method, "model", laws.RAGGED)
    for name, shape in laws.LARGER.items():
        yield law("inplace+fifo", name, shape)
    for drafting in (DraftingConfig("ngram"), laws.CAPACITY, laws.CONFIDENCE):
        yield law("paged+continuous", f"{drafting.drafter}, {drafting.draft_budget}", laws.REPEATED, drafting)
    for name, shape in laws.BLOCKS.items():
        yield law("inplace+fifo", name, shape, acceptance="block")


def small_runs(surroundings: Callable[[], AbstractContextManager]) -> Iterator[Claims]:
    """Runs of the layers `runs` and `checks`: some of each kind, every layout."""
    from proofs.conformance import reach, runs
    from proofs.conformance.borders import small_borders

    def equal(name: str, some: Iterator[Any]) -> Claims:
        def claims() -> Iterator[Verdict]:
            with small_borders(), surroundings():
                yield runs.verdict(name, some)[0]

        return claims

    for method in SAMPLED:
        yield equal(method, islice(runs.greedy_runs(method), 3, None, 4))
        yield equal(method, islice(runs.coupled_runs(method), 0, None, 5))
        for kind, some in reach.KINDS.items():
            if reach.applies(kind, method):
                step = 1 if kind in reach.FEW else 3
                yield equal(f"{method}, {kind}", islice(some(method, Counter()), 0, None, step))
    for method, kind in (("paged+fifo", "overlapped"), ("paged+continuous", "long prompts")):
        yield equal(f"{method}, {kind}", reach.KINDS[kind](method, Counter()))


def by_runs() -> Seen:
    """The first run with other tokens, or other drafts accepted; or a mask that the engine's own check lets through."""
    from proofs.conformance import reach

    return first_seen([*small_runs(unchecked), reach.refusals])


def by_checks() -> Seen:
    """The first invariant that a check finds broken."""
    found = next(failures(small_runs(nullcontext)), None)
    detail = found.detail if found else ""
    return detail[detail.index("INV-") :].split(":")[0] if "INV-" in detail else None


def by_replay(replayer: str) -> Seen:
    """The first run that the machine does not replay."""
    from proofs.conformance import books, replay
    from proofs.conformance.borders import small_borders

    def replayed(machine: str, small_runs: Callable[[str], Iterator[list[str]]], method: str) -> Iterator[Verdict]:
        with small_borders(), unchecked():
            some = list(small_runs(method))
        for answer in replay.judge(machine, some):
            yield Verdict(f"{method}: {answer}", answer == "valid", raised=answer.startswith(RAISED))

    machines = [partial(replayed, replayer, replay.small_runs, method) for method in SAMPLED]
    return first_seen([*machines, partial(replayed, f"{replayer}_blocks", books.small_runs, "paged+continuous")])


def proved(cell: Seen) -> bool:
    """Whether a layer has found a claim that fails."""
    return cell is not None and cell != ENDLESS and not cell.startswith(RAISED)
