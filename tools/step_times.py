"""What a pass costs inside a CUDA graph, for each value of `layers`: in parts, and as a whole.

``python tools/step_times.py OUTPUT --pair qwen3 --random-weights --device cuda --dtype bfloat16`` prints and writes

| section   | microseconds, but for `equal`                                                           |
|-----------|-----------------------------------------------------------------------------------------|
| gap       | of a small kernel, the gap behind it included                                           |
| equal     | what each value of `layers` says of its trial on the shapes of these models             |
| attention | of a layer: PyTorch's behind a mask; a kernel with norms, RoPE and the write of K/V      |
| steps     | of a whole pass with 1, 8 and 32 rows, its kernels, and those that take longest          |

``--only gap,steps`` chooses. Without CUDA work is called in place of replayed, so that all lines but few are tested.
"""

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from refimpl.bench.probe import device_events
from refimpl.core.errors import InputError
from refimpl.core.files import check_writable, write_whole
from refimpl.decoding.devices import provenance
from refimpl.layouts import make_layout
from refimpl.layouts.places import PoolRows
from refimpl.layouts.store import Block
from refimpl.models.adapter import HuggingFaceLM, Pair
from refimpl.models.attention import additive_mask, folded_attention
from refimpl.pairs import load_pair
from refimpl.placement import PoolSize

SMALL, REPLAYS, CONTEXT, DRAFTS, SHOWN = 200, 20, 128, 5, 8
ROWS, WIDTHS, LAYERS = (1, 8, 32), (128, 1024, 4096), ("transformers", "lean", "compiled", "kernels")

Row = dict[str, Any]


@torch.inference_mode()
def us(work: Callable[[], Any], on_cuda: bool) -> float:
    """Median microseconds of a replay of some work."""
    if not on_cuda:
        begun = time.perf_counter()
        work()
        return 1e6 * (time.perf_counter() - begun)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
        work()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph, stream=stream):
        work()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(REPLAYS + 1)]
    graph.replay()
    for mark in marks:
        mark.record()
        graph.replay()
    torch.cuda.synchronize()
    return 1e3 * statistics.median(a.elapsed_time(b) for a, b in pairwise(marks))


def driven(pair: Pair, layers: str) -> tuple[HuggingFaceLM, HuggingFaceLM]:
    """Draft and target with these layers."""
    models = [lm.model for lm in (pair.require_draft(), pair.target)]
    draft, target = (HuggingFaceLM(model, layers=layers) for model in models)
    return draft, target


def block_of(lm: HuggingFaceLM, rows: int, q: int, context: int) -> Callable[[], Block]:
    """Makes blocks of the last `q` of `context` tokens of every row of a pool, as recorded rounds do."""
    size = PoolSize.of_run([context] * rows, window_size=rows, batch_size=rows, span=q)
    layout = make_layout("inplace", lm.kv_shape, size, max_positions=lm.max_positions, tagged=False)
    index = torch.arange(rows, device=lm.model.device)
    places, tokens = PoolRows(layout.pool, index, slice(0, rows)), torch.ones(rows, q, dtype=torch.long).to(index)
    position = torch.arange(context - q, context, device=index.device).expand(rows, q)
    width = 0 if q <= lm.maskless_queries else layout.columns
    return lambda: layout.slot_block(places, tokens, position, width)


def gap(pair: Pair) -> Iterator[Row]:
    """Chains of small kernels."""
    like = {"device": pair.device, "dtype": pair.dtype}
    entries, weight, slots = torch.randn(8, 1024, **like), torch.ones(1024, **like), torch.arange(8, device=pair.device)
    pool = torch.zeros(8, 4096, 128, **like)
    new = torch.randn(8, 8, 128, **like)
    works: dict[str, Callable[[], Any]] = {
        "add_": lambda: entries.add_(0.0),
        "rms_norm": lambda: torch.rms_norm(entries, (1024,), weight, 1e-6),
        "index_copy_": lambda: pool.index_copy_(1, slots, new),
    }
    for name, work in works.items():
        yield {"kernel": name, "us": us(partial(chain, work), pair.device.type == "cuda") / SMALL}


