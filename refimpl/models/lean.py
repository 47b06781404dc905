"""Decoder layers of the Llama family in few operations: about 30 launches a layer, where transformers' modules take 58.

q, k and v are one product, gate and up are another; a norm is one call; nothing goes through a module. The weights stay
those of the model: its own parameters become slices of the joined matrices, so memory does not grow and transformers'
forward still works, which the oracle uses. Sums are rounded where transformers rounds them.

Which models are driven like this is decided by their class, one by one (`FAMILIES`), and by a trial against
transformers' forward (`refimpl.models.lean_trial`). A layer is two functions of tensors, before its attention and after
it, which `torch.compile` may fuse.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from refimpl.core.engine_settings import LayersName
from refimpl.layouts.packed import PackedBlock
from refimpl.layouts.store import Block
from refimpl.models.attention import additive_mask, folded_attention, packed_attention
from refimpl.models.varlen import NotOfferedError


@dataclass(frozen=True, slots=True)
class Family:
    """How a class of models rounds its norms; what else differs from Llama is read from the modules themselves.

    Attributes:
        rounds_first: whether a normed entry is rounded to the model's format before it is multiplied by the weight.
        offset: added to the weight.
    """

    rounds_first: bool = True
    offset: float = 0.0


LEAST_PACKED = 750_000  # multiplications a thread of a product by oneDNN; with fewer, the call costs more than it gains
MOST_GRAPHS = 64  # one for each kind of shape: of one row, of one token, packed, of each model
TYPICAL_TOKENS = 64  # for which oneDNN chooses the order of weights

FAMILIES = {
    "LlamaForCausalLM": Family(),
    "MistralForCausalLM": Family(),
    "Qwen2ForCausalLM": Family(),  # biases of q, k and v
    "Qwen3ForCausalLM": Family(),  # norms of each head's q and k
    "Phi3ForCausalLM": Family(),  # joined already; RoPE of a part of each head
    "SmolLM3ForCausalLM": Family(),  # some layers without RoPE
    "GraniteForCausalLM": Family(),  # factors of embeddings, residuals and logits
    "Olmo2ForCausalLM": Family(rounds_first=False),  # norms behind attention and MLP, and of all q and all k
    "GemmaForCausalLM": Family(rounds_first=False, offset=1.0),  # scaled embeddings, GELU
}


@dataclass(frozen=True, slots=True)
class Norm:
    """Division by the root of the mean square, computed in float32.

    Attributes:
        weight: of each feature; or of each head's, where heads have weights of their own.
        eps: added to the mean.
        rounds_first: see `Family`.
    """

    weight: Float[Tensor, "*heads features"]
    eps: float
    rounds_first: bool

    def __call__(self, entries: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch features"]:
        """The normed entries."""
        features, one_call = self.weight.shape[-1:], self.weight.dim() == 1
        if one_call and (entries.dtype == torch.float32 or not self.rounds_first):
            return torch.rms_norm(entries.float(), features, self.weight.float(), self.eps).to(entries.dtype)
        if not self.rounds_first:
            normed = torch.rms_norm(entries.float(), features, None, self.eps)
            return (self.weight.float() * normed).to(entries.dtype)
        narrow = entries if entries.itemsize <= 4 else entries.float()  # PyTorch computes 16 bits in 32 by itself
        return self.weight * torch.rms_norm(narrow, features, None, self.eps).to(entries.dtype)


@dataclass(frozen=True, slots=True)
class Linear:
    """Weight ``[out, in]`` and bias of a product, or of several that are joined.

    Attributes:
        packed: the weight in the order of oneDNN, on a CPU in float32; None where it is not copied.
    """

    weight: Float[Tensor, "out in"]
    bias: Float[Tensor, " out"] | None
    packed: Tensor | None = None

    def __call__(self, entries: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        """The product."""
        if self.packed is None or entries.numel() * len(self.weight) < LEAST_PACKED * torch.get_num_threads():
            return functional.linear(entries, self.weight, self.bias)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(entries, self.packed, self.bias, "none", [], "")
        return product

    def pack(self) -> "Linear":
        """The same product on a copy of the weight that oneDNN need not reorder in every call."""
        return replace(self, packed=torch.ops.mkldnn._reorder_linear_weight(self.weight.contiguous(), TYPICAL_TOKENS))


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer. Norms that its family does not have are None.

    Attributes:
        heads: of queries, keys and values.
        rotary: whether queries and keys are rotated.
        scaling: of their products.
        factor: of what attention and MLP add to the residual.
        before, after: norms of what attention takes and gives; `before_mlp`, `after_mlp` those of the MLP.
        q_norm, k_norm: norms over all heads; `head_norm` is one over each head of queries and keys.
    """

    heads: tuple[int, int, int]
    rotary: bool
    scaling: float
    factor: float
    qkv: Linear
    out: Linear
    gate_up: Linear
    down: Linear
    act: Callable[[Tensor], Tensor]
    before: Norm | None
    q_norm: Norm | None
    k_norm: Norm | None
    head_norm: Norm | None
    after: Norm | None
    before_mlp: Norm | None
    after_mlp: Norm | None

    @property
    def products(self) -> tuple[Linear, ...]:
        """Those by its weights."""
        return self.qkv, self.out, self.gate_up, self.down

    def pack(self) -> "Layer":
        """The same layer on packed weights."""
        qkv, out, gate_up, down = (product.pack() for product in self.products)
        return replace(self, qkv=qkv, out=out, gate_up=gate_up, down=down)

    def attend_to(
        self, x: Tensor, delta: Tensor, cos: Tensor, sin: Tensor, *, by_head: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The residual, and queries, keys and values ``[batch, heads, q, dim]``.

        Args:
            x, delta: the residual ``[batch, q, hidden]`` and what the layer before adds to it: the sum is left to this
                layer, where it is fused with the norm.
            cos, sin: of RoPE, as `rotated` takes them.
            by_head: whether queries and keys are laid out head by head in memory.
        """
        x = x + delta
        entries = self.qkv(self.before(x) if self.before else x)
        dim = entries.shape[-1] // sum(self.heads)
        if self.q_norm and self.k_norm:
            query, key, value = entries.split([heads * dim for heads in self.heads], dim=-1)
            entries = torch.cat((self.q_norm(query), self.k_norm(key), value), dim=-1)
        heads, kv_heads, _ = self.heads
        both, value = entries.unflatten(-1, (-1, dim)).split((heads + kv_heads, kv_heads), dim=2)
        both = self.head_norm(both) if self.head_norm else both
        both = (rotated(both, cos, sin) if self.rotary else both).transpose(1, 2)
        query, key = (both.contiguous() if by_head else both).split((heads, kv_heads), dim=1)
        return x, query, key, value.transpose(1, 2)

    def finish(self, x: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        """The residual, and what the MLP adds to it, from what attention gave ``[batch, q, heads, dim]``."""
        x = x + self._scaled(self.out(attended.flatten(2)), self.after)
        gate, up = self.gate_up(self.before_mlp(x) if self.before_mlp else x).chunk(2, dim=-1)
        return x, self._scaled(self.down(self.act(gate) * up), self.after_mlp)

    def _scaled(self, delta: Tensor, norm: Norm | None) -> Tensor:
        delta = norm(delta) if norm else delta
        return delta if self.factor == 1 else delta * self.factor


def rotated(
    entries: Float[Tensor, "batch q heads dim"],
    cos: Float[Tensor, "batch q 1 part"],
    sin: Float[Tensor, "batch q 1 part"],
) -> Float[Tensor, "batch q heads dim"]:
    """RoPE of the first numbers of every head, as many as there are cosines; the first half of the sines is negated."""
    part = cos.shape[-1]
    turning = entries if part == entries.shape[-1] else entries[..., :part]
    first, second = turning.chunk(2, dim=-1)
    turned = (turning * cos + torch.cat((second, first), dim=-1) * sin).to(entries.dtype)
    return turned if part == entries.shape[-1] else torch.cat((turned, entries[..., part:]), dim=-1)


class LeanLayers:
    """Runs blocks as `HuggingFaceLM.forward` and its packed passes do.

    The model's weights become slices of joined matrices, for good. What is changed in them later counts, but for norms
    of heads and for packed copies.

    Args:
        model: of a class in `FAMILIES`.
        kind: "lean"; "packed" for large products by oneDNN, on copies of the weights; or "compiled" for graphs of
            `torch.compile`, one for all layers, with which the first passes take long and a CPU needs a C++ compiler.

    Raises:
        NotOfferedError: another class, layers that are not plain, or no oneDNN for these numbers.
    """

    maskless_queries = 0  # see `refimpl.models.adapter.CausalLM`

    def __init__(self, model: PreTrainedModel, kind: LayersName = "lean"):
        family = FAMILIES.get(type(model).__name__)
        if family is None or not type(model).__module__.startswith("transformers.models."):
            raise NotOfferedError(f"{type(model).__name__} is none of {', '.join(FAMILIES)}")
        _refuse_odd_parts(model)
        self.model, self.kind, config = model, kind, model.config
        self.layers = [_layer_of(layer, family, config) for layer in model.model.layers]
        self.norm: Norm = _norm_of(model.model, "norm", family)  # type: ignore[assignment]
        self.head = _joined(model, ("lm_head",))
        self.embedding_factor = getattr(config, "embedding_multiplier", 1)
        self.logits_scaling = getattr(config, "logits_scaling", 1)
        self.groups = self.layers[0].heads[0] // self.layers[0].heads[1]
        self.attend_to, self.finish = Layer.attend_to, Layer.finish
        if kind == "packed":
            self._pack()
        elif kind == "compiled":
            limits = torch._dynamo.config  # of the process: beyond it, what more shapes and models need runs uncompiled
            limits.recompile_limit = max(limits.recompile_limit, MOST_GRAPHS)
            options: dict[str, Any] = {"emulate_precision_casts": True}  # 16 bits are rounded where they were
            self.attend_to = torch.compile(Layer.attend_to, dynamic=True, options=options)
            self.finish = torch.compile(Layer.finish, dynamic=True, options=options)

    @torch.inference_mode()
    def _pack(self) -> None:
        if self.model.device.type != "cpu" or self.model.dtype != torch.float32:
            raise NotOfferedError("packed weights need float32 on a CPU")
        try:
            self.layers = [layer.pack() for layer in self.layers]
            self.head = self.head.pack()
        except (AttributeError, RuntimeError) as error:
            raise NotOfferedError(f"oneDNN fails here: {str(error).splitlines()[0]}") from None

    @property
    def copied_bytes(self) -> int:
        """Bytes of weights that are stored a second time."""
        products = [self.head, *(product for layer in self.layers for product in layer.products)]
        return sum(each.weight.nbytes for each in products if each.packed is not None)

    def __getstate__(self) -> dict[str, Any]:
        """What another process is handed: the model, from which the layers are made again."""
        return {"model": self.model, "kind": self.kind}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __call__(self, block: Block | PackedBlock, num_logits: int) -> Float[Tensor, "batch num_logits vocab"]:
        """Logits of the last `num_logits` tokens of each row."""
        x = self.model.model.embed_tokens(block.tokens)
        x, delta = self.through(block, x if self.embedding_factor == 1 else x * self.embedding_factor)
        noted = block.note_hidden
        kept = slice(None) if noted and not noted.layers else slice(-num_logits, None)
        hidden = self.norm(x[:, kept] + delta[:, kept])
        if noted and not noted.layers:
            noted.note(hidden)
        logits: Tensor = self.head(hidden[:, -num_logits:])
        return logits if self.logits_scaling == 1 else logits / self.logits_scaling

    def through(self, block: Block | PackedBlock, x: Float[Tensor, "batch q hidden"]) -> tuple[Tensor, Tensor]:
        """The residual after the last layer, and what that layer adds to it."""
        attend = self._attention(block)
        cos, sin = self._turns(x, block.position_ids)
        delta, by_head = torch.zeros_like(x), isinstance(block, Block)
        noted, inner = block.note_hidden, list[Tensor]()
        for i, layer in enumerate(self.layers):
            x, query, key, value = self.attend_to(layer, x, delta, cos, sin, by_head=by_head)
            if noted and i in noted.layers:
                inner.append(x)
            seen = block.append(i, key, value)
            x, delta = self.finish(layer, x, attend(query, *seen, layer.scaling))
        if noted and noted.layers:
            last = [x + delta] if len(self.layers) in noted.layers else []
            noted.note(torch.cat([*inner, *last], dim=-1))
        return x, delta

    def _turns(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of a pass, the first half of these negated ``[batch, q, 1, part]``."""
        cos, sin = self.model.model.rotary_emb(x, position_ids)
        first, second = sin.chunk(2, dim=-1)
        return cos[:, :, None], torch.cat((-first, second), dim=-1)[:, :, None]

    def _attention(self, block: Block | PackedBlock) -> Callable[..., Tensor]:
        """Attention of all layers of a pass: queries, what they see and the scaling → ``[batch, q, heads, dim]``."""
        if isinstance(block, PackedBlock):
            return lambda query, _keys, _values, scaling: packed_attention(block, query, scaling)
        mask = additive_mask(block.mask, self.model.dtype, self.groups)
        return lambda query, keys, values, scaling: folded_attention(query, keys, values, mask, scaling)


def _refuse_odd_parts(model: PreTrainedModel) -> None:
    """Raise NotOfferedError for layers that compute more than their weights say: quantized, hooked, adapted."""
    for name, module in model.named_modules():
        if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
            raise NotOfferedError(f"{name or 'the model'} has hooks, or a forward pass of its own")
        if isinstance(module, nn.Linear) and (type(module) is not nn.Linear or type(module.weight) is not nn.Parameter):
            raise NotOfferedError(f"{name} is no plain linear layer")


def _layer_of(layer: Any, family: Family, config: Any) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    behind = not hasattr(layer, "input_layernorm")  # OLMo 2 norms what attention and MLP give, not what they take
    after = _norm_of(layer, "post_attention_layernorm", family)
    q_norm, k_norm = (_norm_of(attention, name, family) for name in ("q_norm", "k_norm"))
    head_norm = _of_heads(attention.head_dim, heads, q_norm, kv_heads, k_norm)
    return Layer(
        heads=(heads, kv_heads, kv_heads),
        rotary=bool(getattr(attention, "use_rope", True)),
        scaling=float(attention.scaling),
        factor=float(getattr(layer, "residual_multiplier", 1)),
        qkv=_joined(attention, ("qkv_proj",) if hasattr(attention, "qkv_proj") else ("q_proj", "k_proj", "v_proj")),
        out=_joined(attention, ("o_proj",)),
        gate_up=_joined(mlp, ("gate_up_proj",) if hasattr(mlp, "gate_up_proj") else ("gate_proj", "up_proj")),
        down=_joined(mlp, ("down_proj",)),
        act=ACT2FN[config.hidden_act],
        before=_norm_of(layer, "input_layernorm", family),
        q_norm=None if head_norm else q_norm,
        k_norm=None if head_norm else k_norm,
        head_norm=head_norm,
        after=after if behind else None,
        before_mlp=None if behind else after,
        after_mlp=_norm_of(layer, "post_feedforward_layernorm", family),
    )


def _of_heads(dim: int, heads: int, q_norm: Norm | None, kv_heads: int, k_norm: Norm | None) -> Norm | None:
    """One norm of the heads of queries and keys; None where there are none, or all heads are normed together."""
    if q_norm is None or k_norm is None or len(q_norm.weight) != dim:
        return None
    weight = torch.cat((q_norm.weight.expand(heads, -1), k_norm.weight.expand(kv_heads, -1)))
    return Norm(weight, q_norm.eps, q_norm.rounds_first)


def _norm_of(owner: nn.Module, name: str, family: Family) -> Norm | None:
    norm: Any = getattr(owner, name, None)
    if norm is None:
        return None
    eps = norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps
    weight = norm.weight.detach()
    return Norm(weight.float() + family.offset if family.offset else weight, eps, family.rounds_first)


@torch.no_grad()
def _joined(owner: nn.Module, names: tuple[str, ...]) -> Linear:
    """One product for several linear layers on the same input, whose weights become slices of its own."""
    layers = [getattr(owner, name) for name in names]
    weight = _one_memory([layer.weight for layer in layers])
    bias = None if layers[0].bias is None else _one_memory([layer.bias for layer in layers])
    sizes = [layer.out_features for layer in layers]
    for layer, rows in zip(layers, weight.split(sizes), strict=True):
        layer.weight.data = rows
    if bias is not None:
        for layer, part in zip(layers, bias.split(sizes), strict=True):
            layer.bias.data = part
    return Linear(weight, bias)


def _one_memory(parts: list[nn.Parameter]) -> Tensor:
    """Parts one after the other; without a copy where they lie so already, as when a model is driven twice."""
    first, one_storage = parts[0].detach(), len({part.untyped_storage().data_ptr() for part in parts}) == 1
    ends = [part.data_ptr() + part.nbytes for part in parts]
    if one_storage and [part.data_ptr() for part in parts[1:]] == ends[:-1]:
        size = (sum(len(part) for part in parts), *first.shape[1:])
        return first.as_strided(size, first.stride(), first.storage_offset())
    return torch.cat([part.detach() for part in parts])
