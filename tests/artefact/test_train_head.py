"""Hidden states that training the head keeps in its work folder: for the settings they were made with alone."""

from dataclasses import asdict

import pytest
import torch

from refimpl import InputError
from tools.train_tiny.head import HeadConfig, Walk, keep_walks, walks
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
