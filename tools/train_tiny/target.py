"""The target's training: a shallow stack, then grown."""

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from tools.train_tiny.corpus import windows
from tools.train_tiny.models import build, grow, held_out_loss, progress, target_config, text_loss
from tools.train_tiny.optimiser import Optimiser
from tools.train_tiny.settings import Config, Stage


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
