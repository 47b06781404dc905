"""All measurements that need a GPU, in order of value, in pieces of under nine minutes each.

Every piece writes its results and their provenance as it goes, and is skipped when it is done at this commit already
(changed code counts as another commit, rewritten results do not), so a run may be cut short and taken up again.
Results lie in docs/results and simulator/data, below the folder of --out, else the checkout itself. Where the variable
OUT names a folder, they are packed there into one archive after every command: unpack it in a checkout with `tar -xzf
gpu-results.tar.gz`, then run `make readme`.

Examples:
  .ci/gpu                                 everything
  .ci/gpu --list                          what there is, and what is done
  .ci/gpu --minutes 25                    as many pieces as fit; smoke and bench-length3 take 11 at most
  .ci/gpu --only bench-length3,anatomy    these
  .ci/gpu --dry-run --out /tmp/dry        all of it with tiny sizes, on a CPU
"""

import argparse
import os
import sys
import time
from pathlib import Path

from gpu_ledger import CHECKOUT, UNKNOWN, Ledger, pack, stamp
from gpu_pieces import Piece, Scale, all_pieces
from gpu_run import run_command

from refimpl.core.provenance import commit

ARCHIVE, LOG, WORK = "gpu-results.tar.gz", "gpu.log", CHECKOUT / "build" / "gpu"


class UsageError(Exception):
    """A request that cannot be met; one line."""


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog=".ci/gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="list the pieces and how they stand; run nothing")
    parser.add_argument("--only", metavar="PIECE,…", help="run these pieces only, also when they are done")
    parser.add_argument("--minutes", type=float, metavar="N", help="begin no piece that could end after N minutes")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on a CPU; needs --out")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write below this folder, not into the checkout")
    parser.add_argument("--archive", type=Path, metavar="FILE", help="pack the results of --out into this .tar.gz")
    parser.add_argument("--commit", help="of the code, where there is no git")
    parser.add_argument("--prompts", default="", metavar="FILE", help="of the equivalence runs; default: bundled")
    return parser.parse_args(argv)


def chosen(pieces: list[Piece], only: str | None) -> list[Piece]:
    """The pieces that --only names, in order of value; all without it."""
    names = only.split(",") if only else [piece.name for piece in pieces]
    known = {piece.name for piece in pieces}
    for name in names:
        if name not in known:
            raise UsageError(f"no piece {name!r}: choose {', '.join(piece.name for piece in pieces)}")
    return [piece for piece in pieces if piece.name in names]


def places(args: argparse.Namespace) -> tuple[Path, Path | None, Path]:
    """Root of the results, archive or None, and log."""
    folder = os.environ.get("OUT")
    if args.dry_run and not args.out:
        raise UsageError("--dry-run writes nothing into the checkout: name a folder with --out")
    if args.archive and not args.out:
        raise UsageError("--archive packs what is in --out: name a folder with --out")
    if args.out or not folder:
        root = args.out.resolve() if args.out else CHECKOUT
        log = root / LOG if args.out else CHECKOUT / "build" / LOG
        return root, args.archive.resolve() if args.archive else None, log
    return WORK, Path(folder).resolve() / ARCHIVE, Path(folder).resolve() / LOG


def device(*, dry: bool) -> str:
    """Name of the device.

    Raises:
        UsageError: there is none.
    """
    import torch

    if dry:
        return "cpu, tiny sizes"
    if not torch.cuda.is_available():
        raise UsageError("no CUDA device is available; try --dry-run --out FOLDER")
    return torch.cuda.get_device_name()


class Session:
    """One call of the script; see `parse` for the arguments."""

    def __init__(self, args: argparse.Namespace):
        self.begun = time.perf_counter()
        self.args, self.pieces = args, all_pieces(Scale(args.dry_run, args.prompts))
        self.todo = chosen(self.pieces, args.only)
        self.root, self.archive, self.log = places(args)
        self.commit = args.commit or commit()
        self.ledger = Ledger(self.root, self.commit)

    def list(self) -> int:
        """Print every piece."""
        for piece in self.pieces:
            entry = self.ledger.entries.get(piece.name)
            state = "done" if self.ledger.has(piece) else f"{entry['state']} at {entry['commit']}" if entry else "open"
            print(f"{piece.name:<18} {piece.minutes:>4.1f} min  {state:<10} {piece.what}")
        return 0

    def run(self) -> int:
        """Run what is open; exit code 1 when a piece failed or ran out of time."""
        if self.commit == UNKNOWN and not self.args.dry_run:
            raise UsageError("there is no git here: name the commit with --commit, or nothing counts as done later")
        name, states = device(dry=self.args.dry_run), []
        for folder in (self.root, self.log.parent, *([self.archive.parent] if self.archive else [])):
            folder.mkdir(parents=True, exist_ok=True)
        for piece in self.todo:
            if not self.args.only and self.ledger.has(piece):
                print(f"{piece.name}: done already at {self.commit}")
            elif self._too_late(piece):
                print(f"{piece.name}: left out, it could take {piece.minutes:.0f} minutes")
            else:
                states.append(self._run_piece(piece, name))
        return int(any(state in ("failed", "timeout") for state in states))

    def _too_late(self, piece: Piece) -> bool:
        spent = (time.perf_counter() - self.begun) / 60
        return self.args.minutes is not None and spent + piece.minutes > self.args.minutes

    def _run_piece(self, piece: Piece, name: str) -> str:
        print(f"{piece.name}: {piece.what}", flush=True)
        deadline, reports, state = time.perf_counter() + 60 * piece.minutes, [], "done"
        for command in piece.commands:
            since, left = time.time() - 1, max(1.0, deadline - time.perf_counter())
            outcome = run_command(command, self.root, self.log, left, inside=self.args.dry_run)
            stamp(self.root, since, self.commit)
            reports.append(outcome.as_dict(command, self.root))
            if outcome.state in ("failed", "timeout"):
                state = outcome.state
            self.ledger.note(piece, "running" if command is not piece.commands[-1] else state, reports, name)
            if self.archive:
                pack(self.root, self.archive)
        if all(report["state"] == "not available" for report in reports):
            state = "not available"
            self.ledger.note(piece, state, reports, name)
        print(f"{piece.name}: {state} after {sum(r['seconds'] for r in reports):.0f} s", flush=True)
        return state


def main() -> int:
    """Parse and run; a wrong request is one line and exit code 2."""
    args = parse(sys.argv[1:])
    try:
        session = Session(args)
        return session.list() if args.list else session.run()
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        print("interrupted: what is done stays", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
