"""Run so many rounds by a method; print whether the pools stayed, and the growth of all tensors in bytes.

A process of its own: the tensors of other tests are not counted.
"""

import gc
import sys

import torch

from refimpl.core.config import make_config
from refimpl.decoding.engine import Engine
from refimpl.models.adapter import Pair
from refimpl.models.table_model import TableModel
from refimpl.requests import prepare

WARM_ROUNDS = 100


def tensor_bytes() -> int:
    """Bytes of all tensors alive, storages counted once."""
    gc.collect()
    alive = [o for o in gc.get_objects() if type(o) is torch.Tensor]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in alive}.values())


def main(method: str, rounds: int) -> None:
    """Sequences of four rounds each, one after the other."""
    torch.set_num_threads(1)
    pair = Pair(TableModel(11), TableModel(11), vocab_size=11, name="table")
    config = make_config(method=method, batch_size=1, num_speculative_tokens=1, max_new_tokens=8, checks="off")
    engine = Engine(pair, prepare(pair, [[1, 2]] * (rounds // 4), config), config)
    for _ in range(WARM_ROUNDS):
        engine.run_one_round()
    pools, before = [layout.pool.data.data_ptr() for layout in engine.layouts], tensor_bytes()
    for _ in range(WARM_ROUNDS, rounds):
        engine.run_one_round()
    print([layout.pool.data.data_ptr() for layout in engine.layouts] == pools, tensor_bytes() - before)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
