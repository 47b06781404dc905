"""Option groups of the commands: an option is declared once, and a command names the groups that it takes."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from refimpl.commands.parsing import numbers, parse_integers, parse_sizes, parse_table
from refimpl.core.config import METHODS, NAMED_METHODS, CheckLevel, DecodeConfig
from refimpl.core.drafting import DraftBudgetName, DrafterName, DraftingConfig, RankingScore
from refimpl.core.errors import InputError, require
from refimpl.core.execution import ExecutionName
from refimpl.core.option_groups import ENGINE, MODELS, PROMPTS, SAMPLING, option

PAIRS = ("tiny", "vicuna", "qwen3", "glm4")
Rule = Literal["greedy", "coupled", "rejection", "block"]
Dtype = Literal["float64", "float32", "bfloat16", "float16"]
Turns = Literal["first", "all"]
DEFAULTS = DecodeConfig()
DRAFTING = DEFAULTS.drafting


def _method_lists(incomplete: str) -> list[str]:
    """Completions of the last name of a comma-separated list."""
    before = incomplete[: incomplete.rfind(",") + 1]
    return [before + name for name in ([] if before else ["all"]) + [*METHODS]]


DeviceOption = Annotated[str, option(MODELS, "cpu, cuda or cuda:N.", autocompletion=lambda: ["cpu", "cuda"])]
SeedOption = Annotated[int, option(SAMPLING, "Seed of the random numbers.")]
DraftTokensOption = Annotated[
    int, option(ENGINE, "Tokens drafted per row and round.", "--num-speculative-tokens", "-k")
]
MaxNewOption = Annotated[int, option(ENGINE, "Most tokens generated per prompt.")]
ChecksOption = Annotated[CheckLevel | None, option(ENGINE, "Run-time checks.", none="device on a CPU, else host")]


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
        option(MODELS, "Number of ids that are tokens, if the vocabularies differ and there is no tokenizer."),
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
        str | None, option(MODELS, "File of a draft head that was trained for the target; tiny has one.")
    ] = None

    def load(self, **more: Any) -> Any:
        """Load the pair, with the head if one is given."""
        return super().load(head=self.head, **more)


@dataclass(frozen=True, kw_only=True)
class ModelOptions(HeadOptions):
    """A pair that may be compiled, whose weights may be prepacked, or whose norms may be fused."""

    compile_: Annotated[bool, option(MODELS, "Fuse parts of layers with torch.compile.", "--compile")] = False
    prepack: Annotated[
        bool, option(MODELS, "Keep weights as oneDNN reads them fastest, too: float32 on a CPU.", "--prepack")
    ] = False
    fuse_norms: Annotated[
        bool, option(MODELS, "Compute a norm in one or two calls, where transformers takes eight.", "--fuse-norms")
    ] = False

    def load(self, **more: Any) -> Any:
        """Load the pair, made faster if asked for."""
        speed = {"compile_modules": self.compile_, "prepack_weights": self.prepack, "fuse_norms": self.fuse_norms}
        return super().load(**speed, **more)


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
    prompt: Annotated[list[str] | None, option(PROMPTS, "A prompt itself, in place of a file; may be repeated.")] = None
    turns: Annotated[Turns, option(PROMPTS, "Turns to take from a prompt that has several.")] = "first"
    limit: Annotated[int | None, option(PROMPTS, "Take only the first prompts, this many.", min=1)] = None
    max_prompt_tokens: Annotated[int | None, option(PROMPTS, "Keep only the last tokens of a prompt, this many.")] = (
        None
    )

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

    def settings(self) -> dict[str, Any]:
        """Keywords of `refimpl.generate`; what is None is left to the engine."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class SamplingOptions(SettingOptions):
    """Shape of the distribution that tokens are drawn from."""

    temperature: Annotated[float, option(SAMPLING, "0 decodes greedily.")] = 0.0
    top_k: Annotated[int, option(SAMPLING, "Draw from the k most probable tokens; 0 for all.")] = 0
    top_p: Annotated[float, option(SAMPLING, "Draw from the most probable tokens that reach this probability.")] = 1.0
    min_p: Annotated[
        float, option(SAMPLING, "Drop tokens below this share of the most probable one's probability.")
    ] = 0.0
    seed: SeedOption = 0


