(** Block verification: the formulas of its kernels, and the step of the induction over the drafts.

    With P_0 = 1 and P_j = min(1, P_(j-1) p_j / q_j), a prefix of j drafts is to survive with probability P_j. Every depth is
    tested on its own, and the deepest that passes counts. *)
From Coq Require Import QArith Qminmax Arith List Lia Lqa Bool.
From RaggedSpec Require Import FiniteLaw Rejection.
Import ListNotations.
Open Scope Q_scope.

(** ** The formulas of the kernels *)

Definition block_mass (mass p q : Q) : Q := Qmin (mass * p / q) 1.
Definition block_total (mass rest : Q) : Q := rest + 1 - mass.

(** The fold of [last_accepted]. *)
Fixpoint fold_last (limit depth found : nat) (flags : list bool) : nat :=
  match flags with
  | [] => found
  | b :: rest => fold_last limit (S depth) (if b && (S depth <=? limit)%nat then S depth else found) rest
  end.

Fixpoint deepest (limit : nat) (flags : list bool) : nat :=
  match limit, flags with
  | S l, b :: rest => match deepest l rest with O => if b then 1 else 0 | S a => S (S a) end
  | _, _ => O
  end.

Lemma fold_last_deepest limit flags : forall depth found, fold_last limit depth found flags
  = match deepest (limit - depth) flags with O => found | S a => (depth + S a)%nat end.
Proof.
  induction flags as [|b rest IH]; intros depth found; cbn [fold_last].
  - destruct (limit - depth)%nat; reflexivity.
  - rewrite IH. destruct (Nat.leb_spec (S depth) limit) as [L|L].
    + replace (limit - depth)%nat with (S (limit - S depth)) by lia. cbn [deepest].
      destruct (deepest (limit - S depth) rest); destruct b; cbn [andb]; lia.
    + replace (limit - depth)%nat with O by lia. replace (limit - S depth)%nat with O by lia. rewrite andb_false_r.
      reflexivity.
Qed.

(** THEOREM. The fold gives the deepest draft within the limit whose test passes, for any number of drafts. *)
Theorem last_is_deepest limit flags : fold_last limit 0 0 flags = deepest limit flags.
Proof. rewrite fold_last_deepest, Nat.sub_0_r. destruct (deepest limit flags); reflexivity. Qed.

Lemma block_mass_range mass p q : 0 <= mass -> 0 <= p -> 0 <= q -> 0 <= block_mass mass p q <= 1.
Proof.
  intros M P N. unfold block_mass. split; [|apply Q.le_min_r]. apply Q.min_glb; [|lra].
  destruct (Qeq_dec q 0) as [Z|Z]; [rewrite Z; unfold Qdiv; cbn; lra|]. apply Qle_shift_div_l; [lra|]. nra.
Qed.

