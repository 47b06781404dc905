"""The text as tokens: hash, tokenizer, random windows, prompts."""

import hashlib
import math
import random

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from refimpl.calibrate.documents import Document
from tools.train_tiny.settings import EOS, EOS_ID, PAD, Config


def corpus_hash(documents: list[Document]) -> str:
    """SHA-256 over names and texts in order."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(f"{document.source}\0{document.text}\0".encode())
    return digest.hexdigest()


def train_tokenizer(documents: list[Document], config: Config) -> PreTrainedTokenizerFast:
    """Byte-level BPE on the training part; ids 0 and 1 are the stop and the pad token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        special_tokens=[EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((d.text for d in documents if not d.held_out), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=EOS, pad_token=PAD, clean_up_tokenization_spaces=False
    )


def token_stream(tokenizer: PreTrainedTokenizerFast, documents: list[Document], seed: int) -> Tensor:
    """All documents in a fixed shuffle, each followed by the stop token.  # [tokens]"""
    order = list(documents)
    random.Random(seed).shuffle(order)
    encoded = tokenizer([d.text for d in order], add_special_tokens=False).input_ids
    return torch.tensor([token for ids in encoded for token in [*ids, EOS_ID]])


def windows(stream: Tensor, batch_size: int, seq_len: int, *key: int) -> Tensor:
    """Random windows, a function of `key` alone, so a resumed run sees the same data.  # [batch, seq_len + 1]"""
    seed = int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:7], "big")
    starts = torch.randint(len(stream) - seq_len, (batch_size, 1), generator=torch.Generator().manual_seed(seed))
    return stream[starts + torch.arange(seq_len + 1)]


def choose_prompts(config: Config, tokenizer: PreTrainedTokenizerFast, documents: list[Document]) -> list[dict]:
    """Held-out prompts of 5 to 300 tokens, log-uniform; every third one leads up to a document's end."""
    rng = random.Random(config.seed)
    held = [d for d in documents if d.held_out]
    kinds = [[d for d in held if d.text.count("\n") > 60], [d for d in held if len(d.text) < 1500]]
    prompts: dict[str, str] = {}
    while len(prompts) < config.num_prompts:
        near_end = len(prompts) % 3 == 2
        document = rng.choice(kinds[near_end])
        ids = tokenizer(document.text, add_special_tokens=False).input_ids
        length = round(math.exp(rng.uniform(math.log(5), math.log(300))))
        last = len(ids) - length - rng.randint(8, 40)
        if last < 0:
            continue
        start = last if near_end else rng.randint(0, last)
        prompt = str(tokenizer.decode(ids[start : start + length]))
        if 5 <= len(tokenizer(prompt).input_ids) <= 300 and "\ufffd" not in prompt and prompt.strip():
            prompts[prompt] = document.source
    lines = [{"prompt": prompt, "source": source} for prompt, source in prompts.items()]
    rng.shuffle(lines)
    return lines
