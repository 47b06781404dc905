"""The text: what every Python installation carries, as documents, tokens, random windows and prompts."""

import ast
import hashlib
import math
import random
import re
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from refimpl.pairs.train_tiny.settings import EOS, EOS_ID, PAD, Config

SKIPPED_PARTS = {
    "site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "ensurepip", "turtledemo",
    "distutils", "tkinter", "encodings", "pydoc_data", "__pycache__",
}  # fmt: skip

SKIPPED_FILES = re.compile(r"^(_sysconfigdata.*|html/entities|config-.*/.*)\.py$")


@dataclass(frozen=True)
class Document:
    """One text with the module it comes from, e.g. `email/message.py`, and whether that module is held out."""

    source: str
    text: str
    held_out: bool = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha256(self.source.encode()).digest()
        object.__setattr__(self, "held_out", digest[0] % 20 == 0)


def docstrings(source: str) -> list[str]:
    """Docstrings of at least 80 characters of a module, its classes and functions, in source order."""
    nodes = ast.walk(ast.parse(source))
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [ast.get_docstring(node) for node in nodes if isinstance(node, kinds)]
    return [text + "\n" for text in found if text and len(text) >= 80]


def read_corpus() -> list[Document]:
    """Standard-library sources, their docstrings as short documents, and the `pydoc` help topics."""
    root = Path(sysconfig.get_paths()["stdlib"])
    documents = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if SKIPPED_PARTS & set(name.split("/")) or SKIPPED_FILES.match(name):
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        if text.strip():
            documents += [Document(name, text), *(Document(name, doc) for doc in docstrings(text))]
    from pydoc_data.topics import topics

    documents += [Document(f"pydoc_data/topics/{key}", topics[key]) for key in sorted(topics)]
    return documents


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
