"""The settings that the engine and its simulation share, each declared once."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from refimpl.core.declared import Range, documented, setting
from refimpl.core.drafting import DRAFTERS, DrafterName, DraftingConfig
from refimpl.core.errors import require
from refimpl.core.execution import ExecutionName, check_execution, check_joint_prefill, check_recording
from refimpl.core.values import MAX_SPECULATIVE_TOKENS

LayoutName = Literal["realigned", "masked", "rollback", "inplace", "paged"]
SchedulerName = Literal["static", "fifo", "grouped", "continuous"]
LayersName = Literal["auto", "transformers", "lean", "packed", "compiled", "kernels"]  # chosen as a model is loaded
LAYOUTS: list[str] = [*get_args(LayoutName)]
LAYERS: list[str] = [*get_args(LayersName)]


class SchedulerFacts(NamedTuple):
    """What a scheduler reads of the settings.

    Attributes:
        windowed: a window of more sequences than run in a round.
        chunked: a budget of tokens a round, in which prompts are cached in chunks.
    """

    windowed: bool = False
    chunked: bool = False


SCHEDULERS: dict[str, SchedulerFacts] = {
    "static": SchedulerFacts(),
    "fifo": SchedulerFacts(),
    "grouped": SchedulerFacts(windowed=True),
    "continuous": SchedulerFacts(chunked=True),
}
WINDOW_BATCHES = 4  # in a window, unless its size is given
CHUNK_TOKENS = 256  # of prompts, in a round whose budget is not given
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64)  # tokens
WINDOW = Range(1, integer=True, most=2**20, bytes_each=2**11)  # sequences
TOKEN_BUDGET = Range(1, 2**20, integer=True)


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How rounds run: rows, drafts, blocks and passes. A method's layout and scheduler are said by the subclass."""

    batch_size: int = setting(8, "Rows decoded together.", Range(1, 4096, integer=True), option=())
    num_speculative_tokens: int = setting(
        5, "Most tokens drafted per row and round, k; 0 decodes without drafts.",
        Range(0, MAX_SPECULATIVE_TOKENS, integer=True), option=("--num-speculative-tokens", "-k"),
    )  # fmt: skip
    drafter: DrafterName = setting(
        "model",
        "What proposes tokens: the draft model, a lookup in the text so far (ngram, suffix), ngram first (hybrid), or "
        "a head on the target.",
        DRAFTERS, option=(),
    )  # fmt: skip
    draft_budget: str = setting(
        "fixed",
        "How many drafts of a row are verified: fixed, by_load:ROWS=DRAFTS,…, capacity:DRAFTS, "
        "goodput:ROWS=SECONDS/SECONDS/…,… or confidence:SURVIVAL.",
        option=(),
    )  # fmt: skip
    window_size: int | None = setting(
        None, "Sequences that a grouped scheduler chooses from.", WINDOW, none="4 times the batch size"
    )
    aging_bound: float | None = setting(
        None, "Rounds after which a sequence that a grouped scheduler passes over is due; inf for never.",
        Range(0, infinite=True), none="eight turns of the window",
    )  # fmt: skip
    token_budget: int | None = setting(
        None, "Most tokens of a round of the continuous scheduler, those of prompts included; at least k + 1.",
        TOKEN_BUDGET, none="a verify pass of the batch, and 256 tokens of prompts",
    )  # fmt: skip
    joint_prefill: bool = setting(False, "Let rows of inplace or paged decode in the pass that ends their prompt.")
    execution: ExecutionName = setting(
        "serial", "serial, or overlapped: half of the rows of inplace or paged are verified while the others draft."
    )
    cuda_graphs: bool = setting(False, "Record rounds of inplace once for each width of the context, and replay them.")
    block_size: int = setting(16, "Tokens of a block of paged K/V.", BLOCK_SIZES)
    prefix_sharing: bool = setting(True, "Let rows of paged share full blocks of equal first tokens.")
    compaction_threshold: float = setting(
        0.25, "Share of dead slots at which the masked layout compacts.", Range(0, 1, open_low=True)
    )

    @property
    def layout(self) -> LayoutName | None:
        """Where K/V are stored; None for ordinary decoding."""
        raise NotImplementedError

    @property
    def scheduler(self) -> SchedulerName | None:
        """Which rows run in a round; None for ordinary decoding."""
        raise NotImplementedError

    @property
    def scheduler_facts(self) -> SchedulerFacts:
        """What the scheduler reads of the settings."""
        return SCHEDULERS[self.scheduler] if self.scheduler else SchedulerFacts()

    @property
    def resolved_batch_size(self) -> int:
        """Rows a round runs."""
        return self.batch_size

    @property
    def drafting(self) -> DraftingConfig:
        """What proposes tokens, and how many of them are verified."""
        return DraftingConfig(self.drafter, self.draft_budget)

    @property
    def resolved_window_size(self) -> int:
        """Sequences with K/V at a time."""
        if not self.scheduler_facts.windowed:
            return self.resolved_batch_size
        return self.window_size or WINDOW_BATCHES * self.batch_size

    @property
    def resolved_token_budget(self) -> int | None:
        """Tokens of a round at most, for a scheduler that has such a bound."""
        if not self.scheduler_facts.chunked:
            return None
        return self.token_budget or self.resolved_batch_size * (self.num_speculative_tokens + 1) + CHUNK_TOKENS

    def check_drafts(self, num_drafts: int) -> None:
        """Raise InputError where a row's drafts, and the token before them, would not fit into a round."""
        budget = self.resolved_token_budget
        row = f"a row with {num_drafts} drafts takes {num_drafts + 1} tokens"
        require(budget is None or budget > num_drafts, f"token_budget {budget} is too small: {row}")

    def check_together(self) -> None:
        """Raise InputError for settings that exclude each other; those that a method does not read hold for others."""
        _ = self.drafting
        self.check_drafts(self.num_speculative_tokens)
        require(
            not self.scheduler_facts.windowed or self.window_size is None or self.window_size >= self.batch_size,
            f"window_size {self.window_size} is smaller than batch_size {self.batch_size}: "
            f"scheduler {self.scheduler!r} needs a window of at least one batch",
        )
        check_execution(self)
        check_recording(self)
        check_joint_prefill(self)
