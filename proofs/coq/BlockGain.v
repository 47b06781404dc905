(** Block verification never offers fewer tokens in expectation than testing the same drafts one by one. *)
From Coq Require Import ZArith QArith Qminmax Arith List Lia Lqa Bool.
From RaggedSpec Require Import FiniteLaw Rejection Autoregressive EngineRound BlockRule BlockRound.
Import ListNotations.
Open Scope Q_scope.

Section Gain.
Variable token : Type.
Variable vocab : list token.
Notation text := (list token).
Notation total := (total token vocab).
Notation pmf_law := (pmf_law token vocab).
Variable j : job token vocab.
Variable s : drafter token vocab j.
Notation target := (target token vocab j).
Notation draft := (draft token vocab j s).
Notation passes := (passes token vocab target draft).
Notation longer m g x := (longer_mass token target draft m g x).
Notation round := (round token vocab s).
Notation worth := (worth token).
Notation weigh := (weigh token vocab j s).
Notation fair := (fair token vocab j s).
Notation block_engine_round := (block_engine_round token vocab j s).
Notation target_is := (target_is token vocab j).
Notation draft_is := (draft_is token vocab j s).

(** What a round is worth where each token is worth [u] of the text before it. *)
Fixpoint gain (u : text -> Q) (g ys : text) : Q :=
  match ys with
  | [] => 0
  | y :: rest => u g + gain u (g ++ [y]) rest
  end.

Section Worth.
Variable u : text -> Q.
Hypothesis u_nonneg : forall g, 0 <= u g.

Lemma round_gain n g : expect (round (S n) g) (gain u g)
  == u g + total (fun x => Qmin (target g x) (draft g x) * expect (round n (g ++ [x])) (gain u (g ++ [x]))).
Proof.
  cbn [Autoregressive.round]. set (w := fun x => expect (round n (g ++ [x])) (gain u (g ++ [x]))). rewrite expect_bind.
  transitivity (expect (try_token token vocab s g) (fun tb => u g + (if snd tb then w (fst tb) else 0))).
  - apply expect_ext; intros [t b]. cbn [fst snd]. destruct b; [|rewrite expect_ret; cbn [gain]; ring].
    rewrite expect_bind. transitivity (expect (round n (g ++ [t])) (fun ys => u g + gain u (g ++ [t]) ys)).
    + apply expect_ext; intro ys. apply (expect_ret (t :: ys) (gain u g)).
    + rewrite expect_plus, expect_sure by apply mass_round. reflexivity.
  - rewrite expect_plus. apply Qplus_comp.
    + rewrite (try_token_law token vocab s g (fun _ => u g)). apply expect_sure, mass_pmf, target_is.
    + unfold try_token, verified_token. rewrite expect_bind, expect_pmf. apply expect_ext; intro x.
      rewrite <- (accept_eq token vocab _ _ _ _ (verifies token vocab j s g) x), <- Qmult_assoc.
      apply Qmult_comp; [reflexivity|]. rewrite expect_bind. unfold flip. cbn [expect]. rewrite expect_ret. cbn [fst snd].
      rewrite expect_bind, (expect_ext _ _ (fun _ => 0)); [rewrite expect_const; unfold w; ring|].
      intro y. apply (expect_ret (y, false) (fun tb : token * bool => if snd tb then w (fst tb) else 0)).
Qed.

Lemma round_gain_nonneg n g : 0 <= expect (round n g) (gain u g).
Proof.
  revert g; induction n as [|n IH]; intro g.
  - cbn [Autoregressive.round]. rewrite expect_bind, (expect_ext _ _ (fun _ => u g)).
    + rewrite expect_sure by apply mass_pmf, target_is. apply u_nonneg.
    + intro t. rewrite expect_ret. cbn [gain]. ring.
  - rewrite round_gain. specialize (u_nonneg g).
    assert (0 <= total (fun x => Qmin (target g x) (draft g x) * expect (round n (g ++ [x])) (gain u (g ++ [x]))));
      [|lra]. apply total_nonneg. intro x. apply Qmult_le_0_compat; [|apply IH].
    apply Q.min_glb; [apply (pmf_nonneg token vocab), target_is|apply (pmf_nonneg token vocab), draft_is].
Qed.

Lemma weigh_gain n pass m g : fair n pass m g ->
  m * expect (round n g) (gain u g) <= expect (weigh n pass m g) (worth (gain u g)).