(** What the drafts take of the target's mass. *)
Lemma block_mass_drafted mass p q : 0 <= mass -> 0 <= p -> 0 <= q -> q * block_mass mass p q == Qmin (mass * p) q.
Proof.
  intros M P N. unfold block_mass. assert (0 <= mass * p) by nra. destruct (Qeq_dec q 0) as [Z|Z].
  - rewrite Z, (Q.min_r (mass * p) 0) by lra. ring.
  - destruct (Qlt_le_dec (mass * p) q) as [L|L].
    + rewrite (Q.min_l (mass * p)) by lra. rewrite Q.min_l; [field; exact Z|apply Qle_shift_div_r; lra].
    + rewrite (Q.min_r (mass * p)) by lra. rewrite Q.min_r; [ring|apply Qle_shift_div_l; lra].
Qed.

Section Formulas.
Variable token : Type.
Variable vocab : list token.
Notation text := (list token).
Notation total := (total token vocab).
Notation is_pmf := (is_pmf token vocab).
Notation pmf_law := (pmf_law token vocab).
Variables target draft : text -> token -> Q.

(** After a prefix of mass [m], with [n] drafts to come: what the target has left for a token behind it, and for all of them;
    the probability that the prefix passes its own test; the law of the token that then follows. *)
Definition unspent (n : nat) (m : Q) (g : text) (t : token) : Q :=
  positive_part (m * target g t - match n with O => 0 | S _ => draft g t end).
Definition rest (n : nat) (m : Q) (g : text) : Q := total (unspent n m g).
Definition passes (n : nat) (m : Q) (g : text) : Q := rest n m g / block_total m (rest n m g).
Definition left_law (n : nat) (m : Q) (g : text) (t : token) : Q :=
  if Qeq_bool (rest n m g) 0 then target g t else unspent n m g t / rest n m g.

(** The mass of a prefix of drafts. *)
Definition longer_mass (m : Q) (g : text) (x : token) : Q := block_mass m (target g x) (draft g x).
Fixpoint prefix_mass (m : Q) (g drafts : text) : Q :=
  match drafts with
  | [] => m
  | x :: xs => prefix_mass (longer_mass m g x) (g ++ [x]) xs
  end.

Lemma total_ext f g : (forall t, In t vocab -> f t == g t) -> total f == total g.
Proof.
  unfold Rejection.total. intro H. induction vocab as [|t v IH]; cbn; [reflexivity|].
  rewrite (H t (or_introl eq_refl)), IH; [reflexivity|]. intros u U. apply H. now right.
Qed.

Lemma total_le f g : (forall t, f t <= g t) -> total f <= total g.
Proof.
  intro H. unfold Rejection.total. induction vocab as [|t v IH]; cbn; [lra|]. specialize (H t). lra.
Qed.

Lemma total_nonneg f : (forall t, 0 <= f t) -> 0 <= total f.
Proof.
  intro H. unfold Rejection.total. induction vocab as [|t v IH]; cbn; [lra|]. specialize (H t). lra.
Qed.

Lemma total_plus f g : total (fun t => f t + g t) == total f + total g.
Proof. apply expect_plus. Qed.

Lemma total_mult c f : total (fun t => c * f t) == c * total f.
Proof. apply expect_mult. Qed.

Hypothesis target_pmf : forall g, is_pmf (target g).
Hypothesis draft_pmf : forall g, is_pmf (draft g).

Lemma unspent_nonneg n m g t : 0 <= unspent n m g t.
Proof. apply Q.le_max_l. Qed.

Lemma rest_nonneg n m g : 0 <= rest n m g.
Proof. apply total_nonneg, unspent_nonneg. Qed.

Lemma left_share n m g t : In t vocab -> rest n m g * left_law n m g t == unspent n m g t.
Proof.
  intro I. unfold left_law. destruct (Qeq_bool (rest n m g) 0) eqn:E.
  - apply Qeq_bool_iff in E. rewrite E, (total_nonneg_zero token vocab (unspent n m g) (unspent_nonneg n m g) E t I). ring.
  - apply Qeq_bool_neq in E. field. exact E.
Qed.

Lemma mass_left n m g : mass (pmf_law (left_law n m g)) == 1.
Proof.
  unfold mass. rewrite expect_pmf. unfold left_law. destruct (Qeq_bool (rest n m g) 0) eqn:E.
  - rewrite <- (pmf_total token vocab _ (target_pmf g)). apply total_ext. intros t _. ring.
  - apply Qeq_bool_neq in E. transitivity (/ rest n m g * total (unspent n m g));
      [|fold (rest n m g); field; exact E].
    rewrite <- total_mult. apply total_ext. intros t _. field. exact E.
Qed.

(** Behind the last draft a prefix passes with its mass, and the token is the target's. *)
Lemma rest_last m g : 0 <= m -> rest 0 m g == m.
Proof.
  intro M. transitivity (m * total (target g)); [|rewrite (pmf_total token vocab _ (target_pmf g)); ring].
  unfold rest. rewrite <- total_mult. apply total_ext. intros t _. unfold unspent, positive_part.
  pose proof (pmf_nonneg token vocab _ (target_pmf g) t). rewrite Q.max_r; [ring|nra].
Qed.

Lemma passes_last m g : 0 <= m -> passes 0 m g == m.
Proof. intro M. unfold passes, block_total. rewrite rest_last by exact M. field. lra. Qed.

Lemma left_law_last m g f : 0 <= m -> expect (pmf_law (left_law 0 m g)) f == expect (pmf_law (target g)) f.
Proof.
  intro M. rewrite !expect_pmf. apply total_ext. intros t I. pose proof (left_share 0 m g t I) as S.
  unfold left_law in *. destruct (Qeq_bool (rest 0 m g) 0) eqn:E; [reflexivity|]. apply Qeq_bool_neq in E.
  assert (U : unspent 0 m g t == rest 0 m g * target g t).
  { rewrite rest_last by exact M. unfold unspent, positive_part.
    pose proof (pmf_nonneg token vocab _ (target_pmf g) t). rewrite Q.max_r; [ring|nra]. }
  rewrite U. field. exact E.
Qed.

(** What the drafts take and what is left behind them are the target's mass; and how often no deeper test passes. *)
Lemma taken n m g : 0 <= m <= 1 ->
  total (fun x => draft g x * (1 - longer_mass m g x)) == block_total m (rest (S n) m g).
Proof.
  intro M. assert (S : total (fun x => draft g x * longer_mass m g x) + rest (S n) m g == m).
  { unfold rest. rewrite <- total_plus. transitivity (m * total (target g)).
    - rewrite <- total_mult. apply total_ext. intros x _. unfold longer_mass.
      rewrite block_mass_drafted by (try apply pmf_nonneg with vocab; auto; lra).
      unfold unspent. apply (min_plus_positive (m * target g x) (draft g x)).
    - rewrite (pmf_total token vocab _ (target_pmf g)). ring. }
  assert (D : total (fun x => draft g x * (1 - longer_mass m g x)) + total (fun x => draft g x * longer_mass m g x) == 1).
  { rewrite <- total_plus, <- (pmf_total token vocab _ (draft_pmf g)). apply total_ext. intros x _. ring. }
  unfold block_total. lra.
Qed.

Lemma passes_share n m g : 0 <= m <= 1 -> block_total m (rest n m g) * passes n m g == rest n m g.
Proof.
  intro M. unfold passes. pose proof (rest_nonneg n m g) as R. set (b := block_total m (rest n m g)).
  destruct (Qeq_dec b 0) as [E|E]; [|field; exact E]. unfold block_total in b. subst b. rewrite E. lra.
Qed.

(** The heart of it: a draft is taken and survives, or none of those behind survives and the prefix passes with
    probability [pass]. A token then follows with [m] times the target's probability. *)
Lemma weighed n m g pass c : 0 <= m <= 1 -> block_total m (rest (S n) m g) * pass == rest (S n) m g ->
  total (fun x => draft g x * (longer_mass m g x * c x
    + (1 - longer_mass m g x) * (pass * expect (pmf_law (left_law (S n) m g)) c)))
  == m * expect (pmf_law (target g)) c.
Proof.
  intros M Share. set (r := expect (pmf_law (left_law (S n) m g)) c).
  transitivity (total (fun x => draft g x * longer_mass m g x * c x)
    + pass * r * total (fun x => draft g x * (1 - longer_mass m g x))).
  { rewrite <- total_mult, <- total_plus. apply total_ext. intros x _. ring. }
  rewrite (taken n m g M).
  transitivity (total (fun x => draft g x * longer_mass m g x * c x) + rest (S n) m g * r).
  { transitivity (total (fun x => draft g x * longer_mass m g x * c x)
      + block_total m (rest (S n) m g) * pass * r); [ring|]. rewrite Share. reflexivity. }
  unfold r. rewrite !expect_pmf, <- !total_mult, <- total_plus. apply total_ext. intros x I.
  rewrite Qmult_assoc, (left_share (S n) m g x I). unfold longer_mass.
  rewrite block_mass_drafted by (try apply pmf_nonneg with vocab; auto; lra).
  transitivity ((Qmin (m * target g x) (draft g x) + positive_part (m * target g x - draft g x)) * c x);
    [unfold unspent; ring|]. rewrite min_plus_positive. ring.
Qed.
End Formulas.
