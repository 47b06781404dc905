"""Devices and architectures by their published facts: one YAML file each, shipped or the user's own."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from refimpl.core.errors import InputError, require, shown
from refimpl.core.reading import is_file
from simulator.settings.fields import (
    COUNT,
    NON_NEGATIVE,
    POSITIVE,
    WHOLE,
    Range,
    check_fields,
    from_mapping,
    number_field,
)
from simulator.settings.folders import DATA
from simulator.settings.plain_yaml import read_yaml

CurveName = Literal["a100", "h100"]  # of the operator tables in data/published/linear_ops.csv
WEIGHT_BYTES = {"float16": 2, "bfloat16": 2, "float8": 1}
KV_BYTES = 2  # of a number in the cache: K/V stay in 16 bit
FACT = Range(0, open_low=True, least=1, most=1e18)  # bytes, and bytes or operations per second


@dataclass(frozen=True, slots=True)
class Facts:
    """Published facts, each of them checked; there are no defaults for what every file must give."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class Peaks(Facts):
    """Arithmetic of a device by the type of its operands, in floating-point operations per second."""

    float16: float = number_field(FACT)
    bfloat16: float = number_field(FACT)
    float8: float = number_field(FACT)


@dataclass(frozen=True, slots=True)
class Device(Facts):
    """One accelerator.

    Attributes:
        source: where the numbers were published.
        reported_as: what PyTorch calls it, and so a calibration of it; empty where that is `name`.
        peak_flops_per_s: dense.
        curve: whose operator table gives the efficiency of matrix products.
        memory_bytes, bandwidth_bytes_per_s: its memory.
        link_bytes_per_s, all_reduce_s: to the other devices of a server; latency of one all-reduce.
        watts: limit of its power, as specified; None where the user gives what it draws.
        cost_per_hour: of renting it, in any currency; None in shipped files, since providers differ by several times.
    """

    name: str
    source: str
    peak_flops_per_s: Peaks
    curve: CurveName
    memory_bytes: float = number_field(FACT)
    bandwidth_bytes_per_s: float = number_field(FACT)
    link_bytes_per_s: float = number_field(FACT)
    all_reduce_s: float = number_field(NON_NEGATIVE)
    reported_as: str = ""
    watts: float | None = number_field(POSITIVE, None)
    cost_per_hour: float | None = number_field(POSITIVE, None)

    @property
    def names(self) -> tuple[str, ...]:
        """Names by which a calibration may know it."""
        return tuple(filter(None, (self.name, self.reported_as)))


@dataclass(frozen=True, slots=True)
class Experts(Facts):
    """A mixture of experts: how many there are, how many a token uses, and how wide each is.

    Attributes:
        shared: experts that run for every token beside the chosen ones.
        dense_layers: first layers, which have one feed-forward network instead.
    """

    count: int = number_field(COUNT)
    active: int = number_field(COUNT)
    intermediate: int = number_field(COUNT)
    shared: int = number_field(WHOLE, 0)
    dense_layers: int = number_field(WHOLE, 0)

    def __post_init__(self) -> None:
        Facts.__post_init__(self)
        require(self.active <= self.count, f"active {self.active} is more than count {self.count}")


@dataclass(frozen=True, slots=True)
class Latent(Facts):
    """Multi-head latent attention: a token caches one vector of `kv_rank` numbers and one rotated key of `rope_dim`."""

    kv_rank: int = number_field(COUNT)
    rope_dim: int = number_field(COUNT)


@dataclass(frozen=True, slots=True)
class Recurrent(Facts):
    """Layers that keep a state of each row in place of K/V; the others attend.

    Attributes:
        weights: of the projections of one of them.
        state_bytes: of a row in one of them: its state, and the window of its convolution.
    """

    layers: int = number_field(COUNT)
    weights: int = number_field(COUNT)
    state_bytes: float = number_field(FACT)


