"""What decides the result: sizes, steps, rates."""

from dataclasses import dataclass

EOS, PAD = "<|endoftext|>", "<|pad|>"
EOS_ID, PAD_ID = 0, 1


@dataclass(frozen=True)
class Stage:
    """One stretch of target training: depth, length, batch shape, learning-rate scale from begin to end."""

    num_layers: int
    steps: int
    batch_size: int
    seq_len: int
    lr_begin: float
    lr_end: float


@dataclass(frozen=True)
class Config:
    """Everything that decides the result besides the corpus and the library versions."""

    seed: int = 0
    vocab_size: int = 2048
    stages: tuple[Stage, ...] = (
        Stage(6, 1000, 16, 256, 1.0, 1.0),
        Stage(12, 200, 16, 256, 1.0, 1.0),
        Stage(24, 100, 16, 256, 1.0, 1.0),
        Stage(24, 200, 16, 256, 1.0, 0.1),
        Stage(24, 25, 8, 512, 0.1, 0.02),
    )
    muon_lr: float = 0.02
    adam_lr: float = 3e-3
    weight_decay: float = 0.01
    warmup_steps: int = 50
    draft_width: int = 256
    draft_text_steps: int = 600
    draft_text_lr_end: float = 1.0  # share of the learning rate at the end of the text
    draft_batch: int = 16
    text_blocks: int = 40  # of 16 × 256 tokens
    greedy_prompt_lens: tuple[int, ...] = (8, 24, 48, 96, 160)
    greedy_batches: int = 20  # of greedy_batch continuations, cycling through the prompt lengths
    greedy_batch: int = 128
    greedy_new_tokens: int = 64
    teacher_top: int = 32
    hard_weight: float = 0.6  # share of the hard loss on greedily continued positions
    distil_steps: int = 2000
    align_steps: int = 100
    align_weight: float = 0.8  # of the draft's log-probabilities in what the target is aligned to
    redistil_steps: int = 800
    num_prompts: int = 96
