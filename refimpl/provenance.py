"""Where a number comes from: written beside every measured file. Importing this loads no tensor library."""

import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SCHEMA_VERSION = 1
ROOT = Path(__file__).parents[1]
CODE = ("--", "*.py", "*.safetensors", "constraints.txt")  # what a result depends on


def provenance(device: "torch.device") -> dict[str, Any]:
    """Time, commit, command (which holds every setting that is not a default), device and libraries."""
    import torch
    import transformers

    return {
        "schema_version": SCHEMA_VERSION,
        "utc_time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "command": command_line(),
        "device": device_name(device),
        "torch_threads": torch.get_num_threads(),
        "libraries": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


def command_line() -> str:
    """What the user typed, ready to be typed again."""
    return "python -m refimpl " + shlex.join(sys.argv[1:])


def device_name(device: "torch.device") -> str:
    """Model of the processor or the GPU."""
    if device.type == "cuda":
        import torch

        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {len(names) or 1} cores"


def commit() -> str:
    """Commit of the code that runs, marked when the packages differ from it (measured files may)."""
    try:
        return _git("rev-parse", "--short=12", "HEAD") + (
            "-dirty" if _git("diff", "HEAD", "--name-only", *CODE) else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*words: str) -> str:
    run = subprocess.run(["git", *words], capture_output=True, text=True, check=True, cwd=ROOT)
    return run.stdout.strip()
