"""The keyed generator: uniform, and independent across seed, sequence, position, purpose and token.

One chi-square or binomial statistic each, fixed keys; a good generator fails one of them with probability 1e-8 or less,
numbers that must be distinct with 3e-8, all together with less than 1e-6.
"""

import math

import pytest
import torch
from scipy.stats import chi2

from refimpl.core.config import SamplingConfig
from refimpl.decoding import sampling
from refimpl.decoding.sampling import Purpose, RandomSource, RowKeys, exponentials, probabilities, uniform

FALSE_ALARM = 1e-8
COUNT = 1 << 16
AXES = ["seed", "sequence", "position", "purpose", "token"]


def numbers(axis: str, step: int = 1, start: int = 0) -> torch.Tensor:
    """COUNT numbers in [0, 1) whose keys differ in one part; purposes are few, so sequences vary beside them."""
    run = start + torch.arange(COUNT) * step
    same = torch.full((COUNT,), 7)
    if axis == "token":
        one = torch.tensor([7])
        return torch.exp(-exponentials(RowKeys(one, one), one[:, None], Purpose.COUPLED, COUNT)[0, 0])
    if axis == "purpose":
        keys = RowKeys(same, run // len(Purpose))
        columns = [uniform(keys, same[:, None], purpose)[:, 0] for purpose in Purpose]
        return torch.stack(columns, dim=1)[:: len(Purpose)].flatten()[:COUNT]
    parts = {"seed": same, "sequence": same, "position": same} | {axis: run}
    return uniform(RowKeys(parts["seed"], parts["sequence"]), parts["position"][:, None], Purpose.ACCEPT)[:, 0]


# --- the generator by hand: SplitMix64's finalizer on Python integers ------------------------------------------------

WORD, GOLDEN = (1 << 64) - 1, 0x9E3779B97F4A7C15


def mix(bits: int) -> int:
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB & WORD
    return bits ^ (bits >> 31)


def stream(seed: int, sequence: int, position: int, purpose: int, *start: int) -> int:
    state = mix(mix((seed + GOLDEN) & WORD) ^ purpose)
    for part in (sequence, *start, position):
        state = mix(((state + GOLDEN) & WORD) ^ (part & WORD))
    return state


KEYS = [(0, 0, 0), (7, 3, 12), (-1, 5, 1), (2**62, -(2**40), 4095)]


def test_every_purpose_has_a_number_of_its_own():
    wanted = {"COUPLED": 1, "DRAFT": 2, "ACCEPT": 3, "NEXT": 4, "FORCED": 5}
    assert {name: int(purpose) for name, purpose in Purpose.__members__.items()} == wanted


@pytest.mark.parametrize("purpose", Purpose)
def test_the_numbers_are_those_of_the_definition(purpose):
    """What a seed stands for must not change from version to version."""
    keys = RowKeys(*(torch.tensor([key[i] for key in KEYS]) for i in range(2)))
    position = torch.tensor([[key[2]] for key in KEYS])
    states = [stream(*key, int(purpose)) for key in KEYS]
    bits = [mix((state + GOLDEN) & WORD) >> 11 for state in states]
    assert uniform(keys, position, purpose)[:, 0].tolist() == [b * 2.0**-53 for b in bits]
    tokens = [mix(token * GOLDEN & WORD) for token in range(1, 6)]
    raw = [[(mix((state + token) & WORD) >> 12) + 0.5 for token in tokens] for state in states]
    wanted = torch.tensor([[-math.log(number * 2.0**-52) for number in row] for row in raw], dtype=torch.float64)
    torch.testing.assert_close(exponentials(keys, position, purpose, 5)[:, 0], wanted, rtol=1e-14, atol=0)


def test_the_numbers_of_a_round_are_those_of_the_definition():
    keys = RowKeys(*(torch.tensor([key[i] for key in KEYS]) for i in range(2)), torch.arange(4) + 5)
    states = [stream(*key, int(Purpose.ACCEPT), 5 + i) for i, key in enumerate(KEYS)]
    found = uniform(keys, torch.tensor([[key[2]] for key in KEYS]), Purpose.ACCEPT)[:, 0].tolist()
    assert found == [(mix((state + GOLDEN) & WORD) >> 11) * 2.0**-53 for state in states]


def chi_square_p(counts: torch.Tensor) -> float:
    expected = counts.sum() / counts.numel()
    return float(chi2.sf(float(((counts - expected) ** 2 / expected).sum()), counts.numel() - 1))


@pytest.mark.parametrize("axis", AXES)
def test_numbers_are_uniform(axis):
    u = numbers(axis)
    assert 0 <= float(u.min()) < 1e-3
    assert 1 - 1e-3 < float(u.max()) < 1
    assert chi_square_p((u * 256).long().bincount(minlength=256)) > FALSE_ALARM


@pytest.mark.parametrize("axis", AXES)
def test_neighbouring_keys_are_independent(axis):
    u = (numbers(axis) * 16).long()
    for lag in (1, 2, 3):
        pairs = 16 * u[:-lag] + u[lag:]
        assert chi_square_p(pairs[:: lag + 1].bincount(minlength=256)) > FALSE_ALARM


@pytest.mark.parametrize("axis", ["seed", "sequence", "position"])
@pytest.mark.parametrize(("step", "start"), [(1, -COUNT), (1 << 20, 0), (0x1E3779B97F4A7C15, 0)])
def test_negative_and_distant_keys_are_uniform_too(axis, step, start):
    u = numbers(axis, step, start)
    assert chi_square_p((u * 256).long().bincount(minlength=256)) > FALSE_ALARM


@pytest.mark.parametrize("axis", AXES)
def test_every_bit_is_fair(axis):
    bits = (numbers(axis) * 2**32).long()[:, None] >> torch.arange(32) & 1
    worst = float((bits.double().mean(dim=0) - 0.5).abs().max()) * 2 * math.sqrt(COUNT)
    assert worst < 6.6  # standard deviations, 32 two-sided tests at 4e-11


def test_flipping_any_bit_of_the_key_flips_half_of_the_number():
    base = torch.full((64,), 0x0123456789ABCDEF)
    flipped = base ^ (torch.ones(64, dtype=torch.long) << torch.arange(64))
    same = torch.full((64,), 3)
    for first, second in (((base, same), (flipped, same)), ((same, base), (same, flipped))):
        pair = [uniform(RowKeys(*keys), same[:, None], Purpose.NEXT)[:, 0] for keys in (first, second)]
        changed = [(a ^ b).bit_count() for a, b in zip(*((u * 2**53).long().tolist() for u in pair), strict=True)]
        assert abs(sum(changed) / (64 * 53) - 0.5) < 6.6 * 0.5 / math.sqrt(64 * 53)
        assert min(changed) > 4  # of 128 fair rows of 53 bits, one has so few with probability 4.5e-9


def test_exponentials_have_their_law():
    keys = RowKeys(torch.tensor([1, 2]), torch.tensor([0, 0]))
    noise = exponentials(keys, torch.tensor([[0, 1], [0, 1]]), Purpose.COUPLED, COUNT // 4).flatten()
    assert chi_square_p(((1 - torch.exp(-noise)) * 256).long().bincount(minlength=256)) > FALSE_ALARM


def test_no_two_keys_share_numbers():
    """A position's noise must not come back, not even shifted by some tokens."""
    keys = RowKeys(torch.zeros(4, dtype=torch.long), torch.arange(4))
    noise = exponentials(keys, torch.arange(8).expand(4, 8), Purpose.COUPLED, 500)
    assert len(noise.flatten().unique()) == noise.numel()


@pytest.mark.parametrize("bits", [0, -1])
def test_extreme_bits_give_positive_finite_noise(bits, monkeypatch):
    monkeypatch.setattr(sampling, "_mix_", lambda state: torch.full_like(state, bits))
    keys = RowKeys(torch.tensor([0]), torch.tensor([0]))
    noise = exponentials(keys, torch.tensor([[0]]), Purpose.COUPLED, 3)
    assert bool(((noise > 0) & (noise < 40)).all())
    token = RandomSource().draw(torch.tensor([[[0.0, 1.0, 0.0]]]).double(), keys, torch.tensor([[0]]), Purpose.COUPLED)
    assert token.item() == 1


def test_noise_does_not_depend_on_the_batch_around_it():
    keys = RowKeys(torch.tensor([5, 5, -9]), torch.tensor([1, 2, 3]))
    position = torch.tensor([[4, 5], [6, 7], [8, 9]])
    together = exponentials(keys, position, Purpose.DRAFT, 33)
    alone = exponentials(RowKeys(keys.seed[2:], keys.sequence[2:]), position[2:, 1:], Purpose.DRAFT, 33)
    assert torch.equal(together[2, 1], alone[0, 0])


def test_draws_follow_their_weights():
    weights = probabilities(torch.tensor([0.0, 1.0, -1.0, -40.0, 2.0]), SamplingConfig(temperature=1.0, top_k=4))
    keys = RowKeys(torch.zeros(COUNT, dtype=torch.long), torch.arange(COUNT))
    tokens = RandomSource().draw(weights.expand(COUNT, 1, 5), keys, torch.zeros(COUNT, 1).long(), Purpose.NEXT)
    counts, expected = tokens.flatten().bincount(minlength=5), weights * COUNT
    cells = expected > 5
    statistic = float(((counts - expected) ** 2 / expected)[cells].sum())
    assert chi2.sf(statistic, int(cells.sum()) - 1) > FALSE_ALARM
    assert counts[~cells].sum() == 0
