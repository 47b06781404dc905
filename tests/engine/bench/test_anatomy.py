"""The anatomy of realignment: what it moves, what that costs, and how it grows."""

import numpy as np
import pytest
import scipy.stats
import torch

from refimpl import InputError, generate
from refimpl.bench.anatomy import AnatomySettings, counted_bytes, run_anatomy
from refimpl.bench.anatomy_rows import AnatomyRow, fitted_exponent, scalings
from refimpl.bench.forced import rate_lengths
from refimpl.bench.per_row import layers_of, num_operations, ragged_plan, realign_row_by_row

LAYERS, KV_HEADS, DIM, ITEM = 2, 2, 8, 8
KV = LAYERS * 2 * KV_HEADS * DIM * ITEM  # bytes of a token
FORCED = rate_lengths(0.4, 3)


def moving_rows(ms_of_batch, operations=1.0, num_bytes=8.0):
    """Rows of one engine that realigns for so many milliseconds a round."""
    return [
        AnatomyRow("eqspec", n, 64, operations, num_bytes, ms, 9.0, 0.2, 1.0, 0.1, "host")
        for n, ms in ms_of_batch.items()
    ]


def anatomy(pair, **settings):
    defaults = {"batch_sizes": (1, 3), "contexts": (24,), "num_speculative_tokens": 3, "rounds": 5, "repeats": 1}
    return run_anatomy(pair, AnatomySettings(FORCED, **(defaults | settings)))


@pytest.fixture(scope="module")
def found(llama):
    return anatomy(llama)


LINEAR = {2: 2.0, 4: 4.0, 8: 8.0}  # a single row is not ragged: its 0.1 ms would make that look like a power of 1.6
GROWING = [
    *((moving_rows({n: 2.0 * n**power for n in LINEAR}), power, f"{name}linear")
      for power, name in ((0.5, "sub"), (1, ""), (1.5, "super"))),
    (moving_rows(LINEAR) + moving_rows({1: 0.1}, operations=0.1), 1, "linear"),
    (moving_rows(LINEAR) + moving_rows({1: 0.1}), 1, "linear"),
    (moving_rows(LINEAR, operations=0.9), None, "not known"),
    (moving_rows(LINEAR, num_bytes=0.0, operations=0.0), None, "nothing moves"),
    (moving_rows({2: 2.0, 4: 5.2, 8: 10.2}), 1.175, "linear"),  # which cannot be told from one
]  # fmt: skip


class TestAnatomy:
    def test_what_moves(self, found):
        rows, fits, _ = found
        table = {(r.engine, r.batch_size): r for r in rows}
        assert {r.engine for r in rows} == {"eqspec", "exspec", "masked", "rollback", "inplace", "per_row"}
        for size in (1, 3):
            assert table["inplace", size].host_operations_per_round == 0
            assert table["inplace", size].bytes_per_round == 0
            assert table["inplace", size].bound == "none"
        assert table["eqspec", 1].bytes_per_round == 0
        assert table["eqspec", 3].bytes_per_round > 0
        assert table["per_row", 3].host_operations_per_round == (6 * 3 + 2) * LAYERS
        assert {f.engine: f.verdict for f in fits}["inplace"] == "nothing moves"

    def test_a_method_with_a_batch_size_of_its_own_runs_at_no_other(self, llama):
        rows, _, _ = anatomy(llama, methods=("speculative", "inplace"), rounds=1)
        assert [(row.engine, row.batch_size) for row in rows] == [("speculative", 1), ("inplace", 1), ("inplace", 3)]
        with pytest.raises(InputError, match="no method to measure"):
            anatomy(llama, methods=("speculative",), batch_sizes=(3,))

    def test_what_was_found_is_saved_as_it_grows(self, llama):
        saved = []
        settings = AnatomySettings(FORCED, (1, 2), (20, 24), ("inplace",), 3, rounds=1, warm_rounds=0, repeats=2)
        rows, fits, _ = run_anatomy(llama, settings, save=saved.append)
        assert [len(found[0]) for found in saved] == [1, 2, 3, 4, 4, 4, 4, 4]
        assert saved[-1][:2] == (rows, fits)

    def test_bytes_are_those_of_the_stores(self, llama):
        settings = {"batch_size": 3, "max_new_tokens": 6, "checks": "off"}
        with counted_bytes() as moved:
            generate(llama, [[5, 6], [7, 8, 9], [4]], method="inplace", **settings)
            assert not moved
            generate(llama, [[5, 6], [7, 8, 9], [4]], method="eqspec", **settings)
        assert moved
        assert all(n % (2 * KV) == 0 for n in moved)
        count = len(moved)
        generate(llama, [[5, 6], [7, 8, 9], [4]], method="eqspec", **settings)
        assert len(moved) == count

    def test_moving_row_by_row_moves_the_right_columns(self, llama):
        kept, width = [1, 4, 2], 9
        layers = layers_of(llama.target.kv_shape, 3, width)
        moved = realign_row_by_row(layers, ragged_plan(kept, width, torch.device("cpu")))
        for (keys, values), (new_keys, new_values) in zip(layers, moved, strict=True):
            for i, n in enumerate(kept):
                pads = max(kept) - n
                for old, new in ((keys, new_keys), (values, new_values)):
                    assert new.shape == old.shape
                    assert torch.equal(new[i, :, pads:], old[i, :, : width - pads])
                    assert (new[i, :, :pads] == 0).all()
        assert num_operations(32, 4) == 26 * 32

    def test_the_interval_of_the_exponent_is_students(self):
        """Against scipy, at one and at three degrees of freedom."""
        assert fitted_exponent([(4, 1.0)]) == (None, None)
        assert fitted_exponent([(2, 1.0), (4, 2.0)]) == (pytest.approx(1), None)
        for points in ([(2, 1.0), (4, 2.2), (8, 3.9)], [(2, 1.0), (4, 2.2), (8, 3.9), (16, 9.0), (32, 17.0)]):
            logs = np.log(np.array(points)).T
            fit = scipy.stats.linregress(*logs)
            half = scipy.stats.t.ppf(0.975, len(points) - 2) * fit.stderr
            slope, interval = fitted_exponent(points)
            assert (slope, *interval) == pytest.approx((fit.slope, fit.slope - half, fit.slope + half), rel=1e-3)

    @pytest.mark.parametrize(("rows", "exponent", "verdict"), GROWING)
    def test_verdicts(self, rows, exponent, verdict):
        """Batches that seldom move are left out of the fit."""
        (fit,) = scalings(rows)
        assert (fit.exponent, fit.verdict) == (exponent and pytest.approx(exponent, abs=0.01), verdict)

    def test_contexts_that_cannot_be(self, llama):
        for context, message in ((250, "of 250 tokens do not fit the models' 256"), (16, "longer than 16 tokens")):
            with pytest.raises(InputError, match=message):
                anatomy(llama, contexts=(context,))
