(** What a recorded run must look like: states, guards and transitions, stated as propositions.

    A run is a list of rounds, a round one row per unfinished member, as the engine records it. *)
From Coq Require Import Arith List Lia Bool.
Import ListNotations.

Record sequence := { prompt_len : nat; max_new_tokens : nat; num_speculative_tokens : nat }.

Inductive scheduler := Static | Fifo | Grouped (aging : nat).
Inductive mode := StaticMode | FifoMode | GroupedMode | FallbackMode | AgedMode.
Inductive token_kind := Draft | Recovered | Bonus.

Record config := {
  sequences : list sequence; policy : scheduler; batch_size : nat; window_size : nat; rollback : bool }.

(** One line of a trace. Lengths in tokens, before the round. *)
Record row := {
  index : nat; seq_len : nat; draft_lag : nat; k : nat; drafted : nat;
  accepted : nat; kept : nat; next_token : token_kind; finished : bool }.
Record round := { chosen_by : mode; rows : list row }.

(** What the specification remembers of a sequence. *)
Record memory := { length_now : nat; lag_now : nat; waited : nat; ended : bool }.
Definition blank : memory := {| length_now := 0; lag_now := 0; waited := 0; ended := true |}.
Definition nobody : sequence := {| prompt_len := 0; max_new_tokens := 0; num_speculative_tokens := 0 |}.

Section Spec.
Variable cfg : config.
Notation state := (list memory).

Definition of (st : state) (i : nat) : memory := nth i st blank.
Definition config_of (i : nat) : sequence := nth i (sequences cfg) nobody.
Definition limit (i : nat) : nat := prompt_len (config_of i) + max_new_tokens (config_of i).
Definition members (rd : round) : list nat := map index (rows rd).

(** A fresh sequence has cached its prompt but for the last token. *)
Definition fresh (s : sequence) : memory :=
  {| length_now := prompt_len s; lag_now := 1; waited := 0; ended := false |}.
Definition start : state := map fresh (sequences cfg).

Definition unfinished (st : state) : list nat :=
  filter (fun i => negb (ended (of st i))) (seq 0 (length (sequences cfg))).

(** Sequences with K/V: the oldest unfinished ones; for static batches, what is left of the current batch. *)
Definition window (st : state) : list nat :=
  match policy cfg with
  | Static => filter (fun i => i / batch_size cfg =? hd 0 (unfinished st) / batch_size cfg) (unfinished st)
  | _ => firstn (window_size cfg) (unfinished st)
  end.

(** Whose waiting counts: who has run, and the oldest. *)
Definition ages (st : state) (i : nat) : bool :=
  (prompt_len (config_of i) <? length_now (of st i)) || (i =? hd i (window st)).

(** The rows' lengths and lags are those the last rounds left behind, and the row's numbers fit together. *)
Definition row_follows (st : state) (rd : round) (r : row) : Prop :=
  let s := of st (index r) in
  let remaining := limit (index r) - length_now s in
  let common := if rollback cfg then fold_right Nat.min (accepted r) (map accepted (rows rd)) else accepted r in
  seq_len r = length_now s /\ draft_lag r = lag_now s
  /\ drafted r = Nat.min (num_speculative_tokens (config_of (index r))) (remaining - 1)
  /\ accepted r <= drafted r
  /\ 1 <= kept r /\ kept r <= remaining /\ kept r <= S common
  /\ (kept r < S common -> finished r = true)          (* only a stop cuts a row short *)
  /\ (kept r = remaining -> finished r = true)          (* the budget is exact *)
  /\ (next_token r = Draft <-> kept r <= accepted r)
  /\ (next_token r = Bonus <-> (kept r = S (accepted r) /\ accepted r = drafted r)).

Definition same_key (st : state) (i j : nat) : Prop :=
  length_now (of st i) = length_now (of st j) /\ lag_now (of st i) = lag_now (of st j).

Definition overdue (st : state) (aging : nat) : Prop := Exists (fun i => aging <= waited (of st i)) (window st).

Definition num_alike (st : state) (i : nat) (w : list nat) : nat :=
  length (filter (fun j => (length_now (of st i) =? length_now (of st j)) && (lag_now (of st i) =? lag_now (of st j))) w).

(** The rows of a round may stand in any order. *)
Definition same_members (l m : list nat) : Prop := incl l m /\ incl m l.

(** Why these members run (INV-9, INV-10, INV-11). *)
Definition scheduled (st : state) (rd : round) : Prop :=
  let ms := members rd in
  let w := window st in
  match policy cfg, chosen_by rd with
  | Static, StaticMode => same_members ms w
  | Fifo, FifoMode => same_members ms w
  | Grouped aging, AgedMode => incl ms w /\ length ms = Nat.min (batch_size cfg) (length w) /\ overdue st aging
      /\ Forall (fun m => Forall (fun u => In u ms \/ waited (of st u) <= waited (of st m)) w) ms
  | Grouped aging, GroupedMode => incl ms w /\ length ms = batch_size cfg /\ ~ overdue st aging
      /\ Forall (fun m => Forall (fun u => same_key st m u) ms) ms
  | Grouped aging, FallbackMode => same_members ms (firstn (batch_size cfg) w) /\ ~ overdue st aging
      /\ Forall (fun u => num_alike st u w < batch_size cfg) w
  | _, _ => False
  end.