Proof.
  revert pass m g; induction n as [|n IH]; intros pass m g F.
  - rewrite (weigh_last token vocab j s _ _ _ _ F). cbn [Autoregressive.round]. rewrite expect_bind.
    rewrite (expect_ext _ _ (fun t => gain u g [t])); [lra|]. intro t. apply expect_ret.
  - rewrite (weigh_further token vocab j s _ _ _ _ _ F), round_gain. unfold further.
    set (w := fun x => expect (round n (g ++ [x])) (gain u (g ++ [x]))).
    set (v := fun x => expect (weigh n (passes n (longer m g x) (g ++ [x])) (longer m g x) (g ++ [x]))
      (worth (gain u (g ++ [x])))).
    apply Qle_trans with (m * u g + total (fun x => draft g x * v x)).
    + rewrite Qmult_plus_distr_r, <- total_mult. apply Qplus_le_r. apply total_le. intro x.
      pose proof (IH _ _ _ (fair_passes token vocab j s n m g x (proj1 (proj1 F)))) as V. fold (w x) in V. fold (v x) in V.
      pose proof (round_gain_nonneg n (g ++ [x])) as W. fold (w x) in W.
      pose proof (pmf_nonneg token vocab _ (target_is g) x) as P. pose proof (pmf_nonneg token vocab _ (draft_is g) x) as N.
      destruct F as [[M0 M1] _].
      assert (S : m * Qmin (target g x) (draft g x) <= draft g x * longer m g x).
      { unfold longer_mass. rewrite block_mass_drafted by assumption.
        pose proof (Q.le_min_l (target g x) (draft g x)). pose proof (Q.le_min_r (target g x) (draft g x)).
        apply Q.min_glb; nra. }
      change (m * (Qmin (target g x) (draft g x) * w x) <= draft g x * v x).
      apply Qle_trans with (draft g x * longer m g x * w x); [rewrite Qmult_assoc; apply Qmult_le_compat_r; assumption|].
      rewrite <- Qmult_assoc, !(Qmult_comm (draft g x)). apply Qmult_le_compat_r; assumption.
    + apply Qle_lteq. right. transitivity (m * expect (pmf_law (target g)) (fun _ => u g) + total (fun x => draft g x * v x));
        [rewrite expect_sure by apply mass_pmf, target_is; lra|].
      rewrite <- (weighed_step token vocab j s n pass m g (fun _ => u g) F), <- total_plus. apply expect_ext; intro x.
      assert (G : expect (weigh n (passes n (longer m g x) (g ++ [x])) (longer m g x) (g ++ [x]))
        (worth (fun ys => gain u g (x :: ys))) == longer m g x * u g + v x).
      { rewrite <- (survives_const token vocab j s _ _ _ _ (u g) (fair_passes token vocab j s n m g x (proj1 (proj1 F)))).
        unfold v. rewrite <- expect_plus. apply expect_ext; intros [ys|]; cbn [worth gain]; ring. }
      rewrite G. cbn [gain]. rewrite (expect_ext _ (fun t => u g + 0) (fun _ => u g)) by (intro; ring). ring.
Qed.

(** THEOREM (never shorter). Whatever a token is worth where it stands, a round is worth no less in expectation than one whose
    drafts are tested one by one. With 1 for every text, a round is worth the tokens that it offers; with 1 up to the row's end,
    those that it commits; with 1 for texts of one length alone, the chance that it is as long as that. *)
Theorem block_never_shorter k limit g : (limit <= k)%nat ->
  expect (engine_round token vocab j s k limit g) (gain u g) <= expect (block_engine_round k limit g) (gain u g).
Proof.
  intro L. rewrite (engine_round_law token vocab j s k limit g L (gain u g)).
  rewrite (block_engine_law token vocab j s k limit g L (gain u g)), block_round_weigh.
  pose proof (weigh_gain limit 1 1 g (fair_one token vocab j s limit g)). lra.
Qed.
End Worth.

(** Drafts that a round accepts. *)
Definition accepted (ys : text) : Q := inject_Z (Z.of_nat (length ys)) - 1.

Lemma gain_one g ys : gain (fun _ => 1) g ys == accepted ys + 1.
Proof.
  revert g; induction ys as [|y ys IH]; intro g; [unfold accepted; cbn; ring|]. cbn [gain]. rewrite IH. unfold accepted.
  cbn [length]. rewrite Nat2Z.inj_succ, <- Z.add_1_r, inject_Z_plus. ring.
Qed.

