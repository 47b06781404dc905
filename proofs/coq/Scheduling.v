(** The scheduler as a relation: conservation, bounded waiting, termination. *)
From Coq Require Import Arith List Lia Bool Permutation.
Import ListNotations.

(** A window entry is a ticket and the rounds it has waited since it last ran or began to age. *)
Definition entry := (nat * nat)%type.
Record state := { waiting : list nat; window : list entry; finished : list nat }.

Definition tickets (s : state) : list nat := map fst (window s).
Definition everyone (s : state) : list nat := waiting s ++ tickets s ++ finished s.
Definition member (ms : list nat) (e : entry) : bool := if in_dec Nat.eq_dec (fst e) ms then true else false.
(** After a round of [ms]; [ages] says whose rounds are counted. *)
Definition aged (ages : nat -> bool) (ms : list nat) (e : entry) : entry :=
  (fst e, if member ms e then 0 else if ages (fst e) then S (snd e) else snd e).
Definition outside (ms : list nat) (l : list entry) : list entry := filter (fun e => negb (member ms e)) l.

Section Scheduler.
Variables aging batch capacity : nat.  (* A, B and W *)

Definition overdue (s : state) : Prop := exists e, In e (window s) /\ aging <= snd e.

(** Why these members: somebody is overdue, the batch is full and nobody passed over has waited longer; or nobody is
    overdue and the members share a key; or nobody is overdue and the members are among the first of the window.
    Partial groups and any preference between the last two are allowed. *)
Inductive choice (key : nat -> nat * nat) (s : state) (ms : list nat) : Prop :=
  | by_age : overdue s -> length ms = Nat.min batch (length (window s)) ->
      (forall e u, In e (window s) -> In u (window s) -> In (fst e) ms -> ~ In (fst u) ms -> snd u <= snd e) ->
      choice key s ms
  | by_key : ~ overdue s -> (forall t u, In t ms -> In u ms -> key t = key u) -> choice key s ms
  | by_order : ~ overdue s -> incl ms (firstn batch (tickets s)) -> choice key s ms.

Inductive step : state -> state -> Prop :=
  | enter s new rest :
      waiting s = new ++ rest -> length (window s) + length new <= capacity ->
      step s {| waiting := rest; window := window s ++ map (fun t => (t, 0)) new; finished := finished s |}
  | play s key ages ms out :
      NoDup ms -> incl ms (tickets s) -> 1 <= length ms <= batch -> choice key s ms ->
      NoDup out -> incl out ms ->
      (forall e, In e (window s) -> ages (fst e) = false -> snd e = 0) ->  (* who has begun to age goes on *)
      step s {| waiting := waiting s; window := map (aged ages ms) (outside out (window s)); finished := finished s ++ out |}
  | cancel_waiting s l t r :
      waiting s = l ++ t :: r ->
      step s {| waiting := l ++ r; window := window s; finished := finished s ++ [t] |}
  | cancel_window s t :
      In t (tickets s) ->
      step s {| waiting := waiting s; window := outside [t] (window s); finished := finished s ++ [t] |}
  | send_back s t :  (* its room is taken for others; it waits at the head of the queue, and will age anew *)
      In t (tickets s) ->
      step s {| waiting := t :: waiting s; window := outside [t] (window s); finished := finished s |}.

Definition start (ts : list nat) : state := {| waiting := ts; window := []; finished := [] |}.

Inductive reachable (ts : list nat) : state -> Prop :=
  | at_start : reachable ts (start ts)
  | after s s' : reachable ts s -> step s s' -> reachable ts s'.

(** ** Conservation *)

Lemma member_spec ms e : member ms e = true <-> In (fst e) ms.
Proof. unfold member. destruct (in_dec Nat.eq_dec (fst e) ms); split; auto; discriminate. Qed.

Lemma retire_permutation out l : NoDup out -> NoDup (map fst l) -> incl out (map fst l) ->
  Permutation (map fst l) (map fst (outside out l) ++ out).
