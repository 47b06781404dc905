"""Train the bundled pair on text that every Python installation carries.

    python -m refimpl.pairs.train_tiny --out DIR              # everything, resumes from --work
    python -m refimpl.pairs.train_tiny --out DIR --evaluate   # measure an exported pair
    python -m refimpl.pairs.train_tiny --out DIR --quick      # minutes: the same path, hardly any training

Steps: corpus → tokenizer → target (a shallow stack, then grown) → draft (text, then distillation) → alignment
of the target → draft again → export.
The target's matrices are trained with Muon (orthogonalised momentum), everything else with AdamW. The draft
learns from two kinds of block labelled by the target: corpus text, and the target's own greedy continuations
of training prompts, which are the contexts that decide acceptance under greedy decoding.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import math
import platform
import random
import re
import sysconfig
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from refimpl.generation import GeneratedSequence, generate
from refimpl.pairs.loading import load_pair
from refimpl.prompts import read_prompts

EOS, PAD = "<|endoftext|>", "<|pad|>"
EOS_ID, PAD_ID = 0, 1
SKIPPED_PARTS = {
    "site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "ensurepip", "turtledemo",
    "distutils", "tkinter", "encodings", "pydoc_data", "__pycache__",
}  # fmt: skip
SKIPPED_FILES = re.compile(r"^(_sysconfigdata.*|html/entities|config-.*/.*)\.py$")


@dataclass(frozen=True)
class Stage:
    """One stretch of target training: depth, length, batch shape, learning-rate scale from begin to end."""

    num_layers: int
    steps: int
    batch_size: int
    seq_len: int
    lr_begin: float
    lr_end: float


@dataclass(frozen=True)
class Config:
    """Everything that decides the result besides the corpus and the library versions."""

    seed: int = 0
    vocab_size: int = 2048
    stages: tuple[Stage, ...] = (
        Stage(6, 1000, 16, 256, 1.0, 1.0),
        Stage(12, 200, 16, 256, 1.0, 1.0),
        Stage(24, 100, 16, 256, 1.0, 1.0),
        Stage(24, 200, 16, 256, 1.0, 0.1),
        Stage(24, 25, 8, 512, 0.1, 0.02),
    )
    muon_lr: float = 0.02
    adam_lr: float = 3e-3
    weight_decay: float = 0.01
    warmup_steps: int = 50
    draft_text_steps: int = 600
    draft_batch: int = 16
    text_blocks: int = 40  # of 16 × 256 tokens
    greedy_prompt_lens: tuple[int, ...] = (8, 24, 48, 96, 160)
    greedy_batches: int = 20  # of greedy_batch continuations, cycling through the prompt lengths
    greedy_batch: int = 128
    greedy_new_tokens: int = 64
    teacher_top: int = 32
    hard_weight: float = 0.6  # share of the hard loss on greedily continued positions
    distil_steps: int = 2000
    align_steps: int = 100
    align_weight: float = 0.8  # of the draft's log-probabilities in what the target is aligned to
    redistil_steps: int = 800
    num_prompts: int = 96


QUICK = Config(
    stages=(Stage(6, 60, 16, 256, 1.0, 1.0), Stage(12, 4, 16, 256, 1.0, 1.0), Stage(24, 6, 16, 256, 0.5, 0.1)),
    draft_text_steps=60,
    text_blocks=2,
    greedy_batches=2,
    greedy_batch=16,
    distil_steps=10,
    align_steps=3,
    redistil_steps=3,
)


@dataclass(frozen=True)
class Document:
    """One text with the module it comes from, e.g. `email/message.py`, and whether that module is held out."""

    source: str
    text: str
    held_out: bool = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha256(self.source.encode()).digest()
        object.__setattr__(self, "held_out", digest[0] % 20 == 0)


# ---------------------------------------------------------------- corpus and tokenizer


def docstrings(source: str) -> list[str]:
    """Docstrings of at least 80 characters of a module, its classes and functions, in source order."""
    nodes = ast.walk(ast.parse(source))
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [ast.get_docstring(node) for node in nodes if isinstance(node, kinds)]
    return [text + "\n" for text in found if text and len(text) >= 80]


def corpus() -> list[Document]:
    """Standard-library sources, their docstrings as short documents, and the `pydoc` help topics."""
    root = Path(sysconfig.get_paths()["stdlib"])
    documents = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if SKIPPED_PARTS & set(name.split("/")) or SKIPPED_FILES.match(name):
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        if text.strip():
            documents += [Document(name, text), *(Document(name, doc) for doc in docstrings(text))]
    from pydoc_data.topics import topics

    documents += [Document(f"pydoc_data/topics/{key}", topics[key]) for key in sorted(topics)]
    return documents


def corpus_hash(documents: list[Document]) -> str:
    """SHA-256 over names and texts in order."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(f"{document.source}\0{document.text}\0".encode())
    return digest.hexdigest()


