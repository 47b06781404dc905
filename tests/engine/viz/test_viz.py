"""What the pictures of rounds show, read back from what matplotlib has drawn, against the engine's own records."""

import ast
import math
import textwrap

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import same_color, to_rgb

from refimpl.core.config import DecodeConfig
from refimpl.core.errors import InputError
from refimpl.core.invariants import InvariantViolation
from refimpl.faults import FAULTS
from refimpl.generation import generate
from refimpl.viz.regrets import regret_histogram
from refimpl.viz.rounds import COLORS, KINDS, mask_map, position_map, ragged_batch, timeline
from refimpl.viz.style import captioned, draw_heat_map, new_axes, panels, series_styles
from refimpl.viz.watch import watch
from simulator import plots

SETTINGS = {"batch_size": 4, "num_speculative_tokens": 3, "max_new_tokens": 10, "stop_token_ids": []}
PROMPTS = [[5, 9, 2, 40, 8], [7], [11, 3, 3], [60, 1]]
LAYOUTS = ["eqspec", "masked", "rollback", "inplace"]


@pytest.fixture(scope="module", params=LAYOUTS)
def rounds(request, llama):
    return list(watch(llama, PROMPTS, method=request.param, **SETTINGS))


def drawn_kinds(axes):
    (mesh,) = axes.collections
    return [[KINDS[int(code)] for code in line] for line in mesh.get_array()]


def test_watching_changes_nothing(llama, rounds):
    wanted = [s.token_ids for s in generate(llama, PROMPTS, method="autoregressive", **SETTINGS).sequences]
    found = [[] for _ in PROMPTS]
    for seen in rounds:
        for row in seen.record.rows:
            found[row.sequence] += row.tokens
    assert found == wanted


def test_kinds_of_slots_are_what_the_round_did(rounds):
    found = set()
    for seen in rounds:
        for row in seen.rows:
            kinds, outcome = row.kinds, row.outcome
            found |= set(kinds)
            assert kinds.count("prompt") == row.prompt_len
            if outcome:
                assert kinds.count("committed") == row.seq_len - row.prompt_len
                assert kinds.count("accepted") == min(outcome.accepted, outcome.kept)
                assert kinds.count("accepted") + kinds.count("dropped") == outcome.accepted
                assert kinds.count("rejected") == outcome.k - outcome.accepted
    assert {"prompt", "committed", "accepted", "rejected"} <= found


def test_only_rollback_drops_and_only_masked_has_holes(llama):
    kinds = {
        method: {kind for seen in watch(llama, PROMPTS, method=method, **SETTINGS) for row in seen.rows
                 for kind in row.kinds}
        for method in LAYOUTS
    }  # fmt: skip
    assert [method for method in LAYOUTS if "dropped" in kinds[method]] == ["rollback"]
    assert "hole" in kinds["masked"]
    assert "hole" not in kinds["eqspec"] | kinds["rollback"] | kinds["inplace"]
    assert [method for method in LAYOUTS if "pad" in kinds[method]] == ["eqspec", "masked", "rollback"]
    assert [method for method in LAYOUTS if "free" in kinds[method]] == ["inplace"]


@pytest.mark.parametrize("method", ["paged", "paged+continuous"])
def test_rows_that_share_blocks_have_their_own_names(llama, method):
    common = [i % 50 for i in range(40)]
    seen = list(watch(llama, [[*common, 1], [*common, 2]], method=method, token_budget=24, **SETTINGS))
    assert sum(record.record.rows != () for record in seen) > 1
    for each in seen:
        assert [row.sequence for row in each.rows] == [row.sequence for row in each.record.rows]


def test_rounds_that_run_prompts_alone_can_be_drawn(llama):
    seen = list(watch(llama, [[*range(1, 30)]], method="inplace+continuous", token_budget=8, **SETTINGS))
    assert (seen[0].rows, seen[0].record.rows) == ((), ())
    timeline([each.record for each in seen[:1]])
    assert [each.width > 0 for each in seen] == [bool(each.rows) for each in seen]
    for draw in (ragged_batch, position_map):
        with pytest.raises(InputError, match="round 0 has cached prompts alone: there is no row to draw"):
            draw(seen[0])


@pytest.mark.parametrize("method", ["inplace", "paged"])
def test_what_fills_up_a_window_is_no_draft(llama, method):
    """Passes of one shape feed eight tokens a row, of which up to four are drafts."""
    settings = SETTINGS | {"num_speculative_tokens": 4, "shape_stable": True}
    for seen in watch(llama, PROMPTS, method=method, **settings):
        for row in seen.rows:
            assert len(row.tokens) == len(row.position_ids) == len(row.visible) == row.outcome.k + 1
            assert row.kinds.count("rejected") == row.outcome.k - row.outcome.accepted


def test_the_batch_is_drawn_slot_by_slot_with_the_next_tokens(rounds):
    for seen in rounds[:3]:
        axes = ragged_batch(seen, lambda tokens: f"t{tokens[0]}")
        assert drawn_kinds(axes) == [row.kinds for row in seen.rows]
        texts = [text.get_text() for text in axes.texts]
        for row in seen.rows:
            assert f"t{row.tokens[0]}" in texts
        own = [row for row in seen.record.rows if row.next_token != "draft"]
        assert len(axes.patches) == len(own)
        assert all(f"t{row.tokens[-1]}" in texts for row in own)
        assert [label.get_text() for label in axes.get_yticklabels()] == [f"sequence {r.sequence}" for r in seen.rows]


