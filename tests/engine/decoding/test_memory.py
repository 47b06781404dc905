"""K/V memory: refused before anything is allocated, allocated once, never growing."""

import gc
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch

from refimpl import InputError, generate, stream
from refimpl.core.config import make_config
from refimpl.decoding.engine import Engine
from refimpl.decoding.memory import GIB, free_bytes, pool_gib
from refimpl.layouts import make_layout
from refimpl.layouts.places import BlockRows
from refimpl.layouts.store import KVShape, KVStore, RowState
from refimpl.placement import PoolSize
from refimpl.requests import prepare

PROMPTS = [[1, 2, 3]] * 6
METHODS = ["inplace", "exspec", "masked+fifo", "rollback"]


@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_cannot_fit_ends_before_it_allocates(llama, monkeypatch, method):
    monkeypatch.setattr(KVStore, "empty", lambda *_, **__: pytest.fail("allocated"))
    with pytest.raises(InputError, match=r"K/V of \d+ tokens .* need .* GiB, but 1e-06 GiB may be used: lower"):
        generate(llama, PROMPTS, method=method, batch_size=3, max_new_tokens=20, kv_memory_gib=1e-6)


def test_a_paged_pool_is_too_small_for_its_longest_row(llama):
    """Fewer rows would not help: the pool is refused only where one of them does not fit."""
    with pytest.raises(
        InputError, match=r"\(the longest row alone\) need .*: lower max_new_tokens or max_prompt_tokens"
    ):
        generate(llama, PROMPTS, method="paged", max_new_tokens=20, kv_memory_gib=1e-6)


# Rows of 32 columns: pool rows, then two buffers of three rows with 32 columns of slack, or 8 more for holes.
@pytest.mark.parametrize(
    ("method", "num_slots"),
    [
        ("inplace", 3 * 32),
        ("inplace+grouped", 6 * 32),
        ("exspec", 6 * 32 + 2 * 3 * 64),
        ("masked", 3 * 32 + 2 * 3 * 72),
    ],
)
def test_slots_beside_the_pool_count(llama, method, num_slots):
    """A gather reads one copy of the batch and writes another."""
    settings = {"method": method, "batch_size": 3, "window_size": 6, "max_new_tokens": 20}
    assert generate(llama, PROMPTS, kv_memory_gib=1, **settings).stats.kv_bytes > 0
    with pytest.raises(InputError, match=f"K/V of {num_slots} tokens"):
        generate(llama, PROMPTS, kv_memory_gib=1e-6, **settings)


def test_what_a_row_has_no_block_for_goes_behind_all_blocks(llama):
    size = PoolSize(rows=2, columns=16, batch_rows=2, block_size=4, num_blocks=3)
    layout = make_layout("paged", llama.target.kv_shape, size, max_positions=99, tagged=False)
    rows = [RowState(0, 0, 5, 4, blocks=[2, 0]), RowState(1, 1, 3, 2, blocks=[1])]
    places = layout.places(rows, 12)
    assert places.table.tolist() == [[2, 0, 3], [1, 3, 3]]
    assert places.slots(torch.tensor([[4, 8], [3, 4]])).tolist() == [0 * 4, 3 * 4, 1 * 4 + 3, 3 * 4]


def test_all_layers_are_gathered_into_the_same_memory(llama):
    """Each is there until the next one is."""
    store = KVStore.empty(llama.target.kv_shape, 4, 4, tagged=False)
    store.data.copy_(torch.arange(store.data.numel()).view(store.data.shape))
    table = torch.tensor([[2, 0], [1, 3]])
    places, memory = BlockRows(store, table, torch.zeros(2, 1, dtype=torch.long)), set()
    for layer, planes in enumerate(store.data):
        found = places.view(layer, 7)
        expected = planes[:, :, table].flatten(3, 4)[..., :7, :].transpose(1, 2)
        assert all(map(torch.equal, found, expected))
        memory.add(tuple(each.data_ptr() for each in found))
    assert (len(store.data) > 1, len(memory)) == (True, 1)


def test_tables_are_made_once_a_round_and_anew_for_the_next(llama):
    size = PoolSize(rows=2, columns=16, batch_rows=2, block_size=4, num_blocks=3)
    layout = make_layout("paged", llama.target.kv_shape, size, max_positions=99, tagged=False)
    before, after = RowState(0, 0, 5, 4, blocks=[2, 0]), RowState(0, 0, 7, 6, blocks=[2, 1])
    layout.begin([before], span=5)
    of_round = layout.places(layout.rows, 12)
    assert layout.places(layout.rows, 12).cached is of_round.cached
    assert layout.places([before], 12).cached is not of_round.cached
    layout.begin([after], span=5)
    for places in (layout.places(layout.rows, 8), layout.places([after], 8)):
        assert (places.table.tolist(), places.cached.tolist()) == ([[2, 1]], [[6]])


