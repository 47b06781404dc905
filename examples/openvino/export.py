"""``python export.py PAIR FOLDER``: export a target and a draft, with the target's tokenizer, for OpenVINO GenAI.

Needs openvino-genai and optimum-intel, in an environment of their own.
"""

import sys
from pathlib import Path

import openvino
import torch
from openvino_tokenizers import convert_tokenizer
from optimum.intel import OVModelForCausalLM
from transformers import PreTrainedTokenizerFast

pair, folder = map(Path, sys.argv[1:])
tokenizer = PreTrainedTokenizerFast(
    tokenizer_file=str(pair / "target" / "tokenizer.json"), eos_token="<|endoftext|>", pad_token="<|pad|>"
)
encoder, decoder = convert_tokenizer(tokenizer, with_detokenizer=True)
for name in ("target", "draft"):
    model = OVModelForCausalLM.from_pretrained(
        pair / name, export=True, compile=False, load_in_8bit=False, torch_dtype=torch.float32
    )
    model.save_pretrained(folder / name)
    openvino.save_model(encoder, folder / name / "openvino_tokenizer.xml")  # drafts need it, though only ids are sent
    openvino.save_model(decoder, folder / name / "openvino_detokenizer.xml")
