(** From the books of a pool to the slots of a row: what the layout `paged` asks of its blocks.

    Slot [j] of block [b] has the number [b * size + j]. A state of Blocks.v gives each row slots of its own for all
    positions of its table (INV-14, INV-16), and what it has found is held (INV-18). *)
From Coq Require Import Arith ZArith List Lia Bool.
From RaggedSpec Require Import Layouts Machine Blocks.
Import ListNotations.

(** Where a table names a block. *)
Fixpoint spot (b : nat) (l : list nat) : option nat :=
  match l with
  | [] => None
  | x :: l' => if x =? b then Some 0 else option_map S (spot b l')
  end.

Lemma spot_at b l i : spot b l = Some i -> nth_error l i = Some b.
Proof.
  revert i. induction l as [|x l IH]; intros i H; [discriminate|]. cbn in H. destruct (Nat.eqb_spec x b) as [->|].
  - now injection H as <-.
  - destruct (spot b l) as [k|]; [|discriminate]. injection H as <-. cbn. now apply IH.
Qed.

Lemma spot_some b l i : nth_error l i = Some b -> exists k, spot b l = Some k.
Proof.
  revert i. induction l as [|x l IH]; intros i H; [destruct i; discriminate|]. cbn. destruct (Nat.eqb_spec x b); [eauto|].
  destruct i as [|i]; [cbn in H; congruence|]. destruct (IH i H) as (k & ->). now exists (S k).
Qed.

Section Tables.
Variables total size : nat.
Hypothesis some_size : 0 < size.

(** The position that a slot stands for in a row, -1 where the row has no such slot; the slot of a position. *)
Definition at_slot (r : row) (c : Z) : Z :=
  if (c <? 0)%Z then (-1)%Z else
  match spot (Z.to_nat c / size) (table r) with
  | Some i => Z.of_nat (i * size + Z.to_nat c mod size)
  | None => (-1)%Z
  end.
Definition slot (b j : nat) : Z := Z.of_nat (b * size + j).
Definition place (r : row) (p : Z) : Z := slot (nth (Z.to_nat p / size) (table r) 0) (Z.to_nat p mod size).

Lemma split_slot b j : j < size -> (b * size + j) / size = b /\ (b * size + j) mod size = j.
Proof.
  intro J. rewrite (Nat.add_comm (b * size)). rewrite Nat.div_add, Nat.mod_add by lia.
  now rewrite Nat.div_small, Nat.mod_small by exact J.
Qed.

(** Even a block that two tables name is in each of them once: its text ends where the block does. *)
Lemma table_once es st w r i k b : replayed total size es (opened total) st -> nth_error (rows st) w = Some r ->
  nth_error (table r) i = Some b -> nth_error (table r) k = Some b -> i = k.
Proof.
  intros X W I K. destruct (replayed_keeps total size es _ st X (opened_keeps total size)) as (_ & A & C & _).
  destruct (le_lt_dec (named b (rows st)) 1) as [L|L].
  - destruct (owner_once b (rows st) w w r r i k L W I W K) as [_ E]. exact E.
  - destruct (holds st b) as [t|] eqn:H; [|now destruct (C b L)].
    destruct (A w r i b t W I H) as [E M]. destruct (A w r k b t W K H) as [E' M'].
    assert (S i * size = S k * size); [|nia].
    rewrite <- (firstn_length_le (said r) M), <- (firstn_length_le (said r) M'), <- E, <- E'. reflexivity.
Qed.

(** THEOREM (slots of its own, INV-14, INV-16). In every state of a run that is replayed, a row has a slot of its own
    for each position of its table, whichever blocks it shares. *)
Theorem block_slots es st w r : replayed total size es (opened total) st -> nth_error (rows st) w = Some r ->
  own_slots (at_slot r) (place r) (Z.of_nat (length (table r) * size)).
Proof.
  intros X W p P. set (n := Z.to_nat p). pose proof (Nat.div_mod n size ltac:(lia)) as D.
  pose proof (Nat.mod_upper_bound n size ltac:(lia)) as M.
  assert (L : n / size < length (table r)) by (apply Nat.div_lt_upper_bound; lia).
  pose proof (nth_error_nth' (table r) 0 L) as B. set (b := nth (n / size) (table r) 0) in *.
  assert (Only : forall k, spot b (table r) = Some k -> k = n / size).
  { intros k K. apply (table_once es st w r k (n / size) b X W); [now apply spot_at|exact B]. }
  unfold place, slot. fold n b. destruct (split_slot b (n mod size) M) as [E F]. split.
  - unfold at_slot. destruct (Z.ltb_spec (Z.of_nat (b * size + n mod size)) 0); [lia|]. rewrite Nat2Z.id, E, F.
    destruct (spot_some b (table r) (n / size) B) as (k & K). rewrite K, (Only k K). lia.
  - intros c C. unfold at_slot in C. destruct (Z.ltb_spec c 0); [lia|]. set (m := Z.to_nat c) in *.
    destruct (spot (m / size) (table r)) as [k|] eqn:K; [|lia]. pose proof (Nat.mod_upper_bound m size ltac:(lia)) as N.
    destruct (split_slot k (m mod size) N) as [E' F']. replace (k * size + m mod size) with n in * by lia.
    apply spot_at in K. rewrite <- E', B in K. injection K as K. pose proof (Nat.div_mod m size ltac:(lia)). nia.
Qed.

(** THEOREM (what is found is held, INV-18). Let the entry of a slot come from the text that its block can be found by, up to
    this slot. As far as the blocks of a row can be found, its positions are held. *)
Theorem found_is_held es st w r entry k : replayed total size es (opened total) st -> nth_error (rows st) w = Some r ->
  (forall b t j, holds st b = Some t -> j < size -> entry (slot b j) = firstn (length t - size + S j) t) ->
  k <= length (table r) -> (forall i b, i < k -> nth_error (table r) i = Some b -> holds st b <> None) ->
  cached nat (at_slot r) entry (said r) (Z.of_nat (k * size)).
Proof.
  intros X W Entry L Found p P. destruct (block_slots es st w r X W p) as [C Only]; [nia|].
  exists (place r p). split; [exact C|]. split; [|exact Only]. set (n := Z.to_nat p).
  pose proof (Nat.div_mod n size ltac:(lia)) as D. pose proof (Nat.mod_upper_bound n size ltac:(lia)) as M.
  assert (I : n / size < k) by (apply Nat.div_lt_upper_bound; lia).
  pose proof (nth_error_nth' (table r) 0 (Nat.lt_le_trans _ _ _ I L)) as B. unfold place. fold n.
  destruct (holds st (nth (n / size) (table r) 0)) as [t|] eqn:H; [|now destruct (Found _ _ I B)].
  rewrite (Entry _ t) by assumption.
  destruct (proj2 (replayed_keeps total size es _ st X (opened_keeps total size))) as (A & _).
  destruct (A w r _ _ t W B H) as [-> Le]. rewrite firstn_length_le by exact Le. rewrite firstn_firstn. unfold prefix.
  f_equal. lia.
Qed.
End Tables.
