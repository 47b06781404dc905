"""What the text of a row does to the logits of its next token: settings of a request, in host terms."""

from collections.abc import Callable, Collection, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields
from typing import Any

from refimpl.core.declared import Range, check_fields, documented, setting
from refimpl.core.errors import require, shown
from refimpl.core.values import is_list, require_int

LogitsProcessor = Callable[[Any, Any], Any]  # token ids [1, length] and scores [1, vocab] to scores, as transformers'
CHECKPOINT = "what the checkpoint says"


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class Processing:
    """Changes of a row's logits that are a function of its text: the prompt and what was generated after it.

    They come in this order, before temperature and filters, and apply to target and draft alike.
    """

    logit_bias: Mapping[int, float] | None = setting(None, "Added to the logits of these tokens.", none="nothing")
    repetition_penalty: float | None = setting(
        None, "Divides positive logits of tokens of the text, and multiplies negative ones.", Range(0, open_low=True),
        none=CHECKPOINT,
    )  # fmt: skip
    frequency_penalty: float | None = setting(
        None, "Subtracted from a token's logit as often as it was generated.", Range(-2, 2), none="0"
    )
    presence_penalty: float | None = setting(
        None, "Subtracted from the logits of tokens that were generated.", Range(-2, 2), none="0"
    )
    min_new_tokens: int | None = setting(
        None, "Tokens before which no stop token can be generated.", Range(0, integer=True), none=CHECKPOINT
    )
    bad_words_ids: Seq[Seq[int]] | None = setting(
        None, "Sequences of tokens that cannot be generated.", none=CHECKPOINT
    )
    allowed_token_ids: Collection[int] | None = setting(None, "Tokens that alone can be generated.", none="all")
    logits_processors: Seq[Callable] | None = setting(
        None,
        "Functions of token ids and scores, as transformers' LogitsProcessor; called for each position.",
        none="none",
    )
    grammar: Mapping[str, Any] | Callable | None = setting(
        None,
        "What all of the generated text is, as json_schema, regex or choice; or a function that makes matchers.",
        none="any text",
    )

    def __post_init__(self) -> None:
        check_fields(self, Processing)
        if self.logit_bias is not None:
            object.__setattr__(self, "logit_bias", _as_bias(self.logit_bias))
        for name in ("bad_words_ids", "allowed_token_ids", "logits_processors"):
            given = getattr(self, name)
            require(given is None or is_list(given, Collection), f"{name} must be a list, not {shown(given)}")
        for word in self.bad_words_ids or ():
            require(is_list(word) and len(word) > 0, f"bad_words_ids must be lists of token ids, not {shown(word)}")
        for token in self.tokens:
            require_int("a token of logit_bias, bad_words_ids and allowed_token_ids", token, 0)
        require(
            self.allowed_token_ids is None or len(self.allowed_token_ids) > 0, "allowed_token_ids must not be empty"
        )
        for each in self.logits_processors or ():
            require(callable(each), f"logits_processors must be functions of token ids and scores, not {shown(each)}")
        given = self.grammar
        known = isinstance(given, Mapping) and [_is_grammar(*each) for each in given.items()] == [True]
        forms = "json_schema with a mapping, regex with a text or choice with a list of texts"
        require(given is None or callable(given) or known, f"grammar must have one of {forms}, not {shown(given)}")

    @property
    def processing(self) -> "Processing | None":
        """These settings alone; None where nothing is set."""
        own = {f.name: value for f in fields(Processing) if (value := getattr(self, f.name)) is not None}
        return Processing(**own) if own else None

    @property
    def is_idle(self) -> bool:
        """Whether no logit changes."""
        masks = self.logit_bias or self.bad_words_ids or self.allowed_token_ids is not None or self.grammar
        return not (masks or self.min_new_tokens or self.logits_processors) and self.penalties == (1.0, 0.0, 0.0)

    @property
    def tokens(self) -> list[int]:
        """All tokens that the settings name."""
        words = [token for word in self.bad_words_ids or () for token in word]
        return [*(self.logit_bias or ()), *words, *(self.allowed_token_ids or ())]

    @property
    def banned(self) -> set[int]:
        """Tokens that are never possible, whatever the text."""
        return {word[0] for word in self.bad_words_ids or () if len(word) == 1}

    @property
    def penalties(self) -> tuple[float, float, float]:
        """Of repetition, frequency and presence."""
        repetition = 1.0 if self.repetition_penalty is None else self.repetition_penalty
        return repetition, self.frequency_penalty or 0.0, self.presence_penalty or 0.0


def _as_bias(given: Any) -> dict[int, float]:
    """A mapping of token ids, which JSON writes as texts, to numbers."""
    require(isinstance(given, Mapping), f"logit_bias must map token ids to numbers, not {shown(given)}")
    for token, bias in given.items():
        Range().check(bias, f"logit_bias of token {shown(token)}")
    return {
        int(token) if isinstance(token, str) and token.isdecimal() else token: float(bias)
        for token, bias in given.items()
    }


def _is_grammar(kind: str, what: Any) -> bool:
    """Whether there is such a kind of grammar, and this is one."""
    if kind == "choice":
        return is_list(what) and len(what) > 0 and all(isinstance(each, str) for each in what)
    return isinstance(what, Mapping | bool) if kind == "json_schema" else kind == "regex" and isinstance(what, str)
