"""All of it, from the corpus to the exported pair."""

import json
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3ForCausalLM

from refimpl.calibrate.documents import read_corpus
from tools.train_tiny.corpus import choose_prompts, corpus_hash, token_stream, train_tokenizer
from tools.train_tiny.draft import align, distil, train_draft_on_text
from tools.train_tiny.labels import labelled_blocks, relabel
from tools.train_tiny.settings import EOS_ID, PAD_ID, Config
from tools.train_tiny.target import TargetRun


def export_model(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, directory: Path) -> None:
    """Weights in bfloat16, configuration, stop token and tokenizer, as `from_pretrained` expects them."""
    plain = Qwen3ForCausalLM(model.config)
    plain.load_state_dict(model.state_dict())
    plain.generation_config = GenerationConfig(do_sample=False, eos_token_id=EOS_ID, pad_token_id=PAD_ID)
    plain.bfloat16().save_pretrained(directory)
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokenizer.save_pretrained(directory)


def train_pair(config: Config, out: Path, work: Path, compiled: bool) -> None:
    """All of it, then the exported pair, its prompts and the record of the run (`work/record.json`)."""
    documents = read_corpus()
    tokenizer = train_tokenizer(documents, config)
    train = token_stream(tokenizer, [d for d in documents if not d.held_out], config.seed)
    held = token_stream(tokenizer, [d for d in documents if d.held_out], config.seed)
    print(f"{len(documents)} documents, {len(train)} training tokens, {len(held)} held out", flush=True)
    work.mkdir(parents=True, exist_ok=True)
    target = TargetRun(config, train, held, work / "target.pt", compiled).run()
    state = train_draft_on_text(config, train, held, work, compiled)
    blocks = labelled_blocks(config, target, train, work)
    draft = distil(config, state, blocks, config.distil_steps, held, compiled)
    target = align(config, target, draft, blocks, held)
    draft = distil(config, draft.state_dict(), relabel(config, target, blocks), config.redistil_steps, held, compiled)
    prompts = choose_prompts(config, tokenizer, documents)
    export_model(target, tokenizer, out / "target")
    export_model(draft, tokenizer, out / "draft")
    (out / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in prompts), encoding="utf-8")
    record: dict[str, Any] = {
        "python": platform.python_version(),
        "corpus_sha256": corpus_hash(documents),
        "config": asdict(config),
    }
    record |= {"documents": len(documents), "characters": sum(len(d.text) for d in documents)}
    record |= {"train_tokens": len(train), "held_out_tokens": len(held), "torch": torch.__version__}
    (work / "record.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
