(** A valid trace of the grouped scheduler takes steps of the scheduler relation, so its waits are bounded. *)
From Coq Require Import Arith List Lia Bool.
From RaggedSpec Require Import Scheduling Trace.
Import ListNotations.

Section Waiting.
Variable cfg : config.
Variable aging : nat.
Hypothesis grouped : policy cfg = Grouped aging.

Notation queue := (Trace.unfinished cfg).
Notation window := (Trace.window cfg).
Notation after := (Trace.after cfg).
Notation capacity := (window_size cfg).

Definition entries (st : list memory) (l : list nat) : list entry := map (fun i => (i, waited (of st i))) l.
Definition view (st : list memory) : Scheduling.state :=
  {| Scheduling.waiting := skipn capacity (queue st);
     Scheduling.window := entries st (window st);
     Scheduling.finished := [] |}.

Notation ages := (Trace.ages cfg).

(** Those behind the window, and those in it who do not age, have not begun to wait. *)
Definition idle (st : list memory) : Prop :=
  (forall i, In i (skipn capacity (queue st)) -> waited (of st i) = 0) /\
  (forall i, In i (window st) -> ages st i = false -> waited (of st i) = 0).

Definition leavers (rd : round) : list nat := map index (filter finished (rows rd)).

Lemma window_grouped st : window st = firstn capacity (queue st).
Proof. unfold Trace.window. rewrite grouped. reflexivity. Qed.

Lemma tickets_view st : tickets (view st) = window st.
Proof. unfold tickets, view, entries. cbn. rewrite map_map. apply map_id. Qed.

Lemma queue_bound st i : In i (queue st) -> i < length (sequences cfg) /\ ended (of st i) = false.
Proof.
  intro H. apply filter_In in H as [H E]. apply in_seq in H. apply negb_true_iff in E. lia || (split; [lia|exact E]).
Qed.

Lemma window_in_queue st i : In i (window st) -> In i (queue st).
Proof. rewrite window_grouped. intro H. rewrite <- (firstn_skipn capacity (queue st)). apply in_or_app. now left. Qed.

Lemma queue_nodup st : NoDup (queue st).
Proof. apply NoDup_filter, seq_NoDup. Qed.

Lemma members_in_window st rd : enabled cfg st rd -> incl (members rd) (window st).
Proof.
  intros (_ & _ & S & _). unfold scheduled in S. rewrite grouped in S.
  destruct (chosen_by rd); try contradiction.
  - apply S.
  - destruct S as [[S _] _]. intros i H. apply S in H. rewrite <- (firstn_skipn (batch_size cfg) (window st)). apply in_or_app. now left.
  - apply S.
Qed.

(** The row that a member runs is the one that [find] finds. *)
Lemma find_row rd r : NoDup (members rd) -> In r (rows rd) -> find (fun x => index x =? index r) (rows rd) = Some r.
Proof.
  unfold members. induction (rows rd) as [|x l IH]; intros N H; [destruct H|]. cbn in *.
  inversion N as [|a b X Y]; subst. destruct H as [->|H]; [rewrite Nat.eqb_refl; reflexivity|].
  destruct (Nat.eqb_spec (index x) (index r)) as [E|_]; [|apply IH; assumption].
  exfalso. apply X. rewrite E. now apply in_map.
Qed.

Lemma find_none rd i : ~ In i (members rd) -> find (fun x => index x =? i) (rows rd) = None.
Proof.
  intro H. destruct (find (fun x => index x =? i) (rows rd)) as [r|] eqn:E; [|reflexivity].
  apply find_some in E as [R E]. apply Nat.eqb_eq in E. exfalso. apply H. rewrite <- E. now apply in_map.
Qed.

Lemma after_member st rd i : NoDup (members rd) -> In i (members rd) -> i < length (sequences cfg) ->
  waited (of (after st rd) i) = 0 /\ (ended (of (after st rd) i) = true <-> In i (leavers rd)).
