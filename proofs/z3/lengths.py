"""Lengths that a round leaves behind, and that the draft's entries are right."""

from functools import partial
from types import ModuleType

import z3

from proofs.z3.obligation import Obligation
from proofs.z3.row import COLUMN, ROW, between, claim, store


def draft_cache(kernels: ModuleType) -> list[Obligation]:
    """INV-5 and INV-6: how far each model's cache lags, and that the draft's entries are right."""
    row, c = ROW, COLUMN
    kept = kernels.num_kept(row.accepted)
    new_len = row.seq_len + kept
    cached = kernels.draft_cached_after(row.seq_len, row.k, new_len)
    lag = kernels.lag(new_len, cached)
    drafted = row.k >= 1
    old_lag = z3.Int("old_lag")
    before = store("before")
    fed = z3.If(between(row.seq_len - old_lag, c, row.seq_len + row.k - 1), row.fed(c), before(c))
    old_cached = z3.Implies(between(0, c, row.seq_len - old_lag), before(c) == row.text(c))

    about = partial(claim, "lengths")
    return [
        about("a round keeps the accepted drafts and one more token", [], new_len == row.seq_len + row.accepted + 1),
        about(
            "the target lags by 1 after the commit (INV-5)", [], kernels.lag(new_len, row.seq_len + row.accepted) == 1
        ),
        about(
            "the draft lags by 2 after a full acceptance, else by 1 (INV-6)",
            [drafted],
            lag == z3.If(row.accepted == row.k, z3.IntVal(2), z3.IntVal(1)),
        ),
        about(
            "what the draft keeps is right: its entries are the committed tokens (INV-6)",
            [drafted, between(1, old_lag, 3), old_cached, between(0, c, cached)],
            fed == row.committed(c),
        ),
        about(
            "a row cut short by a stop or by the batch minimum lags by 1 (INV-6)",
            [drafted, between(1, z3.Int("committed"), row.k + 1)],
            kernels.lag(
                row.seq_len + z3.Int("committed"),
                kernels.draft_cached_after(row.seq_len, row.k, row.seq_len + z3.Int("committed")),
            )
            == 1,
        ),
    ]
