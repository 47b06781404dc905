"""Acceptance from a draft's size and training: a law that was fitted to drafts, within the range of those."""

from dataclasses import dataclass
from math import exp, log10
from pathlib import Path

from refimpl.core.errors import InputError, require
from refimpl.core.reading import read_mapping
from simulator.settings.fields import POSITIVE, Range, check_fields, from_mapping, number_field
from simulator.settings.folders import find_data

COEFFICIENT = Range(-1000, 1000)  # beyond, probabilities are 0 or 1


@dataclass(frozen=True, slots=True)
class ScalingLaw:
    """The logit of the acceptance probability, linear in the logarithms of training tokens and of parameters.

    Tokens of a round grow with the logarithm of training tokens (Scylla, arXiv 2505.07858), and here they bend before
    k + 1, the most that a round yields.

    Attributes:
        intercept: logit at one token and one parameter.
        per_tenfold_tokens, per_tenfold_parameters: added for ten times as many.
        least_training_tokens, most_training_tokens, least_parameters, most_parameters: of the drafts that it was fitted
            to.
    """

    intercept: float = number_field(COEFFICIENT)
    per_tenfold_tokens: float = number_field(COEFFICIENT)
    per_tenfold_parameters: float = number_field(COEFFICIENT)
    least_training_tokens: float = number_field(POSITIVE)
    most_training_tokens: float = number_field(POSITIVE)
    least_parameters: float = number_field(POSITIVE)
    most_parameters: float = number_field(POSITIVE)

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("training_tokens", "parameters"):
            least, most = getattr(self, f"least_{name}"), getattr(self, f"most_{name}")
            require(least <= most, f"least_{name} {least:g} is above most_{name} {most:g}")

    def probability(self, training_tokens: float, parameters: float) -> float:
        """Probability that a draft is right.

        Raises:
            InputError: more or less training, or parameters, than any draft had.
        """
        _require_inside("training_tokens", training_tokens, self.least_training_tokens, self.most_training_tokens)
        _require_inside("parameters", parameters, self.least_parameters, self.most_parameters)
        tokens, size = self.per_tenfold_tokens * log10(training_tokens), self.per_tenfold_parameters * log10(parameters)
        return _logistic(self.intercept + tokens + size)


def _require_inside(name: str, value: float, least: float, most: float) -> None:
    fitted = f"the law was fitted to {least:,.10g} … {most:,.10g}"
    require(least <= value <= most, f"acceptance.{name} {value:,.10g} is outside of the drafts: {fitted}")


def _logistic(logit: float) -> float:
    small = exp(-abs(logit))
    return (1.0 if logit >= 0 else small) / (1 + small)


def read_scaling_law(path: str | Path) -> ScalingLaw:
    """The law in a JSON file under the key ``law``; the file is sought in the working directory, then in the data.

    Raises:
        InputError: no such file, or a number is missing or out of range; one line that begins with the file's name.
    """
    found = find_data(path)
    if found is None:
        raise InputError(f"{path}: no such scaling law")
    return from_mapping(ScalingLaw, read_mapping(found).get("law"), f"{path}: law.")
