"""The benchmark: work counted by hand, identities of its rows, and the anatomy of realignment."""

import gc
import json
import weakref
from dataclasses import asdict, replace

import pytest
import torch
from transformers import GenerationConfig

from refimpl import InputError, Request, generate
from refimpl.bench import BenchSettings, engines, run_bench, spread
from refimpl.bench.engines import busy_s_per_round, hf_generate, run_method
from refimpl.bench.forced import rate_lengths
from refimpl.bench.probe import covered
from refimpl.bench.run import ASSISTED, BATCHED, PLAIN, Interleaved, make_bench
from refimpl.bench.settings import prompt_ids, takes_graphs
from refimpl.bench.work import Feed, ModelWork
from refimpl.commands.bench_tables import print_bench_table
from refimpl.core.config import forced, make_config
from refimpl.decoding.engine import Engine
from refimpl.decoding.graphs import Recording
from refimpl.decoding.trace import RoundRecord
from refimpl.models.table_model import table_pair
from refimpl.pairs.random_pairs import random_pair
from refimpl.requests import prepare
from tests.commands import run_cli

SHARES = ("draft", "verify", "realign", "host")
FORCED = ("acceptance", forced(rate_lengths(0.4, 3)))


class TestPrompts:
    def test_spread_is_even_and_keeps_the_order(self):
        assert spread(range(96), 4) == [12, 36, 60, 84]
        assert spread(range(5), 9) == [0, 1, 2, 3, 4]
        assert spread(range(7), 7) == list(range(7))

    def test_prompts_per_row_gives_each_row_its_share(self):
        settings = BenchSettings(prompts_per_row=2)
        assert len(settings.prompts_at(4, [[i] for i in range(32)])) == 8
        assert len(BenchSettings().prompts_at(4, [[i] for i in range(32)])) == 32

    def test_a_pair_without_tokenizer_gets_random_ids(self, llama, tiny):
        ids = prompt_ids(llama, [], 3, 5, seed=1)
        assert [len(p) for p in ids] == [5, 5, 5]
        assert ids != prompt_ids(llama, [], 3, 5, seed=2)
        with pytest.raises(
            InputError, match="1000000000000 random prompts of 5 tokens are 5000000000000 tokens, at most"
        ):
            prompt_ids(llama, [], 10**12, 5, seed=1)
        with pytest.raises(InputError, match="no texts"):
            prompt_ids(tiny, [], 3, 5, seed=1)
        with pytest.raises(InputError, match="all prompts are decoded alike"):
            prompt_ids(tiny, ["a", Request("b", max_new_tokens=3)], 3, 5, seed=1)
        assert prompt_ids(tiny, [[5, 6], [7]], 2, 5, seed=1) == [[5, 6], [7]]


@pytest.fixture(scope="module")
def report():
    pair = random_pair("llama", draft_noise=0.01)
    settings = BenchSettings((1, 3), num_speculative_tokens=3, max_new_tokens=5, repeats=2, prompts_per_row=1)
    saved = []
    found = run_bench(pair, [[i, i + 1, 5] for i in range(6)], settings, save=saved.append)
    return found, saved


