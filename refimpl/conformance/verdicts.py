"""What a run of the kit found out about an engine."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from refimpl.conformance.cases import Limits
from refimpl.conformance.protocol import Call
from refimpl.conformance.raggedness import Raggedness

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
        row, token: where the outputs part first.
        no_answer: the failure is an error, or something that is no answer; otherwise the tokens are wrong.
        place: file, line and function of the error, where it is one of Python.
        asked, answered: cases that the engine was given, those of shrinking included, and those it did not refuse.
        shrunk: whether smaller cases than the failing one were looked for.
    """

    property: str
    status: Status
    reason: str = ""
    calls: tuple[Call, ...] = ()
    row: int | None = None
    token: int | None = None
    no_answer: bool = False
    place: str = ""
    asked: int = 0
    answered: int = 0
    shrunk: bool = False

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; each call is a line of the protocol, as a server reads it."""
        fields = {name: value for name, value in vars(self).items() if name != "calls"}
        return fields | {"requests": [json.dumps(call.as_request(i + 1)) for i, call in enumerate(self.calls)]}


@dataclass(frozen=True)
class Report:
    """Verdicts of a run of the kit, and the raggedness profile.

    Attributes:
        reference: what served as the reference: ``own``, ``another engine``, ``itself with k=0`` or ``… k=1``.
        seed: of the search; the same one gives the same cases.
    """

    engine: str
    verdicts: tuple[Verdict, ...]
    raggedness: Raggedness = field(default_factory=Raggedness)
    calls: int = 0
    limits: Limits = field(default_factory=Limits)
    reference: str = "own"
    seed: int = 0

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
    def conforms(self) -> bool:
        """Whether it passed, `equals_reference` included; other properties may be not supported."""
        return self.passed and any(v.property == DECIDING for v in self.verdicts)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "schema": "raggedspec.conformance/2",
            "engine": self.engine,
            "reference": self.reference,
            "passed": self.passed,
            "conforms": self.conforms,
            "unfinished": self.unfinished,
            "properties": [verdict.as_dict() for verdict in self.verdicts],
            "raggedness": {**asdict(self.raggedness), "verdict": self.raggedness.verdict},
            "calls": self.calls,
            "seed": self.seed,
            "limits": asdict(self.limits),
        }
