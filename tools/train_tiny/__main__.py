"""Train the bundled pair on text that every Python installation carries."""

import argparse
import json
from pathlib import Path

import torch

from tools.train_tiny.evaluation import evaluate
from tools.train_tiny.run import train_pair
from tools.train_tiny.settings import Config


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="directory of the exported pair")
    parser.add_argument("--work", type=Path, default=Path(".work/pair"), help="checkpoints; delete to start afresh")
    parser.add_argument("--no-compile", action="store_true", help="do without a C++ compiler, about 1.3x slower")
    parser.add_argument("--evaluate", action="store_true", help="measure the pair in --out instead of training")
    parser.add_argument("--num-speculative-tokens", type=int, default=5)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    args = parser.parse_args()
    torch.set_num_threads(2)
    if args.evaluate:
        print(json.dumps(evaluate(args.out, args.num_speculative_tokens, args.max_new_tokens)))
    else:
        train_pair(Config(), args.out, args.work, not args.no_compile)


if __name__ == "__main__":
    main()