class TestBench:
    def test_every_engine_has_a_row(self, report):
        rows = report[0].rows
        ours = {"rollback", "masked", "eqspec", "exspec", "inplace", "paged"}
        assert {r.engine for r in rows if r.batch_size == 1} == {PLAIN, ASSISTED, BATCHED, "speculative"} | ours
        assert {r.engine for r in rows if r.batch_size == 3} == {PLAIN, BATCHED} | ours

    def test_identities(self, report):
        for row in report[0].rows:
            assert row.tokens_per_s_min <= row.tokens_per_s <= row.tokens_per_s_max
            assert row.fraction_of_floor > 0
            assert row.flops_per_round > 0
            assert row.bytes_per_round > 0
            assert row.peak_memory_bytes is None
            if row.engine == PLAIN:
                assert row.ratio_to_hf_generate == 1
            if row.engine in (PLAIN, ASSISTED):
                assert row.ms_per_round == 0
                continue
            # Of two repeats, the median is the mean: stages add up, however long they took.
            assert sum(getattr(row, f"ms_{s}") for s in SHARES) == pytest.approx(row.ms_per_round)
            assert sum(getattr(row, f"share_{s}") for s in SHARES) == pytest.approx(1)
            assert 0 < row.share_outside_forward < 1
            assert row.kv_bytes > 0
            assert 1 <= row.rows_per_round <= row.batch_size

    def test_the_report_is_saved_as_it_grows(self, report):
        found, saved = report
        assert [len(s.rows) for s in saved] == [10, 18, 18, 18]
        assert not any(s.complete for s in saved)
        assert found.complete
        assert found.repeats == 2

    def test_time_up_ends_after_the_first_repeat(self, llama):
        settings = BenchSettings((1,), ("inplace",), max_new_tokens=2, repeats=5, max_minutes=0)
        found = run_bench(llama, [[5, 6]], settings)
        assert (found.repeats, found.complete) == (1, True)

    def test_nothing_is_timed_once_a_profiler_has_run(self, llama, monkeypatch):
        """The report without its times is saved first, as complete."""
        calls = []
        for name in ("_warm_up", "_visit", "_profile"):
            monkeypatch.setattr(Interleaved, name, lambda *_, name=name: calls.append(name))
        monkeypatch.setattr(Interleaved, "report", lambda _, complete: complete)
        monkeypatch.setattr(engines.Bench, "device", torch.device("cuda"))
        monkeypatch.setattr("refimpl.bench.run.measure_rates", lambda *_: None)
        run_bench(llama, [[5, 6]], BenchSettings((1, 2), ("inplace",), repeats=2), save=calls.append)
        first, second = ["_warm_up", "_visit", False], ["_visit", False]
        assert calls == [*first, *first, *second, *second, True, "_profile"]

    def test_a_run_is_the_engines_own(self, llama):
        bench = make_bench(llama, BenchSettings(max_new_tokens=7, num_speculative_tokens=3))
        prompts = [[3, 4, 5], [6, 7, 8, 9]]
        sample = run_method(bench, prompts, "inplace", 2)
        result = generate(llama, prompts, method="inplace", batch_size=2, max_new_tokens=7, num_speculative_tokens=3,
                          stop_token_ids=())  # fmt: skip
        assert sample.tokens == 14
        assert sample.rounds == result.stats.num_rounds
        assert sample.acceptance == result.stats.acceptance
        assert 0 < sample.forward_s < sample.seconds
        assert len(sample.passes) == sum(max(r.drafted for r in record.rows) + 1 for record in result.rounds)

    def test_passes_of_plain_generation_count_no_pads(self, llama):
        bench = make_bench(llama, BenchSettings(max_new_tokens=3))
        work = ModelWork.of(llama.target)
        sample = hf_generate(bench, [[3, 4, 5], [6, 7]], 2)
        assert sample.tokens == 6
        assert list(sample.passes) == [
            work.forward_pass([Feed(0, 3, 1), Feed(0, 2, 1)]),
            work.forward_pass([Feed(3, 1, 1), Feed(2, 1, 1)]),
            work.forward_pass([Feed(4, 1, 1), Feed(3, 1, 1)]),
        ]

    def test_plain_generation_has_transformers_own_attention(self, llama):
        bench, used = make_bench(llama, BenchSettings(max_new_tokens=1)), []
        model, before = llama.target.model, llama.target.model.config._attn_implementation
        handle = model.register_forward_pre_hook(lambda *_: used.append(model.config._attn_implementation))
        hf_generate(bench, [[3, 4]], 1)
        handle.remove()
        assert used == ["sdpa"]
        assert model.config._attn_implementation == before

    def test_plain_generation_does_not_stop_at_the_models_own_stop_tokens(self, llama):
        model, before = llama.target.model, llama.target.model.generation_config
        first = generate(llama, [[3, 4]], max_new_tokens=1, stop_token_ids=()).sequences[0].token_ids[0]
        bench = make_bench(llama, BenchSettings(max_new_tokens=5, num_speculative_tokens=2))
        model.generation_config = GenerationConfig(eos_token_id=first)
        try:
            samples = [hf_generate(bench, [[3, 4]], 1, assisted=assisted) for assisted in (False, True)]
            assert [s.tokens for s in samples] == [5, 5]
            assert model.generation_config.eos_token_id == first
        finally:
            model.generation_config = before

    def test_forced_acceptance_reaches_its_rate(self, llama):
        settings = BenchSettings((4,), ("inplace",), 3, 40, repeats=1, options=(FORCED,))
        row = run_bench(llama, [[i, 4, 5] for i in range(12)], settings).rows[-1]
        assert row.draft_acceptance_rate == pytest.approx(0.4, abs=0.1)
        assert row.mean_acceptance_length == pytest.approx(2.2, abs=0.25)

    @pytest.mark.skipif(not takes_graphs("inplace"), reason="the engine records no rounds")
    def test_recorded_rounds_have_a_row_beside_the_eager_one(self, llama, monkeypatch):
        """They are recorded once an engine and width: in the warm-up, of drafts and decisions, and of plain steps."""
        made, init = [], Recording.__init__
        monkeypatch.setattr(Recording, "__init__", lambda self, work, *rest: made.append(init(self, work, *rest)))
        settings = BenchSettings((2,), ("inplace", "eqspec"), 3, 14, repeats=1, cuda_graphs=True)
        rows = run_bench(llama, [[5, 6], [7, 8, 9], [4, 4]], settings).rows
        assert [r.engine for r in rows] == [PLAIN, BATCHED, "inplace", "inplace_eager", "eqspec"]
        assert settings.engine_settings("inplace", 2)["cuda_graphs"]
        assert "cuda_graphs" not in settings.engine_settings("eqspec", 2)
        assert all(0 < r.share_outside_forward < 1 for r in rows[1:])
        assert (rows[0].mean_acceptance_length, rows[1].draft_acceptance_rate) == (None, None), "no rounds, no drafts"
        assert rows[1].mean_acceptance_length == 1
        assert len({r.mean_acceptance_length for r in rows[2:]}) == 1
        assert ([r.engine for r in rows if r.record_s], len(made)) == ([BATCHED, "inplace"], 3)

    def test_our_rows_run_on_the_layers_chosen_and_transformers_on_its_own(self, tiny, monkeypatch):
        """Without drafts, too; lean layers call none of the model's own."""
        settings, calls = BenchSettings((1,), ("inplace",), 3, 4, repeats=1), []
        runs = Interleaved(make_bench(tiny, settings), [[5, 6]], None, None).runs[1]
        hooks = []
        for role, lm in (("target", tiny.target), ("draft", tiny.draft)):
            assert lm.layers.name in ("lean", "packed")
            note = lambda *given, r=role, run=lm.run_layers: calls.append(f"our {r}") or run(*given)  # noqa: E731
            monkeypatch.setattr(lm, "run_layers", note)
            hooks.append(lm.model.model.register_forward_pre_hook(lambda *_, r=role: calls.append(f"its {r}")))
        seen = {}
        for name, run in runs.items():
            calls.clear()
            run([[5, 6]])
            seen[name] = {*calls}
        for hook in hooks:
            hook.remove()
        assert seen == {
            PLAIN: {"its target"}, ASSISTED: {"its target", "its draft"}, BATCHED: {"our target"},
            "inplace": {"our target", "our draft"},
        }  # fmt: skip

    def test_a_break_even_is_of_rows_that_keep_what_they_accept(self, llama):
        settings = BenchSettings((2,), ("rollback", "inplace"))
        bench = Interleaved(make_bench(llama, settings), [[5, 6]], None, None)
        found = {name: bench._keeps(2, name) for name in bench.runs[2]}
        assert found == {PLAIN: False, BATCHED: True, "rollback": False, "inplace": True}

    def test_every_drafter_has_a_row(self, llama):
        drafters = tuple((name, {"drafter": name}) for name in ("model", "ngram"))
        settings = BenchSettings((2,), ("inplace",), 3, 12, repeats=1, variants=drafters)
        rows = run_bench(llama, [[5, 6, 5, 6], [7, 8, 9], [4, 4, 4]], settings).rows
        assert [r.engine for r in rows] == [PLAIN, BATCHED, "inplace model", "inplace ngram"]
        assert rows[2].ms_draft > 0 and rows[3].ms_draft == 0  # noqa: PT018
        with pytest.raises(InputError, match="drafter must be one of"):
            run_bench(llama, [[1]], BenchSettings((1,), ("inplace",), variants=(("", {"drafter": "oracle"}),)))

    def test_other_models_are_refused(self):
        with pytest.raises(InputError, match="needs two transformers models"):
            run_bench(table_pair(), [[1]], BenchSettings())