def train_tokenizer(documents: list[Document], config: Config) -> PreTrainedTokenizerFast:
    """Byte-level BPE on the training part; ids 0 and 1 are the stop and the pad token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        special_tokens=[EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((d.text for d in documents if not d.held_out), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=EOS, pad_token=PAD, clean_up_tokenization_spaces=False
    )


def token_stream(tokenizer: PreTrainedTokenizerFast, documents: list[Document], seed: int) -> Tensor:
    """All documents in a fixed shuffle, each followed by the stop token.  # [tokens]"""
    order = list(documents)
    random.Random(seed).shuffle(order)
    encoded = tokenizer([d.text for d in order], add_special_tokens=False).input_ids
    return torch.tensor([token for ids in encoded for token in [*ids, EOS_ID]])


def windows(stream: Tensor, batch_size: int, seq_len: int, *key: int) -> Tensor:
    """Random windows, a function of `key` alone, so a resumed run sees the same data.  # [batch, seq_len + 1]"""
    seed = int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:7], "big")
    starts = torch.randint(len(stream) - seq_len, (batch_size, 1), generator=torch.Generator().manual_seed(seed))
    return stream[starts + torch.arange(seq_len + 1)]


# ---------------------------------------------------------------- models and optimiser


def target_config(config: Config, num_layers: int) -> Qwen3Config:
    """Deep and thin: at 24 layers 9.8 M parameters."""
    return _qwen3(config, num_layers, hidden_size=192, intermediate_size=512, num_attention_heads=6)


def draft_config(config: Config) -> Qwen3Config:
    """One layer, just under 1 M parameters, over half of them the tied embedding."""
    return _qwen3(config, 1, hidden_size=256, intermediate_size=384, num_attention_heads=8)


def _qwen3(config: Config, num_layers: int, **shape: Any) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=config.vocab_size,
        num_hidden_layers=num_layers,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
        use_sliding_window=False,
        bos_token_id=None,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
        **shape,
    )


def build(config: Qwen3Config, seed: int, compiled: bool) -> Qwen3ForCausalLM:
    """A freshly initialised model; with `compiled` its layers share one compiled graph (needs a C++ compiler)."""
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config)
    model.set_attn_implementation("eager")  # compiled, it trains faster on a CPU than the fused kernel
    for layer in model.model.layers if compiled else ():
        layer.compile()
    return model


def grow(state: dict[str, Tensor], num_layers: int) -> dict[str, Tensor]:
    """Stack the trained block of layers on itself: layer i of the deeper model is layer i mod depth."""
    pattern = re.compile(r"model\.layers\.(\d+)\.")
    depth = 1 + max(int(m.group(1)) for m in map(pattern.match, state) if m)
    grown = {name: tensor for name, tensor in state.items() if not pattern.match(name)}
    for i in range(num_layers):
        prefix = f"model.layers.{i % depth}."
        grown |= {f"model.layers.{i}." + n[len(prefix) :]: t for n, t in state.items() if n.startswith(prefix)}
    return grown


def orthogonalise(matrices: Tensor) -> Tensor:
    """Five quintic Newton–Schulz steps (Jordan et al. 2024, "Muon") on a batch of matrices.  # [n, rows, cols]"""
    transpose = matrices.size(1) > matrices.size(2)
    x = (matrices.mT if transpose else matrices).bfloat16()
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        poly = torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315)
        x = torch.baddbmm(x, poly, x, beta=3.4445)
    return (x.mT if transpose else x).float()


