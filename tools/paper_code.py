"""EQSPEC and EXSPEC of the paper's code beside ours: the same pair, prompts and drafts, in tokens per CPU second.

Their code is not part of this project and needs transformers 4.51.3. Clone it, and give it an environment::

    git clone https://github.com/eBay/spec_dec .work/spec_dec
    python -m venv .work/theirs && .work/theirs/bin/pip install torch==2.13.0 transformers==4.51.3 tqdm
    python tools/paper_code.py docs/results/paper-code-cpu.json \\
      --checkout .work/spec_dec --python .work/theirs/bin/python --prompts .work/question.jsonl

Everything runs on one thread, in turn, every other repeat in reverse order. `generate` of both versions of transformers
runs as well: it shows what the version alone changes.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import refimpl
from refimpl.core.files import write_whole
from refimpl.decoding.devices import provenance
from refimpl.pairs.names import TINY
from refimpl.prompts import read_prompts

BATCH_SIZES, REPEATS = (1, 4, 8, 16), 3
SETTINGS: dict[str, Any] = {"max_new_tokens": 48, "num_speculative_tokens": 5}
COMPARED = {  # ours → what it is measured against
    "eqspec": "paper eqspec",
    "exspec": "paper exspec",
    "inplace": "paper exspec",
    "transformers": "paper transformers",
}
Decode = Callable[[list[str], int], tuple[list[list[int]], float]]


def start_worker(python: Path | str, checkout: Path) -> Callable[[str], Decode]:
    """A process that runs the paper's functions, as a function from method to decoder."""
    command = [str(python), str(Path(__file__).with_name("paper_code_worker.py")), str(checkout), str(TINY)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(method: str, prompts: list[str], batch_size: int) -> tuple[list[list[int]], float]:
        assert process.stdin
        assert process.stdout
        request = {"method": method, "prompts": prompts, "batch_size": batch_size, **SETTINGS}
        print(json.dumps(request), file=process.stdin, flush=True)
        answer = json.loads(process.stdout.readline())
        return answer["tokens"], answer["cpu_s"]

    return lambda method: lambda prompts, batch_size: ask(method, prompts, batch_size)


def ours(pair: refimpl.Pair, method: str) -> Decode:
    """This engine, without run-time checks, as the paper's code has none."""

    def decode(prompts: list[str], batch_size: int) -> tuple[list[list[int]], float]:
        begun = time.process_time()
        result = refimpl.generate(pair, prompts, method=method, batch_size=batch_size, checks="off", **SETTINGS)
        return [list(s.token_ids) for s in result.sequences], time.process_time() - begun

    return decode


def measure(engines: dict[str, Decode], prompts: list[str], oracle: list[list[int]], stop: int) -> list[dict[str, Any]]:
    """A line per batch size and engine: exact outputs, tokens per CPU second in each repeat."""
    rows = {
        (size, name): {"batch_size": size, "engine": name, "exact": len(prompts), "tokens_per_cpu_s": []}
        for size in BATCH_SIZES
        for name in engines
    }
    for repeat in range(REPEATS):
        for size, name in list(rows)[:: 1 if repeat % 2 == 0 else -1]:
            outputs, cpu_s = engines[name](prompts, size)
            kept = [until(tokens, stop) for tokens in outputs]
            row = rows[size, name]
            row["exact"] = min(row["exact"], sum(a == b for a, b in zip(kept, oracle, strict=True)))
            row["tokens_per_cpu_s"].append(sum(map(len, kept)) / cpu_s)
            print(repeat, size, name, row["exact"], f"{row['tokens_per_cpu_s'][-1]:.0f}", file=sys.stderr, flush=True)
    return list(rows.values())


def until(tokens: list[int], stop: int) -> list[int]:
    """Tokens up to the first stop token, which belongs to them."""
    return tokens[: tokens.index(stop) + 1] if stop in tokens else tokens


def with_ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines with medians, and with each repeat's ratio to the engine of the paper that the line is compared with."""
    speeds = {(row["batch_size"], row["engine"]): row["tokens_per_cpu_s"] for row in rows}
    for row in rows:
        row["median"] = statistics.median(row["tokens_per_cpu_s"])
        if row["engine"] in COMPARED:
            theirs = speeds[row["batch_size"], COMPARED[row["engine"]]]
            row["ratios"] = [a / b for a, b in zip(row["tokens_per_cpu_s"], theirs, strict=True)]
    return rows


def main() -> None:
    """Measure, and write the lines with where they come from."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--checkout", type=Path, required=True, help="your clone of github.com/eBay/spec_dec")
    parser.add_argument("--python", type=Path, required=True, help="Python that has transformers 4.51.3")
    parser.add_argument(
        "--prompts", type=Path, default=TINY / "prompts.jsonl", help="prompt file; the first turns count"
    )
    parser.add_argument("--limit", type=int, default=32, help="use only the first N prompts")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    prompts = read_prompts(arguments.prompts, limit=arguments.limit)
    pair = refimpl.load_pair("tiny")
    theirs, new = start_worker(arguments.python, arguments.checkout), start_worker(sys.executable, arguments.checkout)
    engines = {f"paper {name}": theirs(name) for name in ("eqspec", "exspec")}
    engines |= {name: ours(pair, name) for name in ("eqspec", "exspec", "inplace")}
    engines |= {"paper transformers": theirs("generate"), "transformers": new("generate")}
    for decode in engines.values():  # warm
        decode(prompts[:2], 2)
    oracle, _ = ours(pair, "autoregressive")(prompts, 1)
    rows = with_ratios(measure(engines, prompts, oracle, pair.tokenizer.eos_token_id))
    data = {"rows": rows, "prompts": len(prompts), "settings": SETTINGS, "meta": provenance(pair.device)}
    write_whole(arguments.output, [json.dumps(data, indent=1)])


if __name__ == "__main__":
    main()
