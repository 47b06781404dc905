"""``python -m proofs.engine_mutants REPLAYER FILE …``: change the engine a little; do the layers of the proofs notice?

On demand, for files that `proofs.mutants` does not cover: decoding, layouts, placement, sampling. Each mutant is a file
with one operator, constant, condition or call changed (`tools/mutants.py`), judged by the layers of `proofs.layers`.
"""

import sys

from proofs import layers
from proofs.layers import PROOFS, judge, seen


def main(replayer: str, files: list[str]) -> int:
    """Print the survivors, and the share that a proof stage kills."""
    layers.planted.preload()
    from mutants import mutants_of

    total = killed = 0
    for mutant in (mutant for file in files for mutant in mutants_of(file)):
        cells = judge(mutant, mutant.file, replayer, [])
        total, by = total + 1, [name for name in PROOFS if seen(cells[name])]
        killed += bool(by)
        if not by:
            print(f"  survives  {mutant.key}", flush=True)
    print(f"{killed} of {total} mutants killed")
    return 0 if total else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
