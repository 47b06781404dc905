"""Target/draft pairs: the bundled tiny pair, the published presets, and the user's own."""

from refimpl.pairs.checkpoint import GenerationConfigWarning
from refimpl.pairs.loading import load_pair, make_pair
from refimpl.pairs.presets import PRESETS
from refimpl.pairs.random_pairs import random_pair
from refimpl.pairs.vocabulary import VocabularyWarning

__all__ = ["PRESETS", "GenerationConfigWarning", "VocabularyWarning", "load_pair", "make_pair", "random_pair"]
