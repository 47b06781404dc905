"""Why the published methods return wrong texts: each rebuilt, and run on the bundled pair."""

from collections.abc import Callable
from typing import Any

import torch

import refimpl
from refimpl.conformance.protocol import EngineSettings
from refimpl.core.tokens import first_difference
from refimpl.faults.published import MaskingEngine, UnmaskedEngine
from refimpl.pairs.names import TINY
from refimpl.prompts import read_prompts

NUM_PROMPTS, NEW_TOKENS, NUM_DRAFTS = 64, 16, 5
SETTINGS = EngineSettings(max_new_tokens=NEW_TOKENS, num_speculative_tokens=NUM_DRAFTS, stop_token_ids=())
Rows = list[list[int]]  # tokens of each prompt, or generated for it
Run = Callable[[Rows], Rows]


def measure() -> list[dict[str, Any]]:
    """Exact and partial matches with ordinary decoding at batch 1 and 4, a line for each method."""
    pair = refimpl.load_pair("tiny")
    texts = [str(text) for text in read_prompts(TINY / "prompts.jsonl", limit=NUM_PROMPTS)]
    prompts = [pair.tokenizer(text)["input_ids"] for text in texts]
    plain, whole = (
        _ours(pair, "autoregressive")(prompts),
        [_transformers(pair, whole=True)([row])[0] for row in prompts],
    )
    return [_line(name, run, prompts, whole if "pads" in name else plain) for name, run in _methods(pair).items()]


def _methods(pair: Any) -> dict[str, Run]:
    """Method -> what it makes of a batch."""
    target, draft = pair.target.model, pair.require_draft().model
    masking = (MaskingEngine(target, draft, explicit_positions=explicit) for explicit in (False, True))
    shipped, with_positions, unmasked = *masking, UnmaskedEngine(target, draft)
    return {
        "DSD as shipped": lambda batch: unmasked(batch, SETTINGS),
        "BSP as shipped": lambda batch: shipped(batch, SETTINGS),
        "BSP with positions": lambda batch: with_positions(batch, SETTINGS),
        "transformers, texts with their pads": _transformers(pair, whole=True),
        "transformers, generated tokens": _transformers(pair, whole=False),
        "EQSPEC": _ours(pair, "eqspec"),
        "EXSPEC": _ours(pair, "exspec"),
    }


def _ours(pair: Any, method: str) -> Run:
    """The engine."""

    def run(batch: Rows) -> Rows:
        settings: dict[str, Any] = {"max_new_tokens": NEW_TOKENS, "stop_token_ids": (), "checks": "off"}
        if method != "autoregressive":
            settings |= {"batch_size": len(batch), "num_speculative_tokens": NUM_DRAFTS}
        return [row.token_ids for row in refimpl.generate(pair, batch, method=method, **settings).sequences]

    return run


def _transformers(pair: Any, *, whole: bool) -> Run:
    """Greedy generation of transformers, padded on the left; the whole rows or what is generated."""

    def run(batch: Rows) -> Rows:
        width, pad = max(map(len, batch)), pair.tokenizer.pad_token_id
        ids = torch.tensor([[pad] * (width - len(row)) + row for row in batch])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in batch])
        out = pair.target.model.generate(
            ids, attention_mask=mask, max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=pad
        )
        return (out if whole else out[:, width:]).tolist()

    return run


def _line(name: str, run: Run, prompts: Rows, expected: Rows) -> dict[str, Any]:
    """Percent of the outputs that are equal, and mean percent of their tokens before they differ."""
    line: dict[str, Any] = {"method": name, "prompts": len(prompts)}
    for size in (1, 4):
        batches = [prompts[start : start + size] for start in range(0, len(prompts), size)]
        found = [row for batch in batches for row in run(batch)]
        shares = [_common(*pair) for pair in zip(found, expected, strict=True)]
        line[f"exact_{size}"] = 100 * sum(share == 1 for share in shares) / len(shares)
        line[f"partial_{size}"] = 100 * sum(shares) / len(shares)
    return line


def _common(found: list[int], expected: list[int]) -> float:
    """Share of the expected tokens that come before the first difference."""
    at = first_difference(found, expected)
    return 1.0 if at is None else at / max(len(expected), len(found))
