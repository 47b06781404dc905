"""Engines behind OpenAI-compatible servers: honest ones conform, each lie is caught, bad input is one line."""

import _thread
import json
import math
import random
import re
import signal
import threading
import time
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from stub_server import Drafting, Reference, Stub, served
from tokenizers import Tokenizer, decoders, models
from toy_engines import Toy, verdict_of
from typer.testing import CliRunner

from refimpl.conformance.betting import Bets
from refimpl.conformance.command import app
from refimpl.conformance.kit import check_engine
from refimpl.conformance.limits import Limits
from refimpl.conformance.protocol import EngineSettings
from refimpl.conformance.server_engine import ServerEngine
from refimpl.conformance.verdicts import Report
from refimpl.core.errors import InputError
from refimpl.models.table_model import VOCAB_SIZE

FEW = Limits(law_samples=100, prompt_tokens=40, new_tokens=20)
SEEN = {  # by which property
    "by concurrency": "equals_reference",
    "above concurrency 4": "batch_size_does_not_matter",
    "above concurrency 16": "equals_reference",
    "prompts over 100": "equals_reference",
    "beyond 64 tokens": "equals_reference",
    "rare ids": "equals_reference",
    "state kept by prompt": "runs_repeat",
    "one in 200": "runs_repeat",
    "off by one at a budget of 1": "budget_is_exact",
    "budget overshot when sampling": "samples_end_right",
    "permuted results": "order_does_not_matter",
    "wrong log-probabilities": "logprobs_equal_reference",
    "cache published past the text": "next_turn_equals_reference",
    "usage counts the cut": "counters_count_what_is_delivered",
    "counters count the cut": "counters_count_what_is_delivered",
    "a cancelled request answered to the next": "cancelled_rows_leave_no_trace",
    "first of two stops": "stop_is_exact",
    "ignored temperature": "temperature_matters",
    "seeds modulo 65,536": "seeds_give_different_samples",
    "seed ignored for the bonus token": "samples_are_keyed",
}
OF_THE_LAW = {  # and the most continuations of one prompt that it takes
    "wrong temperature": 2048,
    "draft noise used again": 1024,
    "greedy in the verify pass": 128,
    "a bias of 5 %": 256,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a model whose tokens are letters."""
    return with_tokenizer(tmp_path_factory.mktemp("model"), [chr(97 + i) for i in range(VOCAB_SIZE)], [])


def with_tokenizer(folder: Path, tokens: list[str], merges: list[tuple[str, str]]) -> Path:
    (folder / "config.json").write_text(json.dumps({"vocab_size": VOCAB_SIZE}))
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def judged(folder: Path, lie: str = "", mode: str = "", **options: Any) -> Report:
    with served(lie, str(folder), mode=mode) as url, closing(ServerEngine(url)) as engine:
        return check_engine(engine, **{"reference": Reference(), "shrink": False} | options)


def test_an_honest_server_conforms(folder: Path) -> None:
    report = judged(folder, limits=FEW, max_examples=3)
    assert [(v.property, v.reason) for v in report.verdicts if v.status == "fail"] == []
    assert report.conforms
    refused = {v.property for v in report.verdicts if v.status == "not supported"}
    assert refused == {
        "draft_length_does_not_matter", "serving_equals_reference", "given_drafts_change_nothing",
        "acceptance_follows_the_drafts", "acceptance_follows_the_law",
    }  # fmt: skip


@pytest.mark.parametrize("lie", SEEN)
def test_a_lie_is_caught(folder: Path, lie: str) -> None:
    before = ["equals_reference"] * (lie == "one in 200")  # with it, there are 200
    verdict = judged(folder, lie, properties=[*before, rule := SEEN[lie]]).verdicts[-1]
    assert (verdict.property, verdict.status, verdict.no_answer) == (rule, "fail", False), verdict.reason


def test_a_server_that_gives_no_ids_is_judged_by_its_texts(folder: Path) -> None:
    """It refuses unknown fields, streams too; how many tokens a text stands for is known by the usage."""
    report = judged(folder, mode="strict", properties=["equals_reference", "streams_are_whole"], max_examples=2)
    assert [verdict.status for verdict in report.verdicts] == ["pass", "not supported"]
    with pytest.raises(InputError, match="a text of 8 tokens stands for the 9 that were generated"):
        judged(folder, "usage counts the cut", mode="strict")


def test_a_server_that_takes_texts_alone_is_asked_for_the_tokens_of_texts(tmp_path: Path) -> None:
    """The first two tokens are together the last one; rows in which they follow each other have no ids."""
    tokens = [*(chr(97 + i) for i in range(VOCAB_SIZE - 1)), "ab"]
    folder, asked = with_tokenizer(tmp_path, tokens, [("a", "b")]), ["equals_reference", "prompts_matter"]
    with served("", str(folder), mode="texts") as url, closing(ServerEngine(url)) as engine:
        assert engine.settled((0, 1, 2)) == (VOCAB_SIZE - 1, 2)
    honest = judged(folder, mode="texts", properties=asked, limits=FEW, max_examples=5)
    assert [verdict.status for verdict in honest.verdicts] == ["pass", "pass"]
    (liar,) = judged(folder, "by concurrency", mode="texts", properties=asked[:1], limits=FEW).verdicts
    assert (liar.status, liar.no_answer) == ("fail", False)


def test_a_server_that_ignores_stops_is_found_out(folder: Path) -> None:
    """Also one that refuses fields beyond OpenAI's."""
    for mode in ("", "strict"):
        (verdict,) = judged(folder, "no stops", mode=mode, properties=["stop_is_exact"], max_examples=1).verdicts
        assert (verdict.status, "ignores stop_token_ids" in verdict.reason) == ("not supported", True)


def test_a_busy_server_is_asked_again_and_one_that_answers_is_not(folder: Path) -> None:
    stub = Stub("one in 200")
    with served(stub, str(folder), mode="busy") as url, closing(ServerEngine(url)) as engine:
        engine([[1, 2]] * 8, EngineSettings())
        asked = stub.num_requests
        engine([[1, 2]] * 8, EngineSettings())
    assert stub.num_requests == asked + 8


# --- bad input -------------------------------------------------------------------------------------------------------


def told(*options: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*options, "--properties", "runs_repeat", "--max-examples", "1"])
    refused = isinstance(result.exception, InputError)
    return (2, str(result.exception)) if refused else (result.exit_code, result.output)


