"""Runs with a trace that tests share."""

from refimpl import Request, generate

BUDGETS = (3, 17, 1, 9, 24, 5, 12)


def traced(pair, path, asked=None, **settings):
    """Of requests, or of prompts of 4 to 16 tokens that repeat themselves, each with a budget of its own."""
    prompts = [[(3 * j) % (3 + i) + 5 for j in range(4 + 2 * i)] for i in range(len(BUDGETS))]
    asked = asked or [Request(p, max_new_tokens=n) for p, n in zip(prompts, BUDGETS, strict=True)]
    given = {"batch_size": 3, "num_speculative_tokens": 3, "window_size": 5, "stop_token_ids": [], "checks": "off"}
    result = generate(pair, asked, **given | settings)
    result.write_trace(path)
    return result
