"""The draft's training: text, then distillation; and the target's alignment to it."""

import random
from pathlib import Path

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from refimpl.core.files import whole_file
from tools.train_tiny.corpus import windows
from tools.train_tiny.labels import Block
from tools.train_tiny.models import build, draft_config, held_out_loss, logits_of, progress, text_loss
from tools.train_tiny.optimiser import Optimiser
from tools.train_tiny.settings import Config

TEXT_LEN = 256  # tokens of a window of text


def text_lr_scale(config: Config, step: int) -> float:
    """A linear warm-up, and linear from 1 to `draft_text_lr_end`."""
    left = 1 - (1 - config.draft_text_lr_end) * step / config.draft_text_steps
    return min(1.0, (step + 1) / config.warmup_steps) * left


def train_draft_on_text(config: Config, train: Tensor, held: Tensor | None, work: Path, compiled: bool) -> dict:
    """First part of the draft's training: plain text.  Returns the state, kept in `work/draft_text.pt`."""
    path = work / "draft_text.pt"
    if path.exists():
        return torch.load(path, weights_only=True)
    draft = build(draft_config(config), config.seed, compiled)
    optimiser = Optimiser(draft, config)
    for step in range(config.draft_text_steps):
        loss = text_loss(draft, windows(train, config.draft_batch, TEXT_LEN, config.seed, -4, step))
        loss.backward()
        optimiser.step(text_lr_scale(config, step))
        if (step + 1) % 50 == 0:
            progress(f"draft text step {step + 1}/{config.draft_text_steps}", loss.item())
    if held is not None:
        progress("  held out", held_out_loss(draft, held))
    with whole_file(path, "wb") as file:
        torch.save(draft.state_dict(), file)
    return draft.state_dict()


def distillation_loss(draft: Qwen3ForCausalLM, block: Block, rows: Tensor, hard_weight: float) -> Tensor:
    """Cross-entropy against the target's renormalised top; its first choice counts extra where it is greedy."""
    logp = logits_of(draft, block.ids[rows].long()).log_softmax(-1)
    chosen = logp.gather(-1, block.top_ids[rows].long())
    soft = -(block.top_logp[rows].float().softmax(-1) * chosen).sum(-1)
    hard = torch.where(torch.arange(soft.size(1)) >= block.greedy_from, hard_weight, 0.0)
    return ((1 - hard) * soft - hard * chosen[..., 0]).mean()


def distil(
    config: Config, state: dict, blocks: list[Block], steps: int, held: Tensor, compiled: bool
) -> Qwen3ForCausalLM:
    """Second part: from the labelled blocks, three steps of four greedy continuations; rate falls to zero."""
    draft = build(draft_config(config), config.seed, compiled)
    draft.load_state_dict(state)
    optimiser = Optimiser(draft, config)
    chooser = random.Random(config.seed)
    greedy, text = blocks[: config.greedy_batches], blocks[config.greedy_batches :]
    for step in range(steps):
        block = chooser.choice(text if step % 4 == 0 else greedy)
        rows = torch.tensor(chooser.sample(range(len(block.ids)), min(config.draft_batch, len(block.ids))))
        loss = distillation_loss(draft, block, rows, config.hard_weight)
        loss.backward()
        optimiser.step(min(1.0, (step + 1) / config.warmup_steps) * (1 - step / steps))
        if (step + 1) % 25 == 0:
            progress(f"distil step {step + 1}/{steps} ({'greedy' if step % 4 else 'text'})", loss.item())
    progress("  held out", held_out_loss(draft, held))
    return draft


def align(
    config: Config, target: Qwen3ForCausalLM, draft: Qwen3ForCausalLM, blocks: list[Block], held: Tensor
) -> Qwen3ForCausalLM:
    """Third part: pull the target towards the draft where it hesitates.

    The target learns the normalised product of its own top distribution and the draft's, to a power: where one token
    is clearly best nothing changes, among near equals the draft's favourite wins. Acceptance rises, at the price of
    some loss.
    """
    model = build(target.config, config.seed, compiled=False)
    model.load_state_dict(target.state_dict())
    optimiser, chooser = Optimiser(model, config), random.Random(config.seed + 1)
    for step in range(config.align_steps):
        block = chooser.choice(blocks)
        rows = torch.tensor(chooser.sample(range(len(block.ids)), min(config.draft_batch, len(block.ids))))
        ids, top = block.ids[rows].long(), block.top_ids[rows].long()
        with torch.no_grad():
            pull = config.align_weight * logits_of(draft, ids).log_softmax(-1).gather(-1, top)
        wanted = (block.top_logp[rows].float() + pull).softmax(-1)
        loss = -(wanted * logits_of(model, ids).log_softmax(-1).gather(-1, top)).sum(-1).mean()
        loss.backward()
        optimiser.step(0.15 * min(1.0, (step + 1) / 20) * (1 - step / config.align_steps))
        if (step + 1) % 20 == 0:
            progress(f"align step {step + 1}/{config.align_steps}", loss.item())
    progress("  held out", held_out_loss(model, held))
    return model