@pytest.mark.parametrize(
    ("mode", "options", "line"),
    [
        ("", ["--model", "another"], "no model 'another': choose --model table"),
        ("", ["--tokenizer", "nowhere"], "cannot tell the vocabulary of 'nowhere': name a folder with its config.json"),
        ("html", [], "the server answers '<html>\\n<body>Welcome</body></html>', not JSON"),
        ("hang", ["--timeout-s", "0.2"], "no answer within 0.2 s (timeout_s)"),
        ("", ["--server", "localhost:1/v1"], "localhost:1/v1: cannot be reached"),
        (
            "",
            ["--engine", "toy_engines:make"],
            "give either --engine module:factory, --command 'a program' or --server",
        ),
    ],
)
def test_a_server_that_is_none_is_told_in_one_line(folder: Path, mode: str, options: list[str], line: str) -> None:
    with served("", str(folder), mode=mode) as url:
        code, text = told("--server", url, *options)
    assert (code, line in text, "\n" in text) == (2, True, False), text


def test_a_server_that_is_down_and_one_that_wants_a_key_are_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with served("", str(folder), key="secret") as url:
        code, text = told("--server", url)
        assert (code, "status 401: no such key" in text, "set OPENAI_API_KEY" in text) == (2, True, True)
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        assert told("--server", url, "--reference", url)[0] == 0
    code, text = told("--server", url)
    assert (code, f"{url}: cannot be reached" in text, "secret" in text) == (2, True, False)


def test_a_server_that_goes_away_ends_the_run_and_what_was_not_asked_is_named(folder: Path) -> None:
    with served("", str(folder)) as url:
        engine = ServerEngine(url)
    report = check_engine(engine, properties=["runs_repeat", "budget_is_exact"], max_examples=4)
    engine.close()
    assert [verdict.status for verdict in report.verdicts] == ["fail", "not run"]
    assert "budget_is_exact" in report.not_looked_at[0]


