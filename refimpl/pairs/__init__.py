"""Target/draft pairs: the bundled tiny pair, the published presets, and the user's own."""

from refimpl.pairs.loading import load_pair, make_pair, random_pair
from refimpl.pairs.presets import PRESETS

__all__ = ["PRESETS", "load_pair", "make_pair", "random_pair"]
