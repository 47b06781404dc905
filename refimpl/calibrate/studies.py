"""Runs of the engine as a user would start them: what is fitted, what is repeated, and what is held out."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class StudySettings:
    """Settings of a run; prompts are cut at the front to `max_prompt_tokens`, and rounds are `recorded` or not."""

    name: str
    method: str
    batch_size: int
    num_speculative_tokens: int
    num_prompts: int
    max_new_tokens: int
    max_prompt_tokens: int
    window_size: int | None = None
    aging_bound: float | None = None
    token_budget: int | None = None
    recorded: bool = False


@dataclass(frozen=True, slots=True)
class Studies:
    """The runs of a calibration.

    Attributes:
        acceptance: run once, for the acceptance models to be fitted to.
        probes: run in every pass, each time on the same prompts.
        held_out: run several times, each time on other prompts.
    """

    acceptance: StudySettings
    probes: tuple[StudySettings, ...]
    held_out: tuple[StudySettings, ...]

    def of_forced(self) -> "Studies":
        """Those that can be replayed if acceptance is forced: rollback drafts positions again, and draws anew."""
        return replace(self, held_out=tuple(study for study in self.held_out if study.method != "rollback"))


CPU = Studies(
    StudySettings("acceptance", "inplace", 8, 6, 320, 48, 120),
    (
        StudySettings("probe-eqspec", "eqspec", 4, 3, 12, 40, 120),
        StudySettings("probe-exspec", "exspec", 4, 4, 14, 40, 80, window_size=12),
        StudySettings("probe-masked", "masked+fifo", 4, 4, 14, 40, 100),
        StudySettings("probe-inplace", "inplace", 4, 4, 14, 40, 120),
    ),
    (
        StudySettings("eqspec-b3-k4", "eqspec", 3, 4, 24, 48, 120),
        StudySettings("eqspec-b6-k5", "eqspec", 6, 5, 24, 40, 60),
        StudySettings("exspec-b3-k5-w9", "exspec", 3, 5, 24, 48, 120, window_size=9),
        StudySettings("exspec-b5-k2-w16", "exspec", 5, 2, 24, 40, 40, window_size=16),
        StudySettings("exspec-b2-k4-w20", "exspec", 2, 4, 24, 32, 80, window_size=20, aging_bound=20),
        StudySettings("realigned-fifo-b6-k4", "realigned+fifo", 6, 4, 24, 40, 100),
        StudySettings("masked-b3-k5", "masked", 3, 5, 24, 48, 100),
        StudySettings("masked-fifo-b5-k4", "masked+fifo", 5, 4, 24, 48, 120),
        StudySettings("rollback-b3-k2", "rollback", 3, 2, 24, 40, 100),
        StudySettings("rollback-b6-k4", "rollback", 6, 4, 24, 32, 60),
        StudySettings("inplace-b3-k5", "inplace", 3, 5, 24, 48, 120),
        StudySettings("inplace-b6-k2", "inplace", 6, 2, 24, 48, 60),
        StudySettings("inplace-grouped-b4-k5-w10", "inplace+grouped", 4, 5, 24, 48, 100, window_size=10),
        StudySettings("inplace-continuous-b6-k4", "inplace+continuous", 6, 4, 24, 48, 120),
        StudySettings("paged-continuous-b5-k2-t48", "paged+continuous", 5, 2, 24, 48, 120, token_budget=48),
        StudySettings("speculative-k5", "speculative", 1, 5, 10, 48, 100),
    ),
)
CUDA = Studies(
    StudySettings("acceptance", "inplace", 32, 5, 128, 64, 400),
    (
        StudySettings("probe-eqspec", "eqspec", 8, 4, 16, 48, 400),
        StudySettings("probe-exspec", "exspec", 8, 4, 24, 48, 400, window_size=20),
        StudySettings("probe-inplace", "inplace", 16, 4, 32, 48, 400),
    ),
    (
        StudySettings("eqspec-b6-k5", "eqspec", 6, 5, 24, 64, 600),
        StudySettings("eqspec-b20-k3", "eqspec", 20, 3, 40, 48, 300),
        StudySettings("exspec-b6-k5-w24", "exspec", 6, 5, 24, 64, 600, window_size=24),
        StudySettings("exspec-b12-k3-w40", "exspec", 12, 3, 40, 48, 300, window_size=40),
        StudySettings("masked-fifo-b10-k5", "masked+fifo", 10, 5, 30, 48, 400),
        StudySettings("rollback-b6-k3", "rollback", 6, 3, 18, 48, 400),
        StudySettings("inplace-b12-k5", "inplace", 12, 5, 36, 64, 600),
        StudySettings("inplace-b24-k3", "inplace", 24, 3, 60, 48, 300),
        StudySettings("inplace-recorded-b12-k5", "inplace", 12, 5, 36, 64, 600, recorded=True),
        StudySettings("inplace-recorded-b24-k3", "inplace", 24, 3, 60, 48, 300, recorded=True),
        StudySettings("inplace-grouped-b12-k5-w30", "inplace+grouped", 12, 5, 30, 48, 400, window_size=30),
        StudySettings("paged-continuous-b12-k3", "paged+continuous", 12, 3, 36, 48, 300),
        StudySettings("speculative-k5", "speculative", 1, 5, 4, 64, 600),
    ),
)