class Interrupting(Stub):
    """Ctrl-C while its fiftieth answer is awaited, or the next where several are asked for at once."""

    def __init__(self, lie: str):
        super().__init__(lie)
        self.once = threading.Lock()

    def answer(self, asked: dict[str, Any], most_active: int = 1) -> dict[str, Any]:
        if self.num_requests >= 50 and self.once.acquire(blocking=False):
            _thread.interrupt_main()
            time.sleep(0.5)
        return super().answer(asked, most_active)


def test_an_interrupted_run_reports_what_was_found_and_what_was_not_asked(folder: Path, tmp_path: Path) -> None:
    output, chosen = tmp_path / "report.json", "equals_reference,runs_repeat,budget_is_exact"
    heard = partial(signal.signal, signal.SIGINT)
    with served(Interrupting("by concurrency"), str(folder)) as url, ExitStack() as stack:
        stack.callback(heard, heard(signal.default_int_handler))  # a test run in the background ignores it
        result = CliRunner().invoke(app, ["--server", url, "--properties", chosen, "--output", str(output)])
    assert result.exit_code == 130
    first, *others = json.loads(output.read_text())["properties"]
    told = "interrupted before the smallest case was found; it fails with: not the autoregressive output"
    assert (first["status"], first["reason"].startswith(told)) == ("fail", True), first["reason"]
    assert [row["status"] for row in others] == ["not finished"] * 2
    assert "does not conform" in result.output


# --- laws ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lie", OF_THE_LAW)
def test_a_wrong_law_is_refuted_within_some_calls(lie: str) -> None:
    verdict = verdict_of(Drafting(lie), "samples_follow_the_law", reference=Reference(), shrink=False)
    assert verdict.status == "fail"
    seen, of = re.match(r"(\d+) of (\d+) continuations of \[4, 1\] at temperature 0.7 are not", verdict.reason).groups()
    assert (int(seen) <= OF_THE_LAW[lie], int(of)) == (True, Limits().law_samples)


def test_a_right_law_passes_and_says_what_would_be_seen() -> None:
    verdict = verdict_of(Drafting(), "samples_follow_the_law", reference=Reference(), limits=Limits(law_samples=512))
    told = r"after \[4, 1\] at temperature 0.7 512 continuations: a bias of 0.\d+ in a token of 0.24 is surely seen; "
    assert (verdict.status, bool(re.match(told, verdict.reason))) == ("pass", True), verdict.reason


def test_rows_that_are_cut_short_are_no_samples() -> None:
    for most in (0, 2):
        engine = Toy(lambda prompts, settings, _, most=most: [row[:most] for row in Drafting()(prompts, settings)])
        engine.supports = Drafting.supports
        verdict = verdict_of(engine, "samples_follow_the_law", reference=Reference(), shrink=False)
        assert (verdict.status, f"has {most} tokens, not" in verdict.reason) == ("fail", True), verdict.reason


@pytest.mark.parametrize("outcomes", [2, 30])
def test_wealth_rarely_grows_under_the_law_and_does_where_a_bias_is_surely_seen(outcomes: int) -> None:
    """At a rate of 5 % 18 or more of 100 honest samples would refute it with a chance below 1e-5."""
    rng, rate, drawn = random.Random(outcomes), 0.05, 250
    law = [0.3, *[0.7 / (outcomes - 1)] * (outcomes - 1)]

    def refuted(bias: float, rate: float) -> tuple[bool, float]:
        bets = Bets(lambda _: [math.log(p) for p in law], 1.0)
        weights = [law[0] + bias, *[p * (1 - bias / 0.7) for p in law[1:]]]
        for token in rng.choices(range(outcomes), weights, k=drawn):
            bets.see((1,), [token])
        return bets.log_wealth > -math.log(rate), bets.visible_bias(1e-6, (1,))[1]

    assert sum(refuted(0, rate)[0] for _ in range(100)) < 18
    _, bias = refuted(0, 1e-6)
    assert sum(refuted(bias, 1e-6)[0] for _ in range(40)) >= 38
