(** Rejection sampling, from slots, schedule and keyed numbers to the joint law of what is committed.

    Draws.v says what a row of a layout commits for given numbers, Keyed.v that tokens drawn one by one with keyed numbers
    have the target's law. Here rounds of a batch are put one after the other. Who runs, and with what limit, is chosen from
    what has been committed, and from nothing else; all rows are cut to the batch minimum, or none is. *)
From Coq Require Import ZArith QArith Arith List Lia Bool.
From RaggedSpec Require Import FiniteLaw Rejection Autoregressive EngineRound Batch Keyed Layouts Machine Cases Draws.
Import ListNotations.
Open Scope nat_scope.

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

(** Limits of the next round, from the texts after all rounds so far, the latest first. A round commits up to [most] + 1
    tokens of a row; a row that sits out has no limit. *)
Variable most : nat.
Variable policy : list (list text) -> nat -> option nat.

(** Whether all rows commit as many tokens as the one that is offered fewest. *)
Variable rolls_back : bool.

Notation cell := (numbers number).
Notation cells := (three number ns).
Notation who := (seq 0 rows).
Notation extend i := (Autoregressive.extend token vocab (j i)).
Notation ended i := (ended token vocab (j i)).
Definition numbers_of (css : list (list cell)) (i p : nat) : cell := nth p (nth i css []) blank.

(** The least of some numbers, and [n]. *)
Fixpoint least (n : nat) (is : list nat) (some : nat -> option nat) : nat :=
  match is with
  | [] => n
  | i :: rest => match some i with Some m => Nat.min m (least n rest some) | None => least n rest some end
  end.
Definition cut (n : nat) (offered : nat -> option nat) : nat := if rolls_back then least n who offered else n.

Lemma least_ext n is f g : (forall i, f i = g i) -> least n is f = least n is g.
Proof. intro E. induction is as [|i is IH]; cbn; [reflexivity|]. rewrite E, IH. reflexivity. Qed.

Lemma least_S n is f g : (forall i, In i is -> f i = option_map S (g i)) -> least (S n) is f = S (least n is g).
Proof.
  induction is as [|i is IH]; intro E; cbn; [reflexivity|]. rewrite (E i (or_introl eq_refl)), IH by (intros x X; apply E; now right).
  destruct (g i); reflexivity.
Qed.

Lemma least_one n is f : (forall i m, f i = Some m -> 1 <= m) -> (exists i, In i is /\ f i = Some 1) -> least (S n) is f = 1.
Proof.
  intros P (k & K & E). assert (Low : forall l, 1 <= least (S n) l f).
  { induction l as [|i l IH]; cbn; [lia|]. destruct (f i) eqn:F; [|exact IH]. apply P in F. lia. }
  induction is as [|i is IH]; [destruct K|]. cbn. specialize (Low is). destruct K as [->|K].
  - rewrite E. lia.
  - rewrite (IH K). destruct (f i) eqn:F; [|reflexivity]. apply P in F. lia.
Qed.

(** *** Rounds of a layout *)
Section Runs.
Variable l : layout token.
Notation place := (text * store token * mark token l)%type.
Definition committed (r : place) : text := fst (fst r).
Definition texts (rs : nat -> place) : list text := map (fun i => committed (rs i)) who.

Variable css : list (list cell).
Notation row_draws i := (draws token vocab answered network (prompt i) (j i) number (draw i) (tests i) (recovers i)
  (chooses i) (numbers_of css i) l).
Notation emitted i := (emit token number (draw i) (passes i) (recover i) (choose i) (numbers_of css i)).

(** Of a row that runs and has not ended, how much it is offered. *)
Definition counts (limits : nat -> option nat) (gs offered : nat -> text) (i : nat) : option nat :=
  if ended i (gs i) then None else option_map (fun _ => length (offered i)) (limits i).

