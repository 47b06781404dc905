"""What a run of the kit found out about an engine."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from refimpl.conformance.cases import EngineCase
from refimpl.conformance.limits import Limits
from refimpl.conformance.properties import ALL_PROPERTIES
from refimpl.conformance.protocol import Call
from refimpl.conformance.raggedness import Raggedness
from refimpl.conformance.reach import BEYOND, OUTSIDE, Reach
from refimpl.conformance.subject import ITSELF, Rows
from refimpl.conformance.wire import request_of

DECIDING = "equals_reference"  # without it nothing shows that the output is the right one
NOT_FINISHED = 3  # exit code
NOTHING_SUPPORTED = "nothing that was asked is supported"
Status = Literal["pass", "fail", "not supported", "not run", "not finished"]


@dataclass(frozen=True)
class Verdict:
    """What became of one property.

    Attributes:
        status: a failure comes with the smallest case that was found; one answered case is enough for a pass.
        reason: one line; on a pass how much the property could see, where that can be told.
        calls: what the engine was asked in the smallest failing case, in order; the last one where it failed to answer.
        case: that one, to be replayed.
        row, token: where the outputs part first.
        found, expected: tokens of all rows that were compared in it.
        no_answer: the failure is an error, or something that is no answer; otherwise the tokens are wrong.
        place: file, line and function of the error, where it is one of Python.
        asked, answered: cases that the engine was given, those of shrinking included, and those it did not refuse.
        shrunk: whether smaller cases than the failing one were looked for.
        refused: why the first of the others was, empty where none was.
        reach: how far the cases went that were answered and right.
    """

    property: str
    status: Status
    reason: str = ""
    calls: tuple[Call, ...] = ()
    case: EngineCase | None = None
    row: int | None = None
    token: int | None = None
    found: Rows = ()
    expected: Rows = ()
    no_answer: bool = False
    place: str = ""
    asked: int = 0
    answered: int = 0
    shrunk: bool = False
    refused: str = ""
    reach: Reach = field(default_factory=Reach)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; each call is a line of the protocol, as a server reads it."""
        fields = {name: value for name, value in vars(self).items() if name != "calls"} | {"reach": asdict(self.reach)}
        fields["case"] = json.dumps(asdict(self.case)) if self.case else None
        return fields | {"requests": [json.dumps(request_of(call, i + 1)) for i, call in enumerate(self.calls)]}


@dataclass(frozen=True)
class Report:
    """Verdicts of a run of the kit, and the raggedness profile.

    Attributes:
        reference: what served as the reference: ``own``, ``another engine``, ``itself with k=0`` or ``… k=1``.
        law_reference: what served so for the law of samples; the same, unless that refused sampling.
        seed: of the search; the same one gives the same cases.
    """

    engine: str
    verdicts: tuple[Verdict, ...]
    raggedness: Raggedness = field(default_factory=Raggedness)
    calls: int = 0
    limits: Limits = field(default_factory=Limits)
    reference: str = "own"
    seed: int = 0
    law_reference: str = ""

    @property
    def passed(self) -> bool:
        """Whether nothing failed and something passed: `equals_reference`, where that was among the properties."""
        found = {v.status for v in self.verdicts}
        decided = all(v.status == "pass" for v in self.verdicts if v.property == DECIDING)
        return decided and "pass" in found and found <= {"pass", "not supported"}

    @property
    def unfinished(self) -> list[str]:
        """Properties for which the time was too short."""
        return [v.property for v in self.verdicts if v.status == "not finished"]

    @property
    def exit_code(self) -> int:
        """0 where it passed, 1 where it did not, 3 where nothing failed but the time was up."""
        failed = any(v.status == "fail" for v in self.verdicts)
        return NOT_FINISHED if self.unfinished and not failed else int(not self.passed)

    @property
    def conforms(self) -> bool | None:
        """Whether it passed, asked for every property; None where some were not asked, or the time was up.

        Properties other than `equals_reference` may be not supported.
        """
        asked_for_all = {v.property for v in self.verdicts} == set(ALL_PROPERTIES)
        return None if self.unfinished or (self.passed and not asked_for_all) else self.passed

    @property
    def num_run(self) -> int:
        """Properties that passed or failed."""
        return len({v.property for v in self.verdicts if v.status in ("pass", "fail")})

    @property
    def not_looked_at(self) -> list[str]:
        """What this run says nothing about, in its settings and by what engine or reference refused."""
        passed = [v for v in self.verdicts if v.status == "pass" and v.property in BEYOND and v.reach.rows]
        return [
            *_not_asked(self.verdicts),
            *_refused(self.verdicts),
            *(BEYOND[verdict.property](verdict.reach) for verdict in passed),
            *_untrusted(self.reference, self.law_reference),
            OUTSIDE,
        ]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "schema": "raggedspec.conformance/3",
            "engine": self.engine,
            "reference": self.reference,
            "law_reference": self.law_reference or self.reference,
            "passed": self.passed,
            "conforms": self.conforms,
            "properties_run": self.num_run,
            "properties_total": len(ALL_PROPERTIES),
            "not_looked_at": self.not_looked_at,
            "unfinished": self.unfinished,
            "properties": [verdict.as_dict() for verdict in self.verdicts],
            "raggedness": {**asdict(self.raggedness), "verdict": self.raggedness.verdict},
            "calls": self.calls,
            "seed": self.seed,
            "limits": asdict(self.limits),
        }


def _not_asked(verdicts: tuple[Verdict, ...]) -> list[str]:
    asked = {v.property for v in verdicts if v.status not in ("not run", "not finished")}
    left = [name for name in ALL_PROPERTIES if name not in asked]
    return [f"{len(left)} of {len(ALL_PROPERTIES)} properties: {', '.join(left)}"] if left else []


def _refused(verdicts: tuple[Verdict, ...]) -> list[str]:
    """Properties that were not supported, together where the reason is the same; single cases of others."""
    names: dict[str, list[str]] = {}
    for verdict in verdicts:
        if verdict.status == "not supported":
            names.setdefault(verdict.reason, []).append(verdict.property)
        elif verdict.refused:
            some = f"{verdict.asked - verdict.answered} of {verdict.asked} cases of {verdict.property}"
            names.setdefault(verdict.refused, []).append(some)
    return [f"{', '.join(left)} (not supported: {reason})" for reason, left in names.items()]


def _untrusted(reference: str, law_reference: str) -> list[str]:
    """What the engine's own decoding may hide."""
    if reference.startswith(ITSELF):
        return ["errors that the engine makes alone and without drafts, too: no reference was named"]
    differs = law_reference not in ("", reference)
    return ["sampling against the reference, which refuses it: the engine was compared with itself"] * differs