BUSY_S, STEADY, SLOW = 6.0, 0.0, 1.0


@pytest.fixture
def profiled(monkeypatch):
    """Rounds of two tokens that say what is scripted of recording; gives the busy time and the rounds of each try."""

    def busy(pair, record_s, max_new_tokens=40):
        tries, counts, scripted = [], [], iter(record_s)
        run_one_round = Engine.run_one_round

        def scripted_round(engine):
            counts.append(1)
            record = run_one_round(engine)
            return replace(record, stage_s=record.stage_s | {"prefill_s": 0.0, "record_s": next(scripted, STEADY)})

        def device_busy_s(action):
            before = len(counts)
            action()
            tries.append(len(counts) - before)
            return BUSY_S

        monkeypatch.setattr(Engine, "run_one_round", scripted_round)
        monkeypatch.setattr(engines, "device_busy_s", device_busy_s)
        options = (("acceptance", forced((0.0, 1.0))),)
        settings = BenchSettings(max_new_tokens=max_new_tokens, num_speculative_tokens=1, options=options)
        return busy_s_per_round(make_bench(pair, settings), [[5, 6]], "eqspec", 1), tries

    return busy


@pytest.mark.parametrize(
    ("spans", "length"), [([], 0), ([(1, 3), (4, 5)], 3), ([(4, 6), (1, 5)], 5), ([(1, 9), (2, 3), (8, 10)], 9)]
)
def test_what_overlaps_is_covered_once(spans, length):
    assert covered(spans) == length


