"""Which check notices a fault, and after how many examples.

| detector     | runs                                        | notices                                             |
|--------------|---------------------------------------------|-----------------------------------------------------|
| host         | random cases with the host checks           | an invariant breaks                                 |
| device       | … with the device checks                    | an invariant breaks                                 |
| oracle       | … with the oracle checks                    | an invariant breaks                                 |
| output       | … without checks                            | tokens differ from autoregressive decoding's        |
| acceptance   | … without checks, greedy                    | a row-round accepts not what the draft's script says |
| report       | … without checks                            | log-probabilities, texts or statistics are wrong    |
| sampling     | sampled continuations, by the fault's rule  | their law is not the target's                       |

A run that breaks off counts as noticed, too, unless the error says that the fault does not fit the engine.
Examples are drawn from seeds that depend on the fault's name and the example's number only.
"""

import random
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from refimpl.conformance.adapters import method
from refimpl.conformance.kit import ALL_PROPERTIES, check_engine
from refimpl.conformance.python_engine import PythonEngine
from refimpl.core.invariants import InvariantViolation
from refimpl.faults.base import LAW_ONLY, Fault
from refimpl.faults.engine import FaultyEngine
from refimpl.faults.law import check_law
from refimpl.selfcheck.cases import Case, Run, expected_accepted, oracle_run, random_case, run_case
from refimpl.selfcheck.reported import EXACT, ROUNDED, wrong_report

NUM_EXAMPLES = 60  # after so many without a notice, a detector counts as blind to a fault
LEVELS = ("host", "device", "oracle")
DETECTORS = (*LEVELS, "output", "acceptance", "report", "sampling")
OF_LAW = {"acceptance", "execution", "top_k", "drafter", "draft_budget"}  # settings that the law is tested with
SCRIPTED = ("model", "head")  # drafters that follow the script to the end of the limit
MISFITS = ("TypeError", "AttributeError", "NameError", "UnboundLocalError", "IndexError")
LOGPROBS = 2  # alternatives a token, where reports are compared


@dataclass(frozen=True)
class Notice:
    """A detector noticed: what it said, and the number of the example (from 1)."""

    by: str
    examples: int


@dataclass(frozen=True)
class KitNotice:
    """The conformance kit noticed: the first property that failed, and the error in place of an answer.

    Without an error the answer was wrong, so any engine that answers so fails.
    """

    property: str
    error: str = ""


def example(fault: Fault | None, number: int) -> Case:
    """Draw the case number `number` for a fault; None stands for the healthy engine."""
    rng = random.Random(f"{fault.name if fault else 'healthy'}:{number}")
    if fault is None:
        return random_case(rng)
    settings = {name: value for name, value in fault.settings.items() if name != "own"}
    case = replace(random_case(rng, layouts=fault.layouts, schedulers=fault.schedulers), **settings)
    own = fault.settings.get("own", [{}])
    rows = [replace(row, own=tuple(own[i % len(own)].items())) for i, row in enumerate(case.rows)]
    return replace(case, rows=tuple(rows))


def applies(fault: Fault | None, detector: str) -> bool:
    """Whether the detector can be asked.

    Recorded rounds are checked on the host only, the script is greedy, the draft's and goes by a token that windows may
    hide, under the rules of rejection only the law is that of plain decoding, a cancelled row has not all of its
    tokens, and the sampling test is of a rule that the fault names.
    """
    if fault is None:
        return True
    settings = fault.settings
    has_the_oracles_tokens = settings.get("acceptance") not in LAW_ONLY and "cancellations" not in settings
    asked = {
        "device": "cuda_graphs" not in settings,
        "oracle": "cuda_graphs" not in settings,
        "output": has_the_oracles_tokens,
        "acceptance": not {"acceptance", "own", "architecture", "windowed_layers"} & settings.keys()
        and settings.get("drafter", "model") in SCRIPTED,
        "report": has_the_oracles_tokens,
        "sampling": "acceptance" in settings,
    }
    return asked.get(detector, True)


def detect(fault: Fault | None, detector: str, num_examples: int = NUM_EXAMPLES) -> Notice | None:
    """Ask one detector, example after example, until it notices something."""
    if detector == "sampling":
        return _detect_by_law(fault)
    for number in range(1, num_examples + 1):
        found = _judge(fault, detector, example(fault, number))
        if found:
            return Notice(found, number)
    return None


def kit_notice(fault: Fault | None, properties: Iterable[str] = ALL_PROPERTIES, *, seed: int = 0) -> KitNotice | None:
    """What the conformance kit notices first in a broken engine whose checks are off.

    `seed` is of the kit's search.

    Raises:
        TypeError: the fault does not fit the engine.
    """
    engine = FaultyEngine(fault, checks="off") if fault else method()
    report = check_engine(PythonEngine(engine), properties=properties, fail_fast=True, shrink=False, seed=seed)
    failed = next((verdict for verdict in report.verdicts if verdict.status == "fail"), None)
    if failed and failed.reason.startswith(MISFITS):
        raise TypeError(failed.reason)
    return KitNotice(failed.property, _error(failed.reason) if failed.no_answer else "") if failed else None


def _error(reason: str) -> str:
    """The invariant that a reason names, the kind of exception, or that the engine did not answer in time."""
    if reason.startswith("no answer"):
        return "no answer"
    return reason.removeprefix(f"{InvariantViolation.__name__}: ").split()[0].rstrip(":")


def _injected(fault: Fault | None) -> AbstractContextManager:
    return fault.injected() if fault else nullcontext()


def _judge(fault: Fault | None, detector: str, case: Case) -> str | None:
    pair = case.pair if case.architecture else None  # made, and tried, while the engine is whole
    logprobs: dict[str, Any] = {"logprobs": LOGPROBS} if detector == "report" else {}
    wanted = oracle_run(case, **logprobs) if detector in ("output", "report") else None
    tolerance = ROUNDED if pair and pair.target.kv_shape.float32_softmax else EXACT
    try:
        with _injected(fault):
            run = run_case(case, checks=detector if detector in LEVELS else "off", pair=pair, **logprobs)
    except InvariantViolation as violation:
        return violation.invariant
    except Exception as error:
        if type(error).__name__ in MISFITS:
            raise
        return f"crash ({type(error).__name__})"
    judges: dict[str, Callable[[], Any]] = {
        "output": lambda: wanted and run.outputs != wanted.outputs,
        "acceptance": lambda: not _follows_script(case, run),
        "report": lambda: wanted and wrong_report(run, wanted, tolerance),
    }
    return "differs" if detector in judges and judges[detector]() else None


def _follows_script(case: Case, run: Run) -> bool:
    return all(
        row.accepted == expected_accepted(case, case.rows[row.sequence].prompt[0], row.seq_len, row.drafted)
        for record in run.rounds
        for row in record.rows
    )


def _detect_by_law(fault: Fault | None) -> Notice | None:
    layout = "inplace" if fault is None or "inplace" in fault.layouts else fault.layouts[0]
    settings = fault.settings if fault else {}
    asked = {name: settings[name] for name in OF_LAW & settings.keys()}
    try:
        with _injected(fault):
            test = check_law(layout, **asked)
    except InvariantViolation as violation:
        return Notice(violation.invariant, 1)
    return Notice("differs", 1) if test.rejected else None
