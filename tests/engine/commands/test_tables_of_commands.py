"""Tables of commands say what their columns mean."""

from rich.console import Console

from refimpl.commands import decode, judge, memory
from refimpl.core.stats import RunStats
from refimpl.judging.equivalence import Comparison, MethodReport, VerifyReport
from refimpl.judging.tie_or_bug import Judgement


def test_columns_of_verify_are_explained(capsys):
    report = VerifyReport(1, {}, [MethodReport("inplace", 1, Comparison(1, 1, 1.0), RunStats())])
    decode._print_verify_table(report, json_=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert "1 prompt against one-at-a-time decoding" in shown
    for name in ("partial", "grouping rate", "violations"):
        assert f"{name}: " in shown, name


def test_columns_of_tie_or_bug_are_explained(capsys):
    judge._print_table({"inplace, batch 8": Judgement((), 0.125, 3)}, json_=False)
    shown = " ".join(capsys.readouterr().out.split())
    for name in ("regret", "threshold", "noise", "prefixes"):
        assert f"{name}: " in shown, name


def test_a_plan_begins_with_one_line_and_lists_what_was_given_up(capsys):
    settings = {"method": "paged", "batch_size": 4, "num_speculative_tokens": 1, "drafter": "ngram"}
    plan = {"settings": settings, "footprint": {"kv_bytes": 3 << 20}, "total_bytes": 3 << 20, "budget_bytes": 4 << 20}
    memory._print_table({"plan": plan | {"gave_up": ("rows: 4 instead of 16",)}}, Console(width=80))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "paged, batch size 4, 1 draft, drafter ngram"
    assert "MiB at the peak" in lines[2]
    assert lines[-2:] == ["given up:", "  rows: 4 instead of 16"]
    memory._print_table({"plan": plan | {"gave_up": ()}}, Console(width=80))
    assert "given up" not in capsys.readouterr().out
