"""What a scheduler needs to know of a sequence."""

from dataclasses import dataclass, field


@dataclass(eq=False)
class Item:
    """What a scheduler may see of a sequence."""

    seq_len: int
    cache_state: int = 1
    finished: bool = False
    ticket: int = -1
    priority: int = 0
    waited: int = field(default=0)
    begun: bool = False