Inductive draw_run : nat -> list (list text) -> (nat -> place) -> (nat -> place) -> Prop :=
  | no_round h rs : draw_run 0 h rs rs
  | one_more n h offered rs rs' rs'' :
      let cap := cut (S most) (counts (policy h) (fun i => committed (rs i)) offered) in
      (forall i, row_draws i cap (policy h i) (offered i) (rs i) (rs' i)) ->
      draw_run n (texts rs' :: h) rs' rs'' -> draw_run (S n) h rs rs''.

(** *** The same rounds as ticks, one token of each row that goes on *)

(** A round looks beyond the end of a row's text where other rows are cut by what it is offered there. So ticks go on
    beyond stops and budgets, as far as a round can reach. *)
Definition beyond (i : nat) : Autoregressive.job token vocab := {| target := target token vocab (j i); stops := fun _ => false;
  budget := budget token vocab (j i) + most; target_pmf := target_pmf token vocab (j i) |}.
Notation reach i := (budget token vocab (j i) + most).

Definition reading (i : nat) (p : option nat) (g : text) : option (cell -> token * bool) :=
  match p with
  | None => None
  | Some k => if Autoregressive.ended token vocab (beyond i) g then None else Some (fun c =>
      match k with
      | O => (choose i g (of_next number c), false)
      | S _ => attempt token number (draw i) (passes i) (recover i) g c
      end)
  end.

(** Drafts that a row has left in this round; none if the round is over for it. *)
Definition next (p : option nat) (flag : option bool) : option nat :=
  match p, flag with Some (S k), Some true => Some k | _, _ => None end.
Definition stopped (p p' : option nat) : bool := match p, p' with Some _, None => true | _, _ => false end.

Definition row_step (i : nat) (p : option nat) (g : text) : text * option nat :=
  match reading i p g with
  | Some read => let tb := read (numbers_of css i (length g)) in (g ++ [fst tb], next p (Some (snd tb)))
  | None => (g, None)
  end.

(** One tick of all rows. With rollback a round is over for all when it is over for one. *)
Definition step_texts (ps : nat -> option nat) (gs : nat -> text) (i : nat) : text := fst (row_step i (ps i) (gs i)).
Definition step_left (ps : nat -> option nat) (gs : nat -> text) (i : nat) : option nat :=
  if rolls_back && existsb (fun i => stopped (ps i) (snd (row_step i (ps i) (gs i)))) who then None
  else snd (row_step i (ps i) (gs i)).

Fixpoint steps (n : nat) (ps : nat -> option nat) (gs : nat -> text) : nat -> text :=
  match n with
  | O => gs
  | S n' => steps n' (step_left ps gs) (step_texts ps gs)
  end.

Lemma row_step_emit i k g : length g < reach i -> exists y, row_step i (Some k) g = (g ++ [y], snd (row_step i (Some k) g))
  /\ emitted i k g = y :: match snd (row_step i (Some k) g) with Some k' => emitted i k' (g ++ [y]) | None => [] end.
Proof.
  intro L. unfold row_step, reading, Autoregressive.ended. cbn [beyond budget stops]. apply Nat.leb_gt in L. rewrite L. cbn [orb].
  destruct k as [|k]; cbn [fst snd next emit].
  - exists (choose i g (of_next number (numbers_of css i (length g)))). split; reflexivity.
  - set (tb := attempt token number (draw i) (passes i) (recover i) g (numbers_of css i (length g))). exists (fst tb).
    split; [reflexivity|]. destruct (snd tb); reflexivity.
Qed.

Definition offered_lengths (ps : nat -> option nat) (gs : nat -> text) (i : nat) : option nat :=
  option_map (fun k => length (emitted i k (gs i))) (ps i).

Lemma steps_cut n ps gs : (forall i k, ps i = Some k -> length (gs i) + n <= reach i) -> forall i,
  steps n ps gs i = match ps i with
    | None => gs i
    | Some k => gs i ++ firstn (cut n (offered_lengths ps gs)) (emitted i k (gs i))
    end.
Proof.
  revert ps gs; induction n as [|n IH]; intros ps gs B i.
  - assert (Z : cut 0 (offered_lengths ps gs) = 0).
    { unfold cut. destruct rolls_back; [|reflexivity]. induction who as [|x is IH]; cbn; [reflexivity|].
      destruct (offered_lengths ps gs x); lia. }
    cbn [steps]. rewrite Z. destruct (ps i); cbn [firstn]; [now rewrite app_nil_r|reflexivity].
  - cbn [steps]. assert (Here : forall x k, ps x = Some k -> length (gs x) < reach x) by (intros x k E; specialize (B x k E); lia).
    assert (Gone : forall x, ps x = None -> row_step x (ps x) (gs x) = (gs x, None)) by (intros x E; rewrite E; reflexivity).
    assert (B' : forall x k, step_left ps gs x = Some k -> length (step_texts ps gs x) + n <= reach x).
    { intros x k E. unfold step_left in E. destruct (_ && _); [discriminate|]. unfold step_texts.
      destruct (ps x) as [p|] eqn:P; [|discriminate]. destruct (row_step_emit x p (gs x) (Here x p P)) as (y & R & _).
      rewrite R. cbn [fst]. rewrite app_length. cbn [length]. specialize (B x p P). lia. }
    rewrite (IH _ _ B' i).
    destruct (rolls_back && existsb (fun i => stopped (ps i) (snd (row_step i (ps i) (gs i)))) who) eqn:H.
    + unfold step_left at 1. rewrite H. apply andb_true_iff in H as [Roll Some_row].
      destruct (ps i) as [k|] eqn:P; [|unfold step_texts; rewrite (Gone i P); reflexivity].
      assert (C : cut (S n) (offered_lengths ps gs) = 1).
      { unfold cut. rewrite Roll. apply least_one.
        - intros x m E. unfold offered_lengths in E. destruct (ps x) as [p|] eqn:Px; [|discriminate]. cbn in E. injection E as <-.
          destruct (row_step_emit x p (gs x) (Here x p Px)) as (y & _ & Em). rewrite Em. cbn. lia.
        - apply existsb_exists in Some_row as (x & X & St). exists x. split; [exact X|]. unfold offered_lengths.
          destruct (ps x) as [p|] eqn:Px; [|discriminate]. cbn [option_map].
          destruct (row_step_emit x p (gs x) (Here x p Px)) as (y & _ & Em). rewrite Em.
          unfold stopped in St. destruct (snd (row_step x (Some p) (gs x))); [discriminate|]. reflexivity. }
      rewrite C. destruct (row_step_emit i k (gs i) (Here i k P)) as (y & R & Em). rewrite Em. unfold step_texts. rewrite P, R.
      reflexivity.
    + assert (Left : forall x, step_left ps gs x = snd (row_step x (ps x) (gs x)))
        by (intro x; unfold step_left; rewrite H; reflexivity).
      assert (C : cut (S n) (offered_lengths ps gs) = S (cut n (offered_lengths (step_left ps gs) (step_texts ps gs)))).
      { unfold cut. destruct rolls_back; [|reflexivity]. cbn [andb] in H. apply least_S. intros x X. unfold offered_lengths.
        rewrite Left. destruct (ps x) as [p|] eqn:Px; [|reflexivity]. cbn [option_map].
        destruct (row_step_emit x p (gs x) (Here x p Px)) as (y & R & Em). rewrite Em. unfold step_texts. rewrite Px, R.
        cbn [fst]. assert (St : stopped (ps x) (snd (row_step x (ps x) (gs x))) = false).
        { rewrite <- not_true_iff_false. intro T. rewrite <- not_true_iff_false in H. apply H, existsb_exists. eauto. }
        rewrite Px in St. cbn [stopped] in St. destruct (snd (row_step x (Some p) (gs x))); [reflexivity|discriminate]. }
      rewrite C, Left. destruct (ps i) as [k|] eqn:P; [|unfold step_texts; rewrite P; reflexivity].
      destruct (row_step_emit i k (gs i) (Here i k P)) as (y & R & Em). rewrite Em. cbn [firstn]. unfold step_texts. rewrite P, R.
      cbn [fst snd]. destruct (snd (row_step i (Some k) (gs i))); [now rewrite <- app_assoc|]. rewrite firstn_nil. reflexivity.
Qed.

(** *** Rounds as texts *)
Lemma extend_app i g a b : extend i g (a ++ b) = extend i (extend i g a) b.
Proof.
  revert g; induction a as [|x a IH]; intro g; cbn [app Autoregressive.extend]; [reflexivity|].
  destruct (ended i g) eqn:E; [|apply IH]. now rewrite extend_ended.
Qed.

(** What is committed of all that ticks have made. *)
Definition kept_of (i : nat) (g : text) : text := extend i [] g.

Lemma kept_all i g : ended i (kept_of i g) = false -> kept_of i g = g.
Proof.
  unfold kept_of. change g with ([] ++ g) at 3. generalize (@nil token). induction g as [|x g IH]; intro h; cbn [Autoregressive.extend].
  - intros _. now rewrite app_nil_r.
  - destruct (ended i h) eqn:E; [intro X; congruence|]. intro X. rewrite (IH (h ++ [x]) X), <- app_assoc. reflexivity.
Qed.

Definition opening (h : list (list text)) (i : nat) (g : text) : option nat :=
  if ended i (kept_of i g) then None else policy h i.

Fixpoint rounds_of (n : nat) (h : list (list text)) (gs : nat -> text) : nat -> text :=
  match n with
  | O => gs
  | S n' => let gs' := steps (S most) (fun i => opening h i (gs i)) gs in
      rounds_of n' (map (fun i => kept_of i (gs' i)) who :: h) gs'
  end.

Lemma opening_room h gs i k : opening h i (gs i) = Some k -> length (gs i) + S most <= reach i.
Proof.
  unfold opening. destruct (ended i (kept_of i (gs i))) eqn:E; [discriminate|]. intros _. rewrite (kept_all i (gs i) E) in E.
  apply orb_false_iff in E as [B _]. apply Nat.leb_gt in B. lia.
Qed.

(** For given numbers, slots and layout leave no trace in the texts. *)
Lemma draw_run_texts n h rs rs' : draw_run n h rs rs' -> (forall i, stands token (prompt i) l (rs i)) -> forall gs,
  (forall i, committed (rs i) = kept_of i (gs i)) -> forall i, committed (rs' i) = kept_of i (rounds_of n h gs i).
Proof.
  intro R. induction R as [h rs|n h offered rs rs' rs'' cap D _ IH]; intros O gs E; [exact E|].
  assert (A : forall i, stands token (prompt i) l (rs' i)
    /\ offered i = offers token answered network (prompt i) number (draw i) (tests i) (recovers i) (chooses i)
         (numbers_of css i) (policy h i) (committed (rs i))
    /\ committed (rs' i) = extend i (committed (rs i)) (firstn cap (offered i))).
  { intro i. exact (draws_offers token vocab answered network sees_only (prompt i) (prompted i) (j i) number (draw i) (tests i)
      (recovers i) (chooses i) (numbers_of css i) l cap (policy h i) (offered i) (rs i) (rs' i) (D i) (O i)). }
  set (ps := fun i => opening h i (gs i)).
  assert (C : cap = cut (S most) (offered_lengths ps gs)).
  { unfold cap, cut. destruct rolls_back; [|reflexivity]. apply least_ext. intro i. unfold counts, offered_lengths, ps, opening.
    rewrite E. destruct (ended i (kept_of i (gs i))) eqn:End; [reflexivity|]. destruct (A i) as (_ & Of & _).
    destruct (policy h i) as [k|]; [|reflexivity]. cbn [option_map]. rewrite Of, E, (kept_all i (gs i) End). reflexivity. }
  assert (T : forall i, committed (rs' i) = kept_of i (steps (S most) ps gs i)).
  { intro i. destruct (A i) as (_ & Of & Com). rewrite Com, E.
    rewrite (steps_cut (S most) ps gs (fun x k => opening_room h gs x k) i), <- C. unfold ps, opening.
    destruct (ended i (kept_of i (gs i))) eqn:End; [rewrite extend_ended by exact End; reflexivity|].
    rewrite Of, E. destruct (policy h i) as [k|]; cbn [offers]; [|rewrite firstn_nil; reflexivity].
    unfold kept_of at 3. rewrite extend_app. fold (kept_of i (gs i)). rewrite (kept_all i (gs i) End). reflexivity. }
  assert (M : texts rs' = map (fun i => kept_of i (steps (S most) ps gs i)) who) by (apply map_ext; exact T).
  rewrite M in IH. exact (IH (fun i => proj1 (A i)) _ T).
Qed.
End Runs.

(** *** Going on by plain decoding, beyond the end or not *)
Notation complete i := (complete token vocab (j i)).
Notation reach i := (budget token vocab (j i) + most).
Notation finish := (finish token vocab).

Fixpoint zip {A} (f : nat -> text -> A) (is : list nat) (gs : list text) : list A :=
  match is, gs with i :: is', g :: gs' => f i g :: zip f is' gs' | _, _ => [] end.

Lemma zip_map {A} (f : nat -> text -> A) is gf : zip f is (map gf is) = map (fun i => f i (gf i)) is.
Proof. induction is as [|i is IH]; cbn [map zip]; [reflexivity|]. now rewrite IH. Qed.

Lemma complete_kept i f g : (expect (Autoregressive.complete token vocab (beyond i) g) (fun x => f (kept_of i x))
  == expect (complete i (kept_of i g)) f)%Q.
Proof.
  unfold Autoregressive.complete at 1. cbn [beyond budget]. remember (reach i - length g) as n eqn:N.
  revert g N; induction n as [|n IH]; intros g N; cbn [decode].
  - rewrite (expect_ret g (fun x => f (kept_of i x))). destruct (ended i (kept_of i g)) eqn:E.
    + rewrite complete_ended by exact E. symmetry. apply expect_ret.
    + rewrite (kept_all i g E) in E. apply orb_false_iff in E as [B _]. apply Nat.leb_gt in B. lia.
  - unfold Autoregressive.ended. cbn [beyond budget stops target]. destruct (Nat.leb_spec (reach i) (length g)); [lia|].
    cbn [orb]. rewrite expect_bind.
    transitivity (expect (pmf_law token vocab (target token vocab (j i) g)) (fun t => expect (complete i (kept_of i (g ++ [t]))) f)).
    { apply expect_ext; intro t. apply IH. rewrite app_length. cbn [length]. lia. }
    assert (Snoc : forall t, kept_of i (g ++ [t]) = if ended i (kept_of i g) then kept_of i g else kept_of i g ++ [t]).
    { intro t. unfold kept_of. rewrite extend_app. reflexivity. }
    destruct (ended i (kept_of i g)) eqn:E.
    + rewrite (expect_ext _ _ (fun _ => expect (complete i (kept_of i g)) f)) by (intro t; rewrite Snoc; reflexivity).
      apply expect_sure, mass_pmf, target_pmf.
    + rewrite (complete_step token vocab (j i) (kept_of i g) E), expect_bind, (kept_all i g E).
      apply expect_ext; intro t. rewrite Snoc, (kept_all i g E). reflexivity.
Qed.

Lemma finish_kept is rf F : (expect (finish (map beyond is) (map rf is)) (fun xs => F (zip kept_of is xs))
  == expect (finish (map j is) (map (fun i => kept_of i (rf i)) is)) F)%Q.
Proof.
  revert F; induction is as [|i is IH]; intro F; cbn [map].
  - cbn [Batch.finish]. rewrite (expect_ret [] (fun xs => F (zip kept_of [] xs))), expect_ret. reflexivity.
  - rewrite !expect_finish_cons. cbn [zip].
    transitivity (expect (Autoregressive.complete token vocab (beyond i) (rf i)) (fun x =>
      (fun y => expect (finish (map j is) (map (fun i => kept_of i (rf i)) is)) (fun xs => F (y :: xs))) (kept_of i x))).
    { apply expect_ext; intro x. apply (IH (fun xs => F (kept_of i x :: xs))). }
    apply (complete_kept i (fun y => expect (finish (map j is) (map (fun i => kept_of i (rf i)) is)) (fun xs => F (y :: xs)))).
Qed.

(** *** What a tick does to all rows *)
Notation memory := (list (list text) * nat * list (option nat))%type.  (* history, ticks left, drafts left *)
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
Fixpoint any_stopped (ps ps' : list (option nat)) : bool :=
  match ps, ps' with p :: a, p' :: b => stopped p p' || any_stopped a b | _, _ => false end.

Definition opens (h : list (list text)) (gs : list text) : memory := (h, most, zip (opening h) who gs).
Definition note (m : memory) (os : list (row * option bool)) : memory :=
  let '(h, to_go, ps) := m in
  match to_go with
  | O => let gs := map (fun o => fst (fst o)) os in opens (zip kept_of who gs :: h) gs
  | S n => (h, n, if rolls_back && any_stopped ps (nexts ps os) then map (fun _ => None) ps else nexts ps os)
  end.

Lemma plan_covers m rs : length (plan m rs) = length rs.
Proof.
  unfold plan. generalize (snd m), who. induction rs as [|r rs IH]; intros ps is; cbn [readings length]; [reflexivity|].
  now rewrite IH.
Qed.

Lemma three_mass : (mass cells == 1)%Q.
Proof. unfold three. repeat (apply mass_bind; [exact ns_mass|intro]). apply mass_ret. Qed.

Definition beyond_drafter (i : nat) : drafter token vocab (beyond i) :=
  Build_drafter token vocab (beyond i) (draft token vocab (j i) (s i)) (accept token vocab (j i) (s i))
    (residual token vocab (j i) (s i)) (draft_pmf token vocab (j i) (s i)) (verifies token vocab (j i) (s i)).

Lemma used_beyond i g :
  uses_numbers token vocab (beyond i) (beyond_drafter i) number ns (draw i) (recover i) (choose i) (passes i) g.
Proof. destruct (used i g) as [A B C D]. constructor; [exact A|exact B|exact C|exact D]. Qed.

Lemma reading_right i p r : reads_right token vocab cell cells (beyond i) (reading i p (fst r)) r.
Proof.
  unfold reading. destruct p as [k|]; [|exact I].
  destruct (Autoregressive.ended token vocab (beyond i) (fst r)) eqn:E; [exact I|].
  split; [exact E|]. intro f. destruct k as [|k].
  - exact (choice_law token vocab (beyond i) (beyond_drafter i) number ns (draw i) (recover i) (choose i) (passes i) ns_mass
      (fst r) (used_beyond i (fst r)) f).
  - exact (attempt_law token vocab (beyond i) (beyond_drafter i) number ns (draw i) (recover i) (choose i) (passes i) ns_mass
      (fst r) (used_beyond i (fst r)) f).
Qed.

Lemma plan_reads m rs : length rs = length (map beyond who) ->
  all_right token vocab cell cells (map beyond who) (plan m rs) rs.
Proof.
  unfold plan. generalize (snd m), who. intros ps is. revert ps rs.
  induction is as [|i is IH]; intros ps [|r rs] L; cbn [map length] in L; try lia; [exact I|].
  cbn [map readings all_right tl]. split; [|apply IH; lia]. destruct ps as [|p ps]; [exact I|apply reading_right].
Qed.

(** *** Ticks are rounds *)
Definition state (gf : nat -> text) : list row := map (fun i => (gf i, reach i - length (gf i))) who.

Lemma readings_map is pf (gf : nat -> text) (bf : nat -> nat) :
  readings is (map pf is) (map (fun i => (gf i, bf i)) is) = map (fun i => reading i (pf i) (gf i)) is.
Proof. induction is as [|i is IH]; [reflexivity|]. cbn [map readings tl fst]. now rewrite IH. Qed.

Lemma nexts_map {I} (is : list I) pf of : nexts (map pf is) (map of is) = map (fun i => next (pf i) (snd (of i))) is.
Proof. induction is as [|i is IH]; [reflexivity|]. cbn [map nexts]. now rewrite IH. Qed.

Lemma any_stopped_map {I} (is : list I) pf qf :
  any_stopped (map pf is) (map qf is) = existsb (fun i => stopped (pf i) (qf i)) is.
Proof. induction is as [|i is IH]; [reflexivity|]. cbn [map any_stopped existsb]. now rewrite IH. Qed.

Lemma tick_map {I} (is : list I) f r c : tick token cell (map f is) (map r is) (map c is)
  = (map (fun i => fst (row_tick token cell (f i) (r i) (c i))) is,
     map (fun i => snd (row_tick token cell (f i) (r i) (c i))) is).
Proof. induction is as [|i is IH]; [reflexivity|]. cbn [map tick]. rewrite IH. reflexivity. Qed.

Lemma skipn_next {A} (a : A) n l : n < length l -> skipn n l = nth n l a :: skipn (S n) l.
Proof. revert l; induction n as [|n IH]; intros [|x l] L; cbn [length] in L; try lia; [reflexivity|]. apply IH. lia. Qed.

Section Ticks.
Variable css : list (list cell).
Definition fits : Prop := length css = rows /\ forall i, i < rows -> length (nth i css []) = reach i.
Hypothesis fit : fits.
Definition unread (gf : nat -> text) : list (list cell) := map (fun i => skipn (length (gf i)) (nth i css [])) who.

Lemma row_tick_step i p g : i < rows ->
  let after := row_tick token cell (reading i p g) (g, reach i - length g) (skipn (length g) (nth i css [])) in
  let g' := fst (row_step css i p g) in
  fst (fst after) = (g', reach i - length g') /\ next p (snd (fst after)) = snd (row_step css i p g)
  /\ snd after = skipn (length g') (nth i css []).
Proof.
  intros I after g'. unfold after, g', row_step. destruct (reading i p g) as [read|] eqn:R.
  - assert (B : length g < reach i).
    { unfold reading in R. destruct p; [|discriminate]. destruct (Autoregressive.ended token vocab (beyond i) g) eqn:E; [discriminate|].
      apply orb_false_iff in E as [B _]. apply Nat.leb_gt in B. exact B. }
    rewrite (skipn_next blank) by (rewrite (proj2 fit i I); exact B).
    destruct (reach i - length g) as [|n] eqn:N; [lia|]. cbn [row_tick fst snd].
    rewrite app_length. cbn [length]. rewrite Nat.add_1_r. repeat split. f_equal. lia.
  - cbn [row_tick fst snd]. repeat split. destruct p as [[|k]|]; reflexivity.
Qed.

Lemma one_tick h n pf gf :
  let after := tick token cell (plan (h, n, map pf who) (state gf)) (state gf) (unread gf) in
  map fst (fst after) = state (step_texts css pf gf)
  /\ nexts (map pf who) (fst after) = map (fun i => snd (row_step css i (pf i) (gf i))) who
  /\ snd after = unread (step_texts css pf gf).
Proof.
  intros after. unfold after, plan, state, unread. cbn [snd]. rewrite !readings_map, !tick_map. cbn [fst snd].
  rewrite map_map, nexts_map.
  repeat split; apply map_ext_in; intros i I; apply in_seq in I;
    destruct (row_tick_step i (pf i) (gf i) ltac:(lia)) as (A & B & C); assumption.
Qed.

Notation run_ticks := (keyed_run token cell memory plan note).

Lemma ticks_of_a_round n h pf gf :
  let gf' := steps css (S n) pf gf in
  run_ticks (S n) (h, n, map pf who) (state gf) (unread gf)
  = (opens (map (fun i => kept_of i (gf' i)) who :: h) (map gf' who), state gf', unread gf').
Proof.
  revert pf gf; induction n as [|n IH]; intros pf gf gf'; cbn [keyed_run].
  - destruct (one_tick h 0 pf gf) as (A & _ & C). rewrite A, C. cbn [note].
    rewrite <- (map_map fst fst), A. unfold state at 1 2. rewrite map_map. cbn [fst]. rewrite zip_map. reflexivity.
  - destruct (one_tick h (S n) pf gf) as (A & B & C). rewrite A, C. cbn [note]. rewrite B, any_stopped_map.
    assert (Left : (if rolls_back && existsb (fun i => stopped (pf i) (snd (row_step css i (pf i) (gf i)))) who
      then map (fun _ => None) (map pf who) else map (fun i => snd (row_step css i (pf i) (gf i))) who)
      = map (step_left css pf gf) who).
    { unfold step_left. destruct (rolls_back && _); [rewrite map_map|]; reflexivity. }
    rewrite Left. apply IH.
Qed.

Lemma keyed_run_plus a b m rs cs : run_ticks (a + b) m rs cs
  = run_ticks b (fst (fst (run_ticks a m rs cs))) (snd (fst (run_ticks a m rs cs))) (snd (run_ticks a m rs cs)).
Proof. revert m rs cs; induction a as [|a IH]; intros m rs cs; cbn [Nat.add keyed_run]; [reflexivity|]. apply IH. Qed.

Lemma ticks_of_rounds n h gf :
  snd (fst (run_ticks (n * S most) (opens h (map gf who)) (state gf) (unread gf))) = state (rounds_of css n h gf).
Proof.
  revert h gf; induction n as [|n IH]; intros h gf; cbn [rounds_of]; [reflexivity|].
  change (S n * S most) with (S most + n * S most). rewrite keyed_run_plus. unfold opens at 1 2 3. rewrite zip_map.
  rewrite ticks_of_a_round. cbn [fst snd]. apply IH.
Qed.

Lemma all_of {A} (a : A) (l : list A) : map (fun i => nth i l a) (seq 0 (length l)) = l.
Proof.
  induction l as [|x l IH]; [reflexivity|]. cbn [length seq map nth]. f_equal. rewrite <- seq_shift, map_map. exact IH.
Qed.

Lemma unread_at_first : unread (fun _ => []) = css.
Proof. unfold unread. rewrite <- (proj1 fit). apply (all_of []). Qed.
End Ticks.

(** *** There are as many numbers as a row can reach *)
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
  pose proof (always_each (fun i cs => length cs = reach i - 0) _ who (fun i => always_stream (reach i - 0))) as H.
  unfold always in *. eapply Forall_impl; [|exact H]. cbn beta. intros [css q] X. cbn [fst] in *.
  apply each_of in X as [L N]. split; [exact L|]. intros i I. rewrite (N i I). apply Nat.sub_0_r.
Qed.

(** *** The law *)

(** Whatever a layout does with the numbers that come, in every state that it can reach: the texts so far, finished by plain
    decoding, have the product of the autoregressive laws; and so have the texts, once all rows have ended. *)
Definition right_law (l : layout token) : Prop := forall n h rs outcome,
  (forall i, stands token (prompt i) l (rs i)) -> (forall i, committed l (rs i) = []) ->
  (forall css, draw_run l css n h rs (outcome css)) -> forall F,
  (expect numbers_law (fun css => expect (finish (map j who) (texts l (outcome css))) F)
   == expect (finish (map j who) (map (fun _ => []) who)) F)%Q
  /\ ((forall css i, i < rows -> ended i (committed l (outcome css i)) = true) ->
     (expect numbers_law (fun css => F (texts l (outcome css)))
      == expect (finish (map j who) (map (fun _ => []) who)) F)%Q).

(** THEOREM (layouts to the law). Members and limits of every round are chosen from what has been committed; the batch is cut to
    its minimum, or it is not. Then for any layout, drafts, stops and budgets rejection sampling commits what has the target's
    law. *)
Theorem layout_law l : right_law l.
Proof.
  intros n h rs outcome O B R F.
  assert (X : (expect numbers_law (fun css => expect (finish (map j who) (texts l (outcome css))) F)
    == expect (finish (map j who) (map (fun _ => []) who)) F)%Q).
  { change (map (fun _ => []) who) with (map (fun i => kept_of i ((fun _ => []) i)) who). rewrite <- finish_kept.
    assert (First : map fst start = map (fun _ => []) who) by (unfold state; rewrite map_map; reflexivity).
    rewrite <- First, <- (keyed_finish_law token vocab cell cells three_mass memory plan note plan_covers (map beyond who)
      plan_reads (n * S most) (opens h (map (fun _ => []) who)) start) by (unfold state; rewrite !map_length; reflexivity).
    apply (expect_ext_always _ _ _ _ numbers_fit). intros css fit.
    pose proof (ticks_of_rounds css fit n h (fun _ => [])) as K. rewrite (unread_at_first css fit) in K. rewrite K.
    unfold state. rewrite map_map. cbn [fst]. rewrite finish_kept.
    assert (T : texts l (outcome css) = map (fun i => kept_of i (rounds_of css n h (fun _ => []) i)) who).
    { apply map_ext. exact (draw_run_texts l css n h rs (outcome css) (R css) O (fun _ => []) B). }
    rewrite T. reflexivity. }
  split; [exact X|]. intro E. rewrite <- X. apply expect_ext; intro css. symmetry. apply finish_all_ended.
  apply all_ended_map. intros i I. apply in_seq in I. apply E. lia.
Qed.

(** One corollary for each layout. *)
Corollary inplace_law : right_law (inplace token).
Proof. apply layout_law. Qed.

(** Realigned, and rolled back. *)
Corollary left_padded_law : right_law (left_padded token).
Proof. apply layout_law. Qed.

Corollary masked_law : right_law (masked token).
Proof. apply layout_law. Qed.

Corollary paged_law : right_law (paged token).
Proof. apply layout_law. Qed.
End Rows.
