"""Is the output that of autoregressive decoding? Exact and partial match with the oracle, prompt by prompt."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import torch

from refimpl.core.errors import InputError, require, shown
from refimpl.core.invariants import InvariantViolation
from refimpl.core.keywords import VerifySettings
from refimpl.core.processes import run_in_processes
from refimpl.core.request import Request
from refimpl.core.shown import Shown, counted
from refimpl.core.stats import RunStats
from refimpl.core.tokens import first_difference
from refimpl.core.values import require_bool, require_int
from refimpl.generation import generate
from refimpl.judging.method_runs import runs_to_verify, widened
from refimpl.models.adapter import Pair
from refimpl.requests import Prompt, listed
from refimpl.results import Result
from refimpl.viz.batch import DrawnBatch, round_batch

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Divergence:
    """First disagreement of one sequence: the token index, and both tokens (None where an output has ended)."""

    index: int
    at: int
    expected: int | None
    found: int | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a run compares with the oracle's.

    Attributes:
        prompts: compared.
        exact: prompts whose generated tokens are all equal, the stop token included.
        partial: mean over prompts of the share of the oracle's tokens before the first disagreement.
        divergences: one per prompt that is not exact.
    """

    prompts: int
    exact: int
    partial: float
    divergences: tuple[Divergence, ...] = ()


def compare(reference: Seq[Seq[int]], candidate: Seq[Seq[int]]) -> Comparison:
    """Compare generated token ids, prompt by prompt; nothing is decoded, stripped or padded."""
    divergences, shares = [], []
    for index, (expected, found) in enumerate(zip(reference, candidate, strict=True)):
        at = first_difference(found, expected)
        shares.append(1.0 if at is None or not expected else at / len(expected))
        if at is not None:
            divergences.append(Divergence(index, at, _item(expected, at), _item(found, at)))
    total = len(reference)
    return Comparison(total, total - len(divergences), sum(shares) / max(1, total), tuple(divergences))


def _item(tokens: Seq[int], at: int) -> int | None:
    return tokens[at] if at < len(tokens) else None


@dataclass(frozen=True, slots=True, repr=False)
class MethodReport:
    """One method at one batch size against the oracle.

    Attributes:
        comparison: None when an invariant broke before the run ended.
        violations: invariants that broke; empty in a healthy run.
        bitwise: prompts with the oracle's tokens whose log-probabilities, normalised over the whole vocabulary in
            float64, are the oracle's to the last bit; None when that was not asked for.
        drawn: the round of the first wrong token; None where there is none.
    """

    method: str
    batch_size: int
    comparison: Comparison | None
    stats: RunStats | None
    violations: tuple[str, ...] = ()
    bitwise: int | None = None
    drawn: DrawnBatch | None = None

    def __repr__(self) -> str:
        found = f"{self.comparison.exact}/{self.comparison.prompts} exact" if self.comparison else self.violations[0]
        return f"MethodReport({self.method} at batch {self.batch_size}: {found})"

    @property
    def exact(self) -> bool:
        """Whether every prompt is equal to the oracle's output, to the last bit where that was asked for."""
        if self.comparison is None or self.comparison.divergences:
            return False
        return self.bitwise is None or self.bitwise == self.comparison.prompts

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready row."""
        stats = self.stats or RunStats()
        return {
            "method": self.method,
            "batch_size": self.batch_size,
            "exact": self.comparison.exact if self.comparison else 0,
            "partial": self.comparison.partial if self.comparison else 0.0,
            "mean_acceptance_length": stats.acceptance.mean_acceptance_length,
            "grouping_rate": stats.grouping_rate,
            "num_rounds": stats.num_rounds,
            "num_preemptions": stats.num_preemptions,
            "kv_peak_bytes": stats.kv_peak_bytes,
            "kv_live_bytes": stats.kv_live_bytes,
            "most_residents": stats.most_residents,
            "mean_residents": stats.mean_residents,
            "violations": list(self.violations),
            **({} if self.bitwise is None else {"bitwise": self.bitwise}),
            "divergences": [asdict(d) for d in self.comparison.divergences] if self.comparison else [],
        }


@dataclass(frozen=True, slots=True, repr=False)
class VerifyReport(Shown):
    """All methods and batch sizes of a `verify` run; `references` are the oracle's outputs by batch size.

    The oracle decodes one sequence at a time for every batch size, unless it runs in the batch's shapes.
    """

    prompts: int
    references: dict[int, Result]
    results: list[MethodReport] = field(default_factory=list)

    def __repr__(self) -> str:
        exact = sum(report.exact for report in self.results)
        return f"VerifyReport({counted(self.prompts, 'sequence')}: {exact} of {len(self.results)} runs exact)"

    def to_frame(self) -> "pd.DataFrame":
        """One line per method and batch size: prompts that are exact, the share before the first disagreement, …"""
        import pandas as pd

        rows = [report.as_dict() | {"prompts": self.prompts} for report in self.results]
        columns = ["exact", "prompts", "partial", "bitwise", "mean_acceptance_length", "grouping_rate", "violations"]
        table = pd.DataFrame(rows, columns=["method", "batch_size", *columns]).set_index(["method", "batch_size"])
        return table.dropna(axis=1, how="all")  # bits are compared only when asked for

    @property
    def exact(self) -> bool:
        """Whether every method produced the oracle's tokens for every prompt."""
        return all(report.exact for report in self.results)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready: ``{"prompts": n, "results": [...]}``."""
        return {"prompts": self.prompts, "results": [report.as_dict() for report in self.results]}


def verify(
    pair: Pair,
    prompts: Seq[Prompt],
    *,
    methods: str | Seq[str] = "all",
    batch_sizes: Seq[int] = (1, 4, 8),
    jobs: int = 1,
    bitwise: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
    **settings: Unpack[VerifySettings],
) -> VerifyReport:
    """Run methods at several batch sizes and compare each with the oracle.

    Args:
        pair: from `load_pair`.
        prompts: as for `generate`.
        methods: names, or ``"all"``; with `bitwise`, of methods that can run shape-stable.
        batch_sizes: each method runs at each of these.
        jobs: processes, on a CPU and of models that are not compiled; with more than one, each run has a process and
            one thread to itself.
        bitwise: run shape-stable, the oracle once per batch size in that batch's shapes, and compare
            log-probabilities to the last bit.
        progress: called with (what is running, finished, all).
        **settings: as for `generate`; a window smaller than a batch size is widened to it.

    Raises:
        InputError: impossible settings, prompts or pair (see `Pair.unapplied`). A broken invariant is reported only.
    """
    require_bool("bitwise", bitwise)
    require(progress is None or callable(progress), f"progress must be a function, not {shown(progress)}")
    for name, many in (("method", "methods"), ("batch_size", "batch_sizes")):
        require(name not in settings, f"verify takes {many}, a list, not {name}")
    given: dict[str, Any] = {**settings, **({"shape_stable": True, "logprobs": 0} if bitwise else {})}
    runs = runs_to_verify(methods, batch_sizes, given)
    require_int("jobs", jobs, 1)
    if jobs != 1 and pair.device.type != "cpu":
        raise InputError(f"jobs must be 1 on {pair.device}, not {jobs}: only on a CPU do processes share the models")
    pair.require_plain_target()
    prompts = listed(prompts)
    _require_comparable(prompts, given)
    references = _references(pair, prompts, runs, given, progress)
    if min(jobs, len(runs)) == 1:
        reports = [
            _run(pair, prompts, method, size, references[size], given, _named(progress, f"{method} at batch {size}"))
            for method, size in runs
        ]
    else:
        reports = _run_in_processes(pair, prompts, runs, references, given, jobs, _named(progress, "methods"))
    return VerifyReport(len(references[runs[0][1]].sequences), references, reports)


def _require_comparable(prompts: Seq[Prompt], settings: dict[str, Any]) -> None:
    """Raise InputError for a prompt of its own temperature under a rule that keeps no tokens; `runs_to_verify` has seen
    the run's."""
    drawn = next((i for i, each in enumerate(prompts) if isinstance(each, Request) and each.temperature), None)
    rule = settings.get("acceptance")
    require(
        drawn is None or rule not in ("rejection", "block"),
        f"prompt {drawn} has a temperature, and acceptance {rule!r} preserves the distribution, not the tokens: "
        "choose coupled",
    )


