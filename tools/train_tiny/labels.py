"""What the draft learns from: blocks of tokens with what the target thinks of them."""

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from tools.train_tiny.corpus import windows
from tools.train_tiny.head import walk
from tools.train_tiny.models import build, logits_of
from tools.train_tiny.settings import Config


@dataclass(frozen=True)
class Block:
    """Equal-length sequences with the target's most likely tokens after each position."""

    ids: Tensor  # [batch, time]
    top_ids: Tensor  # [batch, time, top]
    top_logp: Tensor  # [batch, time, top], float16
    greedy_from: int  # positions from here on predict a token that the target chose


@torch.no_grad()
def label(target: Qwen3ForCausalLM, ids: Tensor, greedy_from: int, top: int) -> Block:
    """The target's `top` log-probabilities at every position of `ids`.  # [batch, time]"""
    logp, top_ids = logits_of(target, ids).log_softmax(-1).topk(top)
    return Block(ids.short(), top_ids.short(), logp.half(), greedy_from)


def greedy_block(config: Config, target: Qwen3ForCausalLM, train: Tensor, number: int) -> Block:
    """Labelled greedy continuations of training prompts; the lengths take turns."""
    length = config.greedy_prompt_lens[number % len(config.greedy_prompt_lens)]
    prompts = windows(train, config.greedy_batch, length, config.seed, -2, number)[:, :length]
    ids = walk(target, prompts, config.greedy_new_tokens).ids[:, :-1]
    return label(target, ids, length - 1, config.teacher_top)


def labelled_blocks(config: Config, target: Qwen3ForCausalLM, train: Tensor, work: Path) -> list[Block]:
    """Distillation data, first the greedy continuations, then text windows; kept in `work/blocks.pt`."""
    path, total = work / "blocks.pt", config.greedy_batches + config.text_blocks
    blocks = [Block(*fields) for fields in torch.load(path)] if path.exists() else []
    plain = build(target.config, config.seed, compiled=False)
    plain.load_state_dict(target.state_dict())
    for i in range(len(blocks), total):
        if i < config.greedy_batches:
            blocks.append(greedy_block(config, plain, train, i))
        else:
            ids = windows(train, 16, 255, config.seed, -3, i)
            blocks.append(label(plain, ids, ids.size(1), config.teacher_top))
        if (i + 1) % 5 == 0 or i + 1 == total:
            print(f"{time.strftime('%H:%M:%S')} labelled block {i + 1}/{total}", flush=True)
            torch.save([tuple(vars(block).values()) for block in blocks], path)
    return blocks


def relabel(config: Config, target: Qwen3ForCausalLM, blocks: list[Block]) -> list[Block]:
    """The same sequences with the aligned target's distributions."""
    return [label(target, block.ids.long(), block.greedy_from, config.teacher_top) for block in blocks]
