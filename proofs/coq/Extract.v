(** The checkers and the formulas as OCaml. Numbers stay as Coq has them: nothing of its arithmetic is replaced. *)
From Coq Require Import Extraction ExtrOcamlBasic QArith.
From RaggedSpec Require Import Trace Checker Replay Layouts Blocks Room BlockRule Cohorts.
Extraction Language OCaml.
Extraction "checker.ml" check.
Extraction "machine.ml" Replay.step untouched all_over.
Extraction "block_machine.ml" Blocks.step opened.
Extraction "layouts_formulas.ml" padded_claims append_claims kill held wanted
  BlockRule.passes left_law prefix_mass fold_last Qred Cohorts.runs Cohorts.ahead.
