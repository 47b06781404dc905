"""Train the draft head of the bundled target, which stays as it is.

    python -m tools.train_tiny.head --out refimpl/pairs/tiny/head.safetensors

The target's hidden states are collected along its own greedy continuations of training prompts, and along training
text. From one of these states the head is unrolled over the tokens that follow. At each step it learns the
distribution that the target has there, and the target's choice once more.
"""

import argparse
import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoTokenizer, DynamicCache, Qwen3ForCausalLM

from refimpl.calibrate.documents import read_corpus
from refimpl.core.errors import InputError
from refimpl.core.files import whole_file
from refimpl.models.block_cache import call_with_cache
from refimpl.models.head import RegressiveBlock
from refimpl.pairs.heads import save_head
from refimpl.pairs.names import TINY
from tools.train_tiny.corpus import token_stream, windows
from tools.train_tiny.evaluation import load_float32
from tools.train_tiny.models import progress
from tools.train_tiny.settings import Config


@dataclass(frozen=True)
class HeadConfig:
    """What decides the result, beside the settings of the pair.

    Attributes:
        width: of the head's inner layer.
        text_batches: of 16 × 255 tokens of training text.
        steps: of training.
        batch: states of a step, from one batch of rows.
        depth: tokens that a state is unrolled over.
        lr: highest learning rate.
        hard_weight: share of the loss on the target's choice, where the text is its own.
        decay: weight of a step of the head over that of the step before.
    """

    width: int = 512
    text_batches: int = 20
    steps: int = 2000
    batch: int = 128
    depth: int = 5
    lr: float = 2e-3
    hard_weight: float = 0.5
    decay: float = 0.9


@dataclass(frozen=True)
class Walk:
    """Rows of tokens, and the target's hidden states behind each of them.

    The states at positions from `greedy_from` on are those that the target chose a token from.
    """

    ids: Tensor  # [rows, time]
    states: Tensor  # [rows, time, hidden], float16
    greedy_from: int

    @property
    def is_greedy(self) -> bool:
        """Whether some of the tokens are the target's own."""
        return self.greedy_from < self.ids.shape[1]

    def sample(self, count: int, depth: int) -> tuple[Tensor, Tensor]:
        """Random stretches of depth + 1 tokens, and their states.  # [count, depth + 1], [count, depth + 1, hidden]"""
        rows, length = self.ids.shape
        first = self.greedy_from if self.is_greedy else 0
        row, start = torch.randint(rows, (count, 1)), torch.randint(first, length - depth, (count, 1))
        at = start + torch.arange(depth + 1)
        return self.ids[row, at].long(), self.states[row, at].float()


@torch.no_grad()
def walk(target: Qwen3ForCausalLM, prompts: Tensor, new_tokens: int) -> Walk:
    """Continue prompts greedily.  # [rows, time]"""
    cache, ids, states = DynamicCache(config=target.config), prompts, []
    for step in range(new_tokens + 1):
        fresh = ids if step == 0 else ids[:, -1:]
        output = call_with_cache(target.model, cache, input_ids=fresh)
        states.append(output.last_hidden_state)
        if step < new_tokens:
            ids = torch.cat([ids, target.lm_head(states[-1][:, -1:]).argmax(-1)], dim=1)
    return Walk(ids, torch.cat(states, dim=1).half(), prompts.shape[1] - 1 if new_tokens else prompts.shape[1])


def walks(config: Config, head: HeadConfig, target: Qwen3ForCausalLM, work: Path) -> list[Walk]:
    """Greedy continuations, whose prompt lengths take turns, then text; kept in `work`."""
    path, settings = work / "walks.pt", asdict(config) | {"text_batches": head.text_batches}
    if path.exists():
        return kept_walks(path, settings)
    tokenizer = AutoTokenizer.from_pretrained(str(TINY / "target"))
    train = token_stream(tokenizer, [d for d in read_corpus() if not d.held_out], config.seed)
    found = []
    for number in range(config.greedy_batches):
        length = config.greedy_prompt_lens[number % len(config.greedy_prompt_lens)]
        prompts = windows(train, config.greedy_batch, length, config.seed, -2, number)[:, :length]
        found.append(walk(target, prompts, config.greedy_new_tokens))
        print(f"{time.strftime('%H:%M:%S')} continued {number + 1}/{config.greedy_batches}", flush=True)
    found += [walk(target, windows(train, 16, 255, config.seed, -3, i), 0) for i in range(head.text_batches)]
    work.mkdir(parents=True, exist_ok=True)
    keep_walks(path, settings, found)
    return found


def keep_walks(path: Path, settings: dict[str, Any], found: list[Walk]) -> None:
    """Write walks, and the settings they were made with."""
    with whole_file(path, "wb") as file:
        torch.save({"settings": settings, "walks": [tuple(vars(each).values()) for each in found]}, file)


def kept_walks(path: Path, settings: dict[str, Any]) -> list[Walk]:
    """Read walks.

    Raises:
        InputError: they were made with other settings.
    """
    kept = torch.load(path)
    if not isinstance(kept, dict) or kept["settings"] != settings:
        raise InputError(f"{path} was made with other settings; delete it to start afresh")
    return [Walk(*fields) for fields in kept["walks"]]


def head_loss(
    head: HeadConfig, block: RegressiveBlock, lm_head: Tensor, ids: Tensor, states: Tensor, hard: float
) -> Tensor:
    """Cross-entropy of the unrolled head against the target, a share of it against the target's choice.

    # lm_head [vocab, hidden], ids [n, depth + 1], states [n, depth + 1, hidden]
    """
    state, total = states[:, 0], torch.zeros(())
    for depth in range(1, head.depth + 1):
        state = block(state, lm_head[ids[:, depth]])
        found, wanted = (state @ lm_head.T).log_softmax(-1), (states[:, depth] @ lm_head.T).softmax(-1)
        best = found.gather(-1, wanted.argmax(-1, keepdim=True)).mean()
        total = total - head.decay ** (depth - 1) * ((1 - hard) * (wanted * found).sum(-1).mean() + hard * best)
    return total / head.depth


def train_head(head: HeadConfig, target: Qwen3ForCausalLM, found: list[Walk], seed: int) -> RegressiveBlock:
    """Three steps of four on greedy continuations; the rate falls to zero."""
    torch.manual_seed(seed)
    chooser, lm_head = random.Random(seed), target.lm_head.weight.detach()
    block = RegressiveBlock(target.config.hidden_size, head.width)
    greedy, text = ([each for each in found if each.is_greedy == own] for own in (True, False))
    optimiser = torch.optim.AdamW(block.parameters(), lr=head.lr, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = LambdaLR(optimiser, lambda step: min(1, (step + 1) / 50) * (1 - step / head.steps))
    for step in range(head.steps):
        own = step % 4 > 0
        sample = chooser.choice(greedy if own else text).sample(head.batch, head.depth)
        loss = head_loss(head, block, lm_head, *sample, head.hard_weight if own else 0.0)
        loss.backward()
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
        if (step + 1) % 100 == 0:
            progress(f"head step {step + 1}/{head.steps}", loss.item(), "" if own else "(text)")
    return block


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="file of the head")
    parser.add_argument("--work", type=Path, default=Path(".work/head"), help="hidden states; delete to start afresh")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config, head, target = Config(), HeadConfig(), load_float32(TINY / "target")
    try:
        found = walks(config, head, target, arguments.work)
    except InputError as error:
        parser.error(str(error))
    block = train_head(head, target, found, config.seed)
    save_head(arguments.out, block, target)


if __name__ == "__main__":
    main()
