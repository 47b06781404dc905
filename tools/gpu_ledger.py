"""What has been measured, at which commit; and packing of the results so that they unpack in place."""

import json
import tarfile
from pathlib import Path
from typing import Any

from gpu_pieces import RESULTS, SIMULATOR_DATA, Piece

from refimpl.core.provenance import utc_time

CHECKOUT = Path(__file__).parent.parent
LEDGER = f"{RESULTS}/gpu.json"
UNKNOWN = "unknown"  # what `refimpl.core.provenance.commit` says where there is no git


class Ledger:
    """One entry a piece, kept in ``docs/results/gpu.json`` below the root and written after every command.

    Entries of the checkout's own ledger are taken over, so that results unpacked there count.
    """

    def __init__(self, root: Path, at: str):
        self.root, self.commit, self.path = root, at, root / LEDGER
        self.entries: dict[str, dict[str, Any]] = {}
        for path in dict.fromkeys((CHECKOUT / LEDGER, self.path)):
            if path.exists():
                self.entries |= {entry["name"]: entry for entry in json.loads(path.read_text())["pieces"]}

    def has(self, piece: Piece) -> bool:
        """Whether the piece is done at this commit, and its files are there."""
        entry = self.entries.get(piece.name)
        if entry is None or entry["state"] != "done" or entry["commit"] != self.commit or self.commit == UNKNOWN:
            return False
        files = [path for command in entry["commands"] for path in command["writes"]]
        return all((self.root / path).exists() or (CHECKOUT / path).exists() for path in files)

    def note(self, piece: Piece, state: str, commands: list[dict[str, Any]], device: str) -> None:
        """Write down how a piece stands."""
        self.entries[piece.name] = {
            "name": piece.name,
            "what": piece.what,
            "state": state,
            "seconds": round(sum(command["seconds"] for command in commands), 1),
            "commit": self.commit,
            "device": device,
            "utc_time": utc_time(),
            "commands": commands,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps({"pieces": list(self.entries.values())}, indent=1) + "\n")
        temporary.replace(self.path)


def data_files(root: Path) -> list[Path]:
    """Result files below a root."""
    folders = (root / RESULTS, root / SIMULATOR_DATA)
    return sorted(path for folder in folders if folder.is_dir() for path in folder.rglob("*") if path.is_file())


def stamp(root: Path, since: float, at: str) -> None:
    """In the meta data of files written since then: name the commit where git was not there, leave out the root."""
    for path in data_files(root):
        if path.suffix == ".json" and path.name != Path(LEDGER).name and path.stat().st_mtime >= since:
            text = path.read_text()
            data = json.loads(text)
            meta = data.get("meta", data) if isinstance(data, dict) else {}
            if meta.get("commit") == UNKNOWN:
                meta["commit"] = at
            if "command" in meta:
                meta["command"] = meta["command"].replace(f"{root}/", "")
            path.write_text(json.dumps(data, indent=1) + "\n")


def pack(root: Path, archive: Path) -> None:
    """Put every result below the root into one archive; unpacked in a checkout, each lies where it belongs."""
    temporary = archive.with_name(f".{archive.name}.tmp")
    with tarfile.open(temporary, "w:gz") as packed:
        for path in data_files(root):
            packed.add(path, path.relative_to(root).as_posix())
    temporary.replace(archive)