Proof.
  intros No Nl I. apply NoDup_Permutation; [exact Nl| |].
  - assert (Nf : NoDup (map fst (outside out l))).
    { clear I. induction l as [|e l IH]; cbn; [constructor|]. inversion Nl as [|x y X Y]; subst.
      destruct (negb (member out e)); cbn; [|auto]. constructor; [|auto].
      intro Z. apply X. apply in_map_iff in Z as (u & <- & U). apply filter_In in U as [U _]. now apply in_map. }
    assert (D : forall x, In x (map fst (outside out l)) -> ~ In x out).
    { intros x X. apply in_map_iff in X as (e & <- & E). apply filter_In in E as [_ E].
      apply negb_true_iff in E. intro H. apply member_spec in H. congruence. }
    clear I Nl. induction (map fst (outside out l)) as [|x xs IH]; cbn; [exact No|].
    inversion Nf; subst. constructor; [|apply IH; [assumption|intros; apply D; now right]].
    rewrite in_app_iff. intros [?|?]; [contradiction|]. apply (D x); [now left|assumption].
  - intro x. rewrite in_app_iff. split.
    + intro X. destruct (in_dec Nat.eq_dec x out) as [?|H]; [now right|left].
      apply in_map_iff in X as (e & <- & E). apply in_map. apply filter_In. split; [exact E|].
      apply negb_true_iff. destruct (member out e) eqn:M; [|reflexivity]. apply member_spec in M. contradiction.
    + intros [X|X]; [|auto]. apply in_map_iff in X as (e & <- & E). apply filter_In in E as [E _]. now apply in_map.
Qed.

Lemma NoDup_middle (l m r : list nat) : NoDup (l ++ m ++ r) -> NoDup m.
Proof.
  intro H. induction l as [|x l IH]; cbn in H; [|inversion H; auto].
  clear -H. induction m as [|y m IH]; [constructor|]. cbn in H. inversion H as [|a b X Y]; subst.
  constructor; [|apply IH; exact Y]. intro Z. apply X. apply in_or_app. now left.
Qed.

Lemma tickets_aged ages ms l : map fst (map (aged ages ms) l) = map fst l.
Proof. rewrite map_map. reflexivity. Qed.

