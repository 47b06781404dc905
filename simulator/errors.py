"""The one error a user of the simulator meets."""


class InputError(ValueError):
    """The caller asked for something impossible. The message is one line: file, field, and what is allowed."""


def require(condition: bool, message: str) -> None:
    """Raise InputError with `message` unless `condition` holds."""
    if not condition:
        raise InputError(message)
