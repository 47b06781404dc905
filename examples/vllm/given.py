"""Drafts that the kit gives, for vLLM's method ``custom_class``."""

plans: list[tuple[list[int], list[list[int]]]] = []  # of each row: prompt; drafts by the number of generated tokens


class GivenDrafts:
    """What vLLM asks for drafts."""

    def __init__(self, config, *_, **__):
        self.k = config.speculative_config.num_speculative_tokens

    def load_model(self, *_, **__):
        """There is none."""

    def propose(self, sampled_token_ids, num_tokens_no_spec, token_ids_cpu, *_, **__) -> list[list[int]]:
        """Drafts of each row; none while its prompt is not finished."""
        lengths = zip(sampled_token_ids, num_tokens_no_spec, token_ids_cpu, strict=False)
        return [self._after(row[:count].tolist()) if new else [] for new, count, row in lengths]

    def _after(self, row: list[int]) -> list[int]:
        for prompt, plan in plans:
            at = len(row) - len(prompt)
            if row[: len(prompt)] == prompt and 0 <= at < len(plan):
                return plan[at][: self.k]
        return []
