"""The paper's code, run in an environment of its own: started by ``tools/paper_code.py``, which says how to make one.

Each line of stdin is a JSON request: method, prompts, batch_size, max_new_tokens, num_speculative_tokens. The answer is
a JSON line: the generated token ids of each prompt, and the CPU seconds of the call.
"""

import argparse
import contextlib
import functools
import importlib
import io
import json
import sys
import time
from pathlib import Path
from typing import Any

PLACES = {
    "eqspec": "batch_speculative.run_speculative_inference",
    "exspec": "cross_batch_speculative.run_cross_batch_inference",
}


def load(pair: Path) -> dict[str, Any]:
    """Both models in float32 and the tokenizer, whose `decode` hands the ids through: they are what is compared."""
    import torch
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    torch.set_num_threads(1)
    torch.cuda.synchronize = lambda *_: None  # their loops synchronize a GPU without asking whether there is one
    names = json.loads((pair / "target" / "tokenizer_config.json").read_text())
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(pair / "target" / "tokenizer.json"),
        eos_token=names["eos_token"],
        pad_token=names["pad_token"],
    )
    tokenizer.decode = lambda ids, **_: ids.tolist()
    models = {
        f"{name}_model": AutoModelForCausalLM.from_pretrained(pair / name, torch_dtype=torch.float32).eval()
        for name in ("target", "draft")
    }
    return {"tokenizer": tokenizer, **models}


def plain(loaded: dict[str, Any], prompts: list[str], batch_size: int, max_new_tokens: int) -> list[list[int]]:
    """Greedy `generate` of the installed transformers in batches, without drafts."""
    tokenizer, outputs = loaded["tokenizer"], []
    for at in range(0, len(prompts), batch_size):
        batch = tokenizer(prompts[at : at + batch_size], padding=True, padding_side="left", return_tensors="pt")
        ids = loaded["target_model"].generate(
            batch.input_ids, attention_mask=batch.attention_mask, max_new_tokens=max_new_tokens, do_sample=False
        )
        outputs += ids[:, batch.input_ids.shape[1] :].tolist()
    return outputs


def decode(loaded: dict[str, Any], method: str, num_speculative_tokens: int, **settings: Any) -> list[list[int]]:
    """Generated token ids of each prompt, by the paper's function for the method, or by `plain`."""
    if method == "generate":
        return plain(loaded, **settings)
    module, _, name = PLACES[method].partition(".")
    function = getattr(importlib.import_module(f"src.custom.{module}"), name)
    theirs = {"device": "cpu", "use_cache": True, "verbose_acceptance": False, "enable_profiling": False}
    return function(**loaded, **settings, **theirs, n_draft_tokens=num_speculative_tokens, max_input_len=4096)[0]


def answer(run: functools.partial[list[list[int]]], request: dict[str, Any]) -> dict[str, Any]:
    """Decode, with whatever is printed meanwhile thrown away."""
    begun = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        tokens = run(**request)
    return {"tokens": tokens, "cpu_s": time.process_time() - begun}


def main() -> None:
    """Answer requests until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path, help="a clone of github.com/eBay/spec_dec")
    parser.add_argument("pair", type=Path, help="folder with target/ and draft/")
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.checkout))
    run = functools.partial(decode, load(arguments.pair))
    for line in sys.stdin:
        print(json.dumps(answer(run, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
