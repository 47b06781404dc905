"""Which of several replicas a request goes to."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter

from simulator.service.records import Request
from simulator.service.replica import Replica
from simulator.service.workload import RequestSource, most_requests
from simulator.settings.parts import Study
from simulator.settings.scenario import Scenario

Router = Callable[[Request, Sequence[Replica]], Replica]
SAMPLED = 1000  # requests whose prompts say where the shares of a router by length end
WORK = attrgetter("load_tokens")


def in_turn(request: Request, replicas: Sequence[Replica]) -> Replica:
    """The next one, in the order in which requests arrive."""
    return replicas[request.sequence % len(replicas)]


def by_work(request: Request, replicas: Sequence[Replica]) -> Replica:
    """The one whose unfinished requests have least tokens, prompts and budgets together; of several the first."""
    return min(replicas, key=WORK)


def by_prefix(request: Request, replicas: Sequence[Replica]) -> Replica:
    """The one whose cache holds most of the request's first tokens; of several the one with least work."""
    return min(replicas, key=lambda replica: (-replica.prefix_tokens(request), replica.load_tokens))


class ByLength:
    """Short prompts to the first replicas, long ones to the last, so that each gets as many; of alike ones, by work.

    Args:
        source: of the requests, whose first ones are asked for their lengths.
        study: how many requests there are.
    """

    def __init__(self, source: RequestSource, study: Study):
        self.source, self.study = source, study
        self.longest = lru_cache(maxsize=None)(self._longest)

    def __call__(self, request: Request, replicas: Sequence[Replica]) -> Replica:
        """The replica whose share of the lengths holds the prompt."""
        longest = self.longest(len(replicas))
        first = min(bisect_left(longest, request.prompt_len), len(replicas) - 1)
        return by_work(request, replicas[first : max(first + 1, bisect_right(longest, request.prompt_len))])

    def _longest(self, count: int) -> list[int]:
        """The longest prompt of each part, of the first requests in equal parts; parts may be alike."""
        known = min(SAMPLED, most_requests(self.study) or SAMPLED)
        lengths = sorted(self.source.lengths(index)[0] for index in range(known))
        return [lengths[max(0, known * part // count - 1)] for part in range(1, count + 1)]


def make_router(scenario: Scenario, source: RequestSource) -> Router:
    """The router that a scenario names."""
    if scenario.service.router == "by_length":
        return ByLength(source, scenario.study)
    return {"round_robin": in_turn, "least_loaded": by_work, "by_prefix": by_prefix}[scenario.service.router]
