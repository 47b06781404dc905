"""Whether two models speak of the same tokens: sizes of their vocabularies, and what their tokenizers call each id."""

import warnings
from typing import Any

from refimpl.core.errors import InputError, shown
from refimpl.core.values import is_integer

MAX_VOCAB_PADDING = 1024  # rows; embedding tables are padded to multiples of 64 … 1024
MANY_OTHER_MEANINGS = 0.01  # of all ids; families rename a few special tokens between their models


class VocabularyWarning(UserWarning):
    """Draft and target give many token ids another meaning; output stays exact, but few drafts will be accepted."""


def shared_vocab_size(target: int, draft: int, tokenizer: Any = None, vocab_size: int | None = None) -> int:
    """Ids that both models know: all of them, or the shared prefix when the rest are padding rows.

    Args:
        target, draft: the widths of the models' logits.
        tokenizer: says how many ids are tokens; None where there is none.
        vocab_size: what the caller says about it; None for the shared prefix.

    Raises:
        InputError: the sizes differ by more than padding, nothing says which ids are tokens, or the ids that are do not
            cover the tokenizer.
    """
    shared = min(target, draft)
    known = len(tokenizer) if tokenizer is not None else 0
    sizes = f"the target has {target} ids, the draft {draft}" + (f", and the tokenizer has {known}" if known else "")
    possible = is_integer(vocab_size) and max(known, 1) <= vocab_size <= shared
    if vocab_size is not None and not possible:
        raise InputError(f"vocab_size must be from {max(known, 1)} to {shared}, not {shown(vocab_size)}: {sizes}")
    if abs(target - draft) > MAX_VOCAB_PADDING or shared < known:
        raise InputError(f"incompatible vocabularies: {sizes}; they must be equal or differ by padding rows only")
    if vocab_size is None and target != draft and tokenizer is None:
        raise InputError(f"{sizes}, and without a tokenizer nothing says which of them are tokens: give vocab_size")
    return shared if vocab_size is None else vocab_size


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
            stacklevel=4,  # who calls `load_pair`
        )


def _names(tokenizer: Any) -> dict[int, str]:
    return {id_: name for name, id_ in tokenizer.get_vocab().items()}
