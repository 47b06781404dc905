"""Failures of a saved report, to be asked for again: the same cases, of the same properties."""

from pathlib import Path

from refimpl.conformance.cases import EngineCase
from refimpl.conformance.protocol import EngineSettings
from refimpl.core.errors import InputError, require
from refimpl.core.reading import parse_mapping, read_mapping
from refimpl.core.values import plain


def read_failures(path: Path) -> dict[str, EngineCase]:
    """Properties that failed, with their smallest cases.

    Raises:
        InputError: the file is no report of the kit, or nothing failed in it.
    """
    report = read_mapping(path)
    try:
        failed = [verdict for verdict in report["properties"] if verdict["status"] == "fail"]
        found = {verdict["property"]: _case(verdict["case"], str(path)) for verdict in failed}
    except (KeyError, TypeError) as error:
        raise InputError(f"{path}: is no report of conformance --output") from error
    require(bool(found), f"{path}: nothing failed in this report")
    return found


def _case(saved: str, where: str) -> EngineCase:
    case = parse_mapping(saved, where)
    settings = EngineSettings(**{name: plain(value) for name, value in case.pop("settings").items()})
    return EngineCase(settings=settings, **{name: plain(value) for name, value in case.items()})
