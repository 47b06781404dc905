"""Tie or bug? Judge a greedy output that differs from the oracle's because of rounding, or because it is wrong.

In 16 bit the logits of one prefix depend on the shapes that they were computed with, so two right engines may part
where two tokens are nearly tied, and everything after that differs. So the output is not compared but judged on its
own prefixes: the *regret* of a token is the largest logit minus the token's logit, after exactly the tokens that
precede it. The scale of the tolerance is measured, not chosen: the same prefixes run one token at a time (M = 1) and in
blocks (M = k + 1), both at batch 1, give logits that differ by rounding alone. The threshold is twice the largest such
difference over all prefixes and the whole vocabulary: two tokens may each be off by that much, in opposite directions.

This is a heuristic, not a bound. The judged engine ran larger batches, with masks and pads, in which other kernels may
add in another order and round further than was seen here. What speaks for the threshold is its margin: it takes the
worst of all logits, where a tie needs the error of the two best ones of a single prefix, and doubles it. Still a bug
that moves logits by less passes as a tie, and rounding that happens in large batches alone would be called a bug. So
the report contains the noise, the threshold and the largest regret: trust a verdict by the distance between them.

| verdict | when                                                                          |
|---------|-------------------------------------------------------------------------------|
| exact   | the tokens are the oracle's                                                   |
| tie     | they differ, and no token's regret exceeds the threshold                      |
| bug     | a token's regret exceeds the threshold, or the row ends where it should not   |
"""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from refimpl.core.config import make_config
from refimpl.core.errors import InputError, require, shown
from refimpl.core.files import whole_file
from refimpl.core.keywords import Settings
from refimpl.core.request import Request
from refimpl.core.shown import Shown, counted
from refimpl.core.tokens import first_difference
from refimpl.core.values import is_list
from refimpl.decoding.trace import RoundRecord
from refimpl.generation import generate
from refimpl.layouts.store import Block
from refimpl.models.adapter import CausalLM, Pair
from refimpl.requests import Prompt, as_token_ids, listed, prepare
from refimpl.results import Result
from refimpl.viz.batch import DrawnBatch, round_batch
from refimpl.viz.regrets import Regrets, regret_histogram

if TYPE_CHECKING:
    import pandas as pd

Verdict = Literal["exact", "tie", "bug"]


@dataclass(frozen=True, slots=True)
class RowJudgement:
    """One row.

    Attributes:
        index: place of the prompt.
        verdict: see the module.
        diverges_at: first token that is not the oracle's, None when all are.
        regrets: per generated token, in logits.
        ends_right: whether the row ends with its first stop token or its budget.
    """

    index: int
    verdict: Verdict
    diverges_at: int | None
    regrets: tuple[float, ...]
    ends_right: bool


@dataclass(frozen=True, slots=True, repr=False)
class Judgement(Shown):
    """All rows.

    Attributes:
        rows: in order.
        noise: largest difference of a logit between M = 1 and M = k + 1, over all prefixes.
        num_prefixes: prefixes that the noise was measured on.
        drawn: the first row of the worst verdict, with its batch; None where all rows are exact.
    """

    rows: tuple[RowJudgement, ...]
    noise: float
    num_prefixes: int
    drawn: DrawnBatch | None = None

    def __repr__(self) -> str:
        counts = ", ".join(f"{number} {verdict}" for verdict, number in self.counts.items())
        sizes = f"largest regret {self.largest_regret:.4g}, threshold {self.threshold:.4g}"
        return f"Judgement({counted(len(self.rows), 'row')}: {counts}; {sizes})"

    def to_frame(self) -> "pd.DataFrame":
        """One line per row: verdict, the first token that is not the oracle's, largest regret, …"""
        import pandas as pd

        return pd.DataFrame(self.as_dict()["rows"]).set_index("index")

    @property
    def counts(self) -> dict[str, int]:
        """Rows by verdict."""
        verdicts = [row.verdict for row in self.rows]
        return {name: verdicts.count(name) for name in get_args(Verdict)}

    @property
    def threshold(self) -> float:
        """Largest regret that rounding explains."""
        return threshold_of(self.noise)

    @property
    def verdict(self) -> Verdict:
        """The worst of the rows' verdicts."""
        found = {row.verdict for row in self.rows}
        return "bug" if "bug" in found else "tie" if "tie" in found else "exact"

    @property
    def worst(self) -> set[int]:
        """Rows that have that verdict."""
        return {row.index for row in self.rows if row.verdict == self.verdict}

    @property
    def largest_regret(self) -> float:
        """Over all tokens."""
        return max((regret for row in self.rows for regret in row.regrets), default=0.0)

    @property
    def regrets(self) -> Regrets:
        """All of them, to draw."""
        return Regrets(tuple(regret for row in self.rows for regret in row.regrets), self.threshold, self.verdict)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "verdict": self.verdict,
            "threshold": self.threshold,
            "noise": self.noise,
            "num_prefixes": self.num_prefixes,
            "largest_regret": self.largest_regret,
            **self.counts,
            "rows": [
                {
                    "index": row.index,
                    "verdict": row.verdict,
                    "diverges_at": row.diverges_at,
                    "largest_regret": max(row.regrets, default=0.0),
                    "ends_right": row.ends_right,
                }
                for row in self.rows
            ],
        }


