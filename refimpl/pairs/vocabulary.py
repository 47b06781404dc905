"""Whether two models speak of the same tokens: sizes of their vocabularies, and what their tokenizers call each id."""

import warnings
from typing import Any

from refimpl.errors import InputError

MAX_VOCAB_PADDING = 1024  # rows; embedding tables are padded to multiples of 64 … 1024
MANY_OTHER_MEANINGS = 0.01  # of all ids; families rename a few special tokens between their models


class VocabularyWarning(UserWarning):
    """Draft and target give many token ids another meaning; output stays exact, but few drafts will be accepted."""


def shared_vocab_size(target: int, draft: int, tokenizer: Any = None) -> int:
    """Ids that both models know: all of them, or the shared prefix when the rest are padding rows.

    Raises:
        InputError: the sizes differ by more than padding, or the shared prefix does not cover the tokenizer.
    """
    shared = min(target, draft)
    known = len(tokenizer) if tokenizer is not None else 0
    if abs(target - draft) > MAX_VOCAB_PADDING or shared < known:
        covers = f", and the tokenizer has {known}" if known else ""
        raise InputError(
            f"incompatible vocabularies: the target has {target} ids, the draft {draft}{covers}; "
            "they must be equal or differ by padding rows only"
        )
    return shared


def warn_of_other_meanings(target: Any, draft: Any) -> None:
    """Warn if two tokenizers name more than `MANY_OTHER_MEANINGS` of the target's ids differently.

    Args:
        target, draft: tokenizers; None where a model has none, then nothing is compared.
    """
    if target is None or draft is None:
        return
    names, drafts = _names(target), _names(draft)
    other = [id_ for id_, name in names.items() if drafts.get(id_) != name]
    if len(other) > MANY_OTHER_MEANINGS * len(names):
        first = min(other)
        warnings.warn(
            f"the draft's tokenizer gives {len(other)} of {len(names)} token ids another meaning than the target's "
            f"(id {first}: {drafts.get(first)!r} against {names[first]!r}): few drafts will be accepted",
            VocabularyWarning,
            stacklevel=3,
        )


def _names(tokenizer: Any) -> dict[int, str]:
    return {id_: name for name, id_ in tokenizer.get_vocab().items()}
