(** Overlapped execution (INV-21): while the drafts of some rows are verified, drafts are made for others, and verified in the
    next round. Rows of any number, in any order; who has ended, left or entered, is the affair of others. *)
From Coq Require Import Arith List Lia Bool.
Import ListNotations.

(** ** Who runs, and for whom is drafted *)

Definition half (window : list nat) : nat := Nat.div2 (S (length window)).
Definition isin (rows : list nat) (r : nat) : bool := existsb (Nat.eqb r) rows.

(** Rows with drafts run; where there are none, the older half. *)
Definition runs (window drafted : list nat) : list nat :=
  match filter (isin drafted) window with
  | [] => firstn (half window) window
  | ready => ready
  end.
Definition others (window drafted : list nat) : list nat :=
  filter (fun r => negb (isin (runs window drafted) r)) window.
Definition ahead (window drafted : list nat) : list nat := firstn (half window) (others window drafted).

Lemma isin_spec rows r : isin rows r = true <-> In r rows.
Proof.
  unfold isin. rewrite existsb_exists. split; [|intro I; exists r; split; [exact I|apply Nat.eqb_refl]].
  intros (x & I & E). apply Nat.eqb_eq in E. now subst.
Qed.

Lemma isin_false rows r : isin rows r = false <-> ~ In r rows.
Proof. rewrite <- isin_spec. destruct (isin rows r); split; congruence. Qed.

Lemma half_bounds window : length window <= 2 * half window <= S (length window).
Proof. unfold half. pose proof (Nat.div2_odd (S (length window))) as D. destruct (Nat.odd _); cbn [Nat.b2n] in D; lia. Qed.

Lemma firstn_in {A} n (l : list A) x : In x (firstn n l) -> In x l.
Proof. intro I. rewrite <- (firstn_skipn n l). apply in_or_app. now left. Qed.

Lemma runs_in window drafted r : In r (runs window drafted) -> In r window.
Proof.
  unfold runs. destruct (filter (isin drafted) window) eqn:E; [apply firstn_in|].
  rewrite <- E. intro I. apply filter_In in I. apply I.
Qed.

Lemma others_spec window drafted r : In r (others window drafted) <-> In r window /\ ~ In r (runs window drafted).
Proof. unfold others. rewrite filter_In, negb_true_iff, isin_false. reflexivity. Qed.

Lemma ahead_spec window drafted r : In r (ahead window drafted) -> In r window /\ ~ In r (runs window drafted).
Proof. intro I. apply others_spec, (firstn_in (half window)), I. Qed.

Lemma drafted_runs window drafted r : In r window -> In r drafted -> In r (runs window drafted).
Proof.
  intros W D. assert (I : In r (filter (isin drafted) window)) by (apply filter_In; rewrite isin_spec; auto).
  unfold runs. destruct (filter (isin drafted) window); [destruct I|exact I].
Qed.

Lemma somebody_runs window drafted : window <> [] -> runs window drafted <> [].
Proof.
  intro N. unfold runs. destruct (filter (isin drafted) window); [|discriminate].
  destruct window as [|r rest]; [congruence|]. cbn. discriminate.
Qed.

(** ** Rounds *)
Section Rounds.
Variable text : Type.

(** What each row has committed, and for which rows and texts drafts are there. *)
Record state := { window : list nat; said : nat -> text; drafts : list (nat * text) }.
Definition ready (s : state) : list nat := map fst (drafts s).
Definition members (s : state) : list nat := runs (window s) (ready s).
Definition next (s : state) : list nat := ahead (window s) (ready s).

(** The text for which the drafts of a member were made. They are taken if the members are just the rows that were drafted for;
    else all members are drafted for at once. *)
Definition drafted_for (s : state) (r : nat) : option text :=
  if list_eq_dec Nat.eq_dec (ready s) (members s)
  then option_map snd (find (fun d => fst d =? r) (drafts s))
  else Some (said s r).

