"""Seconds on a device that nobody has measured: bytes and operations of a model over what the device can do.

Matrix products follow a published table of a like device, attention is bound by its bytes or its operations, launches
and all-reduces cost what one of them takes. How many launches a layer makes depends on what runs it. Without recorded
graphs a pass takes at least what the host needs to launch it. Each constant is drawn per replication with its stated
uncertainty.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from math import ceil

import numpy as np

from refimpl.core.errors import require
from simulator.service.cost import MEASURED_ROW, CostModel, Fed, lognormal_factor
from simulator.service.streams import Purpose, Streams
from simulator.settings.calibration import COMPONENTS
from simulator.settings.curves import curve_cv, load_curve, ridge_tokens
from simulator.settings.fields import Spec
from simulator.settings.hardware import KV_BYTES, WEIGHT_BYTES, Architecture, Device, load_architecture, load_device
from simulator.settings.kinds import COST

# From launch to launch in a recorded graph, fitted to stages on an H200 and assumed elsewhere: a small kernel, and what
# a product or attention takes beyond its bytes and operations.
SMALL_KERNEL_S, LARGE_KERNEL_S = 2.27e-6, 4.37e-6
MEMORY_SHARE = 0.9  # of the memory that weights and K/V may take; the rest is for activations
# Relative standard errors. Small kernels differ by 26 % between the two tables, all-reduces by half within one; eager
# is a setting.
UNCERTAINTY = {"attention": 0.15, "launches": 0.2, "all_reduce": 0.3}


@dataclass(frozen=True, slots=True)
class Layers:
    """Launches of a pass on a GPU in 16 bit, attention being one.

    Attributes:
        products: of matrices, in each layer.
        launches: of each layer in all, where a row feeds one token, and where some feeds several.
        key_norms: more of them where queries and keys are normalized.
        outside: small kernels before and behind the layers.
    """

    products: int
    launches: tuple[int, int]
    key_norms: int
    outside: int


# By what runs them, see `--layers` of the engine. docs/results/launches.json has the counts of a layer; those outside
# of the layers are estimates.
LAYERS = {
    "transformers": Layers(7, (40, 42), 16, 38),
    "lean": Layers(4, (19, 22), 2, 38),
    "compiled": Layers(4, (11, 12), 0, 8),
    "kernels": Layers(4, (8, 8), 0, 8),
}


@dataclass(frozen=True)
class Machine:
    """What runs a model: devices, how they are driven, and the constants of this replication.

    Attributes:
        device, dtype, tensor_parallel: one of the devices, type of the weights, and how many share them.
        layers: what runs the layers, of `LAYERS`.
        eager_s: seconds of the host per pass and per layer where nothing is recorded; zeros where it is.
        factors: constant → factor drawn for the replication.
    """

    device: Device
    dtype: str
    tensor_parallel: int
    layers: str
    eager_s: tuple[float, float]
    factors: dict[str, float]

    @property
    def bandwidth(self) -> float:
        """Bytes per second that large reads reach, of one device."""
        return self.device.bandwidth_bytes_per_s * load_curve(self.device.curve).read_efficiency

    def matrix_s(self, weights: float, tokens: float) -> float:
        """Seconds of multiplying `weights` numbers with `tokens` columns, on all devices; 0 where there are none."""
        if not weights or not tokens:
            return 0.0
        device, share = self.device, weights / self.tensor_parallel
        read_s = share * WEIGHT_BYTES[self.dtype] / device.bandwidth_bytes_per_s
        slowness = load_curve(device.curve).at(tokens / ridge_tokens(device, self.dtype))
        return read_s * slowness * self.factors["linear"]

    def all_reduce_s(self, elements: float) -> float:
        """Seconds of one ring all-reduce; 0 on one device.

        It takes a latency, and 2 (n - 1) / n of the bytes of `elements` 16-bit numbers over one link.
        """
        if self.tensor_parallel == 1:
            return 0.0
        moved = 2 * (self.tensor_parallel - 1) / self.tensor_parallel * elements * KV_BYTES
        return (self.device.all_reduce_s + moved / self.device.link_bytes_per_s) * self.factors["all_reduce"]


class ModelCost:
    """Passes of one model on one machine.

    Raises:
        InputError: the devices cannot share its heads evenly.

    Attributes:
        weights_bytes: of the weights, on each device.
        kv_bytes_per_token: of a token's K/V, on the device with most heads; none has less than one.
        state_bytes_per_row: of a row's recurrent states, on each device.
    """

    def __init__(self, model: Architecture, machine: Machine):
        self.model, self.machine = model, machine
        devices, heads = machine.tensor_parallel, 1 if model.latent else model.kv_heads
        even = model.heads % devices == 0
        require(even, f"cost.tensor_parallel {devices} does not divide the {model.heads} heads of {model.name}")
        self.weights_bytes = model.weights * WEIGHT_BYTES[machine.dtype] / devices
        self.kv_bytes_per_token = model.kv_bytes_per_token * ceil(heads / devices) / heads
        self.state_bytes_per_row = model.state_bytes_per_row / devices

    def pass_s(self, parts: Seq[Fed], logits: float, chunks: int = 0) -> np.ndarray:
        """Seconds of one pass.

        Args:
            parts: rows that it feeds.
            logits: tokens that are projected to the vocabulary; recurrent states are written behind each of them.
            chunks: rows that none are of, whose states are written behind their last token.

        Returns:
            ``[n]``, one for each width of the parts
        """
        fed, machine = sum([part.rows * part.tokens for part in parts]), self.machine
        fixed_s = self._matrices_s(fed) + machine.matrix_s(self.model.head_weights, logits)
        fixed_s += self._launches_s(fed, any(part.tokens > 1 for part in parts))
        fixed_s += self._states_s(sum([part.rows for part in parts]) + logits + chunks)
        fixed_s += 2 * self.model.layers * machine.all_reduce_s(fed * self.model.hidden)
        per_pass_s, per_layer_s = machine.eager_s
        launch_s = (per_pass_s + per_layer_s * self.model.layers) * machine.factors["eager"]
        return np.maximum(fixed_s + self.attention_s(parts), launch_s)

    def _matrices_s(self, fed: float) -> float:
        model, experts = self.model, self.model.experts
        dense_s = self.machine.matrix_s(model.dense_weights, fed)
        if experts is None or not fed:
            return dense_s
        touched = experts.count * (1 - (1 - experts.active / experts.count) ** fed)
        weights = model.expert_layers * touched * model.expert_weights
        return dense_s + self.machine.matrix_s(weights, fed * experts.active / touched)

    def attention_s(self, parts: Seq[Fed]) -> np.ndarray:
        """Seconds of the attention of all layers: reading each row's own K/V, or the arithmetic on them."""
        machine, model = self.machine, self.model
        read = sum([part.rows * (part.context + part.tokens) for part in parts]) * self.kv_bytes_per_token
        pairs = sum([part.rows * part.tokens * (part.context + (part.tokens + 1) / 2) for part in parts])
        peak = machine.device.peak_flops_per_s.bfloat16 * load_curve(machine.device.curve).compute_efficiency
        compute_s = pairs * model.attention_flops / machine.tensor_parallel / peak
        return np.maximum(read / machine.bandwidth, compute_s) * machine.factors["attention"]

    def _states_s(self, count: float) -> float:
        """Seconds of reading or writing so many recurrent states of a row's."""
        return count * self.state_bytes_per_row / self.machine.bandwidth * self.machine.factors["attention"]

    def _launches_s(self, fed: float, several: bool) -> float:
        """Seconds that launches take beyond the bytes and operations of products and attention.

        Norms, rotation, activation and sums read and write what they work on.
        """
        model, device, layers = self.model, self.machine.device, LAYERS[self.machine.layers]
        launches = layers.launches[several] + layers.key_norms * model.key_norms
        large = layers.products + 1  # those, and attention
        moved_s = self._small_bytes(fed) / device.bandwidth_bytes_per_s
        layer_s = large * LARGE_KERNEL_S + (launches - large) * SMALL_KERNEL_S + moved_s
        outside_s = LARGE_KERNEL_S + layers.outside * SMALL_KERNEL_S  # the head is a product
        return (model.layers * layer_s + outside_s) * self.machine.factors["launches"]

    def _small_bytes(self, fed: float) -> float:
        """Bytes that the small kernels of a layer move on each device."""
        model, machine = self.model, self.machine
        wide = model.intermediate if model.experts is None else model.experts.active * model.experts.intermediate
        return fed * (10 * model.hidden + 3 * wide) * KV_BYTES / machine.tensor_parallel