@dataclass(frozen=True, slots=True)
class Architecture(Facts):
    """A decoder by the facts of its config.json; gated feed-forward networks of three matrices.

    Attributes:
        key_norms: whether each layer normalizes queries and keys.
    """

    name: str
    source: str
    tied_embeddings: bool
    layers: int = number_field(COUNT)
    hidden: int = number_field(COUNT)
    heads: int = number_field(COUNT)
    kv_heads: int = number_field(COUNT)
    head_dim: int = number_field(COUNT)
    intermediate: int = number_field(COUNT)
    vocabulary: int = number_field(COUNT)
    key_norms: bool = False
    experts: Experts | None = None
    latent: Latent | None = None
    recurrent: Recurrent | None = None

    def __post_init__(self) -> None:
        Facts.__post_init__(self)
        require(self.heads % self.kv_heads == 0, f"heads {self.heads} is no multiple of kv_heads {self.kv_heads}")
        dense = 0 if self.experts is None else self.experts.dense_layers
        require(dense <= self.layers, f"experts.dense_layers {dense} is more than layers {self.layers}")
        rotated = 0 if self.latent is None else self.latent.rope_dim
        require(rotated < self.head_dim, f"latent.rope_dim {rotated} must be less than head_dim {self.head_dim}")
        attend = f"recurrent.layers {self.layers - self.attention_layers} must be less than layers {self.layers}"
        require(self.attention_layers > 0, attend)

    @property
    def attention_layers(self) -> int:
        """Layers with K/V."""
        return self.layers - (0 if self.recurrent is None else self.recurrent.layers)

    @property
    def attention_weights(self) -> int:
        """Weights of the projections of one layer that attends."""
        width = self.heads * self.head_dim
        if self.latent is None:
            return 2 * self.hidden * (width + self.kv_heads * self.head_dim)
        rank, rope = self.latent.kv_rank, self.latent.rope_dim
        values = self.heads * (self.head_dim - rope)  # as wide as the part of the keys that is not rotated
        return self.hidden * (width + rank + rope + values) + 2 * rank * values

    @property
    def expert_layers(self) -> int:
        """Layers with a mixture of experts."""
        return 0 if self.experts is None else self.layers - self.experts.dense_layers

    @property
    def expert_weights(self) -> int:
        """Weights of one expert."""
        return 0 if self.experts is None else 3 * self.hidden * self.experts.intermediate

    @property
    def dense_weights(self) -> int:
        """Weights of the layers that every token uses."""
        wide = (self.layers - self.expert_layers) * 3 * self.hidden * self.intermediate
        shared = 0 if self.experts is None else self.expert_layers * self.experts.shared * self.expert_weights
        recurrent = 0 if self.recurrent is None else self.recurrent.layers * self.recurrent.weights
        return self.attention_layers * self.attention_weights + recurrent + wide + shared

    @property
    def head_weights(self) -> int:
        """Weights of the projection to the vocabulary."""
        return self.hidden * self.vocabulary

    @property
    def weights(self) -> int:
        """All weights but those of norms and biases."""
        count = 0 if self.experts is None else self.experts.count
        embeddings = self.head_weights * (1 if self.tied_embeddings else 2)
        return self.dense_weights + self.expert_layers * count * self.expert_weights + embeddings

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that the cache holds for one token."""
        if self.latent is None:
            return 2 * self.attention_layers * self.kv_heads * self.head_dim * KV_BYTES
        return self.attention_layers * (self.latent.kv_rank + self.latent.rope_dim) * KV_BYTES

    @property
    def state_bytes_per_row(self) -> float:
        """Bytes of a row's recurrent states."""
        return 0.0 if self.recurrent is None else self.recurrent.layers * self.recurrent.state_bytes

    @property
    def attention_flops(self) -> int:
        """Operations of one query on one cached token, of all layers."""
        if self.latent is None:
            return 4 * self.attention_layers * self.heads * self.head_dim
        return 2 * self.attention_layers * self.heads * (2 * self.latent.kv_rank + self.latent.rope_dim)


def load_device(name: str) -> Device:
    """A shipped device by its name, or the one in a YAML file.

    Raises:
        InputError: there is none, or a fact is missing or out of range.
    """
    return _load(Device, hardware_file("devices", name))


def load_architecture(name: str) -> Architecture:
    """A shipped architecture by its name, or the one in a YAML file; raises InputError as `load_device` does."""
    return _load(Architecture, hardware_file("architectures", name))


def shipped(folder: str) -> list[str]:
    """Names of the shipped ``devices`` or ``architectures``."""
    return sorted(path.stem for path in (DATA / folder).glob("*.yaml"))


def hardware_file(folder: str, name: str) -> Path:
    """The file behind a name; raises InputError, with the shipped names, if there is none."""
    for path in (DATA / folder / f"{name}.yaml", Path(name)):
        if is_file(path):
            return path
    known = ", ".join(shipped(folder))
    raise InputError(f"cost: no {folder[:-1]} {shown(name)}: give a YAML file, or one of: {known}")


def _load(cls: Any, path: Path) -> Any:
    return _read(cls, path, path.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _read(cls: Any, path: Path, stamp: int) -> Any:
    data = read_yaml(path)
    require(isinstance(data, dict), f"{path}: must be a mapping")
    try:
        return from_mapping(cls, data)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