def chain(work: Callable[[], Any]) -> None:
    """The same work, many times."""
    for _ in range(SMALL):
        work()


def equal(pair: Pair) -> Iterator[Row]:
    """Trials at load."""
    for layers in LAYERS[1:]:
        try:
            yield {"layers": layers, "models": [lm.layers.describe() for lm in driven(pair, layers)]}
        except InputError as error:
            yield {"layers": layers, "models": [str(error)]}


def attention(pair: Pair) -> Iterator[Row]:
    """One layer of the target, in contexts of several widths."""
    _, lm = driven(pair, "kernels" if pair.device.type == "cuda" else "lean")
    return (one_layer(lm, width, q) for width in WIDTHS for q in (1, DRAFTS + 1))


def one_layer(lm: HuggingFaceLM, width: int, q: int) -> Row:
    """Attention of eight rows."""
    layer, on_cuda, dim = lm.run_layers.layers[0], lm.model.device.type == "cuda", lm.kv_shape.key_dim
    heads, kv_heads, _ = layer.heads
    block = block_of(lm, 8, q, width)()
    query = torch.randn(8, heads, q, dim).to(lm.model.device, lm.model.dtype)
    seen = block.in_pool.store.view(0, width)
    visible = torch.ones(8, 1, q, width, dtype=torch.bool, device=lm.model.device)
    mask = additive_mask(visible, lm.model.dtype, heads // kv_heads)
    row = {"width": width, "queries": q, "sdpa": us(lambda: folded_attention(query, *seen, mask, None), on_cuda)}
    if lm.maskless_queries:
        qkv = torch.randn(8 * q, sum(layer.heads) * dim).to(query)
        row["kernel"] = us(lambda: lm.run_layers.attend(layer, qkv, block, 0), on_cuda)
    return row


def steps(pair: Pair) -> Iterator[Row]:
    """Whole passes, up to the choice of tokens."""
    for layers in LAYERS:
        try:
            draft, target = driven(pair, layers)
        except InputError as error:
            yield {"layers": layers, "refused": str(error)}
            continue
        passes = [(draft, "draft", 1), (target, "target", 1), (target, "target", DRAFTS + 1)]
        for rows, (lm, role, q) in ((rows, each) for rows in ROWS for each in passes):
            yield {
                "layers": layers,
                "role": role,
                "queries": q,
                "rows": rows,
                **step(lm, block_of(lm, rows, q, CONTEXT)),
            }


def step(lm: HuggingFaceLM, make_block: Callable[[], Block]) -> Row:
    """Time and kernels of a pass."""

    @torch.inference_mode()
    def work() -> None:
        block = make_block()
        lm.forward(block, block.tokens.shape[1]).argmax(dim=-1)

    time_us, took = us(work, lm.model.device.type == "cuda"), Counter[str]()
    events = device_events(lm.model.device, work)
    for event in events:
        took[event.name] += event.time_range.elapsed_us()
    return {"us": time_us, "kernels": len(events), "longest": dict(took.most_common(SHOWN))}


SECTIONS = {"gap": gap, "equal": equal, "attention": attention, "steps": steps}


def main() -> int:
    """Measure and write, after each section."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--pair", default="tiny")
    parser.add_argument("--random-weights", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype")
    parser.add_argument("--only", default=",".join(SECTIONS), metavar="NAME,…")
    given = parser.parse_args()
    try:
        check_writable(given.output)
        options = {"random_weights": given.random_weights, "device": given.device, "dtype": given.dtype}
        pair = load_pair(given.pair, layers="transformers", **options)
    except InputError as error:
        parser.error(str(error))
    found: dict[str, list[Row]] = {}
    meta = provenance(pair.device) | {"pair": pair.name, "dtype": str(pair.dtype).removeprefix("torch.")}
    for section in given.only.split(","):
        rows = found.setdefault(section, [])
        for row in SECTIONS[section](pair):
            rows.append(row)
            print(section, {name: value for name, value in row.items() if name != "longest"}, flush=True)
        write_whole(given.output, [json.dumps({"sections": found, "meta": meta}, indent=1)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