class RooflineCost(CostModel):
    """Costs of a pair of models on a device, by its facts.

    Args:
        spec: of kind ``roofline``.
        streams: random numbers of the replication; None for the constants themselves.
        runs_draft: whether the draft makes passes and has K/V; its weights are loaded all the same.

    Attributes:
        running: the draft, where it runs.
        kv_bytes_per_token, state_bytes_per_row, kv_capacity_bytes: of the device that holds most, which is the one with
            the draft.

    Raises:
        InputError: no such device or model, devices that cannot share it, or weights that do not fit.
    """

    def __init__(self, spec: Spec, streams: Streams | None, *, runs_draft: bool = True):
        super().__init__(dict.fromkeys(COMPONENTS, 1.0))
        self.p = spec.resolved(COST)
        device, dtype = load_device(self.p["device"]), self.p["dtype"]
        factors = draw_constants(device, self.p["eager_cv"], streams)
        eager_s = (0.0, 0.0) if self.p["graphs"] else (self.p["eager_pass_s"], self.p["eager_layer_s"])
        self.num_devices, self.cost_per_hour, self.watts = self.p["tensor_parallel"], device.cost_per_hour, device.watts
        layers = self.p["layers"]
        self.machine = Machine(device, dtype, self.num_devices, layers, eager_s, factors)
        self.target = ModelCost(load_architecture(self.p["target"]), self.machine)
        alone = Machine(device, dtype, 1, layers, eager_s, factors)  # a small draft is faster on one device
        self.draft = ModelCost(load_architecture(self.p["draft"]), alone) if self.p["draft"] else None
        models = [each for each in (self.target, self.draft) if each]
        stepped = self.draft is not None and self.draft.model.recurrent is not None
        require(not stepped, f"cost.draft: {self.p['draft']} has recurrent layers; only a target's are simulated")
        self.running = self.draft if runs_draft else None
        running = [each for each in (self.target, self.running) if each]
        self.kv_bytes_per_token = float(sum(each.kv_bytes_per_token for each in running))
        self.state_bytes_per_row = sum(each.state_bytes_per_row for each in running)
        self.own_contexts = self.p["attention"] == "own"
        self.kv_capacity_bytes = self._room(sum(each.weights_bytes for each in models))
        names = " and ".join(each.model.name for each in models)
        self.origin = f"roofline of {device.name}, {names}, {dtype}"

    def _room(self, weights_bytes: float) -> float:
        memory = self.machine.device.memory_bytes * MEMORY_SHARE
        need = f"{weights_bytes / 1e9:.0f} GB of weights do not fit into {memory / 1e9:.0f} GB"
        require(weights_bytes < memory, f"cost: {need}, {MEMORY_SHARE:.0%} of the memory of {self.p['device']}")
        return memory - weights_bytes

    def seconds(self, component: str, rows: int, tokens: float, widths: np.ndarray, scattered: bool) -> np.ndarray:
        """Seconds of one execution ``[widths]``: a pass, a stage of the host, or a move of all rows' K/V."""
        fed = Fed(rows, tokens, widths)
        if component == "verify":
            return self.target.pass_s([fed], rows * tokens) + self._copied_s(self.target, rows, widths, scattered)
        if component == "draft":
            return self._draft_s(rows, tokens, widths, scattered)
        if component == "prefill":
            return self.target.pass_s([fed], rows) + self._draft_pass_s([fed], rows)
        if component == "draft_prefill":
            return self._draft_pass_s([fed], rows)
        if component == "mixed":
            return self._mixed_s(rows, tokens, widths)
        if component == "draft_chunk":
            return self._draft_pass_s([Fed(1, tokens, widths)], 1)
        if component == "host":
            return np.full(len(widths), self.p["host_s"])
        return self._moved_s(rows * widths * self.kv_bytes_per_token)

    def prefill_s(self, prompts: Seq[Fed], *, padded: bool = False) -> float:
        """Of real tokens: a pass of both models over each prompt's own tokens, behind its own cached ones."""
        fed = [prompt for prompt in prompts if prompt.tokens]
        if padded or not fed:
            return super().prefill_s(prompts, padded=padded)
        return float(self.target.pass_s(fed, len(fed)) + self._draft_pass_s(fed, len(fed)))

    def beside(self, rows: Fed, chunks: Seq[Fed]) -> tuple[float, float]:
        """A pass of the draft over the chunks, and what the verify pass takes longer with them than alone."""
        logits = rows.rows * rows.tokens
        more_s = self.target.pass_s([rows, *chunks], logits, len(chunks)) - self.target.pass_s([rows], logits)
        return float(self._draft_pass_s(chunks, 1)), max(0.0, float(more_s))

    def _mixed_s(self, rows: int, tokens: float, starts: np.ndarray) -> np.ndarray:
        """Seconds of a verify pass as a calibration times it, with a chunk of a prompt beside the rows."""
        decoding = Fed(rows, MEASURED_ROW.tokens, MEASURED_ROW.context)
        parts = [decoding, Fed(1, tokens, starts)] if tokens else [decoding]
        return np.broadcast_to(self.target.pass_s(parts, rows * decoding.tokens, len(parts) - 1), starts.shape)

    def _draft_s(self, rows: int, tokens: float, widths: np.ndarray, scattered: bool) -> np.ndarray:
        """Seconds of `tokens` passes of one token each; the first looks back at `widths` cached tokens."""
        if self.running is None:
            return np.zeros(len(widths))
        passes_s = tokens * self.running.pass_s([Fed(rows, 1, widths + (tokens - 1) / 2)], rows)
        return passes_s + tokens * self._copied_s(self.running, rows, widths, scattered)

    def _draft_pass_s(self, parts: Seq[Fed], logits: float) -> np.ndarray:
        return self.running.pass_s(parts, logits) if self.running else np.zeros(np.shape(parts[0].context))

    def _copied_s(self, model: ModelCost, rows: int, widths: np.ndarray, scattered: bool) -> np.ndarray:
        """Seconds of gathering the K/V of rows that are no neighbours before a pass."""
        return self._moved_s(rows * widths * model.kv_bytes_per_token) if scattered else np.zeros(len(widths))

    def _moved_s(self, size: np.ndarray) -> np.ndarray:
        """Seconds of reading and writing `size` bytes with one kernel for all layers ``[n]``."""
        return SMALL_KERNEL_S + 2 * size / self.machine.bandwidth


def draw_constants(device: Device, eager_cv: float, streams: Streams | None) -> dict[str, float]:
    """A factor of mean 1 for each constant; ones without random numbers."""
    cvs = {"linear": curve_cv(device), "eager": eager_cv} | UNCERTAINTY
    if streams is None:
        return dict.fromkeys(cvs, 1.0)
    normal = streams.generator(Purpose.CALIBRATION).standard_normal(len(cvs))
    pairs = zip(cvs.items(), normal, strict=True)
    return {name: lognormal_factor(z, cv) for (name, cv), z in pairs}