def plot_regrets(judgements: Mapping[str, Judgement], path: str | Path) -> None:
    """Draw a histogram for each judgement and write it; the ending of the path chooses the format."""
    figure = regret_histogram({name: judgement.regrets for name, judgement in judgements.items()})
    with whole_file(path, "wb") as file:
        figure.savefig(file, dpi=150, format=Path(path).suffix[1:])


def judge_method(
    pair: Pair,
    prompts: Iterable[Prompt],
    *,
    reference: Seq[Seq[int]] | None = None,
    max_prompt_tokens: int | None = None,
    **settings: Unpack[Settings],
) -> Judgement:
    """Decode with a method and with the oracle, and judge the method's output.

    Args:
        pair: from `load_pair`, usually in a 16-bit format.
        prompts: texts or token ids; requests with settings of their own are refused.
        reference: the oracle's tokens, where they are known already.
        max_prompt_tokens: as for `generate`.
        **settings: as for `generate`, at temperature 0.

    Raises:
        InputError: impossible settings or prompts, a reference that is not of these prompts, or a target whose
            generation config has settings that are not applied (see `make_pair`).
    """
    prepared = _prepare(pair, prompts, max_prompt_tokens, settings)
    known = None if reference is None else _token_lists(pair, prepared, reference, "reference")
    found = generate(pair, prepared, **settings)
    return _against_oracle(pair, prepared, tokens_of(found), known, settings, found.rounds)


def judge_outputs(
    pair: Pair,
    prompts: Iterable[Prompt],
    outputs: Seq[Seq[int]],
    *,
    max_prompt_tokens: int | None = None,
    **settings: Unpack[Settings],
) -> Judgement:
    """Judge what any engine has generated greedily after these prompts; the rest is as for `judge_method`."""
    prepared = _prepare(pair, prompts, max_prompt_tokens, settings)
    return _against_oracle(pair, prepared, _token_lists(pair, prepared, outputs, "output"), None, settings)


def tokens_of(result: Result) -> list[list[int]]:
    """Generated tokens, row by row."""
    return [sequence.token_ids for sequence in result.sequences]


def _prepare(
    pair: Pair, prompts: Iterable[Prompt], max_prompt_tokens: int | None, settings: Settings
) -> list[list[int]]:
    config = make_config(**settings)
    if not config.sampling.greedy or config.stop_strings:
        raise InputError("only greedy output without stop strings can be judged")
    pair.require_plain_target()
    plain = pair.checkpoint is None
    require(plain, "the target's generation config changes logits, and regrets are those of plain ones: remove it")
    prompts = listed(prompts)
    if any(isinstance(prompt, Request) for prompt in prompts):
        raise InputError("give texts or token ids: all prompts share their settings here")
    return [s.token_ids for s in prepare(pair, prompts, config, max_prompt_tokens)]


def _token_lists(pair: Pair, prompts: Seq[Seq[int]], given: Any, name: str) -> list[list[int]]:
    """What follows each prompt; raises InputError unless it is one list of token ids a prompt, within the context."""
    require(is_list(given), f"{name}s must be lists of token ids, one a prompt, not {shown(given)}")
    require(len(given) == len(prompts), f"there are {len(prompts)} prompts, but {len(given)} {name}s")
    rows = enumerate(zip(prompts, given, strict=True))
    return [_token_list(pair, prompt, tokens, f"{name} {index}") for index, (prompt, tokens) in rows]


def _token_list(pair: Pair, prompt: Seq[int], tokens: Any, name: str) -> list[int]:
    try:
        found = as_token_ids(tokens) if is_list(tokens) else []
    except TypeError:
        found = []
    require(not is_list(tokens) or len(tokens) > 0, f"{name} is empty")
    are_ids = bool(found) and all(0 <= token < pair.vocab_size for token in found)
    require(are_ids, f"{name} is not a list of token ids below {pair.vocab_size}")
    context, prompt_len = pair.target.max_positions, len(prompt)
    fits = prompt_len + len(found) <= context
    require(
        fits, f"{name} has {len(found)} tokens: after {prompt_len} of its prompt they exceed the context of {context}"
    )
    return found


