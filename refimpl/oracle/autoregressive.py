"""The oracle: one sequence, one token at a time, on the model's own forward pass.

It shares no helper with the batched path: it has its own token choice, its own stop and budget test, and the model's
ordinary cache. It shares only definitions with it, because the coupled rule must reproduce their results: the
random numbers, and which sums count as equal to top-p.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from refimpl.core.config import SamplingConfig
from refimpl.core.errors import InputError
from refimpl.core.sequence import Sequence
from refimpl.decoding.sampling import TIE, Purpose, RowKeys, exponentials
from refimpl.layouts.store import Block, InPool, KVStore
from refimpl.models.adapter import CausalLM, FeedRow
from refimpl.oracle.processing import process, processors_of


def decode(
    feed: FeedRow, sequence: Sequence, vocab_size: int, sampling: SamplingConfig
) -> Iterator[tuple[int, Tensor]]:
    """Generate a sequence's tokens one by one.

    Args:
        feed: runs the target: ``model.fresh_row()``, or a WindowedRow.
        sequence: supplies prompt, budget, stops and keys; it is read, never changed.
        vocab_size: leading logits that count.
        sampling: where the sequence has none of its own; temperature 0 for greedy, else every token is drawn with the
            noise of its position.

    Yields:
        (token, logits ``[vocab]`` that it was chosen from); the last token is a stop token, completes a stop
        string, or exhausts the budget.
    """
    sampling, fed = sequence.sampling or sampling, list(sequence.token_ids[: sequence.prompt_len])
    generated: list[int] = []
    processors = processors_of(sequence)
    while len(generated) < sequence.max_new_tokens:
        logits, text = feed(fed)[:vocab_size], sequence.token_ids[: sequence.prompt_len] + generated
        token = _choose(process(processors, text, logits), sampling, sequence, len(text))
        generated.append(token)
        yield token, logits
        if stops(sequence, generated):
            return
        fed = [token]


def stops(sequence: Sequence, generated: list[int]) -> bool:
    """Whether the last of the generated tokens is a stop token or completes a stop string."""
    if generated[-1] in sequence.stop_token_ids:
        return True
    if sequence.stop_strings is None:
        return False
    text = sequence.stop_strings.decode(generated)
    return any(string in text for string in sequence.stop_strings.strings)


class WindowedRow:
    """One sequence fed through passes of one shape, as in shape-stable execution: in row 0, the other rows idle.

    A pass of ``[rows, window]`` carries one real token, or part of a prompt, and the rest of it is ignored: later
    passes overwrite what it leaves before anything can see it.

    Args:
        model: the target.
        rows: of every pass.
        window: tokens a row of every pass after the prompt.
        prompt_window: tokens a row of every pass over the prompt.
        columns: of the K/V store, all of which are visible to every pass.
    """

    def __init__(self, model: CausalLM, *, rows: int, window: int, prompt_window: int, columns: int):
        self._model, self._window, self._prompt_window = model, window, prompt_window
        self._store = KVStore.empty(model.kv_shape, rows, columns, tagged=False)
        self._num_fed = 0

    @torch.inference_mode()
    def __call__(self, tokens: list[int]) -> Tensor:
        """Feed the next tokens; logits ``[vocab]`` after the last of them."""
        for start in range(0, len(tokens) - 1, self._prompt_window):
            part = tokens[start : min(start + self._prompt_window, len(tokens) - 1)]
            self._pass(part, self._prompt_window, 1)
        return self._pass(tokens[-1:], self._window, self._window)[0]

    def _pass(self, tokens: list[int], window: int, num_logits: int) -> Tensor:
        """Logits of row 0 ``[num_logits, vocab]``."""
        store, start, device = self._store, self._num_fed, self._store.shape.device
        self._num_fed += len(tokens)
        ids = torch.zeros(store.rows, window, dtype=torch.long, device=device)
        ids[0, : len(tokens)] = torch.tensor(tokens, device=device)
        position = torch.arange(start, start + window, device=device)
        columns = torch.arange(store.columns, device=device)
        visible = columns <= position[:, None]
        fits = min(window, store.columns - start)

        def append(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            store.write_columns(layer, start, keys[:, :, :fits], values[:, :, :fits])
            return store.view(layer, store.columns)

        rows, everywhere = torch.arange(store.rows, device=device)[:, None], position.repeat(store.rows, 1)
        slots = (rows * store.columns + everywhere.clamp(max=store.columns - 1)).flatten()
        in_pool = InPool(store, everywhere, slots, table=rows)
        position_ids, mask = everywhere.clamp(max=self._model.max_positions - 1), visible.expand(store.rows, 1, -1, -1)
        block = Block(ids, position_ids, mask, append, in_pool=in_pool, slots=columns[None])
        return self._model.forward(block, num_logits)[0]


def _choose(logits: Tensor, sampling: SamplingConfig, sequence: Sequence, position: int) -> int:
    if sampling.temperature == 0:
        token = int(torch.argmax(logits))
        possible = torch.isfinite(logits[token])
    else:
        mass = shape_distribution(logits, sampling)
        token = int(torch.argmax(mass / _noise(logits, sequence, position)))
        possible = mass[token] > 0
    if not possible:
        raise InputError(f"the target's logits are not finite in row {sequence.index}")
    return token


def _noise(logits: Tensor, sequence: Sequence, position: int) -> Tensor:
    keys = RowKeys(
        torch.tensor([sequence.seed], device=logits.device), torch.tensor([sequence.sequence_id], device=logits.device)
    )
    at = torch.tensor([[position]], device=logits.device)
    return exponentials(keys, at, Purpose.COUPLED, logits.shape[0])[0, 0]


def shape_distribution(logits: Tensor, sampling: SamplingConfig) -> Tensor:
    """Probabilities ``[vocab]`` after temperature, top-k, top-p and min-p, token by token in order of rank."""
    wide = logits.to(torch.float64)
    scaled = (wide - wide.max()) / sampling.temperature
    mass = torch.softmax(scaled, dim=0)
    if sampling.top_k == 0 and sampling.top_p == 1 and sampling.min_p == 0:
        return mass
    kept = _survivors(scaled.tolist(), mass.tolist(), sampling)
    shaped = torch.zeros_like(mass)
    shaped[kept] = mass[kept]
    return shaped / shaped.sum()


def _survivors(scaled: list[float], mass: list[float], sampling: SamplingConfig) -> list[int]:
    ranked = sorted(range(len(mass)), key=scaled.__getitem__, reverse=True)  # equals stay in order of id
    if sampling.top_k:
        least = scaled[ranked[min(sampling.top_k, len(ranked)) - 1]]
        ranked = [token for token in ranked if scaled[token] >= least]
    total, before, nucleus = sum(mass[token] for token in ranked), 0.0, []
    for token in ranked:
        if sampling.top_p < 1 and before >= (1 - TIE) * sampling.top_p * total:
            break
        nucleus.append(token)
        before += mass[token]
    return [token for token in nucleus if mass[token] >= (1 - TIE) * sampling.min_p * mass[ranked[0]]]