(** Guard of a round. *)
Definition enabled (st : state) (rd : round) : Prop :=
  rows rd <> [] /\ NoDup (members rd) /\ scheduled st rd
  /\ Forall (row_follows st rd) (rows rd)
  /\ Forall (fun r => k r = fold_right Nat.max 0 (map drafted (rows rd))) (rows rd).

Definition after_row (s : memory) (r : row) : memory :=
  let len := length_now s + kept r in
  let cached := if k r =? 0 then length_now s - lag_now s else Nat.min (length_now s + k r - 1) (len - 1) in
  {| length_now := len; lag_now := len - cached; waited := 0; ended := finished r |}.

Definition after_one (st : state) (rd : round) (i : nat) : memory :=
  match find (fun r => index r =? i) (rows rd) with
  | Some r => after_row (of st i) r
  | None =>
      let s := of st i in
      if existsb (Nat.eqb i) (window st) && ages st i
      then {| length_now := length_now s; lag_now := lag_now s; waited := S (waited s); ended := ended s |}
      else s
  end.

Definition after (st : state) (rd : round) : state := map (after_one st rd) (seq 0 (length (sequences cfg))).

(** A complete run: enabled rounds until everybody has ended. *)
Inductive run : state -> list round -> Prop :=
  | run_end st : Forall (fun s => ended s = true) st -> run st []
  | run_round st rd rest : enabled st rd -> run (after st rd) rest -> run st (rd :: rest).

Definition valid (trace : list round) : Prop := run start trace.

(** ** What validity gives *)

Definition within (st : state) : Prop :=
  forall i, i < length (sequences cfg) ->
    length_now (of st i) <= limit i /\ (ended (of st i) = false -> length_now (of st i) < limit i).

Lemma of_after st rd i : i < length (sequences cfg) -> of (after st rd) i = after_one st rd i.
Proof.
  intro H. unfold of, after. rewrite (nth_indep _ blank (after_one st rd 0)) by (rewrite map_length, seq_length; exact H).
  rewrite map_nth, seq_nth by exact H. reflexivity.
Qed.

Lemma enabled_within st rd : within st -> enabled st rd -> within (after st rd).
Proof.
  intros W (_ & _ & _ & F & _) i H. rewrite of_after by exact H. unfold after_one.
  destruct (find (fun r => index r =? i) (rows rd)) as [r|] eqn:E.
  - apply find_some in E as [In0 Ei]. apply Nat.eqb_eq in Ei. subst i.
    rewrite Forall_forall in F. specialize (F r In0). specialize (W (index r) H).
    destruct F as (_ & _ & _ & _ & K1 & K2 & _ & _ & K3 & _). cbn. split; [lia|]. intro N.
    destruct (Nat.eq_dec (kept r) (limit (index r) - length_now (of st (index r)))) as [X|X];
      [rewrite (K3 X) in N; discriminate|]. lia.
  - specialize (W i H). destruct (existsb (Nat.eqb i) (window st) && ages st i); cbn; exact W.
Qed.

(** THEOREM (INV-7). Along a valid run no sequence ever exceeds its budget, and one that has reached it has ended. *)
Theorem valid_within trace st : Forall (fun s => 1 <= max_new_tokens s) (sequences cfg) ->
  valid trace -> (forall n, st = fold_left after (firstn n trace) start -> within st).
Proof.
  intros B V n ->. assert (S0 : within start).
  { intros i H. unfold of, limit, config_of, start.
    rewrite (nth_indep _ blank (fresh nobody)) by (rewrite map_length; exact H).
    rewrite map_nth. cbn. rewrite Forall_forall in B. specialize (B (nth i (sequences cfg) nobody) (nth_In _ _ H)). lia. }
  unfold valid in V. revert n S0. induction V as [st E|st rd rest G _ IH]; intros [|n] W; cbn; try exact W.
  apply IH. apply enabled_within; assumption.
Qed.

(** THEOREM (INV-6). A row that took part in a round with drafts lags by 1 or 2 afterwards. *)
Theorem lag_after s r : 1 <= k r -> 1 <= kept r <= S (k r) -> 1 <= length_now s ->
  1 <= lag_now (after_row s r) <= 2 /\ (lag_now (after_row s r) = 2 <-> kept r = S (k r)).
Proof. intros K R L. cbn. destruct (Nat.eqb_spec (k r) 0); lia. Qed.

End Spec.
