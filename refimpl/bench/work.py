"""Work that a round cannot avoid: bytes and FLOPs of its forward passes, and the least time in which they can be done.

| of a pass               | bytes        | FLOPs                                                   |
|-------------------------|--------------|---------------------------------------------------------|
| weights of the layers   | each once    | 2 per weight of a matrix and token                      |
| output head             | once         | 2 per weight and logit row asked for                    |
| K/V of cached tokens    | each once    | 4 · head_dim per query head, layer, query and key       |
| K/V of the tokens fed   | written once | as above, where each query sees those fed up to itself  |

Only live rows, their real tokens and their own numbers of drafts count. Activations, masks and logits are left out:
the result is a lower bound. A pass takes no less than max(bytes / bandwidth, FLOPs / matrix rate); a round's passes
depend on each other, so their least times add up.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch import nn

from refimpl.decoding.trace import RoundRecord
from refimpl.models.adapter import HuggingFaceLM


@dataclass(frozen=True, slots=True)
class Work:
    """Bytes moved through device memory and floating-point operations."""

    num_bytes: float = 0.0
    flops: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(self.num_bytes + other.num_bytes, self.flops + other.flops)


def total(work: Iterable[Work]) -> Work:
    """Sum of several works."""
    return sum(work, Work())


@dataclass(frozen=True, slots=True)
class Rates:
    """Best rates of a device: bytes read plus bytes written per second, FLOPs per second of a matrix product."""

    bytes_per_s: float
    flops_per_s: float

    def floor_s(self, passes: Iterable[Work]) -> float:
        """Least seconds for passes that follow each other."""
        return sum(max(p.num_bytes / self.bytes_per_s, p.flops / self.flops_per_s) for p in passes)


@dataclass(frozen=True, slots=True)
class Feed:
    """Input of one row to a forward pass: tokens cached before, tokens fed, logit rows asked for."""

    cached: int
    fed: int
    num_logits: int


@dataclass(frozen=True, slots=True)
class ModelWork:
    """What a forward pass of one model costs.

    Attributes:
        weight_bytes: all weights that a pass reads; rows looked up in an embedding table are left out.
        layer_weights: elements of the matrices that every token passes through.
        head_weights: elements of the output head.
        attention_width: query heads · mean width of keys and values, summed over layers.
        kv_bytes_per_token: cached, over all layers.
    """

    weight_bytes: int
    layer_weights: int
    head_weights: int
    attention_width: int
    kv_bytes_per_token: int

    @classmethod
    def of(cls, lm: HuggingFaceLM) -> "ModelWork":
        """Count a model's weights."""
        model, head = lm.model, lm.model.get_output_embeddings()
        tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)} - {id(head.weight)}
        read = [p for p in model.parameters() if id(p) not in tables]
        shape, config = lm.kv_shape, model.config.get_text_config()
        return cls(
            weight_bytes=sum(p.numel() * p.element_size() for p in read),
            layer_weights=sum(p.numel() for p in read if p.dim() > 1 and p is not head.weight),
            head_weights=head.weight.numel(),
            attention_width=shape.num_layers * config.num_attention_heads * (shape.key_dim + shape.value_width) // 2,
            kv_bytes_per_token=shape.bytes_per_token,
        )

    def forward_pass(self, rows: Iterable[Feed]) -> Work:
        """Work of one pass over a batch."""
        return total([Work(self.weight_bytes), *(self._row(row) for row in rows)])

    def _row(self, row: Feed) -> Work:
        seen = row.fed * row.cached + row.fed * (row.fed + 1) / 2
        flops = 2 * self.layer_weights * row.fed + 2 * self.head_weights * row.num_logits
        return Work(self.kv_bytes_per_token * (row.cached + row.fed), flops + 4 * self.attention_width * seen)


def round_passes(record: RoundRecord, target: ModelWork, draft: ModelWork) -> Iterator[Work]:
    """The forward passes of a round: the draft's, one per drafted token unless all were looked up; the target's.

    Prompts are not counted: not in a pass of their own, and not as chunks beside the rows that decode. Steps of a draft
    head are not counted either: with one, the work is further below what is done.
    """
    if not record.rows:
        return
    drawn = any(row.draft_passes and row.drafted > row.looked_up for row in record.rows)
    for step in range(max(row.drafted for row in record.rows) if drawn else 0):
        members = [row for row in record.rows if row.drafted > step]
        if step == 0:
            yield draft.forward_pass(Feed(r.seq_len - r.draft_lag, r.draft_lag, 1) for r in members)
        else:
            yield draft.forward_pass(Feed(r.seq_len + step - 1, 1, 1) for r in members)
    yield target.forward_pass(Feed(r.seq_len - 1, r.drafted + 1, r.drafted + 1) for r in record.rows)
