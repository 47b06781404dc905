"""Option groups of the commands: an option is declared once, and a command names the groups that it takes."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from refimpl.commands.parsing import parse_settings, parse_sizes
from refimpl.core.config import METHODS, CheckLevel, DecodeConfig, SamplingConfig
from refimpl.core.drafting import DrafterName, DraftingConfig
from refimpl.core.engine_settings import LayersName
from refimpl.core.errors import InputError, require
from refimpl.core.option_groups import ENGINE, MODELS, PROMPTS, SAMPLING, declared_options, option, option_of

PAIRS = ("tiny", "vicuna", "qwen3", "glm4")
Dtype = Literal["float64", "float32", "bfloat16", "float16"]
Turns = Literal["first", "all"]


def _method_lists(incomplete: str) -> list[str]:
    """Completions of the last name of a comma-separated list."""
    before = incomplete[: incomplete.rfind(",") + 1]
    return [before + name for name in ([] if before else ["all"]) + [*METHODS]]


DeviceOption = Annotated[str, option(MODELS, "cpu, cuda or cuda:N.", autocompletion=lambda: ["cpu", "cuda"])]
SeedOption = Annotated[int, option_of(SamplingConfig, "seed", SAMPLING)]
DraftTokensOption = Annotated[int, option_of(DecodeConfig, "num_speculative_tokens", ENGINE)]
MaxNewOption = Annotated[int, option_of(DecodeConfig, "max_new_tokens", ENGINE)]
BatchSizeOption = Annotated[int, option_of(DecodeConfig, "batch_size", ENGINE)]
ChecksOption = Annotated[CheckLevel | None, option_of(DecodeConfig, "checks", ENGINE)]
SetOption = Annotated[
    list[str] | None,
    option(
        ENGINE,
        "NAME=VALUE, any other setting of docs/settings.md; may be repeated.",
        "--set",
        "-s",
        metavar="NAME=VALUE",
    ),
]


@dataclass(frozen=True, kw_only=True)
class PairOptions:
    """Which target and draft to load, where, and in which number format."""

    pair: Annotated[
        str, option(MODELS, f"Preset: {', '.join(PAIRS)}. Or give --target and --draft.", autocompletion=lambda: PAIRS)
    ] = "tiny"
    target: Annotated[str | None, option(MODELS, "Your own target: a folder or a hub id.")] = None
    draft: Annotated[str | None, option(MODELS, "Your own draft: a folder or a hub id.")] = None
    vocab_size: Annotated[
        int | None,
        option(MODELS, "Number of token ids, where the vocabularies differ and there is no tokenizer."),
    ] = None
    device: DeviceOption = "cpu"
    dtype: Annotated[
        Dtype | None, option(MODELS, "Number format of the models.", none="float32 on a CPU, else bfloat16")
    ] = None
    random_weights: Annotated[
        bool, option(MODELS, "Use the preset's architecture with random weights; no download.", "--random-weights")
    ] = False
    trust_remote_code: Annotated[
        bool, option(MODELS, "Run code that comes with a model or tokenizer.", "--trust-remote-code")
    ] = False

    def load(self, *, drafter: DrafterName = "model", **more: Any) -> Any:
        """Load the pair, without a draft for a drafter that runs none.

        Raises:
            InputError: the options contradict each other, or the models cannot be loaded.
        """
        from refimpl.pairs import load_pair

        if (self.target is None) != (self.draft is None) and DraftingConfig(drafter).uses_draft:
            raise InputError("--target and --draft go together")
        return load_pair(
            self.pair if self.target is None else self.target,
            self.draft,
            drafter=drafter,
            device=self.device,
            dtype=self.dtype,
            random_weights=self.random_weights,
            trust_remote_code=self.trust_remote_code,
            vocab_size=self.vocab_size,
            **more,
        )


@dataclass(frozen=True, kw_only=True)
class HeadOptions(PairOptions):
    """A pair that may have a draft head, for commands that take a drafter."""

    head: Annotated[
        str | None,
        option(
            MODELS,
            "Draft head that was trained for the target: a file, or the folder of an EAGLE-3, DFlash or MTP head.",
            none="the target's own MTP layers; tiny has a file",
        ),
    ] = None

    def load(self, **more: Any) -> Any:
        """Load the pair, with the head if one is given."""
        return super().load(head=self.head, **more)


@dataclass(frozen=True, kw_only=True)
class ModelOptions(HeadOptions):
    """A pair, and what runs its layers."""

    layers: Annotated[
        LayersName,
        option(MODELS, "What runs the layers: lean needs few operations a layer; compiled fuses those."),
    ] = "auto"

    def load(self, **more: Any) -> Any:
        """Load the pair with these layers."""
        return super().load(layers=self.layers, **more)


@dataclass(frozen=True, kw_only=True)
class PromptOptions:
    """Which prompts to decode, and how much of each."""

    prompts: Annotated[
        Path | None,
        option(
            PROMPTS,
            "File with one prompt per line (.txt), or JSON lines with `prompt` or `turns`; - reads stdin.",
            none="the bundled prompts",
        ),
    ] = None
    prompt: Annotated[list[str] | None, option(PROMPTS, "A prompt, in place of a file; may be repeated.")] = None
    turns: Annotated[Turns, option(PROMPTS, "Which turns of a multi-turn prompt to use.")] = "first"
    limit: Annotated[int | None, option(PROMPTS, "Use only the first N prompts.", min=1)] = None
    max_prompt_tokens: Annotated[int | None, option(PROMPTS, "Keep only the last N tokens of a prompt.")] = None

    def read(self) -> list:
        """The prompts of the command line, of the file, or the bundled ones.

        Raises:
            InputError: both are given, a prompt is empty, or the file cannot be read.
        """
        from refimpl.pairs.names import TINY
        from refimpl.prompts import read_prompts

        if self.prompt:
            require(self.prompts is None, "--prompt and --prompts exclude each other: give texts or a file")
            require(all(map(str.strip, self.prompt)), "--prompt must not be empty")
            return self.prompt[: self.limit]
        return read_prompts(self.prompts or TINY / "prompts.jsonl", self.turns, self.limit)


@dataclass(frozen=True, kw_only=True)
class SettingOptions:
    """A group whose fields are settings of the engine, each under its own name."""

    @classmethod
    def but(cls, **values: Any) -> Self:
        """The group with other values than the defaults."""
        return cls(**values)

    def __getattr__(self, name: str) -> Any:
        """Of what is no field; the fields are declared elsewhere, which type checkers cannot follow."""
        raise AttributeError(name)

    def settings(self) -> dict[str, Any]:
        """Keywords of `refimpl.generate`; what is None is left to the engine."""
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        others = parse_settings(given.pop("set_", None) or [])
        return {name: value for name, value in given.items() if value is not None} | others


@declared_options(SamplingConfig, panel=SAMPLING)
class SamplingOptions(SettingOptions):
    """Shape of the distribution that tokens are drawn from."""


@declared_options(DecodeConfig, panel=SAMPLING, only=("acceptance", "stop_strings", "logprobs"))
class DecodingOptions(SamplingOptions):
    """Sampling, which drafts are accepted, where a text ends, and what is told of its tokens."""


@declared_options(
    DecodeConfig, panel=ENGINE, only=("num_speculative_tokens", "max_new_tokens", "drafter", "draft_budget", "checks")
)
class EngineOptions(SettingOptions):
    """What the commands that decode share: the settings that are often changed, and one option for all others."""

    set_: SetOption = None


@dataclass(frozen=True, kw_only=True)
class DraftingOptions(EngineOptions):
    """Settings of the engine, with several numbers of drafts."""

    num_speculative_tokens: Annotated[
        str,
        option(ENGINE, "Most tokens drafted per row and round, k; several: 2,3,5.", "--num-speculative-tokens", "-k"),
    ] = "5"


@declared_options(DecodeConfig, panel=ENGINE, only=("batch_size",))
class MethodOptions(SettingOptions):
    """One method and its batch."""

    method: Annotated[str, option_of(DecodeConfig, "method", ENGINE, autocompletion=lambda: METHODS)] = "inplace"


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Several methods, each at several batch sizes."""

    methods: Annotated[
        str,
        option(
            ENGINE,
            "Names as for generate, separated by commas, or all.",
            "--methods",
            "--method",
            autocompletion=_method_lists,
        ),
    ] = "all"
    batch_sizes: Annotated[str, option(ENGINE, "Rows decoded together, separated by commas.")] = "1,4,8"

    @property
    def sizes(self) -> list[int]:
        """Batch sizes as integers.

        Raises:
            InputError: something else is given.
        """
        return parse_sizes(self.batch_sizes)
