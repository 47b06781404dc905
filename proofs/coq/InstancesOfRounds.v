(** The other theorems with premises, as in Instances.v: rooms, chunks, cohorts, schedulers, and names of tokens. *)
From Coq Require Import Arith List Lia Bool.
From Coq Require Permutation.
From RaggedSpec Require Selection Scheduling Room Chunks Cohorts.
Import ListNotations.

(** ** Room.v: three blocks of two tokens; the younger row is sent back *)
Definition younger : Room.row := {| Room.len := 3; Room.most := 4; Room.table := [0%nat] |}.
Definition older : Room.row := {| Room.len := 5; Room.most := 6; Room.table := [1; 2]%nat |}.

Example first_can_enter_applies : Room.fits 3 2 1 [older] [older] = true.
Proof. apply Room.first_can_enter. unfold Room.fits_alone. cbn. lia. Qed.

Example round_has_members_applies :
  Room.stay 3 2 1 (fun rs => rs) [younger; older] = [older] /\ Room.fits 3 2 1 [older] [older] = true.
Proof.
  destruct (Room.round_has_members 3 2 1 (fun rs => rs)) with (rs := [younger; older]) as (_ & _ & _ & F).
  - intros rs N. split; [exact N|]. exists []. rewrite app_nil_r. apply Permutation.Permutation_refl.
  - discriminate.
  - intros r [<-|[<-|[]]]; unfold Room.fits_alone; cbn; lia.
  - split; [reflexivity|exact F].
Qed.

Example blocks_of_what_is_cached_applies : exists p, (p < Room.len older - 1 /\ p / 2 = 1)%nat.
Proof.
  apply (Room.blocks_of_what_is_cached 2 1 [older]); [lia| |now left|cbn; lia]. eapply Room.after; [apply Room.nobody|].
  apply (Room.enters 2 1 5 6 [1%nat] [2%nat]); cbn; lia.
Qed.

(** ** Chunks.v: a row decodes, a prompt gets what is left, and its row joins *)
Definition decoding : Chunks.row := {| Chunks.verify := 2; Chunks.to_prefill := 0 |}.
Definition prefilled : Chunks.row := {| Chunks.verify := 2; Chunks.to_prefill := 1 |}.

Example token_budget_applies : (1 <= nth 1 (Chunks.prompts 5 true [decoding; prefilled]) 0)%nat.
Proof.
  assert (R : Chunks.reachable 5 [decoding; prefilled]).
  { eapply Chunks.after; [eapply Chunks.after; [apply Chunks.nobody|]|].
    - apply (Chunks.enters 5 [] decoding). cbn. lia.
    - apply (Chunks.enters 5 [decoding] prefilled). cbn. lia. }
  apply (proj2 (Chunks.token_budget 5 true [decoding; prefilled] R) [decoding] prefilled []); cbn; try lia; [reflexivity|].
  intros o [<-|[]]. reflexivity.
Qed.

(** ** Cohorts.v: of four rows one has drafts, two are drafted for, and the last waits for two rounds *)
Definition cohort (rounds : nat) (drafted : list nat) : Cohorts.state nat :=
  let said (n : nat) (r : nat) : nat := length (filter (fun rs => Cohorts.isin rs r) (firstn n [[0]; [1; 2]]%nat)) in
  {| Cohorts.window := [0; 1; 2; 3]%nat; Cohorts.said := said rounds;
     Cohorts.drafts := map (fun r => (r, said (pred rounds) r)) drafted |}.

Lemma cohort_goes_on n drafted : let a := cohort n drafted in let b := cohort (S n) (Cohorts.next nat a) in
  (forall r, ~ In r (Cohorts.members nat a) -> Cohorts.said nat b r = Cohorts.said nat a r) -> Cohorts.lossless nat a b.
Proof.
  intros a b C. exists b, []. split; [split; [exact C|split]|].
  - reflexivity.
  - exists (fun _ => true). split; [reflexivity|]. intros r _. reflexivity.
  - split; [reflexivity|]. split; [reflexivity|]. split; [reflexivity|]. repeat constructor; cbn; intuition discriminate.
Qed.

(** Two rows enter, the first runs, and the other is drafted for. *)
Example cohorts_applies : let s w d := {| Cohorts.window := w; Cohorts.said := fun _ => 0%nat; Cohorts.drafts := d |} in
  In 1%nat (Cohorts.members nat (s [0; 1]%nat [(1, 0)%nat])).
