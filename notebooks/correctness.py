# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Is my batch speculative decoder correct?
#
# In a batch, rows accept different numbers of drafts. Positions, masks and K/V caches must follow, or the output is wrong. This notebook decodes
# a ragged batch by every method, looks at one round token by token, breaks the engine on purpose, and then tests an engine of your own.
#
# Inputs: the bundled pair of models; the fault zoo, `refimpl/faults`

# %%
# To test your own, change this cell: two models of transformers, and a factory of your engine, "module:factory".
MODELS = ("tiny",)  # or ("path/to/target", "path/to/draft")
MY_ENGINE = "refimpl.conformance.adapters:method:exspec"
PROMPTS = ["def area(r", "import os", "class A:\n    def", "x ="]

# %%
import warnings

from IPython.display import Markdown

import refimpl

# %%
from refimpl.conformance.kit import check_engine
from refimpl.conformance.python_engine import load_engine
from refimpl.faults import FAULTS
from refimpl.faults.engine import FaultyEngine
from refimpl.viz.rounds import mask_map, position_map, ragged_batch, timeline
from refimpl.viz.style import captioned

# %% [markdown]
# ## Every method against plain decoding
#
# `verify` decodes each prompt alone, without drafts, and compares all tokens of each method with that.

# %%
pair = refimpl.load_pair(*MODELS)
settings = {"num_speculative_tokens": 4, "max_new_tokens": 14}
report = refimpl.verify(pair, PROMPTS, batch_sizes=[4], **settings)
report.to_frame()

# %% [markdown]
# ## One round, token by token
#
# All prompts go through one round with the layout `realigned`. Their ends stand in one column, so shorter rows have pads in front. The
# target checks all drafts in one pass. Each row keeps its accepted drafts and gets one token from the target.

# %%
rounds = list(refimpl.watch(pair, PROMPTS, method="eqspec", batch_size=len(PROMPTS), **settings))
raggedness = [len({row.accepted for row in seen.record.rows}) for seen in rounds]
seen = rounds[raggedness.index(max(raggedness))]
accepted = [row.accepted for row in seen.record.rows]
captioned(ragged_batch(seen, pair.decode), f"Realigned, round {seen.record.round}: the rows accept {', '.join(map(str, accepted))} of {seen.record.rows[0].k} drafts.")

# %% [markdown]
# Each row counts its own positions from 0, whatever slots its tokens are in.

# %%
pads = [row.kinds.count("pad") for row in seen.rows]
captioned(position_map(seen), f"Positions in the same round: the rows start behind {', '.join(map(str, pads))} pads.")

# %% [markdown]
# The layout `masked` moves nothing. Rejected tokens stay as holes, which the mask must hide from every query.

# %%
holed = list(refimpl.watch(pair, PROMPTS, method="masked", batch_size=len(PROMPTS), **settings))[seen.record.round]
holes = [row.kinds.count("hole") for row in holed.rows]
captioned(ragged_batch(holed, pair.decode), f"Masked, round {holed.record.round}: the rows keep {', '.join(map(str, holes))} holes.")

# %%
row = holed.rows[holes.index(max(holes))]
captioned(mask_map(row), f"What sequence {row.sequence} sees: {row.visible[-1].sum()} of {len(row.visible[-1])} slots for its last draft, {row.visible[0].sum()} for its last committed token.")

# %% [markdown]
# ## Rounds in time
#
# EXSPEC picks rows from a window, and fills the place of a finished row at once.

# %%
result = refimpl.generate(pair, PROMPTS * 2, method="exspec", batch_size=2, **settings)
length = result.stats.acceptance.mean_acceptance_length
captioned(timeline(result.rounds), f"EXSPEC decodes {len(result.sequences)} prompts, two rows at a time, in {result.stats.num_rounds} rounds; a row gets {length:.1f} tokens a round.")

# %% [markdown]
# ## Break it
#
# The fault zoo holds deliberately broken variants; most are bugs of public implementations. Each of these runs with the checks off, where only
# the output can show the bug, and with the checks on, where an invariant names it in the round in which it happens.

# %%
names = ["batch-maximum-positions", "pads-visible", "pads-pile-up", "realigned-one-column-off", "rejected-entry-left-visible", "sequence-runs-twice",
         "draft-positions-off-by-one", "draft-cache-not-rolled-back", "next-token-counted-as-cached", "clamped-write"]
plain = [s.token_ids for s in refimpl.generate(pair, PROMPTS, method="autoregressive", **settings).sequences]
warnings.simplefilter("ignore", refimpl.AcceptanceCollapseWarning)
wrong, fired = {}, {}

# %%
for name in names:
    fault = FAULTS[name]
    run = {"method": f"{fault.layouts[0]}+{fault.schedulers[0]}", "batch_size": len(PROMPTS), **settings}
    try:
        with fault.injected():
            found = refimpl.generate(pair, PROMPTS, checks="off", **run)
        wrong[name] = sum(s.token_ids != p for s, p in zip(found.sequences, plain, strict=True))
    except Exception as error:
        wrong[name] = f"crash: {error}"

# %%
for name in names:
    fault = FAULTS[name]
    try:
        with fault.injected():
            refimpl.generate(pair, PROMPTS, method=f"{fault.layouts[0]}+{fault.schedulers[0]}", batch_size=len(PROMPTS), checks="device", **settings)
    except refimpl.InvariantViolation as violation:
        fired[name] = violation.invariant
{name: (wrong[name], fired.get(name), FAULTS[name].summary) for name in names}

# %% [markdown]
# ## Test your own engine
#
# The conformance kit asks any engine for tokens and judges only the answers. An engine is a callable with `vocab_size` and `supports`
# ([how to write one](../docs/conformance.md)). Beside it, the same kit judges an engine that is broken on purpose.

# %%
PROPERTIES = ["equals_reference", "stop_is_exact", "rows_are_independent", "raggedness"]
mine = check_engine(load_engine(MY_ENGINE), name=MY_ENGINE, properties=PROPERTIES, max_examples=10)
broken = check_engine(FaultyEngine(FAULTS["pads-visible"], checks="off"), name="pads-visible", properties=PROPERTIES, max_examples=10, shrink=False)
{verdict.property: (verdict.status, other.status) for verdict, other in zip(mine.verdicts, broken.verdicts, strict=True)}

# %% [markdown]
# ## Answer

# %%
frame = report.to_frame()
right, silent = int((frame["exact"] == len(PROMPTS)).sum()), [name for name in names if wrong[name] == 0]
failed = [verdict.property for verdict in broken.verdicts if verdict.status == "fail"]
Markdown(
    f"{right} of {len(frame)} methods are exact on {len(PROMPTS)} ragged prompts, and {MY_ENGINE} {'conforms' if mine.passed else 'does not conform'} to {len(PROPERTIES)} properties of the kit.\n\n"
    f"- The checks caught {len(fired)} of {len(names)} planted bugs: {', '.join(f'{name} ({fired[name]})' for name in fired)}.\n"
    f"- {len(silent)} of them left these outputs right ({', '.join(silent)}): a test of outputs alone would need other prompts, or cannot see them.\n"
    f"- The kit, which sees answers only, rejects an engine that does not mask its pads: {', '.join(failed)}."
)