Proof.
  intros N H B. rewrite of_after by exact B. unfold after_one.
  apply in_map_iff in H as (r & <- & R). rewrite (find_row rd r N R). cbn. split; [reflexivity|].
  unfold leavers. split.
  - intro F. apply in_map. apply filter_In. split; assumption.
  - intro L. apply in_map_iff in L as (r' & E & R'). apply filter_In in R' as [R' F].
    assert (Some r = Some r') as X.
    { rewrite <- (find_row rd r N R), <- (find_row rd r' N R'), E. reflexivity. }
    injection X as ->. exact F.
Qed.

Lemma after_other st rd i : ~ In i (members rd) -> i < length (sequences cfg) ->
  ended (of (after st rd) i) = ended (of st i) /\
  (waited (of (after st rd) i) = if in_dec Nat.eq_dec i (window st)
     then if ages st i then S (waited (of st i)) else waited (of st i) else waited (of st i)) /\
  length_now (of (after st rd) i) = length_now (of st i).
Proof.
  intros H B. rewrite of_after by exact B. unfold after_one. rewrite (find_none rd i H).
  destruct (existsb (Nat.eqb i) (window st)) eqn:E, (in_dec Nat.eq_dec i (window st)) as [I|I]; cbn;
    destruct (ages st i); cbn; auto.
  - apply existsb_exists in E as (x & X & E). apply Nat.eqb_eq in E. subst. contradiction.
  - exfalso. assert (existsb (Nat.eqb i) (window st) = true); [|congruence].
    apply existsb_exists. exists i. split; [exact I|apply Nat.eqb_refl].
Qed.

Definition stays (rd : round) (i : nat) : bool := negb (if in_dec Nat.eq_dec i (leavers rd) then true else false).

Lemma leavers_members rd : incl (leavers rd) (members rd).
Proof. intros i H. apply in_map_iff in H as (r & <- & R). apply filter_In in R as [R _]. now apply in_map. Qed.

Lemma queue_after st rd : enabled cfg st rd -> queue (after st rd) = filter (stays rd) (queue st).
Proof.
  intro G. pose proof (members_in_window st rd G) as M. destruct G as (_ & N & _).
  unfold Trace.unfinished.
  assert (P : forall l, (forall i, In i l -> i < length (sequences cfg)) ->
    filter (fun i => negb (ended (of (after st rd) i))) l
    = filter (stays rd) (filter (fun i => negb (ended (of st i))) l)).
  { induction l as [|i l IH]; intro B; [reflexivity|]. cbn [filter].
    assert (Bi : i < length (sequences cfg)) by (apply B; now left).
    rewrite (IH (fun x X => B x (or_intror X))). clear IH.
    destruct (in_dec Nat.eq_dec i (members rd)) as [Im|Im].
    - destruct (queue_bound st i (window_in_queue st i (M i Im))) as [_ E]. rewrite E. cbn [negb filter].
      destruct (after_member st rd i N Im Bi) as [_ L]. unfold stays.
      destruct (in_dec Nat.eq_dec i (leavers rd)) as [Il|Il].
      + rewrite (proj2 L Il). reflexivity.
      + destruct (ended (of (after st rd) i)) eqn:F; [exfalso; apply Il, L; reflexivity|]. reflexivity.
    - destruct (after_other st rd i Im Bi) as [E _]. rewrite E.
      destruct (ended (of st i)); cbn [negb filter]; [reflexivity|].
      unfold stays. destruct (in_dec Nat.eq_dec i (leavers rd)) as [Il|Il]; [|reflexivity].
      exfalso. apply Im, leavers_members. exact Il. }
  apply P. intros i H. apply in_seq in H. lia.
Qed.

Lemma filter_all {X} (f : X -> bool) l : (forall x, In x l -> f x = true) -> filter f l = l.
Proof. induction l as [|x l IH]; intro H; cbn; [reflexivity|]. rewrite (H x (or_introl eq_refl)), IH; [reflexivity|]. intros; apply H; now right. Qed.

Lemma behind_stays st rd : enabled cfg st rd -> forall i, In i (skipn capacity (queue st)) -> stays rd i = true.
Proof.
  intros G i H. unfold stays. destruct (in_dec Nat.eq_dec i (leavers rd)) as [L|_]; [|reflexivity]. exfalso.
  apply leavers_members, (members_in_window st rd G) in L. rewrite window_grouped in L.
  pose proof (queue_nodup st) as N. rewrite <- (firstn_skipn capacity (queue st)) in N.
  clear -L H N. induction (firstn capacity (queue st)) as [|x l IH]; [destruct L|]. cbn in N. inversion N as [|a b X Y]; subst.
  destruct L as [->|L]; [apply X, in_or_app; now right|]. apply IH; assumption.
Qed.

(** The window after a round: those who stay, in order, then the next of the waiting line. *)
Lemma window_after st rd : enabled cfg st rd ->
  let kept := filter (stays rd) (window st) in
  let rest := skipn capacity (queue st) in
  let room := capacity - length kept in
  window (after st rd) = kept ++ firstn room rest /\ skipn capacity (queue (after st rd)) = skipn room rest
  /\ length kept <= capacity.
Proof.
  intros G kept rest room. rewrite window_grouped, (queue_after st rd G).
  rewrite <- (firstn_skipn capacity (queue st)) at 1 2. rewrite filter_app. fold rest.
  rewrite (filter_all _ rest (behind_stays st rd G)). rewrite <- (window_grouped st). fold kept.
  assert (L : length kept <= capacity).
  { unfold kept. pose proof (filter_le (stays rd) (window st)). rewrite window_grouped in *.
    rewrite firstn_length in H. lia. }
  rewrite firstn_app, skipn_app. rewrite firstn_all2 by exact L. rewrite skipn_all2 by exact L. auto.
Qed.

Lemma round_is_step st rd : enabled cfg st rd -> idle st -> exists middle,
  step aging (batch_size cfg) capacity (view st) middle /\
  exists last, step aging (batch_size cfg) capacity middle last /\ Scheduling.window last = entries (after st rd) (window (after st rd)).
Proof.
  intros G I. pose proof (members_in_window st rd G) as M. pose proof G as (Ne & N & S & _).
  set (ms := members rd). set (out := leavers rd).
  set (middle := {| Scheduling.waiting := Scheduling.waiting (view st);
    Scheduling.window := map (aged (ages st) ms) (outside out (Scheduling.window (view st)));
    Scheduling.finished := Scheduling.finished (view st) ++ out |}).
  assert (One : 1 <= length ms) by (unfold ms, members; rewrite map_length; destruct (rows rd); [congruence|cbn; lia]).
  assert (Key : forall i, In i (window st) -> In (i, waited (of st i)) (Scheduling.window (view st))).
  { intros i H. cbn. unfold entries. apply (in_map (fun i => (i, waited (of st i)))). exact H. }
  exists middle. split.
  { apply (play aging (batch_size cfg) capacity (view st) (fun i => (length_now (of st i), lag_now (of st i))) (ages st) ms out).
    - exact N.
    - rewrite tickets_view. exact M.
    - split; [exact One|]. unfold scheduled in S. rewrite grouped in S. fold ms in S.
      destruct (chosen_by rd); try contradiction.
      + destruct S as (_ & -> & _). lia.
      + destruct S as ([S _] & _). pose proof (NoDup_incl_length N S) as X. rewrite firstn_length in X. fold ms in X. lia.
      + destruct S as (_ & -> & _). lia.
    - unfold scheduled in S. rewrite grouped in S. fold ms in S.
      assert (Due : overdue cfg st aging <-> Scheduling.overdue aging (view st)).
      { unfold overdue, Scheduling.overdue. rewrite Exists_exists. split.
        - intros (i & H & A). exists (i, waited (of st i)). split; [apply Key; exact H|exact A].
        - intros ([i w] & H & A). cbn in H. apply in_map_iff in H as (i' & E & H). injection E as -> <-. exists i. auto. }
      destruct (chosen_by rd); try contradiction.
      + destruct S as (_ & _ & Nd & K). apply by_key; [rewrite <- Due; exact Nd|].
        intros t u T U. rewrite Forall_forall in K. specialize (K t T). rewrite Forall_forall in K.
        destruct (K u U) as [E F]. congruence.
      + destruct S as ([E _] & Nd & _). apply by_order; [rewrite <- Due; exact Nd|]. rewrite tickets_view. exact E.
      + destruct S as (_ & L & D & F). apply by_age; [apply Due; exact D|cbn; unfold entries; rewrite map_length; exact L|].
        intros [e we] [u wu] E U Em Um. cbn in *. apply in_map_iff in E as (e' & E1 & _), U as (u' & U1 & U2).
        injection E1 as -> <-. injection U1 as -> <-.
        rewrite Forall_forall in F. specialize (F e Em). rewrite Forall_forall in F.
        destruct (F u U2) as [X|X]; [contradiction|exact X].
    - unfold out, leavers. clear -N. unfold members in N. induction (rows rd) as [|r l IH]; cbn in *; [constructor|].
      inversion N as [|a b X Y]; subst. destruct (finished r); [|auto]. cbn. constructor; [|auto].
      intro Z. apply X. apply in_map_iff in Z as (r' & E & R). apply filter_In in R as [R _]. rewrite <- E. now apply in_map.
    - apply leavers_members.
    - intros e E A. cbn in E. apply in_map_iff in E as (i & <- & E). apply I; assumption. }
  destruct (window_after st rd G) as (W & _ & L).
  set (kept := filter (stays rd) (window st)) in *. set (room := capacity - length kept) in *.
  set (rest := skipn capacity (queue st)) in *.
  assert (Out : outside out (Scheduling.window (view st)) = entries st kept).
  { cbn. unfold outside, entries, kept. clear. induction (window st) as [|i l IH]; [reflexivity|]. cbn [map filter].
    unfold member at 1. cbn [fst]. unfold stays at 1. fold out.
    destruct (in_dec Nat.eq_dec i out); cbn [negb]; [exact IH|]. cbn [map]. f_equal. exact IH. }
  exists {| Scheduling.waiting := skipn room rest;
            Scheduling.window := Scheduling.window middle ++ map (fun t => (t, 0)) (firstn room rest);
            Scheduling.finished := Scheduling.finished middle |}.
  split.
  { apply enter.
    - cbn. fold rest. symmetry. apply firstn_skipn.
    - cbn [Scheduling.window middle]. rewrite map_length, Out. unfold entries. rewrite map_length, firstn_length. lia. }
  cbn [Scheduling.window middle]. rewrite W, Out. unfold entries at 2. rewrite map_app. f_equal.
  - unfold entries. rewrite map_map. apply map_ext_in. intros i H. apply filter_In in H as [H _].
    pose proof (queue_bound st i (window_in_queue st i H)) as [B _].
    unfold aged, member. cbn [fst snd]. destruct (in_dec Nat.eq_dec i ms) as [Im|Im].
    + destruct (after_member st rd i N Im B) as [-> _]. reflexivity.
    + destruct (after_other st rd i Im B) as (_ & -> & _).
      destruct (in_dec Nat.eq_dec i (window st)); [destruct (ages st i); reflexivity|contradiction].
  - apply map_ext_in. intros i H.
    assert (R : In i rest) by (rewrite <- (firstn_skipn room rest); apply in_or_app; now left).
    assert (Q : In i (queue st)) by (rewrite <- (firstn_skipn capacity (queue st)); apply in_or_app; now right).
    destruct (queue_bound st i Q) as [B _].
    assert (Nw : ~ In i (window st)).
    { rewrite window_grouped. intro X. pose proof (queue_nodup st) as D. rewrite <- (firstn_skipn capacity (queue st)) in D.
      clear -X R D. unfold rest in R. induction (firstn capacity (queue st)) as [|x l IH]; [destruct X|].
      cbn in D. inversion D as [|a b Y Z]; subst. destruct X as [->|X]; [apply Y, in_or_app; now right|]. apply IH; assumption. }
    destruct (after_other st rd i (fun X => Nw (M i X)) B) as (_ & -> & _).
    destruct (in_dec Nat.eq_dec i (window st)); [contradiction|]. rewrite (proj1 I i R). reflexivity.
Qed.

Lemma behind_after st rd i : enabled cfg st rd -> idle st -> In i (skipn capacity (queue st)) ->
  waited (of (after st rd) i) = 0.
Proof.
  intros G [I _] R.
  assert (Q : In i (queue st)) by (rewrite <- (firstn_skipn capacity (queue st)); apply in_or_app; now right).
  destruct (queue_bound st i Q) as [B _].
  assert (Nw : ~ In i (window st)).
  { rewrite window_grouped. intro X. pose proof (queue_nodup st) as D. rewrite <- (firstn_skipn capacity (queue st)) in D.
    clear -X R D. induction (firstn capacity (queue st)) as [|x l IH]; [destruct X|].
    cbn in D. inversion D as [|a b Y Z]; subst. destruct X as [->|X]; [apply Y, in_or_app; now right|]. apply IH; assumption. }
  destruct (after_other st rd i (fun X => Nw (members_in_window st rd G i X)) B) as (_ & -> & _).
  destruct (in_dec Nat.eq_dec i (window st)); [contradiction|]. apply I. exact R.
Qed.

(** Who ages and is passed over still ages afterwards: it has run, or stays the oldest. *)
Lemma ages_after st rd i : enabled cfg st rd -> In i (window st) -> ~ In i (members rd) -> ages st i = true ->
  ages (after st rd) i = true.
Proof.
  intros G H Im A. destruct (queue_bound st i (window_in_queue st i H)) as [B _].
  destruct (after_other st rd i Im B) as (_ & _ & Len). unfold Trace.ages in *. rewrite Len.
  apply orb_true_iff in A as [A|A]; [rewrite A; reflexivity|]. apply orb_true_iff. right.
  destruct (window_after st rd G) as (W & _ & _). rewrite W.
  destruct (window st) as [|x l]; [destruct H|]. cbn in A. apply Nat.eqb_eq in A. subst x. cbn [filter].
  assert (S : stays rd i = true).
  { unfold stays. destruct (in_dec Nat.eq_dec i (leavers rd)) as [L|_]; [|reflexivity].
    exfalso. apply Im, leavers_members, L. }
  rewrite S. cbn. apply Nat.eqb_refl.
Qed.

Lemma idle_after st rd : enabled cfg st rd -> idle st -> idle (after st rd).
Proof.
  intros G I. destruct (window_after st rd G) as (W & S & _).
  set (room := capacity - length (filter (stays rd) (window st))) in *. split.
  - intros i H. rewrite S in H. apply (behind_after st rd i G I).
    rewrite <- (firstn_skipn room (skipn capacity (queue st))). apply in_or_app. now right.
  - intros i H A. rewrite W in H. apply in_app_or in H as [H|H].
    + apply filter_In in H as [H _]. destruct (queue_bound st i (window_in_queue st i H)) as [B _].
      destruct (in_dec Nat.eq_dec i (members rd)) as [Im|Im].
      { destruct G as (_ & N & _). destruct (after_member st rd i N Im B) as [X _]. exact X. }
      destruct (ages st i) eqn:A0; [rewrite (ages_after st rd i G H Im A0) in A; discriminate|].
      destruct (after_other st rd i Im B) as (_ & -> & _). rewrite A0.
      destruct (in_dec Nat.eq_dec i (window st)); apply I; assumption.
    + apply (behind_after st rd i G I). rewrite <- (firstn_skipn room (skipn capacity (queue st))).
      apply in_or_app. now left.
Qed.

Lemma bounded_after st rd : enabled cfg st rd -> idle st ->
  bounded aging (batch_size cfg) capacity (entries st (window st)) ->
  bounded aging (batch_size cfg) capacity (entries (after st rd) (window (after st rd))).
Proof.
  intros G I Bd. destruct (round_is_step st rd G I) as (middle & S1 & last & S2 & <-).
  apply (step_bounded _ _ _ middle last); [|exact S2]. apply (step_bounded _ _ _ (view st) middle); assumption.
Qed.

(** THEOREM (INV-10 of traces). In a valid trace of the grouped scheduler nobody who has run, and not the oldest, has
    ever waited more than A + ⌊(W-1)/B⌋ rounds. *)
Theorem valid_waiting trace n i : 1 <= batch_size cfg -> valid cfg trace ->
  let st := fold_left after (firstn n trace) (start cfg) in
  In i (window st) -> waited (of st i) <= aging + (capacity - 1) / batch_size cfg.
Proof.
  intros B V st Hi.
  assert (Inv : idle st /\ bounded aging (batch_size cfg) capacity (entries st (window st))).
  { assert (Zero : forall j, waited (of (start cfg) j) = 0).
    { intro j. unfold of, start. destruct (Nat.lt_ge_cases j (length (map fresh (sequences cfg)))) as [H|H].
      - rewrite (nth_indep _ blank (fresh nobody)) by exact H. rewrite map_nth. reflexivity.
      - rewrite nth_overflow by exact H. reflexivity. }
    assert (S0 : idle (start cfg) /\ bounded aging (batch_size cfg) capacity (entries (start cfg) (window (start cfg)))).
    { split; [split; intros; apply Zero|].
      assert (L0 : length (entries (start cfg) (window (start cfg))) <= capacity)
        by (unfold entries; rewrite map_length, window_grouped, firstn_length; lia).
      split; [exact L0|]. intros t w H A. unfold entries in H. apply in_map_iff in H as (j & E & H).
      injection E as <- <-. rewrite Zero in *. replace (0 - aging) with 0 by lia. rewrite Nat.mul_0_r. cbn [Nat.add].
      exact (Nat.le_trans _ _ _ (filter_le _ _) L0). }
    subst st. clear Hi Zero. unfold valid in V. revert n S0.
    induction V as [st E|st rd rest G _ IH]; intros [|n] S0; cbn; try exact S0.
    apply IH. destruct S0 as [I Bd]. split; [apply idle_after; assumption|apply bounded_after; assumption]. }
  destruct Inv as [_ [L H]].
  set (w := waited (of st i)). destruct (Nat.le_gt_cases w aging) as [?|Gt]; [lia|].
  assert (In0 : In (i, w) (entries st (window st))) by (apply (in_map (fun i => (i, waited (of st i)))); exact Hi).
  specialize (H i w In0 ltac:(lia)).
  assert (One : 1 <= Scheduling.waited w (entries st (window st))).
  { destruct (Scheduling.waited w (entries st (window st))) eqn:Z; [|lia]. exfalso.
    apply length_zero_iff_nil in Z. apply (in_nil (a := (i, w))). rewrite <- Z.
    apply filter_In. split; [exact In0|cbn; apply Nat.leb_refl]. }
  assert (D : w - aging <= (capacity - 1) / batch_size cfg) by (apply Nat.div_le_lower_bound; lia). lia.
Qed.

End Waiting.