Proof.
  intro s. assert (R : Cohorts.reachable nat (s [0; 1]%nat [(1, 0)%nat])).
  { eapply Cohorts.after; [eapply Cohorts.after; [eapply Cohorts.after; [apply (Cohorts.nobody nat (s [] [])); reflexivity|]|]|].
    - apply (Cohorts.enters nat _ (s [0]%nat []) 0); try reflexivity. intros [].
    - apply (Cohorts.enters nat _ (s [0; 1]%nat []) 1); try reflexivity. intros [H|[]]. discriminate.
    - apply Cohorts.plays. split; [intros; reflexivity|]. split; [reflexivity|].
      exists (fun _ => true). split; [reflexivity|]. intros; reflexivity. }
  apply (proj1 (proj2 (proj2 (Cohorts.cohorts nat _ R)))); cbn; auto.
Qed.

Example two_rounds_at_most_applies : In 3%nat (Cohorts.members nat (cohort 2 [0; 3]%nat)).
Proof.
  destruct (Cohorts.two_rounds_at_most nat (cohort 0 [0%nat]) (cohort 1 [1; 2]%nat) (cohort 2 [0; 3]%nat) 3) as [H|[H|H]].
  - repeat constructor; cbn; intuition discriminate.
  - apply (cohort_goes_on 0 [0%nat]). intros [|[|[|r]]] N; cbn; try reflexivity. destruct N. now left.
  - apply (cohort_goes_on 1 [1; 2]%nat). intros [|[|[|r]]] N; cbn; try reflexivity; destruct N; cbn; auto.
  - cbn. auto.
  - cbn in H. intuition discriminate.
  - cbn in H. intuition discriminate.
  - exact H.
Qed.

(** ** Scheduling.v: two sequences enter, the first runs, and the second has waited for a round *)
Definition one_waits : Scheduling.state :=
  {| Scheduling.waiting := []; Scheduling.window := [(0, 0); (1, 1)]%nat; Scheduling.finished := [] |}.

Lemma one_waits_reachable : Scheduling.reachable 2 1 2 [0; 1]%nat one_waits.
Proof.
  eapply Scheduling.after; [eapply Scheduling.after; [apply Scheduling.at_start|]|].
  - apply (Scheduling.enter 2 1 2 (Scheduling.start [0; 1]%nat) [0; 1]%nat []); cbn; [reflexivity|lia].
  - apply (Scheduling.play 2 1 2 {| Scheduling.waiting := []; Scheduling.window := [(0, 0); (1, 0)]%nat;
      Scheduling.finished := [] |} (fun _ => (0, 0)%nat) (fun _ => true) [0]%nat []).
    + repeat constructor. intros [].
    + intros x [<-|[]]. now left.
    + cbn. lia.
    + apply Scheduling.by_order; [|intros x [<-|[]]; now left].
      intros (e & [<-|[<-|[]]] & H); cbn in H; lia.
    + constructor.
    + intros x [].
    + intros e _ H. discriminate.
Qed.

Example conservation_applies : Permutation.Permutation [0; 1]%nat (Scheduling.everyone one_waits).
Proof.
  apply (proj1 (Scheduling.conservation 2 1 2 [0; 1]%nat one_waits ltac:(repeat constructor; cbn; intuition discriminate)
    one_waits_reachable)).
Qed.

Example bounded_waiting_applies : (1 <= 2 + (2 - 1) / 1)%nat.
Proof. apply (Scheduling.bounded_waiting 2 1 2 [0; 1]%nat one_waits 1 1 (le_n 1) one_waits_reachable). cbn. auto. Qed.

Example budget_decreases_applies :
  let left n (t : nat) : nat := if Nat.eqb t 0 then n else 3 in
  (Scheduling.budget_left [0; 1] (left 1) < Scheduling.budget_left [0; 1] (left 2))%nat.
Proof.
  intro left. apply (Scheduling.budget_decreases [0; 1]%nat [0]%nat); [discriminate|intros x [<-|[]]; now left|].
  intro t. split; [intros [<-|[]]; cbn; lia|]. intro N. unfold left. destruct (Nat.eqb_spec t 0) as [->|_]; [|reflexivity].
  destruct N. now left.
Qed.

(** ** Names of tokens: each is called by the other's *)
Example renaming_applies rounds g :
  let j choose : Selection.job bool := {| Selection.choose := choose; Selection.stops := fun _ => false; Selection.budget := 3 |} in
  let even (h : list bool) := Nat.even (length h) in
  Selection.speculate bool bool_dec (j (fun h => negb (even h))) (map (fun r => (map negb (fst r), snd r)) rounds) (map negb g)
  = map negb (Selection.speculate bool bool_dec (j even) rounds g).
Proof.
  intros j even. apply Selection.renaming; try reflexivity.
  - intros [|] [|]; cbn; congruence.
  - intro h. cbn. unfold even. rewrite map_length. reflexivity.
Qed.
