(** Rejection sampling, from slots and schedule to the joint law of what is committed.

    Machine.v says what the rounds of a layout read, Keyed.v that tokens drawn one by one with keyed numbers have the
    target's law. Here the rounds of a layout are put one after the other: each drafts ahead, feeds its drafts, reads slots and
    keeps what the tests allow. Who runs, and with what limit, is chosen from what has been committed, and from nothing
    else. *)
From Coq Require Import ZArith QArith Arith List Lia Bool.
From RaggedSpec Require Import FiniteLaw Rejection Autoregressive EngineRound Batch Keyed Layouts Machine Cases.
Import ListNotations.
Open Scope nat_scope.

(** ** A row, for given numbers *)
Section OneRow.
Open Scope Z_scope.
Variable token : Type.
Variable vocab : list token.
Notation text := (list token).
Notation size t := (Z.of_nat (length t)).
Variable answered : Type.
Variable network : store token -> Z -> answered.
Hypothesis sees_only : forall p a b, alike token p a b -> network a p = network b p.
Variable prompt : text.
Hypothesis prompted : (1 <= length prompt)%nat.
Variable j : Autoregressive.job token vocab.

(** The rule: how numbers make a draft, test it, and make the token after the accepted ones. It is given an answer of
    the network and the text so far. *)
Variable number : Type.
Variable draw : text -> number -> token.
Variable tests : answered -> text -> token -> number -> bool.
Variables recovers chooses : answered -> text -> number -> token.

