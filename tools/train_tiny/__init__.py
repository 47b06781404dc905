"""Train the bundled pair on text that every Python installation carries.

    python -m tools.train_tiny --out DIR              # everything, resumes from --work
    python -m tools.train_tiny --out DIR --evaluate   # measure an exported pair

Steps: corpus → tokenizer → target (a shallow stack, then grown) → draft (text, then distillation) → alignment
of the target → draft again → export.
The target's matrices are trained with Muon (orthogonalised momentum), everything else with AdamW. The draft
learns from two kinds of block labelled by the target: corpus text, and the target's own greedy continuations
of training prompts, which are the contexts that decide acceptance under greedy decoding.
"""
