"""Muon for matrices, AdamW for the rest."""

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from tools.train_tiny.settings import Config


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