class Optimiser:
    """Muon for the matrices of the layers, batched by shape; AdamW for embeddings and gains."""

    def __init__(self, model: Qwen3ForCausalLM, config: Config) -> None:
        self.config = config
        self.groups: dict[tuple[int, ...], list[torch.nn.Parameter]] = {}
        rest = []
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and ".layers." in name:
                self.groups.setdefault(tuple(parameter.shape), []).append(parameter)
            else:
                rest.append(parameter)
        self.momentum = {shape: torch.zeros(len(g), *shape) for shape, g in self.groups.items()}
        self.adam = torch.optim.AdamW(rest, lr=config.adam_lr, betas=(0.9, 0.95), weight_decay=0.0)

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """One update at `scale` times the configured learning rates; clears the gradients."""
        lr = self.config.muon_lr * scale
        for (rows, cols), group in self.groups.items():
            grad = torch.stack([p.grad for p in group if p.grad is not None])
            momentum = self.momentum[rows, cols].lerp_(grad, 0.05)
            update = orthogonalise(grad.lerp_(momentum, 0.95)) * max(1.0, rows / cols) ** 0.5
            for parameter, delta in zip(group, update, strict=True):
                parameter.mul_(1 - lr * self.config.weight_decay).add_(delta, alpha=-lr)
                parameter.grad = None
        for adam_group in self.adam.param_groups:
            adam_group["lr"] = self.config.adam_lr * scale
        self.adam.step()
        self.adam.zero_grad()

    def state_dict(self) -> dict:
        """Momentum of both parts."""
        return {"momentum": self.momentum, "adam": self.adam.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        """Counterpart of `state_dict`."""
        self.momentum = state["momentum"]
        self.adam.load_state_dict(state["adam"])


def logits_of(model: Qwen3ForCausalLM, ids: Tensor) -> Tensor:
    """float32 logits computed under bfloat16 autocast.  # [batch, time] → [batch, time, vocab]"""
    with torch.autocast("cpu", torch.bfloat16):
        return model(input_ids=ids, use_cache=False).logits.float()


def text_loss(model: Qwen3ForCausalLM, batch: Tensor) -> Tensor:
    """Mean next-token cross-entropy in nats.  # [batch, time + 1]"""
    return F.cross_entropy(logits_of(model, batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(model: Qwen3ForCausalLM, stream: Tensor, batches: int = 8) -> float:
    """`text_loss` over fixed random windows of 16 × 256 tokens."""
    return sum(text_loss(model, windows(stream, 16, 256, -1, i)).item() for i in range(batches)) / batches


# ---------------------------------------------------------------- target


def lr_scale(stage: Stage, step: int, warmup_steps: int) -> float:
    """Linear from lr_begin to lr_end, after a linear warm-up."""
    slope = stage.lr_begin + (stage.lr_end - stage.lr_begin) * step / stage.steps
    return slope * min(1.0, (step + 1) / warmup_steps)


@dataclass
class TargetRun:
    """Training of the target through the stages, resumable from `path`."""

    config: Config
    train: Tensor  # [tokens]
    held: Tensor  # [tokens]
    path: Path
    compiled: bool

    def run(self) -> Qwen3ForCausalLM:
        """All stages left to do; a deeper stage starts from the stacked shallower model."""
        saved = torch.load(self.path, weights_only=True) if self.path.exists() else None
        number, step = (saved["stage"], saved["step"]) if saved else (0, 0)
        model = self.model_at(number, saved["model"] if saved else None)
        optimiser = Optimiser(model, self.config)
        if saved:
            optimiser.load_state_dict(saved["optimiser"])
        while True:
            self.run_stage(number, step, model, optimiser)
            number, step = number + 1, 0
            if number == len(self.config.stages):
                return model
            if self.deepens(number):
                model = self.model_at(number, model.state_dict())
                optimiser = Optimiser(model, self.config)

    def deepens(self, number: int) -> bool:
        """Whether the stage starts a new depth, with a fresh optimiser and a warm-up."""
        depths = [stage.num_layers for stage in self.config.stages[: number + 1]]
        return number == 0 or depths[-1] != depths[-2]

    def model_at(self, number: int, state: dict[str, Tensor] | None) -> Qwen3ForCausalLM:
        """The model of a stage, from a state of the same or of a smaller depth."""
        num_layers = self.config.stages[number].num_layers
        model = build(target_config(self.config, num_layers), self.config.seed, self.compiled)
        if state:
            model.load_state_dict(grow(state, num_layers))
        return model

    def run_stage(self, number: int, first: int, model: Qwen3ForCausalLM, optimiser: Optimiser) -> None:
        """Train one stage from step `first`, printing every 20 steps, saving every 100 and at its end."""
        stage, started = self.config.stages[number], time.perf_counter()
        warmup = self.config.warmup_steps if self.deepens(number) else 1
        for step in range(first, stage.steps):
            batch = windows(self.train, stage.batch_size, stage.seq_len, self.config.seed, number, step)
            loss = text_loss(model, batch)
            loss.backward()
            optimiser.step(lr_scale(stage, step, warmup))
            if (step + 1) % 20 == 0:
                rate = (step + 1 - first) * stage.batch_size * stage.seq_len / (time.perf_counter() - started)
                label = f"target {stage.num_layers} layers, step {step + 1}/{stage.steps}"
                progress(label, loss.item(), f"{rate:.0f} tokens/s")
            if (step + 1) % 100 == 0 or step + 1 == stage.steps:
                self.save(number, step + 1, model, optimiser)
                progress("  held out", held_out_loss(model, self.held))

    def save(self, number: int, step: int, model: Qwen3ForCausalLM, optimiser: Optimiser) -> None:
        """Replace the checkpoint as a whole."""
        state = {"stage": number, "step": step, "model": model.state_dict(), "optimiser": optimiser.state_dict()}
        torch.save(state, self.path.with_suffix(".new"))
        self.path.with_suffix(".new").replace(self.path)


def progress(label: str, loss: float, note: str = "") -> None:
    """One line with the time of day."""
    print(f"{time.strftime('%H:%M:%S')} {label} loss {loss:.3f} {note}", flush=True)


# ---------------------------------------------------------------- draft


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


@torch.no_grad()
def continue_greedily(target: Qwen3ForCausalLM, prompts: Tensor, new_tokens: int) -> Tensor:
    """Prompts with the target's greedy continuation; does not stop at stop tokens.  # [batch, time]"""
    cache, ids = None, prompts
    for _ in range(new_tokens):
        fresh = ids if cache is None else ids[:, -1:]
        output = target(input_ids=fresh, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = output.past_key_values
        ids = torch.cat([ids, output.logits[:, -1:].argmax(-1)], dim=1)
    return ids


def greedy_block(config: Config, target: Qwen3ForCausalLM, train: Tensor, number: int) -> Block:
    """Labelled greedy continuations of training prompts; the lengths take turns."""
    length = config.greedy_prompt_lens[number % len(config.greedy_prompt_lens)]
    prompts = windows(train, config.greedy_batch, length, config.seed, -2, number)[:, :length]
    ids = continue_greedily(target, prompts, config.greedy_new_tokens)[:, :-1]
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


def distillation_loss(draft: Qwen3ForCausalLM, block: Block, rows: Tensor, hard_weight: float) -> Tensor:
    """Cross-entropy against the target's renormalised top; its first choice counts extra where it is greedy."""
    logp = logits_of(draft, block.ids[rows].long()).log_softmax(-1)
    chosen = logp.gather(-1, block.top_ids[rows].long())
    soft = -(block.top_logp[rows].float().softmax(-1) * chosen).sum(-1)
    hard = torch.where(torch.arange(soft.size(1)) >= block.greedy_from, hard_weight, 0.0)
    return ((1 - hard) * soft - hard * chosen[..., 0]).mean()


def train_draft_on_text(config: Config, train: Tensor, held: Tensor, work: Path, compiled: bool) -> dict:
    """First part of the draft's training: plain text.  Returns the state, kept in `work/draft_text.pt`."""
    path = work / "draft_text.pt"
    if path.exists():
        return torch.load(path, weights_only=True)
    draft = build(draft_config(config), config.seed, compiled)
    optimiser = Optimiser(draft, config)
    for step in range(config.draft_text_steps):
        loss = text_loss(draft, windows(train, config.draft_batch, 256, config.seed, -4, step))
        loss.backward()
        optimiser.step(min(1.0, (step + 1) / config.warmup_steps))
        if (step + 1) % 50 == 0:
            progress(f"draft text step {step + 1}/{config.draft_text_steps}", loss.item())
    progress("  held out", held_out_loss(draft, held))
    torch.save(draft.state_dict(), path)
    return draft.state_dict()


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


def relabel(config: Config, target: Qwen3ForCausalLM, blocks: list[Block]) -> list[Block]:
    """The same sequences with the aligned target's distributions."""
    return [label(target, block.ids.long(), block.greedy_from, config.teacher_top) for block in blocks]


# ---------------------------------------------------------------- export


def choose_prompts(config: Config, tokenizer: PreTrainedTokenizerFast, documents: list[Document]) -> list[dict]:
    """Held-out prompts of 5 to 300 tokens, log-uniform; every third one leads up to a document's end."""
    rng = random.Random(config.seed)
    held = [d for d in documents if d.held_out]
    kinds = [[d for d in held if d.text.count("\n") > 60], [d for d in held if len(d.text) < 1500]]
    prompts: dict[str, str] = {}
    while len(prompts) < config.num_prompts:
        near_end = len(prompts) % 3 == 2
        document = rng.choice(kinds[near_end])
        ids = tokenizer(document.text, add_special_tokens=False).input_ids
        length = round(math.exp(rng.uniform(math.log(5), math.log(300))))
        last = len(ids) - length - rng.randint(8, 40)
        if last < 0:
            continue
        start = last if near_end else rng.randint(0, last)
        prompt = str(tokenizer.decode(ids[start : start + length]))
        if 5 <= len(tokenizer(prompt).input_ids) <= 300 and "\ufffd" not in prompt and prompt.strip():
            prompts[prompt] = document.source
    lines = [{"prompt": prompt, "source": source} for prompt, source in prompts.items()]
    rng.shuffle(lines)
    return lines


def export_model(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, directory: Path) -> None:
    """Weights in bfloat16, configuration, stop token and tokenizer, as `from_pretrained` expects them."""
    plain = Qwen3ForCausalLM(model.config)
    plain.load_state_dict(model.state_dict())
    plain.generation_config = GenerationConfig(do_sample=False, eos_token_id=EOS_ID, pad_token_id=PAD_ID)
    plain.bfloat16().save_pretrained(directory)
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokenizer.save_pretrained(directory)


def train_pair(config: Config, out: Path, work: Path, compiled: bool) -> None:
    """All of it, then the exported pair, its prompts and the record of the run (`work/record.json`)."""
    documents = corpus()
    tokenizer = train_tokenizer(documents, config)
    train = token_stream(tokenizer, [d for d in documents if not d.held_out], config.seed)
    held = token_stream(tokenizer, [d for d in documents if d.held_out], config.seed)
    print(f"{len(documents)} documents, {len(train)} training tokens, {len(held)} held out", flush=True)
    work.mkdir(parents=True, exist_ok=True)
    target = TargetRun(config, train, held, work / "target.pt", compiled).run()
    state = train_draft_on_text(config, train, held, work, compiled)
    blocks = labelled_blocks(config, target, train, work)
    draft = distil(config, state, blocks, config.distil_steps, held, compiled)
    target = align(config, target, draft, blocks, held)
    draft = distil(config, draft.state_dict(), relabel(config, target, blocks), config.redistil_steps, held, compiled)
    prompts = choose_prompts(config, tokenizer, documents)
    export_model(target, tokenizer, out / "target")
    export_model(draft, tokenizer, out / "draft")
    (out / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in prompts), encoding="utf-8")
    record: dict[str, Any] = {
        "python": platform.python_version(),
        "corpus_sha256": corpus_hash(documents),
        "config": asdict(config),
    }
    record |= {"documents": len(documents), "characters": sum(len(d.text) for d in documents)}
    record |= {"train_tokens": len(train), "held_out_tokens": len(held), "torch": torch.__version__}
    (work / "record.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


# ---------------------------------------------------------------- evaluation


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
    documents, models = corpus(), [load_float32(out / name) for name in ("target", "draft")]
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


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="directory of the exported pair")
    parser.add_argument("--work", type=Path, default=Path(".work/pair"), help="checkpoints; delete to start afresh")
    parser.add_argument("--quick", action="store_true", help="hardly any training")
    parser.add_argument("--no-compile", action="store_true", help="do without a C++ compiler, about 1.3x slower")
    parser.add_argument("--evaluate", action="store_true", help="measure the pair in --out instead of training")
    parser.add_argument("--num-speculative-tokens", type=int, default=5)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    args = parser.parse_args()
    torch.set_num_threads(2)
    config = QUICK if args.quick else Config()
    if args.evaluate:
        print(json.dumps(evaluate(args.out, args.num_speculative_tokens, args.max_new_tokens)))
    else:
        train_pair(config, args.out, args.work, not args.no_compile)


if __name__ == "__main__":
    main()