def test_a_token_that_does_not_fit_into_its_cell_is_shown_as_cut(rounds):
    for text, shown in (("import", "impo…"), (" self", "self"), ("$name", r"\$name"), ("  ", "··"), ("\n", "⏎")):
        axes = ragged_batch(rounds[0], lambda _, text=text: text)
        assert {each.get_text() for each in axes.texts} == {shown}


def test_the_batch_names_the_colours_that_it_uses(rounds):
    axes = ragged_batch(rounds[0])
    (legend,) = axes.figure.legends
    shown = {kind for row in rounds[0].rows for kind in row.kinds}
    assert len(legend.get_texts()) == len(shown) + 1
    for handle, kind in zip(legend.get_patches(), [kind for kind in KINDS if kind in shown], strict=False):
        assert same_color(handle.get_facecolor(), COLORS[kind])


def test_masks_and_positions_are_drawn_as_the_model_got_them(rounds):
    seen = rounds[1]
    for row in seen.rows:
        (mesh,) = mask_map(row).collections
        np.testing.assert_array_equal(mesh.get_array(), row.visible)
        for query, position in enumerate(row.position_ids):
            assert sorted(row.slot_positions[row.visible[query]]) == list(range(position + 1))
    axes = position_map(seen)
    values = axes.collections[0].get_array()
    for line, row in zip(values, seen.rows, strict=True):
        assert sorted(line.compressed()) == list(range(row.position_ids[-1] + 1))
    assert len(axes.texts) == values.count()


def test_the_timeline_holds_what_each_round_committed(llama):
    result = generate(llama, PROMPTS, method="inplace", **SETTINGS | {"batch_size": 2})
    for seconds in (False, True):
        axes = timeline(result.rounds, seconds=seconds)
        values = axes.collections[0].get_array()
        assert values.sum(axis=1).tolist() == [10] * len(PROMPTS)
        assert values.count(axis=0).tolist() == [len(record.rows) for record in result.rounds]
        edges = axes.collections[0].get_coordinates()[0, :, 0]
        total = sum(record.stage_s["round_s"] for record in result.rounds)
        assert edges[-1] == pytest.approx(total if seconds else len(result.rounds))
    with pytest.raises(InputError, match="no round to draw"):
        timeline([])


@pytest.mark.parametrize("settings", [{"method": "autoregressive"}, {"checks": "off"}, {"checks": "host"}])
def test_what_cannot_be_watched_is_refused(llama, settings):
    with pytest.raises(InputError, match="only a method with rounds can be watched"):
        watch(llama, PROMPTS, **settings)


def test_checks_that_are_left_open_are_those_that_a_picture_needs(llama, monkeypatch):
    """As on a GPU, where a run has the checks of the host unless others are chosen."""
    monkeypatch.setattr(DecodeConfig, "check_level", lambda self, device_type: self.checks or "host")
    for settings in ({}, {"checks": None}):
        assert next(watch(llama, PROMPTS, **settings)).width


def test_a_broken_engine_is_watched_until_its_invariant_breaks(llama):
    seen, fault = [], FAULTS["rejected-entry-left-visible"]
    with fault.injected(), pytest.raises(InvariantViolation, match="INV-3"):
        seen.extend(watch(llama, PROMPTS, method="masked", **SETTINGS))
    assert seen


def test_every_picture_shows_a_call():
    pictures = [ragged_batch, mask_map, position_map, timeline, regret_histogram, captioned, watch]
    drawn = [each for each in vars(plots).values() if getattr(each, "__module__", "").startswith(f"{plots.__name__}.")]
    pictures += [each for each in drawn if not each.__name__.startswith("_") and each.__annotations__["return"] is Axes]
    for picture in pictures:
        _, found, example = (picture.__doc__ or "").partition("Example::\n\n")
        assert found, picture.__name__
        ast.parse(textwrap.dedent(example.partition("\n\n")[0]))
        assert f"{picture.__name__}(" in example


def test_heat_maps_write_every_number_so_that_it_can_be_read():
    values = [[0.0, 1.0], [math.nan, 0.4]]
    axes = new_axes()
    draw_heat_map(axes, values, ["a", "b"], [1, 2], numbers="{:.1f}", cmap="Greys")
    assert [text.get_text() for text in axes.texts] == ["0.0", "1.0", "0.4"]
    assert [text.get_color() for text in axes.texts] == ["black", "white", "black"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b"]
    np.testing.assert_array_equal(axes.images[0].get_array().filled(math.nan), values)


@pytest.mark.parametrize("count", [1, 6, 7, 40])
def test_no_two_series_look_alike(count):
    styles = series_styles(count)
    assert len({(to_rgb(style["color"]), style["linestyle"]) for style in styles}) == count


def test_a_picture_says_what_it_shows():
    axes = panels(2)[1]
    picture = captioned(axes, "A sentence that is long enough to need a second line of the figure, since titles wrap.")
    assert repr(picture) == picture.sentence
    assert picture.figure.get_suptitle().replace("\n", " ") == picture.sentence
    assert "\n" in picture.figure.get_suptitle()
    assert picture._repr_png_().startswith(b"\x89PNG")


def test_a_title_keeps_a_number_and_its_unit_in_one_line():
    title = captioned(new_axes(), "It takes 5 ms, 3 s or 4 % more: 2 × as long, in 7 steps.").figure.get_suptitle()
    assert "5\u00a0ms, 3\u00a0s or 4\u00a0% more: 2\u00a0× as long, in 7 steps" in title.replace("\n", " ")
