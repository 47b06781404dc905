"""Tokens and slots, replayed by the machine that is extracted from Coq: the stage `replay`, and many more rounds.

Small runs of every layout with two schedulers, every scheduler among them, and a committed sample of rounds of the
bundled pair, must be replayed to their end; copies with one thing wrong must not.

    python -m proofs.conformance.replay REPLAYER ROUNDS [PROMPTS SUMMARY]   so many real rounds of the bundled pair, on
        its own prompts or on those of a file; how many of which method is written to the summary
    python -m proofs.conformance.replay REPLAYER sample                     write the committed sample
"""

import gzip
import itertools
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from proofs.conformance import reach, runs
from proofs.conformance.borders import small_borders
from proofs.conformance.recorder import recorded
from proofs.conformance.runs import METHODS, SAMPLINGS, SHAPES, Shape
from proofs.report import Verdict, all_valid, ask, none_valid, report
from refimpl.core.config import LAYOUTS, SCHEDULERS, DecodeConfig, SamplingConfig
from refimpl.core.files import check_writable, whole_file, write_whole
from refimpl.core.provenance import command_line, stamp
from refimpl.core.request import Request
from refimpl.decoding.engine import Engine
from refimpl.pairs import load_pair
from refimpl.pairs.names import TINY
from refimpl.prompts import read_prompts
from refimpl.requests import prepare

OWN_PROMPTS = TINY / "prompts.jsonl"
SAMPLE = Path(__file__).with_name("real_rounds.txt.gz")
SAMPLED = ("realigned+grouped", "masked+fifo", "rollback+static", "inplace+fifo", "paged+grouped")
# Every layout with two schedulers, so that all four have their turn.
REPLAYED = [f"{layout}+{[*SCHEDULERS][(i + j) % len(SCHEDULERS)]}" for i, layout in enumerate(LAYOUTS) for j in (0, 1)]
PATTERNS = 2  # of acceptance, for each method and shape
TOKENS, PROMPTS, BATCH, LONGEST = 96, 8, 2, 64  # of the real runs; tokens of a prompt at most
FEW_TOKENS, FEW_PROMPTS = 6, 5  # of those in the sample
Lines = list[str]
Change = Callable[[list[str]], list[str]]  # of the words of a line