def _against_oracle(
    pair: Pair,
    prompts: list[list[int]],
    outputs: Seq[Seq[int]],
    reference: Seq[Seq[int]] | None,
    settings: Settings,
    rounds: Seq[RoundRecord] = (),
) -> Judgement:
    config = make_config(**settings)
    if reference is None:
        reference = tokens_of(generate(pair, prompts, **settings | {"method": "autoregressive"}))
    stops = pair.stop_token_ids if config.stop_token_ids is None else config.stop_token_ids
    found = judge(
        pair,
        prompts,
        outputs,
        reference,
        max_new_tokens=config.max_new_tokens,
        stop_token_ids=tuple(stops),
        num_speculative_tokens=config.num_speculative_tokens,
    )
    return replace(found, drawn=round_batch(rounds, [*map(len, prompts)], outputs, reference, found.worst))


def judge(
    pair: Pair,
    prompts: Seq[Seq[int]],
    outputs: Seq[Seq[int]],
    reference: Seq[Seq[int]],
    *,
    max_new_tokens: int,
    stop_token_ids: Seq[int] = (),
    num_speculative_tokens: int = 5,
) -> Judgement:
    """Judge greedy outputs row by row.

    Args:
        pair: its target gives the logits.
        prompts: token ids.
        outputs: tokens generated by the engine under judgement.
        reference: the oracle's tokens.
        max_new_tokens: budget of every row.
        stop_token_ids: end a row.
        num_speculative_tokens: the noise is measured with blocks of one more, of two at least. Where no output has two
            tokens, it is that of the last tokens of the prompts, which make such a block.

    Raises:
        InputError: the target's logits are not finite, so that nothing can be said of the tokens.
    """
    size, stops = pair.vocab_size, set(stop_token_ids)
    block_size = max(2, num_speculative_tokens + 1)
    lead = 0 if any(len(output) > 1 for output in outputs) else block_size - 1
    measured: list[tuple[tuple[float, ...], float]] = []
    num_prefixes = 0
    for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        single = logits_in_blocks(pair.target, prompt, output, 1, lead)[:, :size]
        blocks = logits_in_blocks(pair.target, prompt, output, block_size, lead)[:, :size]
        finite = bool((single.isfinite() & blocks.isfinite()).all())
        require(finite, f"the target's logits are not finite after prompt {i}: judge in another dtype")
        chosen = single[-len(output) :]
        regrets = chosen.amax(dim=-1) - chosen.gather(1, torch.tensor([list(output)], device=single.device).T)[:, 0]
        measured.append((tuple(regrets.tolist()), float((single - blocks).abs().max())))
        num_prefixes += len(single)
    noise = max(n for _, n in measured)
    rows = []
    for i, (output, wanted) in enumerate(zip(outputs, reference, strict=True)):
        at = first_difference(output, wanted)
        right = ends_right(output, max_new_tokens, stops)
        tied = right and max(measured[i][0]) <= threshold_of(noise)
        rows.append(RowJudgement(i, "exact" if at is None else "tie" if tied else "bug", at, measured[i][0], right))
    return Judgement(tuple(rows), noise, num_prefixes)


def threshold_of(noise: float) -> float:
    """Largest regret that rounding explains: two tokens may each be off by the noise, in opposite directions."""
    return 2 * noise


def ends_right(tokens: Seq[int], max_new_tokens: int, stops: set[int]) -> bool:
    """Whether a row ends with its first stop token, or else has its whole budget."""
    first = next((i + 1 for i, token in enumerate(tokens) if token in stops), None)
    return len(tokens) == (max_new_tokens if first is None else min(first, max_new_tokens))


@torch.inference_mode()
def logits_in_blocks(
    model: CausalLM, prompt: Seq[int], output: Seq[int], block_size: int, lead: int = 0
) -> Float[Tensor, "positions vocab"]:
    """Logits that each generated token is chosen from, teacher-forced, `block_size` positions a forward pass.

    The prompt but its last token is fed at once in either case, so that only the size of the blocks differs. With
    `lead`, blocks begin so many tokens earlier, or with the prompt, and the logits there come first. In float64.
    """
    entries: dict[int, tuple[Tensor, Tensor]] = {}

    def append(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if layer in entries:
            keys, values = torch.cat([entries[layer][0], keys], dim=2), torch.cat([entries[layer][1], values], dim=2)
        entries[layer] = (keys, values)
        return entries[layer]

    tokens = [*prompt, *output[:-1]]
    first = max(0, len(prompt) - 1 - lead)
    starts = [0] if first else []
    starts += list(range(first, len(tokens), block_size))
    logits = []
    for start, stop in zip(starts, [*starts[1:], len(tokens)], strict=True):
        fed = torch.tensor([tokens[start:stop]], device=model.kv_shape.device)
        position = torch.arange(start, stop, device=fed.device)[None]
        slots = torch.arange(stop, device=fed.device)[None]
        mask = slots <= position[..., None]
        found = model.forward(Block(fed, position, mask[:, None], append, slots=slots), stop - start)[0]
        if start >= first:
            logits.append(found.double())
    return torch.cat(logits)
