"""How often a draft is right, by its size and its training: sixteen drafts, and a law fitted to them.

    python -m tools.train_tiny.scaling --out simulator/data/scaling/tiny.json

Four widths by four numbers of training tokens. Each draft has a training of its own, with a seed of its own, on text
alone, which is the first part of the bundled draft's training; its rate falls to zero. They are judged on the target's
greedy continuations of the bundled prompts, where a token is right or wrong whatever the rounds.
"""

import argparse
import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

import refimpl
from refimpl.calibrate.documents import read_corpus
from refimpl.core.errors import InputError
from refimpl.core.files import check_folder, check_writable, write_whole
from refimpl.core.kernels import draft_limit, num_accepted
from refimpl.decoding.devices import provenance
from refimpl.pairs.names import TINY
from refimpl.prompts import read_prompts
from tools.train_tiny.corpus import token_stream
from tools.train_tiny.draft import TEXT_LEN, train_draft_on_text
from tools.train_tiny.evaluation import load_float32
from tools.train_tiny.models import build, draft_config
from tools.train_tiny.scaling_fit import Trained, fit_law
from tools.train_tiny.settings import Config

K = 5  # drafts of a round
NEW_TOKENS = 64  # of a continuation
BASE = Config(draft_batch=4, warmup_steps=8, draft_text_lr_end=0.0)


@dataclass(frozen=True)
class Study:
    """Which drafts are trained.

    Attributes:
        base: settings of every training.
        widths: hidden sizes.
        steps: of a training.
    """

    base: Config = BASE
    widths: tuple[int, ...] = (32, 64, 128, 256)
    steps: tuple[int, ...] = (32, 80, 200, 500)

    def configs(self) -> list[Config]:
        """One for each draft, each with its own seed, the shortest trainings first."""
        sizes = [(steps, width) for steps in self.steps for width in self.widths]
        return [
            replace(self.base, seed=seed, draft_width=width, draft_text_steps=steps)
            for seed, (steps, width) in enumerate(sizes, start=1)
        ]


@dataclass(frozen=True)
class Continuation:
    """A prompt and what the target generates after it, greedily."""

    ids: Tensor  # [time]
    prompt_len: int


def continue_prompts(pair: refimpl.Pair, limit: int | None = None) -> list[Continuation]:
    """Continue the bundled prompts, with the engine, whose tokens are the target's own."""
    prompts = read_prompts(TINY / "prompts.jsonl", limit=limit)
    settings: dict[str, Any] = {"batch_size": 8, "max_new_tokens": NEW_TOKENS, "checks": "off"}
    sequences = refimpl.generate(pair, prompts, method="inplace", num_speculative_tokens=K, **settings).sequences
    texts = [(pair.tokenizer(prompt).input_ids, s.token_ids) for prompt, s in zip(prompts, sequences, strict=True)]
    return [Continuation(torch.tensor([*prompt, *new]), len(prompt)) for prompt, new in texts]


@torch.no_grad()
def right_tokens(draft: Qwen3ForCausalLM, text: Continuation) -> list[int]:
    """Whether the draft, after the target's tokens, chooses the target's next one: 1 or 0  # [new]."""
    logits = draft(input_ids=text.ids[None, :-1], use_cache=False).logits[0, text.prompt_len - 1 :]
    return (logits.argmax(-1) == text.ids[text.prompt_len :]).int().tolist()


def row_rounds(right: list[int]) -> Iterator[int]:
    """Accepted drafts of each round that a row takes; its last round drafts what its budget leaves."""
    at = 0
    while at < len(right):
        accepted = num_accepted(right[at:], draft_limit(K, len(right) - at))
        yield accepted
        at += accepted + 1


def acceptance_length(draft: Qwen3ForCausalLM, texts: list[Continuation]) -> float:
    """Mean acceptance length over all rounds of all rows."""
    rounds = [accepted for text in texts for accepted in row_rounds(right_tokens(draft, text))]
    return 1 + sum(rounds) / len(rounds)


def trained_draft(config: Config, train: Tensor, work: Path) -> Qwen3ForCausalLM:
    """A draft, trained unless `work` has it."""
    name = hashlib.sha256(repr(config).encode()).hexdigest()[:12]
    folder = work / f"{config.draft_width}-{config.draft_text_steps}-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    draft = build(draft_config(config), config.seed, compiled=False)
    draft.load_state_dict(train_draft_on_text(config, train, None, folder, compiled=False))
    return draft


def measure(study: Study, train: Tensor, texts: list[Continuation], work: Path) -> list[Trained]:
    """Train and judge every draft; those in `work` are judged alone."""
    found = []
    for config in study.configs():
        draft = trained_draft(config, train, work)
        tokens = config.draft_text_steps * config.draft_batch * TEXT_LEN
        found.append(Trained(draft.num_parameters(), tokens, acceptance_length(draft, texts)))
        print(f"{time.strftime('%H:%M:%S')} {found[-1]}", flush=True)
    return found


def run(study: Study, work: Path) -> dict[str, Any]:
    """The law, its errors, the drafts, and the bundled draft beside them."""
    pair = refimpl.load_pair("tiny")
    train = token_stream(pair.tokenizer, [d for d in read_corpus() if not d.held_out], study.base.seed)
    texts = continue_prompts(pair)
    drafts = measure(study, train, texts, work)
    return fit_law(drafts, K) | {
        "drafts": [asdict(draft) for draft in drafts],
        "bundled_draft": acceptance_length(load_float32(TINY / "draft"), texts),
        "num_speculative_tokens": K,
        "prompts": len(texts),
        "meta": provenance(pair.device),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="file of the law")
    parser.add_argument("--work", type=Path, default=Path(".work/scaling"), help="drafts; delete to start afresh")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    try:
        check_writable(arguments.out)
        check_folder(arguments.work)
        data = run(Study(), arguments.work)
        write_whole(arguments.out, [json.dumps(data, indent=1)])
    except InputError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
