(** Rounds within a budget of tokens (the scheduler `continuous`): rows that decode, and chunks of prompts beside them.

    Rows are residents of the window, the oldest first. *)
From Coq Require Import Arith Bool List Lia.
Import ListNotations.

Section Chunks.
Variable budget : nat.

(** Whether a row may decode in the round of its last chunk. *)
Variable joint : bool.

(** What a row feeds in a verify pass at most, and what of its prompt is not cached; it decodes when nothing is left of that. *)
Record row := { verify : nat; to_prefill : nat }.

Fixpoint tokens (rs : list row) : nat := match rs with [] => 0 | r :: rest => verify r + tokens rest end.
Fixpoint verified (rs : list row) : nat :=
  match rs with [] => 0 | r :: rest => (if to_prefill r =? 0 then verify r else 0) + verified rest end.

(** What the rows that decode leave goes to prompts, the oldest first; beside the last chunk of a prompt, to its verify tokens. *)
Definition beside (spare : nat) (r : row) : nat :=
  if joint && (1 <=? to_prefill r) && (to_prefill r + verify r <=? spare) then verify r else 0.
Definition rest_of (spare : nat) (r : row) : nat := spare - to_prefill r - beside spare r.
Fixpoint chunks (spare : nat) (rs : list row) : list nat :=
  match rs with [] => [] | r :: rest => Nat.min spare (to_prefill r) :: chunks (rest_of spare r) rest end.
Fixpoint joined (spare : nat) (rs : list row) : nat :=
  match rs with [] => 0 | r :: rest => beside spare r + joined (rest_of spare r) rest end.
Fixpoint sum (ns : list nat) : nat := match ns with [] => 0 | n :: rest => n + sum rest end.
Definition prompts (rs : list row) : list nat := chunks (budget - verified rs) rs.

(** A row enters only while the verify tokens of all residents fit; they never grow; rows leave. *)
Inductive step : list row -> list row -> Prop :=
  | enters rs r : tokens (rs ++ [r]) <= budget -> step rs (rs ++ [r])
  | goes_on rs rs' : Forall2 (fun r r' => verify r' <= verify r) rs rs' -> step rs rs'
  | leaves rs r rs' : step (rs ++ r :: rs') (rs ++ rs').

Inductive reachable : list row -> Prop :=
  | nobody : reachable []
  | after rs rs' : reachable rs -> step rs rs' -> reachable rs'.

Lemma tokens_app rs rs' : tokens (rs ++ rs') = tokens rs + tokens rs'.
Proof. induction rs as [|r rs IH]; cbn; lia. Qed.

Lemma tokens_fit rs : reachable rs -> tokens rs <= budget.
Proof.
  induction 1 as [|rs rs' _ IH S]; [cbn; lia|]. destruct S as [rs r E|rs rs' F|rs r rs']; [exact E| |].
  - apply (Nat.le_trans _ (tokens rs)); [|exact IH]. clear IH. induction F; cbn; lia.
  - rewrite tokens_app in *. cbn in IH. lia.
Qed.

Lemma verified_within rs : verified rs <= tokens rs.
Proof. induction rs as [|r rs IH]; cbn; [lia|]. destruct (to_prefill r =? 0); lia. Qed.

Lemma verified_beside_prompt older r younger : 1 <= to_prefill r ->
  verified (older ++ r :: younger) + verify r <= tokens (older ++ r :: younger).
Proof.
  intro P. induction older as [|o older IH]; cbn.
  - pose proof (verified_within younger). destruct (Nat.eqb_spec (to_prefill r) 0); lia.
  - destruct (to_prefill o =? 0); lia.
Qed.

Lemma beside_fits spare r : beside spare r <= spare - to_prefill r.
Proof.
  unfold beside. destruct joint, (1 <=? to_prefill r); cbn; try lia.
  destruct (Nat.leb_spec (to_prefill r + verify r) spare); lia.
Qed.

Lemma chunks_within spare rs : sum (chunks spare rs) + joined spare rs <= spare.
Proof.
  revert spare; induction rs as [|r rs IH]; intro spare; cbn; [lia|].
  specialize (IH (rest_of spare r)). pose proof (beside_fits spare r). unfold rest_of in *. lia.
Qed.

Lemma first_chunk spare older r younger : (forall o, In o older -> to_prefill o = 0) ->
  nth (length older) (chunks spare (older ++ r :: younger)) 0 = Nat.min spare (to_prefill r).
Proof.
  revert spare; induction older as [|o older IH]; intros spare D; cbn [app length chunks nth]; [reflexivity|].
  unfold rest_of, beside. rewrite (D o (or_introl eq_refl)), andb_false_r. cbn [andb]. rewrite !Nat.sub_0_r.
  apply IH. intros x X. apply D. now right.
Qed.

(** THEOREM (a budget of tokens, INV-17). With all rows that decode, those that join in the round among them, a round feeds no
    more than its budget, and the oldest prompt gets on in every round. *)
Theorem token_budget rs : reachable rs -> verified rs + (sum (prompts rs) + joined (budget - verified rs) rs) <= budget
  /\ forall older r younger, rs = older ++ r :: younger -> (forall o, In o older -> to_prefill o = 0) ->
     1 <= to_prefill r -> 1 <= verify r -> 1 <= nth (length older) (prompts rs) 0.
Proof.
  intro X. pose proof (tokens_fit rs X) as T. split.
  - pose proof (verified_within rs). pose proof (chunks_within (budget - verified rs) rs). unfold prompts. lia.
  - intros older r younger -> D P V. unfold prompts. rewrite first_chunk by exact D.
    pose proof (verified_beside_prompt older r younger P). lia.
Qed.
End Chunks.
