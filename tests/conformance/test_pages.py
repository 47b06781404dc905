"""Reports as pages and for CI, and saved failures that are asked for again."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from refimpl.cli import app
from refimpl.conformance.kit import ALL_PROPERTIES
from refimpl.conformance.replay import read_failures
from refimpl.core.errors import InputError
from refimpl.faults import FAULTS
from refimpl.generation import generate
from refimpl.models.adapter import Pair
from refimpl.viz.batch import round_batch

BROKEN = "refimpl.faults.engine:faulty_unchecked:mask-one-too-wide"
RIGHT = "refimpl.conformance.adapters:method:inplace"
SHORT = ["--limit", "3", "--max-prompt-tokens", "6", "--max-new-tokens", "8", "--batch-sizes", "3"]


class Parsed(HTMLParser):
    """Tags with their attributes, and the text within tags of one class, in order."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, Any]]] = [("", {})]
        self.texts: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.texts += [(str(self.tags[-1][1].get("class", self.tags[-1][0])), data.strip())] * bool(data.strip())


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit | InputError), result.exception
    return result.exit_code, f"{result.output} {result.exception}"


def read_page(path: Path) -> Parsed:
    """A page that needs nothing else: no scripts, and nothing from elsewhere."""
    page = Parsed(path.read_text())
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in page.tags}
    assert not {"src", "href"} & {name for _, attributes in page.tags for name in attributes}
    assert "url(" not in path.read_text()
    return page


def counts_of(path: Path) -> tuple[ElementTree.Element, dict[str, int]]:
    suite = ElementTree.parse(path).getroot()
    return suite, {name: int(suite.attrib[name]) for name in ("tests", "failures", "skipped")}


@pytest.fixture(scope="module")
def failed(tmp_path_factory: Any) -> Path:
    """A folder with the reports of an engine whose tokens are wrong."""
    folder = tmp_path_factory.mktemp("reports")
    files = [f"--{kind}={folder}/report.{kind}" for kind in ("html", "junit", "output")]
    assert run("conformance", "--engine", BROKEN, "--max-examples", "5", "--fail-fast", *files)[0] == 1
    return folder


def test_a_page_says_the_verdict_first_and_marks_the_first_wrong_token(failed: Path) -> None:
    page, report = read_page(failed / "report.html"), json.loads((failed / "report.output").read_text())
    (verdict,) = [each for each in report["properties"] if each["status"] == "fail"]
    texts = page.texts[[kind for kind, _ in page.texts].index("fail") :]  # behind title and style
    assert texts[:2] == [("fail", "does not conform"), ("title", BROKEN)]
    assert ("p", verdict["reason"]) in texts
    found, wanted = (verdict[name][verdict["row"]][verdict["token"]] for name in ("found", "expected"))
    at = texts.index(("s", str(found)))
    assert ("br", str(wanted)) in texts[at : at + 2]
    prompts = json.loads(verdict["requests"][-1])["prompts"]
    cells = [
        attributes["class"] for tag, attributes in page.tags if tag == "td" and "is-" in attributes.get("class", "")
    ]
    assert cells.count("is-prompt") == sum(map(len, prompts))
    assert cells.count("is-wrong") == sum(f != w for f, w in zip(verdict["found"], verdict["expected"], strict=True))


def test_junit_has_a_case_for_each_property(failed: Path) -> None:
    suite, counts = counts_of(failed / "report.junit")
    assert [case.attrib["name"] for case in suite] == list(ALL_PROPERTIES)
    assert counts == {"tests": len(ALL_PROPERTIES), "failures": 1, "skipped": len(ALL_PROPERTIES) - 1}
    (failure,) = suite.iter("failure")
    assert "not the autoregressive output" in failure.attrib["message"]
    assert '"op": "generate"' in (failure.text or "")


def test_a_saved_failure_fails_again_and_passes_once_mended(failed: Path, tmp_path: Path) -> None:
    saved, again = failed / "report.output", tmp_path / "again.json"
    code, _ = run("conformance", "--engine", BROKEN, "--replay", str(saved), "--output", str(again))
    first, second = (json.loads(path.read_text())["properties"] for path in (saved, again))
    (before,) = [verdict for verdict in first if verdict["status"] == "fail"]
    assert code == 1
    assert [(each["property"], each["reason"], each["asked"]) for each in second] == [
        (before["property"], before["reason"], 1)
    ]
    assert run("conformance", "--engine", RIGHT, "--replay", str(saved))[0] == 0
    (case,) = read_failures(saved).values()
    assert case is not None
    assert [list(prompt) for prompt in case.prompts] == json.loads(before["requests"][-1])["prompts"]


