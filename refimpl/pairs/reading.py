"""Model folders of anybody: what is malformed in them becomes one line that names model, file and reason."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoConfig, AutoTokenizer

from refimpl.core.errors import InputError, require, shown
from refimpl.core.reading import is_file, is_folder, read_mapping
from refimpl.core.tokens import check_stops

JSON_FILES = ("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json")
ADAPTER = "adapter_config.json"
INDEX = "*.index.json"
LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")
MAX_LAYERS = 4096  # each is built before a weight is read
LONGEST_REASON = 300  # characters


def from_pretrained(auto_class: Any, role: str, name: str, **options: Any) -> Any:
    """Call ``auto_class.from_pretrained`` on a folder, once its JSON files are sound, or on a hub id.

    Raises:
        InputError: it cannot be loaded; one line that names `role`, ``target`` or ``draft``, the file and the reason.
    """
    if is_folder(name):
        check_model_files(role, Path(name))
        with naming(role, name, _files_of(auto_class)):
            return auto_class.from_pretrained(name, local_files_only=True, **options)
    require(not is_file(name), f"cannot load the {role} {shown(name)}: it is a file, give the folder of a model")
    if name.startswith((".", "/", "~")):
        raise InputError(f"cannot load the {role} {name[:LONGEST_REASON]}: there is no such folder")
    try:
        return auto_class.from_pretrained(name, local_files_only=False, **options)
    except Exception as error:
        raise InputError(
            f"cannot load the {role} {shown(name)} from the hub ({_reason(error)}); "
            "download it elsewhere and give the path of its folder"
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Hush transformers' progress bars and hints while loading; afterwards they are as they were."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    loggers = [logging.getLogger(name) for name in ("transformers", "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    has_bars = transformers.utils.logging.is_progress_bar_enabled()
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    transformers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if has_bars:
            transformers.utils.logging.enable_progress_bar()


@contextmanager
def naming(role: str, name: str, files: str) -> Iterator[None]:
    """Turn any error of transformers into one line: malformed files make it raise errors of every kind."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"cannot load the {role} {name}: {files}: {_reason(error)}") from error


def check_model_files(role: str, folder: Path) -> None:
    """Raise InputError for a JSON file that is malformed, or an index that names files outside of its folder.

    An adapter is refused, too: transformers leaves it out without a word where PEFT is not installed.
    """
    with naming(role, str(folder), "its files"):
        try:
            if (folder / ADAPTER).is_file():
                raise InputError(f"{ADAPTER}: adapters are not applied: merge it into its model, and give that folder")
            for path in (folder / name for name in JSON_FILES):
                if path.is_file():
                    _check_config(path.name, read_mapping(path))
            for path in sorted(folder.glob(INDEX)):
                _check_index(folder, path.name, read_mapping(path))
        except InputError as error:
            reason = str(error).removeprefix(f"{folder}/")
            raise InputError(f"cannot load the {role} {folder}: {reason}") from None


def _check_config(file: str, data: dict[str, Any]) -> None:
    for name in LAYERS:
        layers = data.get(name, 1)
        if isinstance(layers, int) and layers > MAX_LAYERS:
            raise InputError(f"{file}: {name} must be at most {MAX_LAYERS}, not {layers}")
    stops = data.get("eos_token_id")
    if "token" not in file and stops is not None:
        try:
            check_stops(stops if isinstance(stops, list) else [stops], ())
        except InputError:
            raise InputError(f"{file}: eos_token_id must be a token id or a list of them, not {shown(stops)}") from None


def _check_index(folder: Path, file: str, data: dict[str, Any]) -> None:
    shards = data.get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise InputError(f"{file}: weight_map must map tensors to files")
    for name in sorted(set(shards.values())):
        if Path(name).name != name:
            raise InputError(f"{file}: weight_map must name files of its folder, not {shown(name)}")
        if not (folder / name).is_file():
            raise InputError(f"{file}: weight_map names {shown(name)}, which is not there")


def _files_of(auto_class: Any) -> str:
    return {AutoConfig: "config.json", AutoTokenizer: "its tokenizer's files"}.get(auto_class, "its weights or config")


def _reason(error: Exception) -> str:
    known = isinstance(error, OSError | ValueError | RuntimeError) and not isinstance(error, RecursionError)
    text = " ".join(str(error).split())[:LONGEST_REASON]
    return text if known and text else f"{type(error).__name__}: {text}"