@dataclass(frozen=True, kw_only=True)
class DecodingOptions(SamplingOptions):
    """Sampling, which drafts are accepted, and where a text ends."""

    acceptance: Annotated[
        Rule | None, option(SAMPLING, "Rule that accepts drafts.", none="greedy at temperature 0, else coupled")
    ] = None
    stop_strings: Annotated[
        list[str] | None, option(SAMPLING, "Stop when the generated text contains this; may be repeated.", "--stop")
    ] = None
    stop_token_ids: Annotated[
        str | None, option(SAMPLING, "Stop at these tokens only, separated by commas.", none="those of the models")
    ] = None

    def settings(self) -> dict[str, Any]:
        """The same, with token ids as numbers."""
        given = super().settings()
        if self.stop_token_ids is not None:
            given["stop_token_ids"] = parse_integers(self.stop_token_ids, "--stop-token-ids")
        return given


@dataclass(frozen=True, kw_only=True)
class EngineOptions(SettingOptions):
    """What the commands that decode share. An option added here is an option of all of them."""

    num_speculative_tokens: DraftTokensOption = DEFAULTS.num_speculative_tokens
    max_new_tokens: MaxNewOption = DEFAULTS.max_new_tokens
    window_size: Annotated[
        int | None,
        option(ENGINE, "Sequences that a grouped scheduler chooses from.", none="4 times the batch size"),
    ] = None
    drafter: Annotated[
        DrafterName,
        option(
            ENGINE,
            "What proposes tokens: the draft model, a lookup in the text so far (ngram, suffix), ngram first (hybrid), "
            "or a head on the target.",
        ),
    ] = DRAFTING.drafter
    draft_budget: Annotated[DraftBudgetName, option(ENGINE, "Rule for how many drafts of a row are verified.")] = (
        DRAFTING.draft_budget
    )
    drafts_by_load: Annotated[
        str | None,
        option(ENGINE, "ROWS=DRAFTS,… for the budget by_load: from so many rows on, at most so many drafts each."),
    ] = None
    draft_capacity: Annotated[int | None, option(ENGINE, "Drafts per round, for the budget capacity.")] = None
    draft_score: Annotated[RankingScore, option(ENGINE, "What ranks drafts, for the budget capacity.")] = (
        DRAFTING.draft_score
    )
    draft_costs: Annotated[
        str | None,
        option(
            ENGINE,
            "ROWS=SECONDS/SECONDS/…,… for the budget goodput: from so many rows on, seconds of rounds with 1, 2, … "
            "drafts a row, over those without.",
        ),
    ] = None
    draft_threshold: Annotated[
        float, option(ENGINE, "For the budget confidence: least estimated survival of a draft, in 0 … 1.")
    ] = DRAFTING.draft_threshold
    execution: Annotated[
        ExecutionName,
        option(ENGINE, "Draft, then verify; or verify half of the rows of inplace or paged while the others draft."),
    ] = DEFAULTS.execution
    checks: ChecksOption = None
    cuda_graphs: Annotated[
        bool | None,
        option(ENGINE, "Record rounds of inplace and replay them.", none="on a GPU, if the checks allow it"),
    ] = False
    kv_memory_gib: Annotated[
        float | None,
        option(ENGINE, "Most memory for both models' K/V.", "--kv-memory-gib", none="most of what is free"),
    ] = None
    block_size: Annotated[int, option(ENGINE, "Tokens of a block of paged K/V: 1, 2, 4 … 64.")] = DEFAULTS.block_size
    prefix_sharing: Annotated[bool, option(ENGINE, "Let rows of paged share blocks of equal first tokens.")] = (
        DEFAULTS.prefix_sharing
    )
    token_budget: Annotated[
        int | None,
        option(ENGINE, "Most tokens of a round of +continuous.", none="a verify pass of the batch, and 256 of prompts"),
    ] = None
    joint_prefill: Annotated[
        bool, option(ENGINE, "Let rows of inplace or paged decode in the pass that caches the last of their prompt.")
    ] = DEFAULTS.joint_prefill

    def settings(self) -> dict[str, Any]:
        """The same, with tables as pairs."""
        given = super().settings()
        if self.drafts_by_load is not None:
            given["drafts_by_load"] = parse_table(self.drafts_by_load, "--drafts-by-load", "1=7,4=5,16=2", int)
        if self.draft_costs is not None:
            given["draft_costs"] = parse_table(self.draft_costs, "--draft-costs", "1=1.2/1.4,8=1.3/1.7", numbers)
        return given


@dataclass(frozen=True, kw_only=True)
class MethodOptions(SettingOptions):
    """One method and its batch."""

    method: Annotated[
        str, option(ENGINE, f"{', '.join(NAMED_METHODS)}, or LAYOUT+SCHEDULER.", autocompletion=lambda: METHODS)
    ] = DEFAULTS.method
    batch_size: Annotated[int, option(ENGINE, "Rows decoded together.")] = DEFAULTS.batch_size
    shape_stable: Annotated[
        bool, option(ENGINE, "Run passes of one shape, for the same bits in any batch.", "--shape-stable")
    ] = False


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