(** The same with plain decoding's answer. *)
Definition told (g : text) : answered := after token answered network (prompt ++ g).
Definition passes (g : text) : token -> number -> bool := tests (told g) g.
Definition recover (g : text) : number -> token := recovers (told g) g.
Definition choose (g : text) : number -> token := chooses (told g) g.

Variable w : nat -> numbers number.  (* by position *)
Notation proposed k g := (drafts_ahead token number draw w k g).
Notation emitted limit g := (emit token number draw passes recover choose w limit g).
Notation holding s t := (cached token (claims token s) (entry token s) t (size t)).

Fixpoint tested_in (fed : store token) (p : Z) (g drafts : text) : list bool :=
  match drafts with
  | [] => []
  | x :: xs => tests (network fed p) g x (of_test number (w (length g))) :: tested_in fed (p + 1) (g ++ [x]) xs
  end.

(** What a round of [k] drafts emits, read from slots: query [a] answers after the text and [a] drafts. *)
Definition read_round (fed : store token) (k limit : nat) (g : text) : text :=
  let xs := proposed k g in
  let first := size (prompt ++ g) - 1 in
  let a := Nat.min (leading (tested_in fed first g xs)) limit in
  let h := g ++ firstn a xs in
  let rule := if (a <? limit)%nat then recovers else chooses in
  firstn a xs ++ [rule (network fed (first + Z.of_nat a)) h (of_next number (w (length h)))].

Lemma answers_plain fed g xs i : holding fed ((prompt ++ g) ++ xs) -> (i <= length xs)%nat ->
  network fed (size (prompt ++ g) - 1 + Z.of_nat i) = told (g ++ firstn i xs).
Proof.
  intros H I. unfold told.
  rewrite (view_is_plain token answered network sees_only fed ((prompt ++ g) ++ xs) (size ((prompt ++ g) ++ xs)));
    [|exact H|rewrite !app_length; lia|lia].
  replace (Z.to_nat (size (prompt ++ g) - 1 + Z.of_nat i + 1)) with (length (prompt ++ g) + i)%nat by lia.
  rewrite firstn_app_2, <- app_assoc. reflexivity.
Qed.

Lemma tested_in_plain fed xs g :
  (forall i, (i <= length xs)%nat -> network fed (size (prompt ++ g) - 1 + Z.of_nat i) = told (g ++ firstn i xs)) ->
  tested_in fed (size (prompt ++ g) - 1) g xs = tested token number passes w g xs.
Proof.
  revert g. induction xs as [|x xs IH]; intros g A; cbn [tested_in tested]; [reflexivity|]. f_equal.
  - specialize (A 0%nat ltac:(lia)). cbn [firstn] in A. rewrite app_nil_r in A. unfold passes. rewrite <- A.
    do 2 f_equal. lia.
  - rewrite <- IH.
    + f_equal. rewrite !app_length. cbn [length]. lia.
    + intros i I. replace (size (prompt ++ g ++ [x]) - 1 + Z.of_nat i) with (size (prompt ++ g) - 1 + Z.of_nat (S i))
        by (rewrite !app_length; cbn [length]; lia).
      rewrite A by (cbn [length]; lia). rewrite <- app_assoc. reflexivity.
Qed.

Lemma proposed_length k g : length (proposed k g) = k.
Proof. revert g; induction k as [|k IH]; intro g; cbn; [reflexivity|]. now rewrite IH. Qed.

(** Slots give what the text gives: the round emits token by token what its own numbers and text make of it. *)
Lemma read_round_plain fed k limit g : (limit <= k)%nat -> holding fed ((prompt ++ g) ++ proposed k g) ->
  read_round fed k limit g = emitted limit g.
Proof.
  intros L H. rewrite <- (engine_round_reads_once token number draw passes recover choose w k limit g L).
  unfold read_round, keyed_round. cbv zeta.
  rewrite (tested_in_plain fed (proposed k g) g (fun i I => answers_plain fed g (proposed k g) i H I)).
  set (a := Nat.min (leading (tested token number passes w g (proposed k g))) limit).
  assert (A : (a <= length (proposed k g))%nat) by (rewrite proposed_length; unfold a; lia).
  rewrite (answers_plain fed g (proposed k g) a H A). destruct (a <? limit)%nat; reflexivity.
Qed.

(** *** What is committed agrees with what was fed *)

Lemma extend_cuts g ys : exists c, Autoregressive.extend token vocab j g ys = g ++ firstn c ys.
Proof.
  revert g; induction ys as [|y ys IH]; intro g; cbn [Autoregressive.extend].
  - exists 0%nat. cbn. now rewrite app_nil_r.
  - destruct (ended token vocab j g).
    + exists 0%nat. cbn. now rewrite app_nil_r.
    + destruct (IH (g ++ [y])) as [c E]. exists (S c). rewrite E, <- app_assoc. reflexivity.
Qed.

Lemma cut_agrees (t xs u : text) a y c : (1 <= length t)%nat -> (a <= length xs)%nat ->
  u = t ++ firstn c (firstn a xs ++ [y]) -> agree token (t ++ xs) u (size u - 1) /\ size u - 1 <= size (t ++ xs).
Proof.
  intros T A E. destruct (Nat.le_gt_cases c a) as [C|C].
  - assert (X : firstn c (firstn a xs ++ [y]) = firstn c xs).
    { rewrite firstn_app, firstn_firstn, firstn_length_le by exact A. replace (c - a)%nat with 0%nat by lia.
      cbn [firstn]. rewrite app_nil_r, Nat.min_l by exact C. reflexivity. }
    rewrite X, <- firstn_app_2 in E. assert (N : (length u <= length t + c)%nat) by (rewrite E, firstn_length; lia).
    assert (M : (length u <= length (t ++ xs))%nat) by (rewrite E, firstn_length; lia).
    split; [|lia]. unfold agree. set (m := Z.to_nat (size u - 1)). assert (Small : (m <= length t + c)%nat) by lia.
    clearbody m. rewrite E, firstn_firstn, Nat.min_l by exact Small. reflexivity.
  - assert (X : firstn c (firstn a xs ++ [y]) = firstn a xs ++ [y]).
    { apply firstn_all2. rewrite app_length, firstn_length_le by exact A. cbn [length]. lia. }
    rewrite X in E. replace (size u - 1) with (size t + Z.of_nat a)
      by (rewrite E, !app_length, firstn_length_le by exact A; cbn [length]; lia).
    split; [|rewrite app_length; lia].
    pose proof (committed_text token t xs (Z.of_nat a) y (size t)) as K. rewrite Nat2Z.id in K. rewrite E. apply K; lia.
Qed.

Lemma turn_agrees k limit g u : (limit <= k)%nat ->
  u = prompt ++ Autoregressive.extend token vocab j g (emitted limit g) ->
  agree token ((prompt ++ g) ++ proposed k g) u (size u - 1) /\ size u - 1 <= size ((prompt ++ g) ++ proposed k g).
Proof.
  intros L E. rewrite <- (engine_round_reads_once token number draw passes recover choose w k limit g L) in E.
  destruct (extend_cuts g (keyed_round token number draw passes recover choose w k limit g)) as [c X].
  rewrite X, app_assoc in E. unfold keyed_round in E. cbv zeta in E.
  eapply cut_agrees; [rewrite app_length; lia| |exact E]. rewrite proposed_length. lia.
Qed.

(** *** A row of a layout *)
Variable l : layout token.
Notation place := (text * store token * mark token l)%type.  (* what the row has generated, its slots, the layout's mark *)

Definition stands (r : place) : Prop := ok token l (snd r) (snd (fst r)) (prompt ++ fst (fst r)).

(** A row is moved, or runs a round with a limit of its own; it may draft more than that. *)
Inductive draws : option nat -> place -> place -> Prop :=
  | is_moved g s m m' s' : moved token l m s (prompt ++ g) m' s' -> draws None (g, s, m) (g, s', m')
  | runs_round g s m k limit m' f m'' s'' : (limit <= k)%nat -> fed token l m s (prompt ++ g) (proposed k g) m' f ->
      let u := Autoregressive.extend token vocab j g (read_round f k limit g) in
      kept token l m' f (prompt ++ u) m'' s'' -> draws (Some limit) (g, s, m) (u, s'', m'').

(** The same without slots. *)
Definition turn (limit : option nat) (g : text) : text :=
  match limit with
  | None => g
  | Some limit => Autoregressive.extend token vocab j g (emitted limit g)
  end.

Lemma draws_turn limit r r' : draws limit r r' -> stands r -> stands r' /\ fst (fst r') = turn limit (fst (fst r)).
Proof.
  intros D O. destruct D as [g s m m' s' M|g s m k limit m' f m'' s'' L F u K]; unfold stands in *; cbn [fst snd turn] in *.
  - split; [|reflexivity]. apply (ok_moves token l m s (prompt ++ g) m' s'); [exact O|rewrite app_length; lia|exact M].
  - assert (H : holding f ((prompt ++ g) ++ proposed k g)).
    { apply (ok_feeds token l m s (prompt ++ g) _ m' f); [exact O|rewrite app_length; lia|exact F]. }
    assert (R : u = Autoregressive.extend token vocab j g (emitted limit g))
      by (unfold u; rewrite (read_round_plain f k limit g L H); reflexivity).
    split; [|exact R]. destruct (turn_agrees k limit g (prompt ++ u) L) as [A N]; [now rewrite R|].
    apply (ok_keeps token l m s (prompt ++ g) (proposed k g) m' f (prompt ++ u) m'' s'');
      [exact O|rewrite app_length; lia|exact F|rewrite app_length; lia|exact A|exact N|exact K].
Qed.
End OneRow.

(** ** A batch *)
Section Rows.
Variable token : Type.
Variable vocab : list token.
Notation text := (list token).
Variable answered : Type.
Variable network : store token -> Z -> answered.
Hypothesis sees_only : forall p a b, alike token p a b -> network a p = network b p.

(** Each row has its own prompt, stops, budget and drafter. *)
Variable rows : nat.
Variable prompt : nat -> text.
Hypothesis prompted : forall i, 1 <= length (prompt i).
Variable j : nat -> Autoregressive.job token vocab.
Variable s : forall i, drafter token vocab (j i).

(** Numbers are used as the drafter's and the target's laws ask; the target's law is that of plain decoding's answer. *)
Variable number : Type.
Variable blank : numbers number.
Variable ns : law number.
Hypothesis ns_mass : (mass ns == 1)%Q.
Variable draw : nat -> text -> number -> token.
Variable tests : nat -> answered -> text -> token -> number -> bool.
Variables recovers chooses : nat -> answered -> text -> number -> token.
Notation passes i := (passes token answered network (prompt i) number (tests i)).
Notation recover i := (recover token answered network (prompt i) number (recovers i)).
Notation choose i := (choose token answered network (prompt i) number (chooses i)).
Hypothesis used : forall i g, uses_numbers token vocab (j i) (s i) number ns (draw i) (recover i) (choose i) (passes i) g.

(** Limits of the next round, from the texts after all rounds so far, the latest first. *)
Variable most : nat.
Variable policy : list (list text) -> nat -> option nat.
Hypothesis policy_most : forall h i limit, policy h i = Some limit -> limit <= most.

Notation cell := (numbers number).
Notation cells := (three number ns).
Notation who := (seq 0 rows).
Definition numbers_of (css : list (list cell)) (i p : nat) : cell := nth p (nth i css []) blank.

(** *** Rounds of a layout *)
Section Runs.
Variable l : layout token.
Notation place := (text * store token * mark token l)%type.
Definition committed (r : place) : text := fst (fst r).
Definition texts (rs : nat -> place) : list text := map (fun i => committed (rs i)) who.

Variable css : list (list cell).
Notation row_draws i := (draws token vocab answered network (prompt i) (j i) number (draw i) (tests i) (recovers i)
  (chooses i) (numbers_of css i) l).
Notation row_turn i := (turn token vocab answered network (prompt i) (j i) number (draw i) (tests i) (recovers i)
  (chooses i) (numbers_of css i)).

Inductive draw_run : nat -> list (list text) -> (nat -> place) -> (nat -> place) -> Prop :=
  | no_round h rs : draw_run 0 h rs rs
  | one_more n h rs rs' rs'' : (forall i, row_draws i (policy h i) (rs i) (rs' i)) ->
      draw_run n (texts rs' :: h) rs' rs'' -> draw_run (S n) h rs rs''.

(** *** The same rounds as ticks: one token of each row that goes on *)
Definition reading (i : nat) (p : option nat) (g : text) : option (cell -> token * bool) :=
  match p with
  | None => None
  | Some k => if ended token vocab (j i) g then None else Some (fun c =>
      match k with
      | O => (choose i g (of_next number c), false)
      | S _ => attempt token number (draw i) (passes i) (recover i) g c
      end)
  end.

(** Drafts that a row has left in this round; none if the round is over for it. *)
Definition next (p : option nat) (flag : option bool) : option nat :=
  match p, flag with Some (S k), Some true => Some k | _, _ => None end.

Definition row_step (i : nat) (p : option nat) (g : text) : text * option nat :=
  match reading i p g with
  | Some read => let tb := read (numbers_of css i (length g)) in (g ++ [fst tb], next p (Some (snd tb)))
  | None => (g, None)
  end.

Fixpoint row_steps (n i : nat) (p : option nat) (g : text) : text :=
  match n with
  | O => g
  | S n' => row_steps n' i (snd (row_step i p g)) (fst (row_step i p g))
  end.

Lemma row_steps_over n i g : row_steps n i None g = g.
Proof. induction n as [|n IH]; cbn; auto. Qed.

Lemma row_steps_emit n i k g : row_steps n i (Some k) g = Autoregressive.extend token vocab (j i) g
  (firstn n (emit token number (draw i) (passes i) (recover i) (choose i) (numbers_of css i) k g)).
Proof.
  revert k g; induction n as [|n IH]; intros k g; cbn [row_steps]; [reflexivity|].
  unfold row_step, reading. destruct (ended token vocab (j i) g) eqn:E.
  - cbn [fst snd]. rewrite row_steps_over, extend_ended by exact E. reflexivity.
  - destruct k as [|k]; cbn [fst snd next emit].
    + rewrite row_steps_over. cbn [firstn Autoregressive.extend]. rewrite E, firstn_nil. reflexivity.
    + set (tb := attempt token number (draw i) (passes i) (recover i) g (numbers_of css i (length g))).
      destruct (snd tb); cbn [firstn Autoregressive.extend]; rewrite E; [apply IH|].
      rewrite row_steps_over, firstn_nil. reflexivity.
Qed.

Lemma row_steps_turn i h g : row_steps (S most) i (policy h i) g = row_turn i (policy h i) g.
Proof.
  destruct (policy h i) as [k|] eqn:P; [|apply row_steps_over]. rewrite row_steps_emit. cbn [turn]. f_equal.
  apply firstn_all2. apply policy_most in P.
  pose proof (emit_length token number (draw i) (passes i) (recover i) (choose i) (numbers_of css i) k g). lia.
Qed.

Fixpoint rounds_of (n : nat) (h : list (list text)) (gs : nat -> text) : nat -> text :=
  match n with
  | O => gs
  | S n' => let gs' := fun i => row_steps (S most) i (policy h i) (gs i) in rounds_of n' (map gs' who :: h) gs'
  end.

(** For given numbers, slots and layout leave no trace in the texts. *)
Lemma draw_run_texts n h rs rs' : draw_run n h rs rs' -> (forall i, stands token (prompt i) l (rs i)) -> forall gs,
  (forall i, committed (rs i) = gs i) -> forall i, committed (rs' i) = rounds_of n h gs i.
Proof.
  intro R. induction R as [h rs|n h rs rs' rs'' D _ IH]; intros O gs E; [exact E|].
  assert (A : forall i, stands token (prompt i) l (rs' i) /\ committed (rs' i) = row_steps (S most) i (policy h i) (gs i)).
  { intro i. rewrite row_steps_turn, <- E.
    apply (draws_turn token vocab answered network sees_only (prompt i) (prompted i) (j i) number (draw i) (tests i)
      (recovers i) (chooses i) (numbers_of css i) l (policy h i) (rs i) (rs' i) (D i) (O i)). }
  assert (M : texts rs' = map (fun i => row_steps (S most) i (policy h i) (gs i)) who)
    by (apply map_ext; intro i; apply A).
  rewrite M in IH. intro i. exact (IH (fun i => proj1 (A i)) _ (fun i => proj2 (A i)) i).
Qed.
End Runs.

(** *** What a tick does to all rows *)
Notation memory := (list (list text) * nat * list (option nat))%type.  (* history, ticks left, drafts k *)
Notation row := (text * nat)%type.

Fixpoint readings (is : list nat) (ps : list (option nat)) (rs : list row) : list (option (cell -> token * bool)) :=
  match rs with
  | [] => []
  | r :: rest => match is, ps with i :: _, p :: _ => reading i p (fst r) | _, _ => None end
      :: readings (tl is) (tl ps) rest
  end.
Definition plan (m : memory) (rs : list row) : list (option (cell -> token * bool)) := readings who (snd m) rs.

Fixpoint nexts (ps : list (option nat)) (os : list (row * option bool)) : list (option nat) :=
  match ps, os with
  | p :: ps', o :: os' => next p (snd o) :: nexts ps' os'
  | _, _ => []
  end.
Definition opens (h : list (list text)) : memory := (h, most, map (policy h) who).
Definition note (m : memory) (os : list (row * option bool)) : memory :=
  let '(h, to_go, ps) := m in
  match to_go with
  | O => opens (map (fun o => fst (fst o)) os :: h)
  | S n => (h, n, nexts ps os)
  end.

Lemma plan_covers m rs : length (plan m rs) = length rs.
Proof.
  unfold plan. generalize (snd m), who. induction rs as [|r rs IH]; intros ps is; cbn [readings length]; [reflexivity|].
  now rewrite IH.
Qed.

Lemma three_mass : (mass cells == 1)%Q.
Proof. unfold three. repeat (apply mass_bind; [exact ns_mass|intro]). apply mass_ret. Qed.

Lemma reading_right i p r : reads_right token vocab cell cells (j i) (reading i p (fst r)) r.
Proof.
  unfold reading. destruct p as [k|]; [|exact I]. destruct (ended token vocab (j i) (fst r)) eqn:E; [exact I|].
  split; [exact E|]. intro f. destruct k as [|k].
  - exact (choice_law token vocab (j i) (s i) number ns (draw i) (recover i) (choose i) (passes i) ns_mass
      (fst r) (used i (fst r)) f).
  - exact (attempt_law token vocab (j i) (s i) number ns (draw i) (recover i) (choose i) (passes i) ns_mass
      (fst r) (used i (fst r)) f).
Qed.

Lemma plan_reads m rs : length rs = length (map j who) ->
  all_right token vocab cell cells (map j who) (plan m rs) rs.
Proof.
  unfold plan. generalize (snd m), who. intros ps is. revert ps rs.
  induction is as [|i is IH]; intros ps [|r rs] L; cbn [map length] in L; try lia; [exact I|].
  cbn [map readings all_right tl]. split; [|apply IH; lia]. destruct ps as [|p ps]; [exact I|apply reading_right].
Qed.

(** *** Ticks are rounds *)
Definition state (gf : nat -> text) : list row := map (fun i => (gf i, budget token vocab (j i) - length (gf i))) who.

Lemma readings_map is pf (gf : nat -> text) (bf : nat -> nat) :
  readings is (map pf is) (map (fun i => (gf i, bf i)) is) = map (fun i => reading i (pf i) (gf i)) is.
Proof. induction is as [|i is IH]; [reflexivity|]. cbn [map readings tl fst]. now rewrite IH. Qed.

Lemma nexts_map {I} (is : list I) pf of : nexts (map pf is) (map of is) = map (fun i => next (pf i) (snd (of i))) is.
Proof. induction is as [|i is IH]; [reflexivity|]. cbn [map nexts]. now rewrite IH. Qed.

Lemma tick_map {I} (is : list I) f r c : tick token cell (map f is) (map r is) (map c is)
  = (map (fun i => fst (row_tick token cell (f i) (r i) (c i))) is,
     map (fun i => snd (row_tick token cell (f i) (r i) (c i))) is).
Proof. induction is as [|i is IH]; [reflexivity|]. cbn [map tick]. rewrite IH. reflexivity. Qed.

Lemma skipn_next {A} (a : A) n l : n < length l -> skipn n l = nth n l a :: skipn (S n) l.
Proof. revert l; induction n as [|n IH]; intros [|x l] L; cbn [length] in L; try lia; [reflexivity|]. apply IH. lia. Qed.

Section Ticks.
Variable css : list (list cell).
Definition fits : Prop := length css = rows /\ forall i, i < rows -> length (nth i css []) = budget token vocab (j i).
Hypothesis fit : fits.
Definition unread (gf : nat -> text) : list (list cell) := map (fun i => skipn (length (gf i)) (nth i css [])) who.

Lemma row_tick_step i p g : i < rows ->
  let after := row_tick token cell (reading i p g) (g, budget token vocab (j i) - length g) (skipn (length g) (nth i css [])) in
  let g' := fst (row_step css i p g) in
  fst (fst after) = (g', budget token vocab (j i) - length g') /\ next p (snd (fst after)) = snd (row_step css i p g)
  /\ snd after = skipn (length g') (nth i css []).
Proof.
  intros I after g'. unfold after, g', row_step. destruct (reading i p g) as [read|] eqn:R.
  - assert (B : length g < budget token vocab (j i)).
    { unfold reading in R. destruct p; [|discriminate]. destruct (ended token vocab (j i) g) eqn:E; [discriminate|].
      apply orb_false_iff in E as [B _]. apply Nat.leb_gt in B. exact B. }
    rewrite (skipn_next blank) by (rewrite (proj2 fit i I); exact B).
    destruct (budget token vocab (j i) - length g) as [|n] eqn:N; [lia|]. cbn [row_tick fst snd].
    rewrite app_length. cbn [length]. rewrite Nat.add_1_r. repeat split. f_equal. lia.
  - cbn [row_tick fst snd]. repeat split. destruct p as [[|k]|]; reflexivity.
Qed.

Lemma one_tick h n pf gf :
  let after := tick token cell (plan (h, n, map pf who) (state gf)) (state gf) (unread gf) in
  let gf' := fun i => fst (row_step css i (pf i) (gf i)) in
  map fst (fst after) = state gf'
  /\ nexts (map pf who) (fst after) = map (fun i => snd (row_step css i (pf i) (gf i))) who
  /\ snd after = unread gf'.
Proof.
  intros after gf'. unfold after, plan, state, unread. cbn [snd]. rewrite !readings_map, !tick_map. cbn [fst snd].
  rewrite map_map, nexts_map.
  repeat split; apply map_ext_in; intros i I; apply in_seq in I;
    destruct (row_tick_step i (pf i) (gf i) ltac:(lia)) as (A & B & C); assumption.
Qed.

Notation run_ticks := (keyed_run token cell memory plan note).

Lemma ticks_of_a_round n h pf gf :
  let gf' := fun i => row_steps css (S n) i (pf i) (gf i) in
  run_ticks (S n) (h, n, map pf who) (state gf) (unread gf) = (opens (map gf' who :: h), state gf', unread gf').
Proof.
  revert pf gf; induction n as [|n IH]; intros pf gf gf'; cbn [keyed_run].
  - destruct (one_tick h 0 pf gf) as (A & _ & C). rewrite A, C. cbn [note].
    rewrite <- (map_map fst fst), A. unfold state at 1. rewrite map_map. reflexivity.
  - destruct (one_tick h (S n) pf gf) as (A & B & C). rewrite A, C. cbn [note]. rewrite B. apply IH.
Qed.

Lemma keyed_run_plus a b m rs cs : run_ticks (a + b) m rs cs
  = run_ticks b (fst (fst (run_ticks a m rs cs))) (snd (fst (run_ticks a m rs cs))) (snd (run_ticks a m rs cs)).
Proof. revert m rs cs; induction a as [|a IH]; intros m rs cs; cbn [Nat.add keyed_run]; [reflexivity|]. apply IH. Qed.

Lemma ticks_of_rounds n h gf :
  snd (fst (run_ticks (n * S most) (opens h) (state gf) (unread gf))) = state (rounds_of css n h gf).
Proof.
  revert h gf; induction n as [|n IH]; intros h gf; cbn [rounds_of]; [reflexivity|].
  change (S n * S most) with (S most + n * S most). rewrite keyed_run_plus. unfold opens at 1 2 3.
  rewrite ticks_of_a_round. cbn [fst snd]. apply IH.
Qed.

Lemma all_of {A} (a : A) (l : list A) : map (fun i => nth i l a) (seq 0 (length l)) = l.
Proof.
  induction l as [|x l IH]; [reflexivity|]. cbn [length seq map nth]. f_equal. rewrite <- seq_shift, map_map. exact IH.
Qed.

Lemma unread_at_first : unread (fun _ => []) = css.
Proof. unfold unread. rewrite <- (proj1 fit). apply (all_of []). Qed.
End Ticks.

(** *** There are as many numbers as tokens *)
Lemma always_stream n : always (fun cs => length cs = n) (stream cell cells n).
Proof. unfold stream. pose proof (always_product_length (repeat cells n)) as H. rewrite repeat_length in H. exact H. Qed.

Lemma always_each (P : nat -> list cell -> Prop) d is : (forall i, always (P i) (d i)) ->
  always (fun css => Forall2 P is css) (product (map d is)).
Proof.
  intro H. induction is as [|i is IH]; [apply always_ret; constructor|]. cbn [map product].
  eapply always_bind; [apply H|]. intros cs Hs. eapply always_bind; [exact IH|]. intros css Hr.
  apply always_ret. constructor; assumption.
Qed.

Lemma each_of (P : nat -> list cell -> Prop) n : forall a css, Forall2 P (seq a n) css ->
  length css = n /\ forall i, i < n -> P (a + i) (nth i css []).
Proof.
  induction n as [|n IH]; intros a css X; cbn [seq] in X; inversion X as [|x y l l' Px Pr]; subst.
  - split; [reflexivity|]. intros i I. lia.
  - destruct (IH (S a) l' Pr) as [L N]. split; [cbn; lia|]. intros [|i] I; [rewrite Nat.add_0_r; exact Px|].
    cbn [nth]. replace (a + S i) with (S a + i) by lia. apply N. lia.
Qed.

Notation start := (state (fun _ => [])).
Notation numbers_law := (world token cell cells start).

Lemma numbers_fit : always fits numbers_law.
Proof.
  unfold world, state. rewrite map_map. cbn [snd length].
  pose proof (always_each (fun i cs => length cs = budget token vocab (j i) - 0) _ who
    (fun i => always_stream (budget token vocab (j i) - 0))) as H.
  unfold always in *. eapply Forall_impl; [|exact H]. cbn beta. intros [css q] X. cbn [fst] in *.
  apply each_of in X as [L N]. split; [exact L|]. intros i I. rewrite (N i I). apply Nat.sub_0_r.
Qed.

(** *** The law *)

(** Whatever a layout does with the numbers that come, in every state that it can reach: the texts so far, finished by plain
    decoding, have the product of the autoregressive laws; and so have the texts, once all rows have ended. *)
Definition right_law (l : layout token) : Prop := forall n h rs outcome,
  (forall i, stands token (prompt i) l (rs i)) -> (forall i, committed l (rs i) = []) ->
  (forall css, draw_run l css n h rs (outcome css)) -> forall F,
  (expect numbers_law (fun css => expect (finish token vocab (map j who) (texts l (outcome css))) F)
   == expect (finish token vocab (map j who) (map (fun _ => []) who)) F)%Q
  /\ ((forall css i, ended token vocab (j i) (committed l (outcome css i)) = true) ->
     (expect numbers_law (fun css => F (texts l (outcome css)))
      == expect (finish token vocab (map j who) (map (fun _ => []) who)) F)%Q).

Lemma ended_rows gf : (forall i, ended token vocab (j i) (gf i) = true) ->
  all_ended token vocab (map j who) (map gf who).
Proof. intro E. induction who as [|i is IH]; cbn [map all_ended]; [exact I|]. split; [apply E|exact IH]. Qed.

(** THEOREM (layouts to the law). Members and limits of every round are chosen from what has been committed. Then for any layout,
    drafts, stops and budgets rejection sampling commits what has the target's law. *)
Theorem layout_law l : right_law l.
Proof.
  intros n h rs outcome O B R F.
  assert (X : (expect numbers_law (fun css => expect (finish token vocab (map j who) (texts l (outcome css))) F)
    == expect (finish token vocab (map j who) (map (fun _ => []) who)) F)%Q).
  { assert (First : map fst start = map (fun _ => []) who) by (unfold state; rewrite map_map; reflexivity).
    rewrite <- First, <- (keyed_finish_law token vocab cell cells three_mass memory plan note plan_covers (map j who)
      plan_reads (n * S most) (opens h) start) by (unfold state; rewrite !map_length; reflexivity).
    apply (expect_ext_always _ _ _ _ numbers_fit). intros css fit.
    pose proof (ticks_of_rounds css fit n h (fun _ => [])) as K. rewrite (unread_at_first css fit) in K. rewrite K.
    assert (T : texts l (outcome css) = map fst (state (rounds_of css n h (fun _ => [])))).
    { unfold state. rewrite map_map. apply map_ext. intro i.
      exact (draw_run_texts l css n h rs (outcome css) (R css) O (fun _ => []) B i). }
    rewrite T. reflexivity. }
  split; [exact X|]. intro E. rewrite <- X. apply expect_ext; intro css. symmetry. apply finish_all_ended.
  apply ended_rows. intro i. apply E.
Qed.

(** One corollary for each layout. *)
Corollary inplace_law : right_law (inplace token).
Proof. apply layout_law. Qed.

Corollary left_padded_law : right_law (left_padded token).
Proof. apply layout_law. Qed.

Corollary masked_law : right_law (masked token).
Proof. apply layout_law. Qed.

Corollary paged_law : right_law (paged token).
Proof. apply layout_law. Qed.
End Rows.