@pytest.mark.parametrize("method", ["eqspec", "exspec", "masked", "masked+grouped", "rollback"])
def test_gathers_take_turns_in_two_buffers(llama, method):
    """Each is allocated once, and together with the pool they are what was reckoned."""
    config = make_config(method=method, batch_size=3, window_size=6, max_new_tokens=60)
    engine = Engine(llama, prepare(llama, PROMPTS, config), config)
    layout, places = engine.context.target.layout, []
    for _ in engine.rounds():
        if not places or layout.batch.data.data_ptr() != places[-1]:
            places.append(layout.batch.data.data_ptr())
    assert len(places) > 2
    assert places == [places[i % 2] for i in range(len(places))]
    buffers = sum(buffer.numel() for buffer in (layout._buffer, layout._spare))
    slots = layout.placement.num_slots(PoolSize(layout.num_rows, layout.columns, batch_rows=3))
    assert layout.pool.data.numel() + buffers == slots * layout.shape.elements_per_token


@pytest.mark.parametrize("value_dim", [None, 8, 3, 11])
def test_keys_and_values_of_any_widths_take_what_they_need(value_dim):
    shape = KVShape(2, 3, 8, torch.float64, torch.device("cpu"), value_dim)
    store = KVStore.empty(shape, 4, 5, tagged=False)
    assert store.num_bytes == 4 * 5 * shape.bytes_per_token == 4 * 5 * 2 * 3 * (8 + (value_dim or 8)) * 8
    entries = [(torch.randn(4, 3, 5, 8).double(), torch.randn(4, 3, 5, value_dim or 8).double()) for _ in range(2)]
    for layer, (keys, values) in enumerate(entries):
        store.write_columns(layer, 0, keys, values)
        assert all(map(torch.equal, store.view(layer, 5), (keys, values)))
    slots = torch.tensor([[7, 3], [19, 0]])
    moved = store.gather(slots, torch.empty(4 * shape.elements_per_token, dtype=torch.float64))
    for layer, layers in enumerate(entries):
        expected = [kept.transpose(1, 2).flatten(0, 1)[slots].transpose(1, 2) for kept in layers]
        assert all(map(torch.equal, moved.view(layer, 2), expected))
    row = torch.stack([shape.joined(keys[1], values[1]) for keys, values in entries])
    assert torch.equal(row, store.data[:, :, :, 1])


def test_buffers_grow_with_the_batch_and_stay_as_large(llama):
    layout = make_layout("realigned", llama.target.kv_shape, PoolSize(4, 32, 4), max_positions=256, tagged=False)
    layout.pool.data.normal_()
    layout.stored = dict.fromkeys(range(4), 4)
    rows, seen = [RowState(slot, slot, 5, 4) for slot in range(4)], []
    for members in ([0], [1], [0, 1, 2, 3], [3, 2, 1, 0], [2], [0, 3], [1, 2, 3, 0]):
        layout.begin([rows[slot] for slot in members], span=3)
        seen.append(layout.batch.data.data_ptr())
        for place, slot in enumerate(members):
            assert torch.equal(layout.read(place), layout.pool.data[:, :, :, slot, :4])
    assert len(set(seen[2:])) == 2


def test_nine_tenths_of_what_is_free_are_the_default_bound(llama, monkeypatch):
    """Passes need some, too."""
    need = generate(llama, PROMPTS, max_new_tokens=20).stats.kv_bytes
    monkeypatch.setattr("refimpl.decoding.memory.free_bytes", lambda device: need / 0.9 + 1)
    generate(llama, PROMPTS, max_new_tokens=20)
    monkeypatch.setattr("refimpl.decoding.memory.free_bytes", lambda device: need / 0.9 - 1)
    with pytest.raises(InputError, match="may be used"):
        generate(llama, PROMPTS, max_new_tokens=20)


def test_what_is_free_is_asked_once(llama, monkeypatch):
    """Other programs may take memory meanwhile: blocks that fit into what was free are not refused for that."""
    free = iter([60_000, 0])
    monkeypatch.setattr("refimpl.decoding.memory.free_bytes", lambda device: next(free))
    assert generate(llama, PROMPTS, method="paged", block_size=4, max_new_tokens=20).stats.num_preemptions > 0


def test_every_preemption_is_counted(llama, monkeypatch):
    sent_back, preempt = [], Engine._preempt
    monkeypatch.setattr(Engine, "_preempt", lambda self, row: (sent_back.append(row.index), preempt(self, row)))
    prompts, settings = [[1 + i] * 9 for i in range(4)], {"block_size": 4, "prefix_sharing": False}
    need = pool_gib(llama, 8, 4)
    stats = generate(llama, prompts, method="paged", max_new_tokens=20, kv_memory_gib=need, **settings).stats
    assert stats.num_preemptions == len(sent_back) > 1
    assert stats.num_prefix_hits == 0


