"""The one error a user of the simulator meets; it is the engine's."""

from refimpl.errors import InputError

__all__ = ["InputError", "require"]


def require(condition: bool, message: str) -> None:
    """Raise InputError with `message` unless `condition` holds."""
    if not condition:
        raise InputError(message)