PROFILED = {  # seconds of recording by round, tokens, the busy time of a round, rounds of each try
    "steady rounds, once": ([SLOW] * 3, 40, BUSY_S / 4, [4]),
    "rounds that record, again": ([STEADY] * 4 + [SLOW], 40, BUSY_S / 4, [4, 4]),
    "rounds that record forever": ([SLOW] * 999, 150, None, [4] * engines.BUSY_TRIES),
    "only rounds that ran count": ([STEADY] * 6 + [SLOW], 16, BUSY_S, [4, 1]),
    "nothing is left to profile": ([], 1, None, [0]),
}


class TestBusyTime:
    @pytest.mark.parametrize("case", PROFILED)
    def test_it_is_of_rounds_that_only_decode(self, llama, profiled, case):
        record_s, max_new_tokens, busy_s, tries = PROFILED[case]
        assert profiled(llama, record_s, max_new_tokens) == (busy_s, tries)

    @pytest.mark.parametrize(
        ("prefill_s", "record_s", "steady"), [(1e-5, 1e-5, True), (SLOW, 0.0, False), (0.0, SLOW, False)]
    )
    def test_empty_stages_take_microseconds(self, prefill_s, record_s, steady):
        record = RoundRecord(0, "static", (), {"prefill_s": prefill_s, "record_s": record_s}, 0)
        assert engines.only_decodes(record) == steady

    def test_a_real_prefill_is_told_from_none(self, llama):
        config = make_config(method="eqspec", batch_size=1, max_new_tokens=4, num_speculative_tokens=1)
        engine = Engine(llama, prepare(llama, [[5, 6, 7] * 20], config), config)
        found = [engines.only_decodes(engine.run_one_round()) for _ in range(2)]
        assert found == [False, True]


class TestRecording:
    def test_what_an_earlier_run_dropped_is_freed_before_a_sample(self, llama):
        class Dropped:
            pass

        gc.disable()
        try:
            dropped = Dropped()
            dropped.itself = dropped
            alive = weakref.ref(dropped)
            del dropped
            bench = make_bench(llama, BenchSettings(max_new_tokens=1))
            assert alive() is not None
            run_method(bench, [[3, 4]], "eqspec", 1)
            assert alive() is None
        finally:
            gc.enable()

    def test_seconds_of_recording_have_a_column_where_there_are_any(self, report, capsys):
        found = report[0]
        rows = [asdict(row) for row in found.rows]
        for recorded in (False, True):
            print_bench_table([row | {"record_s": 98765.432 * recorded} for row in rows], found.rates, json_=False)
            printed = capsys.readouterr().out
            assert ("record s" in printed) == recorded
            assert ("98765.43" in printed) == recorded


class TestCommands:
    def test_bench_prints_and_writes_one_report(self, capsys, monkeypatch, tmp_path):
        path = tmp_path / "bench.json"
        words = "bench --limit 2 --batch-sizes 1 --methods inplace --max-new-tokens 3 --repeats 1 --json"
        own = ("--acceptance", "forced:rate:0.4", "--output", str(path))
        code, printed = run_cli(monkeypatch, capsys, *words.split(), *own)
        data = json.loads(printed.out.splitlines()[-1])
        assert code == 0
        assert set(data) == {"rows", "meta"}
        assert {"engine", "batch_size", "tokens_per_s", "ratio_to_hf_generate", "fraction_of_floor",
                *(f"share_{s}" for s in SHARES)} <= set(data["rows"][0])  # fmt: skip
        assert json.loads(path.read_text())["rows"] == data["rows"]
        assert data["meta"]["rates"]["bytes_per_s"] > 0
        assert data["meta"]["acceptance"] == "forced:rate:0.4"

    def test_anatomy_prints_and_writes_one_report(self, capsys, monkeypatch, tmp_path):
        path = tmp_path / "anatomy.json"
        words = "anatomy --batch-sizes 2 --contexts 20 --rounds 1 --repeats 1 --json --methods eqspec --output"
        code, printed = run_cli(monkeypatch, capsys, *words.split(), str(path))
        data = json.loads(printed.out.splitlines()[-1])
        assert code == 0
        assert set(data) == {"rows", "scaling", "meta"}
        assert [r["engine"] for r in data["rows"]] == ["eqspec", "per_row"]
        assert json.loads(path.read_text())["rows"] == data["rows"]