@pytest.mark.parametrize(
    ("content", "told"), [('{"a": 1}', "is no report"), ('{"properties": []}', "nothing failed"), ("[]", "a mapping")]
)
def test_what_cannot_be_replayed_is_refused(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "report.json").write_text(content)
    code, text = run("conformance", "--engine", RIGHT, "--replay", str(tmp_path / "report.json"))
    assert code != 0
    assert told in text


@pytest.mark.parametrize("method", ["eqspec", "masked", "rollback", "inplace"])
def test_a_drawn_round_is_what_the_engine_reports(llama: Pair, method: str) -> None:
    """Cells of each kind, recounted from the record of the round that the first wrong token is of."""
    prompts = [[5, 9, 2, 40, 8], [7], [11, 3, 3]]
    settings: dict[str, Any] = {"batch_size": 3, "max_new_tokens": 12, "stop_token_ids": []}
    result = generate(llama, prompts, method=method, num_speculative_tokens=3, **settings)
    found = [sequence.token_ids for sequence in result.sequences]
    for row, at in ((0, 0), (1, 5), (2, 11)):
        expected = [list(tokens) for tokens in found]
        expected[row][at] += 1
        drawn = round_batch(result.rounds, [*map(len, prompts)], found, expected)
        assert drawn is not None
        (record,) = [
            r
            for r in result.rounds
            for o in r.rows
            if o.sequence == row and 0 <= at - (o.seq_len - len(prompts[row])) < o.kept
        ]
        assert [each.row for each in drawn.rows] == sorted(o.sequence for o in record.rows)
        for each, outcome in zip(drawn.rows, sorted(record.rows, key=lambda o: o.sequence), strict=True):
            kinds = [kind for kind, *_ in each.cells]
            length = len(prompts[each.row])
            assert kinds.count("prompt") == length
            is_wrong = each.row == row
            assert len(kinds) - kinds.count("rejected") - kinds.count("dropped") == outcome.seq_len + outcome.kept
            assert kinds.count("wrong") == is_wrong
            if is_wrong:
                assert each.cells[length + at] == ("wrong", str(found[row][at]), str(expected[row][at]))
            else:
                assert kinds.count("accepted") == min(outcome.accepted, outcome.kept)
                assert kinds.count("next") == (outcome.next_token != "draft")
                assert kinds.count("rejected") == outcome.drafted - outcome.accepted - (
                    outcome.next_token == "recovered"
                )


def test_verify_and_tie_or_bug_write_pages(tmp_path: Path) -> None:
    files = [f"--html={tmp_path}/page.html", f"--junit={tmp_path}/junit.xml"]
    assert run("verify", *SHORT, "--methods", "eqspec,inplace", *files)[0] == 0
    page = read_page(tmp_path / "page.html")
    assert ("pass", "2 of 2 runs exact") in page.texts
    assert counts_of(tmp_path / "junit.xml")[1] == {"tests": 2, "failures": 0, "skipped": 0}
    with FAULTS["pads-visible"].injected():
        assert run("verify", *SHORT, "--methods", "eqspec,inplace", "--set", "checks=off", *files)[0] == 1
    page = read_page(tmp_path / "page.html")
    assert ("fail", "1 of 2 runs exact") in page.texts
    kinds = {attributes.get("class") for tag, attributes in page.tags if tag == "td"}
    assert {"is-prompt", "is-wrong"} <= kinds
    assert counts_of(tmp_path / "junit.xml")[1] == {"tests": 2, "failures": 1, "skipped": 0}
    (tmp_path / "outputs").write_text("\n".join(json.dumps({"token_ids": [5] * 8}) for _ in range(3)))
    assert run("tie-or-bug", *SHORT[:6], "--outputs", str(tmp_path / "outputs"), *files)[0] == 1
    assert ("fail", "1 bug in 1 run") in read_page(tmp_path / "page.html").texts


def test_a_page_is_read_in_a_browser(chrome: Any, failed: Path) -> None:
    chrome.get((failed / "report.html").as_uri())
    assert chrome.find_element("css selector", "h1").text == "does not conform"
    wrong = chrome.find_element("css selector", ".batch .is-wrong")
    assert wrong.is_displayed()
    assert wrong.value_of_css_property("box-shadow") != "none"
    width = chrome.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
    assert width <= 0, "wide batches scroll by themselves, and not the page"