@pytest.mark.parametrize("method", METHODS)
def test_a_bound_that_is_enough(llama, method):
    settings = {"method": method, "batch_size": 3, "max_new_tokens": 20}
    result = generate(llama, PROMPTS, kv_memory_gib=0.1, **settings)
    assert 0 < result.stats.kv_bytes < 0.1 * GIB
    assert (free_bytes(torch.device("cpu")) or GIB) > 0


def test_the_page_cache_counts_as_free(monkeypatch, tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemFree: 2 kB\nMemAvailable: 5 kB\n")
    monkeypatch.setattr("refimpl.decoding.memory.MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr("refimpl.decoding.memory.CGROUPS", tmp_path / "nothing")
    assert free_bytes(torch.device("cpu")) == 5 * 1024
    monkeypatch.setattr("refimpl.decoding.memory.MEMINFO", tmp_path / "nothing")
    assert (free_bytes(torch.device("cpu")) or GIB) > 0


def control_group(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(content)


V2 = {"memory.max": "9000\n", "memory.current": "8000\n", "memory.stat": "anon 1\ninactive_file 500\n"}


@pytest.mark.parametrize(
    ("own", "groups", "free"),
    [
        ("0::/\n", {"": V2}, 1500),
        ("0::/\n", {"": V2 | {"memory.stat": "anon 1\n"}}, 1000),
        ("0::/\n", {"": V2 | {"memory.max": "max\n"}}, 5 * 1024),
        ("0::/\n", {"": V2 | {"memory.max": "7000\n"}}, 0),
        ("0::/\n", {"": V2 | {"memory.max": "garbage\n"}}, 5 * 1024),
        ("0::/a/b\n", {"a": V2, "a/b": V2 | {"memory.max": "max\n"}}, 1500),
        ("0::/not/mounted\n", {"": V2}, 1500),
        ("", {}, 5 * 1024),
    ],
)
def test_the_bound_of_a_container_counts(monkeypatch, tmp_path, own, groups, free):
    (tmp_path / "meminfo").write_text("MemAvailable: 5 kB\n")
    (tmp_path / "cgroup").write_text(own)
    for path, files in groups.items():
        control_group(tmp_path / "groups" / path, files)
    monkeypatch.setattr("refimpl.decoding.memory.MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr("refimpl.decoding.memory.OWN_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr("refimpl.decoding.memory.CGROUPS", tmp_path / "groups")
    assert free_bytes(torch.device("cpu")) == free


@pytest.mark.parametrize("settings", [{"method": method} for method in METHODS] + [{"cuda_graphs": True}])
def test_pools_go_with_their_engine(llama, settings):
    """At once: no cycle of references waits for the collector."""
    config = make_config(batch_size=3, max_new_tokens=8, checks="off", **settings)
    engine = Engine(llama, prepare(llama, PROMPTS, config), config)
    for _ in engine.rounds():
        pass
    pools = [weakref.ref(layout.pool) for layout in engine.layouts]
    gc.disable()
    try:
        del engine
        assert [pool() for pool in pools] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("prompts", [PROMPTS, iter(PROMPTS)])
def test_pools_go_with_their_stream(llama, prompts):
    """Also where it holds an iterator of prompts."""
    run = stream(llama, prompts, batch_size=3, max_new_tokens=8, max_model_len=32)
    list(run)
    pools = [weakref.ref(layout.pool) for layout in run._engine.layouts]
    gc.disable()
    try:
        del run
        assert [pool() for pool in pools] == [None, None]
    finally:
        gc.enable()


def test_the_oracle_of_one_shape_takes_no_more_than_is_free(llama, monkeypatch):
    monkeypatch.setattr("refimpl.decoding.memory.free_bytes", lambda _: 2**16)
    settings = {"method": "autoregressive", "batch_size": 512, "max_new_tokens": 20, "kv_memory_gib": 1}
    assert generate(llama, PROMPTS, **settings).stats.num_rounds
    with pytest.raises(InputError, match=r"shape_stable: K/V of 512 rows and \d+ columns need .* GiB, .* are free: lo"):
        generate(llama, PROMPTS, shape_stable=True, **settings)


MANY_ROUNDS = [
    ("inplace", 1000),
    pytest.param("inplace", 10_000, marks=pytest.mark.nightly),
    ("exspec", 1000),
    ("masked+fifo", 1000),
]


@pytest.mark.parametrize(("method", "rounds"), MANY_ROUNDS)
def test_nothing_grows_however_many_rounds(method, rounds):
    script = Path(__file__).parents[1] / "many_rounds.py"
    done = subprocess.run([sys.executable, script, method, str(rounds)], capture_output=True, text=True, check=True)
    same_pools, growth = done.stdout.split()
    assert same_pools == "True", "allocated once"
    assert int(growth) <= 4096