Corollary block_accepts_no_fewer k limit g : (limit <= k)%nat ->
  expect (engine_round token vocab j s k limit g) accepted <= expect (block_engine_round k limit g) accepted.
Proof.
  intro L. pose proof (block_never_shorter (fun _ => 1) ltac:(intro; cbv beta; lra) k limit g L) as N.
  rewrite !(expect_ext _ (gain (fun _ => 1) g) (fun ys => accepted ys + 1)), !expect_plus in N by (intro; apply gain_one).
  rewrite !(expect_sure _ 1) in N; [lra| |].
  - unfold mass. rewrite (block_engine_law token vocab j s k limit g L (fun _ => 1)). apply mass_block_round.
  - unfold mass. rewrite (engine_round_law token vocab j s k limit g L (fun _ => 1)). apply mass_round.
Qed.
(** Tokens that a round commits: up to the row's end. *)
Notation ended := (ended token vocab j).
Notation extend := (extend token vocab j).
Definition size (g : text) : Q := inject_Z (Z.of_nat (length g)).

Definition over (start : nat) (h : text) : bool :=
  existsb (fun n => ended (firstn n h)) (seq start (S (length h) - start)).

Lemma over_snoc start h y : (start <= length h)%nat -> over start (h ++ [y]) = over start h || ended (h ++ [y]).
Proof.
  intro L. unfold over. rewrite app_length. cbn [length].
  replace (S (length h + 1) - start)%nat with (S (S (length h) - start)) by lia.
  rewrite seq_S, existsb_app. cbn [existsb]. rewrite orb_false_r. f_equal.
  - apply eq_true_iff_eq. rewrite !existsb_exists. split; intros (n & I & E); exists n; (split; [exact I|]);
      apply in_seq in I; rewrite firstn_app in *; replace (n - length h)%nat with O in * by lia;
      cbn [firstn] in *; rewrite app_nil_r in *; exact E.
  - rewrite firstn_all2 by (rewrite app_length; cbn [length]; lia). reflexivity.
Qed.

Lemma over_ended start h : (start <= length h)%nat -> over start h = false -> ended h = false.
Proof.
  intros L O. apply not_true_iff_false. intro E. apply not_true_iff_false in O. apply O. unfold over.
  apply existsb_exists. exists (length h). split; [apply in_seq; lia|]. rewrite firstn_all. exact E.
Qed.

Lemma gain_committed start ys h : (start <= length h)%nat ->
  gain (fun g => if over start g then 0 else 1) h ys == if over start h then 0 else size (extend h ys) - size h.
Proof.
  revert h; induction ys as [|y ys IH]; intros h L; cbn [gain Autoregressive.extend].
  - destruct (over start h); ring.
  - assert (L' : (start <= length (h ++ [y]))%nat) by (rewrite app_length; lia).
    rewrite (IH _ L'), over_snoc by exact L. destruct (over start h) eqn:O; [cbn [orb]; ring|]. cbn [orb].
    rewrite (over_ended _ _ L O). assert (S : size (h ++ [y]) == size h + 1).
    { unfold size. rewrite app_length, Nat2Z.inj_add, inject_Z_plus. reflexivity. }
    destruct (ended (h ++ [y])) eqn:E; [rewrite extend_ended by exact E|]; rewrite S; ring.
Qed.

Corollary block_commits_no_fewer k limit g : (limit <= k)%nat ->
  expect (engine_round token vocab j s k limit g) (fun ys => size (extend g ys) - size g)
  <= expect (block_engine_round k limit g) (fun ys => size (extend g ys) - size g).
Proof.
  intro L. destruct (ended g) eqn:E.
  - rewrite !(expect_ext _ (fun ys => size (extend g ys) - size g) (fun _ => 0)).
    + rewrite !expect_const. lra.
    + intro ys. rewrite extend_ended by exact E. ring.
    + intro ys. rewrite extend_ended by exact E. ring.
  - assert (O : over (length g) g = false).
    { unfold over. replace (S (length g) - length g)%nat with 1%nat by lia. cbn [seq existsb]. rewrite firstn_all, E.
      reflexivity. }
    assert (N : forall h, 0 <= (if over (length g) h then 0 else 1)) by (intro h; destruct (over (length g) h); lra).
    pose proof (block_never_shorter _ N k limit g L) as M.
    rewrite !(expect_ext _ (gain _ g) (fun ys => size (extend g ys) - size g)) in M; [exact M| |];
      intro ys; rewrite gain_committed, O by reflexivity; reflexivity.
Qed.
End Gain.
