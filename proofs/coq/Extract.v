(** The checker as OCaml. Numbers stay unary: nothing of Coq's arithmetic is replaced. *)
From Coq Require Import Extraction ExtrOcamlBasic.
From RaggedSpec Require Import Trace Checker.
Extraction Language OCaml.
Extraction "checker.ml" check.
