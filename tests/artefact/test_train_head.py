"""What training reads of the target: its own continuations, and hidden states that are kept in the work folder."""

from dataclasses import asdict

import pytest
import torch

from refimpl import InputError
from tools.train_tiny.head import HeadConfig, Walk, keep_walks, walk, walks
from tools.train_tiny.settings import Config

SETTINGS = asdict(Config()) | {"text_batches": HeadConfig().text_batches}


@pytest.fixture
def work(tmp_path):
    keep_walks(tmp_path / "walks.pt", SETTINGS, [Walk(torch.arange(6).view(2, 3), torch.ones(2, 3, 4).half(), 2)])
    return tmp_path


def test_kept_states_are_read_again(work):
    (walk,) = walks(Config(), HeadConfig(steps=5), None, work)  # how long the head is trained changes no state
    assert walk.ids.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (walk.states.shape, walk.greedy_from) == ((2, 3, 4), 2)
    assert [path.name for path in work.iterdir()] == ["walks.pt"]


@pytest.mark.parametrize(("config", "head"), [(Config(seed=1), HeadConfig()), (Config(), HeadConfig(text_batches=1))])
def test_states_of_other_settings_are_refused(work, config, head):
    with pytest.raises(InputError, match="was made with other settings; delete it to start afresh"):
        walks(config, head, None, work)


def test_continuations_and_states_are_those_of_whole_texts(tiny):
    model, prompts = tiny.target.model, torch.tensor([[5, 9, 2, 40], [7, 7, 300, 12]])
    walked = walk(model, prompts, 6)
    with torch.no_grad():
        whole = model.model(input_ids=walked.ids, use_cache=False).last_hidden_state
    chosen = model.lm_head(whole)[:, 3:-1].argmax(dim=-1)
    assert torch.equal(walked.ids[:, 4:], chosen)
    assert torch.allclose(walked.states, whole.half(), atol=0.02)
