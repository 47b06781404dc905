"""Stop strings end a row at the first token whose text holds one, however it is spelt; long rows take no longer."""

import random

import pytest
from tokenizers import decoders
from transformers.convert_slow_tokenizer import bytes_to_unicode

from refimpl.core.sequence import Sequence, StopStrings

WORDS = ("foo", "bar", "a", " ", "n't", ".", ",", "😀", "é", "日本語", "\n", "        ")
AS_LETTERS = bytes_to_unicode()


def pieces_of_bytes(text, rng):
    """A text as byte-level BPE may spell it: characters are split between tokens."""
    letters, tokens = [AS_LETTERS[byte] for byte in text.encode()], []
    while letters:
        size = rng.randint(1, 4)
        tokens.append("".join(letters[:size]))
        letters = letters[size:]
    return tokens


def words(text, rng, blank="▁"):
    return [blank + word for word in text.split(" ")]


def words_or_bytes(text, rng):
    """As a tokenizer of Llama 2 spells it: what no token stands for is given byte by byte."""
    tokens = []
    for character in text:
        known = character.isascii() or rng.random() < 0.2
        spelt = [f"<0x{byte:02X}>" for byte in character.encode()]
        tokens += [character.replace(" ", "▁")] if known else spelt
    return tokens


LLAMA = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)
SPELLINGS = {
    "bytes": (pieces_of_bytes, decoders.ByteLevel()),
    "bytes where words are unknown": (words_or_bytes, LLAMA),
    "blanks in front": (words, decoders.Metaspace()),
    "blanks between": (lambda text, rng: words(text, rng, ""), decoders.WordPiece(cleanup=True)),
}


def row_until_stop(decode, tokens, stop):
    row = Sequence(0, [1], len(tokens), stop_strings=StopStrings(("\0", stop), decode))
    row.extend(tokens)
    return row.generated


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_row_ends_with_the_first_token_that_completes_a_stop_string(spelling):
    spell, decoder = SPELLINGS[spelling]
    rng, found = random.Random(0), 0
    for _ in range(24):
        text = "".join(rng.choices(WORDS, k=rng.choice([3, 20, 60])))
        text = rng.choice([text, text, 40 * "😀" + text])
        tokens = spell(text, rng)
        texts = [decoder.decode(tokens[: i + 1]) for i in range(len(tokens))]
        for _ in range(6):
            shown = rng.choice(texts)
            at = rng.randrange(len(shown) + 1)
            stop = shown[at : at + rng.randint(1, 24)] or "x"
            end = next((i + 1 for i, text in enumerate(texts) if stop in text), len(tokens))
            assert row_until_stop(decoder.decode, tokens, stop) == tokens[:end], (stop, texts[-1])
            found += end < len(tokens)
    assert found > 40


def test_a_token_that_changes_the_text_before_it_ends_a_row():
    def cleaned(tokens):  # one of the rules of transformers' clean_up_tokenization
        return "".join(tokens).replace(" do not", " don't")

    tokens = list("we do not know")
    assert cleaned(tokens[:8]) == "we do no"
    assert cleaned(tokens[:9]) == "we don't"
    assert row_until_stop(cleaned, tokens, "don") == tokens[:9]


def test_of_a_long_row_few_tokens_are_decoded_again_and_again(tiny):
    tokens = tiny.tokenizer("def area(x):\n    return '😀' * x\n" * 100)["input_ids"]
    decoded = []

    def decode(some):
        decoded.append(len(some))
        return tiny.decode(some)

    assert row_until_stop(decode, tokens, "class") == tokens
    assert sum(decoded) < 150 * len(tokens)
