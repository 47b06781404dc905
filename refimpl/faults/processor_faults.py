"""Processors of logits that read another text than that of their row and position, or another row's settings."""

from copy import copy
from dataclasses import replace
from typing import Any

import torch

from refimpl.core.sequence import Sequence
from refimpl.decoding import processors
from refimpl.decoding.processors import Texts, TokenTable
from refimpl.faults.base import fault, result_changed

PENALTIES = {"own": ({"repetition_penalty": 1.8}, {"repetition_penalty": 0.6, "presence_penalty": 1.0})}


@fault(processors, "texts_of", "output", "INV-23", settings=PENALTIES, sources=("sgl-project/sglang#28179",))
@result_changed
def processor_ignores_drafts(right: Texts, *_: Any) -> Texts:
    """Every position of a verify pass is processed with the committed text, as if it had no drafts before it.

    Penalties seem to be ignored as soon as drafts are accepted: text repeats itself within a round.
    """
    return replace(right, before=torch.zeros_like(right.before))


@fault(
    TokenTable,
    "read",
    "output",
    "INV-23",
    settings=PENALTIES,
    sources=("ml-explore/mlx-lm#990", "ml-explore/mlx-lm#1175"),
)
def processor_history_one_short(original: Any) -> Any:
    """A processor reads the committed text without its last token.

    The token that was just written is not penalised; banned sequences appear, one position late.
    """

    def read(self: TokenTable, row: Sequence) -> Any:
        short = copy(row)
        short.token_ids = row.token_ids[:-1] or row.token_ids
        return original(self, short)

    return read


@fault(processors, "texts_of", "output", "INV-23", settings=PENALTIES, sources=("vllm-project/vllm#31908",))
def processor_row_shifted(original: Any) -> Any:
    """The logits of a row are processed with the text of the row before it.

    With several requests, words are penalised or banned that only a neighbour has used.
    """
    return lambda members, tables, *rest: original(members, tables.roll(1, dims=0), *rest)


@fault(processors, "penalized", "output", None, settings=PENALTIES, sources=("spiritbuun/buun-llama-cpp#110",))
def parameters_of_row_zero(original: Any) -> Any:
    """All rows of a batch have the penalties of its first.

    What a request has asked for depends on who came first; with one request, or equal ones, all is well.
    """
    return lambda logits, texts, penalties: original(logits, texts, penalties[:1].expand_as(penalties))
