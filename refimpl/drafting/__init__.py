"""What is proposed without a model. Pure Python: no tensor library is loaded."""

from refimpl.drafting.ngram import NgramIndex
from refimpl.drafting.suffix import SuffixIndex