def _references(
    pair: Pair,
    prompts: Seq[Prompt],
    runs: list[tuple[str, int]],
    settings: dict[str, Any],
    progress: Callable[[str, int, int], None] | None,
) -> dict[int, Result]:
    """The oracle's output for every batch size: one and the same, unless it depends on the batch's shapes."""
    sizes = list(dict.fromkeys(size for _, size in runs))
    oracle = partial(generate, pair, prompts, method="autoregressive", **settings)
    if not settings.get("shape_stable"):
        return dict.fromkeys(sizes, oracle(progress=_named(progress, "oracle")))
    return {size: oracle(batch_size=size, progress=_named(progress, f"oracle in shapes of {size}")) for size in sizes}


def _run_in_processes(
    pair: Pair,
    prompts: Seq[Prompt],
    runs: list[tuple[str, int]],
    references: dict[int, Result],
    settings: dict[str, Any],
    jobs: int,
    progress: Callable[[int, int], None] | None,
) -> list[MethodReport]:
    given = [(pair, prompts, method, size, references[size], settings) for method, size in runs]
    reports = []
    with closing(run_in_processes(_run_on_one_thread, given, jobs)) as pending:
        for report in pending:
            reports.append(report)
            if progress:
                progress(len(reports), len(runs))
    return reports


def _run_on_one_thread(*arguments: Any) -> MethodReport:
    torch.set_num_threads(1)
    return _run(*arguments)


def _run(
    pair: Pair,
    prompts: Seq[Prompt],
    method: str,
    batch_size: int,
    reference: Result,
    settings: dict[str, Any],
    progress: Callable[[int, int], None] | None = None,
) -> MethodReport:
    settings = widened(settings, batch_size)
    try:
        result = generate(pair, prompts, method=method, batch_size=batch_size, progress=progress, **settings)
    except InvariantViolation as violation:
        return MethodReport(method, batch_size, None, None, (str(violation),))
    wanted, found = ([s.token_ids for s in each.sequences] for each in (reference, result))
    drawn = round_batch(result.rounds, [s.num_prompt_tokens for s in result.sequences], found, wanted)
    compares_bits = result.config.shape_stable and result.config.logprobs is not None
    bits = _equal_bits(reference, result) if compares_bits else None
    return MethodReport(method, batch_size, compare(wanted, found), result.stats, bitwise=bits, drawn=drawn)


def _equal_bits(reference: Result, result: Result) -> int:
    """Sequences with equal tokens, and equal log-probabilities of them."""
    pairs = zip(reference.sequences, result.sequences, strict=True)
    return sum((a.token_ids, a.logprobs) == (b.token_ids, b.logprobs) for a, b in pairs)


def _named(progress: Callable[[str, int, int], None] | None, label: str) -> Callable[[int, int], None] | None:
    return partial(progress, label) if progress else None
