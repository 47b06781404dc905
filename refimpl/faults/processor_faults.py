"""Processors of logits that read another text than that of their row and position, or another row's settings."""

from copy import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from refimpl.core.sequence import Sequence
from refimpl.decoding import processors
from refimpl.decoding.grammars import GrammarProcessor
from refimpl.decoding.processors import Texts, TokenTable
from refimpl.faults.base import fault, result_changed
from refimpl.models.table_model import VOCAB_SIZE
from refimpl.selfcheck.state_machine import StateMachine

PENALTIES = {"own": ({"repetition_penalty": 1.8}, {"repetition_penalty": 0.6, "presence_penalty": 1.0})}
IN_TURN = [dict.fromkeys(range(state, VOCAB_SIZE, 3), (state + 1) % 3) for state in range(3)]  # every third token
GRAMMAR = {"own": ({"grammar": StateMachine(IN_TURN, (), VOCAB_SIZE)},)}


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


@fault(processors, "penalized", "report", None, settings=PENALTIES, sources=("vllm-project/vllm#30846",))
@result_changed
def logprob_after_processing(right: Tensor, logits: Tensor, *_: Any) -> Tensor:
    """Penalties change the logits in place, and log-probabilities are read from them afterwards.

    Texts are right; scores depend on the settings of the request, and are not the model's.
    """
    return logits.copy_(right)


@fault(
    Texts,
    "used",
    "output",
    "INV-25",
    settings=GRAMMAR,
    sources=("vllm-project/vllm#44006", "vllm-project/vllm#44292", "vllm-project/vllm#44297"),
)
@result_changed
def bonus_row_unmasked(right: range, texts: Texts, *_: Any) -> range:
    """The grammar does not mask the position behind the last draft.

    JSON breaks where all drafts were accepted: the next token is any.
    """
    return right[:-1] if len(texts.before) > 1 else right


@fault(
    GrammarProcessor,
    "roll_back",
    "output",
    "INV-25",
    settings=GRAMMAR,
    sources=("vllm-project/vllm#46272", "vllm-project/vllm#53777"),
)
def matcher_not_rolled_back(original: Any) -> Any:
    """The matcher of a grammar stays behind drafts that were rejected.

    After a rejection the text goes on as if the rejected tokens were in it: brackets close twice, or never.
    """

    def roll_back(self: GrammarProcessor, count: int) -> None:
        del self._read[len(self._read) - count :]

    return roll_back
