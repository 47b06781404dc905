"""Several samples of one prompt: each has a key of its own, and is verified as a sequence of its own."""

import pytest

from refimpl import InputError, Request, generate, verify


def test_a_sample_has_the_key_that_it_is_given(llama):
    settings = {"max_new_tokens": 10, "temperature": 0.9}
    found = generate(llama, [Request([3, 4], n=3, sequence_id=7)], **settings)
    for i, sequence in enumerate(found.sequences):
        alone = generate(llama, [Request([3, 4], sequence_id=7 + i)], **settings)
        assert alone.sequences[0].token_ids == sequence.token_ids
    with pytest.raises(InputError, match="share seed 0 and sequence id 8"):
        generate(llama, [Request([3, 4], n=3, sequence_id=7), Request([5], sequence_id=8)], **settings)


def test_samples_are_verified_one_by_one(llama):
    settings = {"temperature": 0.9, "max_new_tokens": 6}
    report = verify(llama, [Request([3, 4, 5], n=3)], methods="paged,inplace", batch_sizes=[2], **settings)
    assert repr(report) == "VerifyReport(3 sequences: 2 of 2 runs exact)"


def test_the_last_key_is_a_key(llama):
    with pytest.raises(InputError, match="sequence_id"):
        Request([1], n=2, sequence_id=2**63 - 1)