(** A round: what the members have said changes, and nothing else; some of them end. Drafts are made for the others before. *)
Definition round (s s' : state) : Prop :=
  (forall r, ~ In r (members s) -> said s' r = said s r)
  /\ drafts s' = map (fun r => (r, said s r)) (next s)
  /\ exists goes_on, window s' = filter goes_on (window s) /\ forall r, ~ In r (members s) -> goes_on r = true.

(** Between rounds rows leave and enter. *)
Inductive step (s s' : state) : Prop :=
  | plays : round s s' -> step s s'
  | leaves stays : said s' = said s -> drafts s' = drafts s -> window s' = filter stays (window s) -> step s s'
  | enters r : said s' = said s -> drafts s' = drafts s -> ~ In r (window s) -> window s' = window s ++ [r] -> step s s'.

Inductive reachable : state -> Prop :=
  | nobody s : window s = [] -> drafts s = [] -> reachable s
  | after s s' : reachable s -> step s s' -> reachable s'.

Definition sound (s : state) : Prop :=
  NoDup (window s) /\ forall r t, In (r, t) (drafts s) -> t = said s r.

Lemma nodup_snoc (l : list nat) r : NoDup l -> ~ In r l -> NoDup (l ++ [r]).
Proof.
  intros N I. induction N as [|x l X N IH]; [constructor; [intros []|constructor]|]. cbn. constructor.
  - intro H. apply in_app_or in H as [H|[->|[]]]; [contradiction|]. apply I. now left.
  - apply IH. intro H. apply I. now right.
Qed.

Lemma step_sound s s' : step s s' -> sound s -> sound s'.
Proof.
  intros S [N D]. destruct S as [(C & A & goes_on & W & _)|stays E A W|r E A F W]; split; rewrite ?W, ?A, ?E.
  - apply NoDup_filter, N.
  - intros r t I. apply in_map_iff in I as (x & X & I). injection X as <- <-. symmetry. apply C, (ahead_spec _ _ _ I).
  - apply NoDup_filter, N.
  - exact D.
  - apply nodup_snoc; assumption.
  - exact D.
Qed.

Lemma reachable_sound s : reachable s -> sound s.
Proof.
  induction 1 as [s W D|s s' _ IH S]; [|exact (step_sound s s' S IH)].
  split; [rewrite W; constructor|rewrite D; intros r t []].
Qed.

(** THEOREM (INV-21). However rows enter, run, end and leave: no row is in both cohorts; what is verified was drafted for the
    text as it is; whoever has drafts runs, and somebody does; and of the others half a window is drafted for, or all. *)
Theorem cohorts s : reachable s ->
  (forall r, ~ (In r (members s) /\ In r (next s)))
  /\ (forall r, In r (members s) -> drafted_for s r = Some (said s r))
  /\ (forall r, In r (window s) -> In r (ready s) -> In r (members s))
  /\ (window s <> [] -> members s <> [])
  /\ length (next s) = Nat.min (half (window s)) (length (others (window s) (ready s))).
Proof.
  intro R. destruct (reachable_sound s R) as [_ D]. split; [|split; [|split; [|split]]].
  - intros r [M A]. apply ahead_spec in A as [_ A]. exact (A M).
  - intros r M. unfold drafted_for. destruct (list_eq_dec Nat.eq_dec (ready s) (members s)) as [E|_]; [|reflexivity].
    rewrite <- E in M. unfold ready in M. apply in_map_iff in M as ([x t] & X & I). cbn [fst] in X. subst x.
    destruct (find (fun d => fst d =? r) (drafts s)) as [[x u]|] eqn:F.
    + apply find_some in F as [I' X]. cbn [fst] in X. apply Nat.eqb_eq in X. subst x. cbn. f_equal. exact (D r u I').
    + apply (find_none _ _ F) in I. cbn [fst] in I. rewrite Nat.eqb_refl in I. discriminate.
  - intros r. apply drafted_runs.
  - apply somebody_runs.
  - unfold next, ahead. apply firstn_length.
Qed.

(** ** No row is left out twice *)

(** A round after which rows may enter, and none leaves before it has ended. *)
Definition lossless (s s' : state) : Prop := exists s1 new,
  round s s1 /\ said s' = said s1 /\ drafts s' = drafts s1 /\ window s' = window s1 ++ new /\ NoDup (window s').

Lemma filter_split {A} (f : A -> bool) l : length (filter f l) + length (filter (fun x => negb (f x)) l) = length l.
Proof. induction l as [|x l IH]; cbn; [reflexivity|]. destruct (f x); cbn; lia. Qed.

Lemma filter_le {A} (f : A -> bool) l : length (filter f l) <= length l.
Proof. pose proof (filter_split f l). lia. Qed.

Lemma in_firstn_early {A} h (before rest : list A) r : length before < h -> In r (firstn h (before ++ r :: rest)).
Proof.
  intro L. rewrite firstn_app. apply in_or_app. right. destruct (h - length before) eqn:E; [lia|]. now left.
Qed.

Lemma stays s s' r : lossless s s' -> In r (window s) -> ~ In r (members s) -> In r (window s').
Proof.
  intros (s1 & new & (_ & _ & on & W & K) & _ & _ & W' & _) I N. rewrite W', W. apply in_or_app. left.
  apply filter_In. split; [exact I|]. now apply K.
Qed.

Lemma ready_next s s' : lossless s s' -> ready s' = next s.
Proof.
  intros (s1 & new & (_ & A & _) & _ & A' & _). unfold ready. rewrite A', A, map_map. apply map_id.
Qed.

Lemma next_runs s s' r : lossless s s' -> In r (next s) -> In r (members s').
Proof.
  intros G I. apply drafted_runs; [|rewrite (ready_next s s' G); exact I].
  destruct (ahead_spec _ _ _ I). apply (stays s s'); assumption.
Qed.

Lemma nodup_firstn {A} n (l : list A) : NoDup l -> NoDup (firstn n l).
Proof.
  intro N. revert n; induction N as [|x l X N IH]; intros [|n]; constructor.
  - intro I. apply X, (firstn_in n), I.
  - apply IH.
Qed.

(** Who is neither run nor drafted for, has half a window of rows before it that are drafted for. *)
Lemma left_out s r : In r (window s) -> ~ In r (members s) -> ~ In r (next s) -> NoDup (window s) -> exists before rest,
  window s = before ++ r :: rest /\ incl (next s) before /\ length (next s) = half (window s).
Proof.
  intros W M N D. destruct (in_split _ _ W) as (before & rest & E). exists before, rest. split; [exact E|].
  set (f := fun x => negb (isin (members s) x)).
  assert (O : others (window s) (ready s) = filter f before ++ r :: filter f rest).
  { unfold others. fold (members s). fold f. rewrite E, filter_app. cbn [filter].
    assert (F : f r = true) by (unfold f; now apply negb_true_iff, isin_false). rewrite F. reflexivity. }
  assert (L : half (window s) <= length (filter f before)).
  { destruct (Nat.le_gt_cases (half (window s)) (length (filter f before))) as [H|H]; [exact H|].
    destruct N. unfold next, ahead. rewrite O. apply in_firstn_early. exact H. }
  assert (X : next s = firstn (half (window s)) (filter f before)).
  { unfold next, ahead. rewrite O, firstn_app. replace (half (window s) - length (filter f before)) with 0 by lia.
    cbn [firstn]. apply app_nil_r. }
  rewrite X. split; [|apply firstn_length_le; exact L]. intros x I. apply firstn_in, filter_In in I. apply I.
Qed.

Lemma drafted_next s s' r : NoDup (window s) -> lossless s s' -> In r (window s) -> ~ In r (members s) -> ~ In r (next s) ->
  In r (next s').
Proof.
  intros D G W M N. pose proof (ready_next s s' G) as A. pose proof (stays s s' r G W M) as I'.
  destruct (left_out s r W M N D) as (before & rest & E & B & L).
  pose proof (half_bounds (window s)) as H. pose proof (half_bounds (window s')) as H'.
  assert (Lw : length (window s) = S (length before + length rest)) by (rewrite E, app_length; cbn; lia).
  assert (P : members s' = filter (isin (next s)) (window s')).
  { unfold members, runs. rewrite A. destruct (filter (isin (next s)) (window s')) eqn:F; [|reflexivity].
    destruct (next s) as [|x l] eqn:X; [cbn [length] in L; lia|].
    assert (Xi : In x (filter (isin (x :: l)) (window s'))).
    { apply filter_In. rewrite isin_spec. split; [|now left]. assert (Nx : In x (next s)) by (rewrite X; now left).
      apply (stays s s' x G); apply (ahead_spec _ _ _ Nx). }
    rewrite F in Xi. destruct Xi. }
  destruct G as (s1 & new & (_ & _ & on & W1 & K) & _ & _ & W' & D').
  set (f := fun x => negb (isin (members s') x)).
  assert (Split : window s' = filter on before ++ r :: filter on rest ++ new).
  { rewrite W', W1, E, filter_app. cbn [filter]. rewrite (K r M), <- app_assoc. reflexivity. }
  assert (Fr : f r = true).
  { apply negb_true_iff, isin_false. rewrite P. intro X. apply filter_In in X as [_ X]. apply isin_spec in X. exact (N X). }
  unfold next, ahead, others. fold (members s'). fold f.
  assert (F : filter f (window s') = filter f (filter on before) ++ r :: filter f (filter on rest ++ new)).
  { rewrite Split, filter_app. cbn [filter]. rewrite Fr. reflexivity. }
  rewrite F. apply in_firstn_early.
  assert (C : length (next s) + length (filter f (filter on before)) <= length (filter on before)).
  { rewrite <- (filter_split f (filter on before)).
    assert (length (next s) <= length (filter (fun x => negb (f x)) (filter on before))); [|lia]. apply NoDup_incl_length.
    - apply nodup_firstn, NoDup_filter, D.
    - intros x X. destruct (ahead_spec _ _ _ X) as [Xw Xm]. apply filter_In. split.
      + apply filter_In. split; [apply B; exact X|]. now apply K.
      + unfold f. rewrite negb_involutive, isin_spec, P. apply filter_In. rewrite isin_spec. split; [|exact X].
        rewrite W', W1. apply in_or_app. left. apply filter_In. split; [exact Xw|]. now apply K. }
  assert (Lw' : S (length (filter on before)) <= length (window s')) by (rewrite Split, app_length; cbn; lia).
  pose proof (filter_le on before). lia.
Qed.

(** THEOREM (waiting). Where no row leaves before it has ended, a row of the window runs in one of any three rounds that follow
    each other. *)
Theorem two_rounds_at_most a b c r : NoDup (window a) -> lossless a b -> lossless b c -> In r (window a) ->
  In r (members a) \/ In r (members b) \/ In r (members c).
Proof.
  intros D G G' I. destruct (in_dec Nat.eq_dec r (members a)) as [|M]; [now left|right].
  destruct (in_dec Nat.eq_dec r (next a)) as [N|N]; [left; exact (next_runs a b r G N)|right].
  exact (next_runs b c r G' (drafted_next a b r D G I M N)).
Qed.
End Rounds.