def small_runs(method: str) -> Iterator[Lines]:
    """Greedy, coupled and rejection sampling; cancelled; and in pools that are too small."""
    for shape in SHAPES:
        patterns = list(shape.patterns)
        for pattern in patterns[:: -(-len(patterns) // PATTERNS)]:
            yield recorded(_engine(method, shape, runs.greedy_pair(shape.jobs, pattern)), exact=True)
        for acceptance in ("coupled", "rejection"):
            settings = {"sampling": SAMPLINGS[0], "acceptance": acceptance}
            yield recorded(_engine(method, shape, runs.sampled_pair(), **settings), exact=False)
    longest = reach.LONGER[1]
    yield recorded(_engine(method, longest, runs.sampled_pair(), sampling=SAMPLINGS[0]), exact=False, cancel=(0, 1))
    if method.startswith("paged"):
        short = {"sampling": SAMPLINGS[0], "kv_memory_gib": reach.kv_memory_gib(longest, 1)}
        yield recorded(_engine(method, reach.without_stops(longest), runs.sampled_pair(), **short), exact=False)


def _engine(method: str, shape: Shape, pair: Any, **settings: Any) -> Callable[[], Engine]:
    sampling = settings.pop("sampling", SamplingConfig())
    return lambda: runs.engine_for(method, shape, pair, sampling, **({"checks": "off"} | settings))


def changed(lines: Lines, rng: random.Random, word: str, change: Change, what: str = "") -> Iterator[tuple[str, Lines]]:
    """A copy in which a line that begins so is changed, or left out, if there is one; what is wrong with it."""
    if places := places_of(lines, word + " "):
        at = rng.choice(places)
        new = " ".join(change(lines[at].split(" ")))
        yield what or word, [*lines[:at], *([new] if new else []), *lines[at + 1 :]]


def left_out(words: list[str]) -> list[str]:
    """Nothing in place of a line."""
    return []


def one_more(field: int) -> Change:
    """A number of a line is one too large."""
    return lambda words: [*words[:field], str(int(words[field]) + 1), *words[field + 1 :]]


def corrupted(lines: Lines, rng: random.Random) -> Iterator[tuple[str, Lines]]:
    """Copies with one thing wrong each; what it is."""
    change = partial(changed, lines, rng)
    yield from change("query 1", lambda words: words[:-1])  # nothing, or too little, is seen
    yield from change("query 0", one_more(3))  # a position too far
    yield from change("feed", one_more(2))  # a position too far
    yield from change("feed", one_more(3))  # another token
    yield from change("feed", one_more(4))  # another slot
    yield from change("feed", left_out)  # not fed at all
    if needed := [at for at in places_of(lines, "copy ") if _is_needed(lines, at)]:
        at = rng.choice(needed)
        yield "copy", [*lines[:at], *lines[at + 1 :]]  # not moved at all
    junk = rng.choice([at for at in places_of(lines, "junk") if lines[at + 1].startswith("query")])
    overwritten = lines[junk + 1].split(" ")[-1].split("-")[0]
    yield "junk", [*lines[:junk], f"{lines[junk]} {overwritten}", *lines[junk + 1 :]]  # what is seen is nobody's
    yield from change("commit", lambda w: [*w[:3], str((int(w[3]) + 1) % 3), *w[4:]])  # ends otherwise, or not
    yield from change("commit", one_more(4))  # another token
    yield from change("commit", lambda words: [*words, "1"])  # one too many
    yield "last commit", [line for i, line in enumerate(lines) if i != max(places_of(lines, "commit"))]


def places_of(lines: Lines, start: str) -> list[int]:
    """Lines that begin so."""
    return [i for i, line in enumerate(lines) if line.startswith(start)]


def _is_needed(lines: Lines, at: int) -> bool:
    """Whether a query of the same round sees a slot that was copied to, and was not fed since."""
    targets = {int(slot) for slot in lines[at].split(" ")[1::2]}
    for line in itertools.takewhile(lambda line: not line.startswith(("copy", "commit")), lines[at + 1 :]):
        words = line.split(" ")
        if words[0] == "feed":
            targets -= {int(slot) for slot in words[4::2]}
        spans = [span.split("-") for span in words[5:]] if words[0] == "query" else []
        if any(int(span[0]) <= slot <= int(span[-1]) for span in spans for slot in targets):
            return True
    return False


def judge(replayer: str, some: list[Lines]) -> list[str]:
    """What the machine says of each run; of one that the engine has ended: a fault before, or the engine's error."""
    answers = ask(replayer, [[*lines[:-1], "end"] for lines in some])
    ends = [lines[-1] for lines in some]
    return [a if end == "end" or a.startswith("fault") else end for a, end in zip(answers, ends, strict=True)]


def rounds_of(lines: Lines) -> int:
    """Rounds of the engine: commits of rows without anything between."""
    commits = set(places_of(lines, "commit"))
    return sum(at - 1 not in commits for at in commits)


def verdicts(replayer: str, name: str, some: list[Lines]) -> Iterator[Verdict]:
    """All are replayed, and no corrupted copy of an exact one is."""
    rounds, asked = sum(map(rounds_of, some)), partial(judge, replayer)
    yield all_valid(f"{name}: {len(some)} runs, {rounds} rounds are replayed", asked(some))
    rng, exact = random.Random(0), [lines for lines in some if lines[0] == "run 1"]
    copies = [copy for lines in exact[::3] for copy in corrupted(lines, rng)]
    yield none_valid(f"{name}: {len(copies)} corrupted runs are not replayed", asked, copies)


def check(replayer: str) -> Iterator[Verdict]:
    """Small runs of every layout with two schedulers, that no scheduler was left out, and the committed sample."""
    for method in REPLAYED:
        with small_borders():
            yield from verdicts(replayer, method, list(small_runs(method)))
    missing = {*SCHEDULERS} - {method.split("+")[1] for method in REPLAYED}
    yield Verdict("every scheduler is among them", not missing, f"never {missing}")
    yield from verdicts(replayer, "the bundled pair", read_sample())


def read_sample() -> list[Lines]:
    """Runs of the committed sample."""
    with gzip.open(SAMPLE, "rt") as file:
        lines = file.read().splitlines()
    ends = [i + 1 for i, line in enumerate(lines) if line == "end"]
    return [lines[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def real_runs(
    methods: tuple[str, ...], batches: Iterator[int], tokens: int, num_prompts: int, prompts: list[Any]
) -> Iterator[tuple[str, Lines]]:
    """Runs of the bundled pair: greedy and rejection sampling, prompts in turn, without packed prefill."""
    pair = load_pair("tiny")
    for model in pair.models():
        model.forward_packed = None  # its blocks have no rows
    for number, method in zip(batches, itertools.cycle(methods)):
        acceptance = ("greedy", "rejection")[number // len(methods) % 2]  # by turns, each with every method
        first = number * num_prompts % len(prompts)
        some = (prompts * 2)[first : first + num_prompts]
        chosen = [Request(prompt, max_new_tokens=tokens) for prompt in some]
        sampling = SamplingConfig(temperature=float(acceptance == "rejection"), seed=number)
        batch = {"batch_size": BATCH, "window_size": 2 * BATCH}
        config = DecodeConfig(method=method, acceptance=acceptance, sampling=sampling, checks="off", **batch)
        sequences = prepare(pair, chosen, config, LONGEST)
        yield method, recorded(lambda s=sequences, c=config: Engine(pair, s, c), exact=acceptance == "greedy")


def many(replayer: str, wanted: int, file: Path) -> dict[str, Any]:
    """Real runs until so many rounds of the engine were replayed: by method, and what was refused."""
    methods = tuple(METHODS[i] for i in random.Random(0).sample(range(len(METHODS)), len(METHODS)))
    rounds, queries, told = Counter[str](), Counter[str](), list[str]()
    for method, lines in real_runs(methods, itertools.count(), TOKENS, PROMPTS, read_prompts(file)):
        told.append(f"{method}: {judge(replayer, [lines])[0]}")
        rounds[method] += rounds_of(lines)
        queries[method] += len(places_of(lines, "query "))
        print(f"{rounds.total()} rounds, last {method}", file=sys.stderr, flush=True)
        if rounds.total() >= wanted:
            break
    faults = [each for each in told if not each.endswith(": valid")]
    return {"prompts": file.name, "runs": len(told), "rounds": rounds, "queries": queries, "faults": faults}


def many_verdict(replayer: str, wanted: int, file: Path, summary: Path | None) -> Verdict:
    """Whether all are replayed, of every method; written down if that is asked for."""
    if summary:
        check_writable(summary, file)
    done = many(replayer, wanted, file)
    if summary:
        settings = {"new_tokens": TOKENS, "prompts_a_run": PROMPTS, "batch_size": BATCH, "max_prompt_tokens": LONGEST}
        data = {"schema": 1, "command": command_line(), **stamp("torch", "transformers"), **settings, **done}
        write_whole(summary, [json.dumps(data, indent=1)])
    name = f"the bundled pair: {done['rounds'].total()} rounds are replayed, with tokens and slots"
    return Verdict(name, not done["faults"] and {*done["rounds"]} == {*METHODS}, f"{done['faults'][:3]}")


def write_sample() -> None:
    """One short run of each layout, greedy and rejection in turn."""
    batches = (n + n % 2 * len(SAMPLED) for n in range(len(SAMPLED)))
    some = [lines for _, lines in real_runs(SAMPLED, batches, FEW_TOKENS, FEW_PROMPTS, read_prompts(OWN_PROMPTS))]
    text = "\n".join(itertools.chain(*some)) + "\n"
    with whole_file(SAMPLE, "wb") as sample:
        sample.write(gzip.compress(text.encode(), mtime=0))


def main(replayer: str, what: str, prompts: str = str(OWN_PROMPTS), summary: str = "") -> int:
    """See the head of this file."""
    if what == "sample":
        write_sample()
        return 0
    return report("replay", [many_verdict(replayer, int(what), Path(prompts), Path(summary) if summary else None)])


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(*sys.argv[1:]))
