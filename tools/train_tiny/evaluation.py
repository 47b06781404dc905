"""What an exported pair is like."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from refimpl.calibrate.documents import read_corpus
from refimpl.generation import generate
from refimpl.pairs.loading import load_pair
from refimpl.prompts import read_prompts
from refimpl.results import GeneratedSequence
from tools.train_tiny.corpus import token_stream, windows
from tools.train_tiny.models import held_out_loss


def is_loop(new: list[int], period_max: int = 16) -> bool:
    """Whether the last 32 tokens repeat with a period of at most `period_max`."""
    tail = new[-32:]
    return len(tail) == 32 and any(tail[p:] == tail[:-p] for p in range(1, period_max + 1))


@torch.no_grad()
def sampling_overlap(target: Qwen3ForCausalLM, draft: Qwen3ForCausalLM, stream: Tensor) -> float:
    """Mean Σ min(p, q) at temperature 1 on held-out text: the chance that a sampled draft token is accepted."""
    ids = windows(stream, 16, 255, -5)
    p, q = (model(input_ids=ids, use_cache=False).logits.softmax(-1) for model in (target, draft))
    return torch.minimum(p, q).sum(-1).mean().item()


def mean_acceptance_length(sequences: list[GeneratedSequence]) -> float:
    """1 + accepted / row-rounds, over all of them."""
    accepted = sum(s.stats.accepted for s in sequences)
    return 1 + accepted / sum(s.stats.row_rounds for s in sequences)


def load_float32(directory: Path) -> Qwen3ForCausalLM:
    """The stored weights as they are used."""
    return Qwen3ForCausalLM.from_pretrained(str(directory)).float().eval()


def evaluate(out: Path, k: int, max_new_tokens: int) -> dict:
    """Losses (target, draft) and greedy acceptance of the exported pair, its stored weights loaded as float32."""
    pair = load_pair(out / "target", out / "draft")
    prompts = read_prompts(out / "prompts.jsonl")
    settings: dict[str, Any] = {"num_speculative_tokens": k, "max_new_tokens": max_new_tokens, "checks": "off"}
    sequences = generate(pair, prompts, method="inplace", batch_size=8, **settings).sequences
    loops = [is_loop(s.token_ids) for s in sequences]
    per_prompt = torch.tensor([s.stats.mean_acceptance_length for s in sequences])
    documents, models = read_corpus(), [load_float32(out / name) for name in ("target", "draft")]
    parts = [token_stream(pair.tokenizer, [d for d in documents if d.held_out == h], 0) for h in (False, True)]
    return {
        "mean_acceptance_length": mean_acceptance_length(sequences),
        "mean_acceptance_length_no_loops": mean_acceptance_length(
            [s for s, loop in zip(sequences, loops, strict=True) if not loop]
        ),
        "num_accepted_histogram": [sum(s.stats.histogram[n] for s in sequences) for n in range(k + 1)],
        "per_prompt_quantiles": per_prompt.quantile(torch.tensor([0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0])).tolist(),
        "continuations": {
            "all": len(sequences),
            "loops": sum(loops),
            "stopped": sum(s.stop_reason == "stop" for s in sequences),
        },
        "train_loss": [held_out_loss(model, parts[0]) for model in models],
        "held_out_loss": [held_out_loss(model, parts[1]) for model in models],
        "sampling_overlap": sampling_overlap(models[0], models[1], parts[1]),
        "num_parameters": [model.num_parameters() for model in models],
    }