Lemma step_conserves s s' : NoDup (everyone s) -> step s s' -> Permutation (everyone s) (everyone s').
Proof.
  unfold everyone, tickets. intros N H. destruct H as [s new rest Hw _|s key ages ms out _ I _ _ No Io _|s l t r Hw|s t T|s t T]; cbn in *.
  - rewrite Hw, map_app, map_map. cbn. rewrite map_id, <- !app_assoc.
    rewrite (Permutation_app_comm new). rewrite <- !app_assoc. apply Permutation_app_head.
    apply Permutation_app_head. apply Permutation_app_comm.
  - apply Permutation_app_head. rewrite tickets_aged.
    apply NoDup_middle in N.
    rewrite (retire_permutation out (window s) No N) by (eapply incl_tran; eassumption).
    rewrite <- app_assoc. apply Permutation_app_head, Permutation_app_comm.
  - rewrite Hw, <- !app_assoc. apply Permutation_app_head. cbn.
    rewrite Permutation_middle. apply Permutation_app_head. rewrite Permutation_middle.
    apply Permutation_app_head. apply Permutation_cons_append.
  - apply Permutation_app_head. apply NoDup_middle in N.
    rewrite (retire_permutation [t] (window s)); [|repeat constructor; auto|exact N|intros x [<-|[]]; exact T].
    rewrite <- app_assoc. apply Permutation_app_head, Permutation_app_comm.
  - apply NoDup_middle in N.
    rewrite (retire_permutation [t] (window s)); [|repeat constructor; auto|exact N|intros x [<-|[]]; exact T].
    rewrite <- app_assoc. cbn [app]. rewrite !app_assoc. symmetry. apply Permutation_middle.
Qed.

(** THEOREM (conservation, INV-9). Every submitted sequence is at all times in exactly one of waiting, window and
    finished. *)
Theorem conservation ts s : NoDup ts -> reachable ts s -> Permutation ts (everyone s) /\ NoDup (everyone s).
Proof.
  intros N H. induction H as [|s s' _ IH S].
  - unfold everyone; cbn. rewrite app_nil_r. split; [reflexivity|exact N].
  - destruct IH as [P M]. pose proof (step_conserves s s' M S) as Q.
    split; [rewrite P; exact Q|]. exact (Permutation_NoDup Q M).
Qed.

(** ** Bounded waiting *)

Definition waited (w : nat) (l : list entry) : nat := length (filter (fun e => w <=? snd e) l).

(** The invariant: once overdue by [w - aging] rounds, that many full batches have gone from the entries ahead. *)
Definition bounded (l : list entry) : Prop :=
  length l <= capacity /\ forall t w, In (t, w) l -> aging <= w -> batch * (w - aging) + waited w l <= capacity.

Lemma filter_le {X} (f : X -> bool) l : length (filter f l) <= length l.
Proof. induction l as [|x l IH]; cbn; [lia|]. destruct (f x); cbn; lia. Qed.

Lemma filter_filter_le {X} (f g : X -> bool) l : length (filter f (filter g l)) <= length (filter f l).
Proof. induction l as [|x l IH]; cbn; [lia|]. destruct (g x), (f x) eqn:F; cbn; rewrite ?F; cbn; lia. Qed.

Lemma waited_outside w out l : waited w (outside out l) <= waited w l.
Proof. unfold waited, outside. apply filter_filter_le. Qed.

Lemma bounded_small t w l : length l <= capacity -> In (t, w) l -> w <= aging -> batch * (w - aging) + waited w l <= capacity.
Proof. intros L _ H. replace (w - aging) with 0 by lia. pose proof (filter_le (fun e => w <=? snd e) l). unfold waited. lia. Qed.

(** Those who run leave at least [length ms] fewer entries that have waited as long as somebody passed over. *)
Lemma waited_after ages ms out l w : NoDup ms -> incl ms (map fst l) -> incl out ms ->
  (forall e, In e l -> ages (fst e) = false -> snd e = 0) ->
  (forall e, In e l -> In (fst e) ms -> w <= snd e) ->
  length ms + waited (S w) (map (aged ages ms) (outside out l)) <= waited w l.
Proof.
  intros N I Io Fresh Age.
  assert (Run : length ms <= length (filter (member ms) l)).
  { rewrite <- (map_length (A := entry) fst (filter (member ms) l)). apply NoDup_incl_length; [exact N|].
    intros t T. apply I in T as T'. apply in_map_iff in T' as (e & <- & E). apply in_map, filter_In.
    split; [exact E|]. apply member_spec. exact T. }
  assert (Split : length (filter (member ms) l) + waited (S w) (map (aged ages ms) (outside out l)) <= waited w l).
  { clear Run I. unfold waited, outside. induction l as [|e l IH]; cbn [negb map filter length]; [lia|].
    assert (IH' : length (filter (member ms) l) + length (filter (fun e => S w <=? snd e)
        (map (aged ages ms) (filter (fun e => negb (member out e)) l))) <= length (filter (fun e => w <=? snd e) l)).
    { apply IH; intros u U; [apply Fresh|apply Age]; now right. }
    destruct (member ms e) eqn:M.
    - assert (W : w <=? snd e = true) by (apply Nat.leb_le, Age; [now left|now apply member_spec]).
      assert (V : S w <=? snd (aged ages ms e) = false) by (unfold aged; rewrite M; reflexivity).
      rewrite W. destruct (member out e); cbn [negb map filter length]; [lia|]. rewrite V. lia.
    - assert (O : member out e = false).
      { destruct (member out e) eqn:O; [|reflexivity]. apply member_spec, Io, member_spec in O. congruence. }
      assert (V : S w <=? snd (aged ages ms e) = true -> w <=? snd e = true).
      { unfold aged. rewrite M. cbn [snd]. destruct (ages (fst e)) eqn:A; [intro X; exact X|].
        rewrite (Fresh e (or_introl eq_refl) A). intro X. apply Nat.leb_le in X. lia. }
      rewrite O. cbn [negb map filter length].
      destruct (S w <=? snd (aged ages ms e)); [rewrite V by reflexivity|destruct (w <=? snd e)]; cbn [length]; lia. }
  lia.
Qed.

Lemma step_bounded s s' : bounded (window s) -> step s s' -> bounded (window s').
Proof.
  intros [L H] S. destruct S as [s new rest Hw C|s key ages ms out N I Len Ch No Io Fresh|s l t r Hw|s t T|s t T]; cbn.
  - assert (L' : length (window s ++ map (fun t => (t, 0)) new) <= capacity) by (rewrite app_length, map_length; exact C).
    split; [exact L'|]. intros t w In0 A. destruct (Nat.le_gt_cases w aging) as [Le|Gt]; [eapply bounded_small; eauto|].
    apply in_app_iff in In0 as [In0|In0]; [|apply in_map_iff in In0 as (u & E & _); injection E; lia].
    specialize (H t w In0 A). unfold waited in *. rewrite filter_app.
    assert (Z : filter (fun e => w <=? snd e) (map (fun t : nat => (t, 0)) new) = []).
    { clear -Gt. induction new as [|n new IH]; cbn; [reflexivity|]. destruct w; [lia|]. exact IH. }
    unfold entry in *. rewrite Z, app_nil_r. exact H.
  - assert (L' : length (map (aged ages ms) (outside out (window s))) <= capacity).
    { rewrite map_length. unfold outside. pose proof (filter_le (fun e => negb (member out e)) (window s)). lia. }
    split; [exact L'|]. intros t w In0 A. destruct (Nat.le_gt_cases w aging) as [Le|Gt]; [eapply bounded_small; eauto|].
    apply in_map_iff in In0 as ([t' v] & E & In1). unfold aged in E. cbn in E.
    apply filter_In in In1 as [In1 _].
    destruct (member ms (t', v)) eqn:M; [injection E as Et Ew; lia|].
    destruct (ages t') eqn:Ag; injection E as Et Ew; [|specialize (Fresh _ In1 Ag); cbn in Fresh; lia]. subst t' w.
    assert (Out : ~ In t ms) by (intro X; apply (member_spec ms (t, v)) in X; congruence).
    assert (Due : overdue s) by (exists (t, v); split; [exact In1|cbn; lia]).
    destruct Ch as [_ Full0 Age|NotDue _|NotDue _]; [|contradiction..].
    assert (Full : length ms = batch).
    { destruct (Nat.le_gt_cases (length (window s)) (length ms)) as [X|X]; [|lia]. exfalso. apply Out.
      assert (Y : incl (map fst (window s)) ms) by (apply NoDup_length_incl; [exact N|rewrite map_length; exact X|exact I]).
      apply Y. change t with (fst (t, v)). now apply in_map. }
    pose proof (waited_after ages ms out (window s) v N I Io Fresh) as W.
    assert (X : length ms + waited (S v) (map (aged ages ms) (outside out (window s))) <= waited v (window s)).
    { apply W. intros e E Em. exact (Age e (t, v) E In1 Em Out). }
    specialize (H t v In1 ltac:(lia)). rewrite Full in X.
    replace (S v - aging) with (S (v - aging)) by lia. rewrite Nat.mul_succ_r. lia.
  - split; [exact L|exact H].
  - split; [unfold outside; pose proof (filter_le (fun e => negb (member [t] e)) (window s)); lia|].
    intros u w U A. apply filter_In in U as [U _]. specialize (H u w U A).
    pose proof (waited_outside w [t] (window s)). lia.
  - split; [unfold outside; pose proof (filter_le (fun e => negb (member [t] e)) (window s)); lia|].
    intros u w U A. apply filter_In in U as [U _]. specialize (H u w U A).
    pose proof (waited_outside w [t] (window s)). lia.
Qed.

(** THEOREM (bounded waiting, INV-10). Nobody in the window who has begun to age waits more than A + ⌊(W-1)/B⌋ rounds,
    hence not more than A + ⌊W/B⌋, whatever the lengths, keys, admissions and cancellations, and whoever ages or is sent
    back. *)
Theorem bounded_waiting ts s t w : 1 <= batch -> reachable ts s -> In (t, w) (window s) ->
  w <= aging + (capacity - 1) / batch.
Proof.
  intros B R In0. assert (Bd : bounded (window s)).
  { clear In0. induction R as [|s s' _ IH S]; [split; cbn; [lia|tauto]|]. exact (step_bounded s s' IH S). }
  destruct (Nat.le_gt_cases w aging) as [?|Gt]; [lia|].
  destruct Bd as [_ H]. specialize (H t w In0 ltac:(lia)).
  assert (One : 1 <= waited w (window s)).
  { unfold waited. assert (X : In (t, w) (filter (fun e => w <=? snd e) (window s))).
    { apply filter_In. split; [exact In0|cbn; apply Nat.leb_refl]. }
    destruct (filter (fun e => w <=? snd e) (window s)); [destruct X|cbn; lia]. }
  assert (D : w - aging <= (capacity - 1) / batch) by (apply Nat.div_le_lower_bound; lia). lia.
Qed.

Corollary bounded_waiting_register ts s t w : 1 <= batch -> reachable ts s -> In (t, w) (window s) ->
  w <= aging + capacity / batch.
Proof.
  intros B R In0. pose proof (bounded_waiting ts s t w B R In0).
  assert (M : (capacity - 1) / batch <= capacity / batch) by (apply Nat.div_le_mono; lia). lia.
Qed.

End Scheduler.

(** ** Termination *)

(** Each member commits at least one token of its budget; the others keep theirs. *)
Definition progresses (ms : list nat) (left left' : nat -> nat) : Prop :=
  forall t, (In t ms -> left' t < left t) /\ (~ In t ms -> left' t = left t).

Definition budget_left (ts : list nat) (left : nat -> nat) : nat := fold_right (fun t n => left t + n) 0 ts.

(** THEOREM (termination). Every round with a member strictly lowers the total budget left, so the number of rounds
    is at most the sum of the budgets. *)
Theorem budget_decreases ts ms left left' :
  ms <> [] -> incl ms ts -> progresses ms left left' -> budget_left ts left' < budget_left ts left.
Proof.
  intros Ne I P. destruct ms as [|m ms]; [congruence|].
  assert (In0 : In m ts) by (apply I; now left).
  assert (Le : forall us, budget_left us left' <= budget_left us left).
  { unfold budget_left. induction us as [|u us IH]; cbn [fold_right]; [lia|]. destruct (P u) as [X Y].
    destruct (in_dec Nat.eq_dec u (m :: ms)) as [J|J]; [specialize (X J)|specialize (Y J)]; lia. }
  clear I. unfold budget_left in *. induction ts as [|t ts IH]; [destruct In0|]. cbn [fold_right].
  specialize (Le ts). destruct In0 as [->|In0].
  - destruct (P m) as [X _]. specialize (X (or_introl eq_refl)). lia.
  - specialize (IH In0). destruct (P t) as [X Y].
    destruct (in_dec Nat.eq_dec t (m :: ms)) as [J|J]; [specialize (X J)|specialize (Y J)]; lia.
Qed.
