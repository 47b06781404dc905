(** One drafted token: accept or recover. The emitted token has the target's law.

    The acceptance probability [accept] and the residual are characterised by the two equations that the
    Z3 stage proves of the engine's own sampling formulas, so that the theorem speaks about any
    implementation of them; [accept_formula] and [residual_formula] show that such formulas exist. *)
From Coq Require Import QArith Qminmax List Lqa.
From RaggedSpec Require Import FiniteLaw.
Import ListNotations.
Open Scope Q_scope.

Section OneToken.
Variable token : Type.
Variable vocab : list token.

Definition total (f : token -> Q) : Q := expect (map (fun t => (t, 1)) vocab) f.
Definition pmf_law (p : token -> Q) : law token := map (fun t => (t, p t)) vocab.

Record is_pmf (p : token -> Q) : Prop := {
  pmf_nonneg : forall t, 0 <= p t;
  pmf_total : total p == 1 }.

Lemma expect_pmf p f : expect (pmf_law p) f == total (fun t => p t * f t).
Proof. unfold pmf_law, total. induction vocab as [|t v IH]; cbn; [reflexivity|]. rewrite IH. ring. Qed.

Lemma mass_pmf p : is_pmf p -> mass (pmf_law p) == 1.
Proof.
  intro H. unfold mass. rewrite expect_pmf. rewrite <- (pmf_total p H).
  apply expect_ext. intro. ring.
Qed.

Definition positive_part (x : Q) : Q := Qmax 0 x.
Definition excess (p q : token -> Q) : Q := total (fun t => positive_part (p t - q t)).

Record is_verifier (p q accept residual : token -> Q) : Prop := {
  accept_eq : forall t, q t * accept t == Qmin (p t) (q t);
  residual_eq : forall t, excess p q * residual t == positive_part (p t - q t) }.

Definition flip (a : Q) : law bool := [(true, a); (false, 1 - a)].

(** Draw from the draft, keep with probability [accept], otherwise draw from the residual. *)
Definition verified_token (q accept residual : token -> Q) : law (token * bool) :=
  x <- pmf_law q ;; b <- flip (accept x) ;;
  if b then ret (x, true) else y <- pmf_law residual ;; ret (y, false).

Lemma min_plus_positive p q : Qmin p q + positive_part (p - q) == p.
Proof.
  unfold positive_part. destruct (Qlt_le_dec p q) as [H|H].
  - rewrite Q.min_l, Q.max_l; lra.
  - rewrite Q.min_r, Q.max_r; lra.
Qed.

Lemma rejection_mass p q accept residual :
  is_pmf p -> is_pmf q -> is_verifier p q accept residual ->
  total (fun t => q t * (1 - accept t)) == excess p q.
Proof.
  intros Hp Hq [Ha _].
  assert (S : total (fun t => q t * (1 - accept t)) + total (fun t => Qmin (p t) (q t))
              == excess p q + total (fun t => Qmin (p t) (q t))).
  { unfold excess, total. rewrite <- !expect_plus.
    transitivity (total q).
    - apply expect_ext; intro t. rewrite <- Ha. ring.
    - rewrite (pmf_total q Hq), <- (pmf_total p Hp). apply expect_ext; intro t.
      rewrite <- (min_plus_positive (p t) (q t)) at 1. ring. }
  lra.
Qed.

(** THEOREM (one token). Whatever the draft law, the emitted token has the target's law. *)
Theorem verified_token_law p q accept residual :
  is_pmf p -> is_pmf q -> is_verifier p q accept residual ->
  forall f, expect (verified_token q accept residual) (fun tb => f (fst tb)) == expect (pmf_law p) f.
Proof.
  intros Hp Hq V f. pose proof (rejection_mass _ _ _ _ Hp Hq V) as R. destruct V as [Ha Hr].
  unfold verified_token. rewrite expect_bind, expect_pmf.
  set (recovered := expect (pmf_law residual) f).
  assert (B : forall x, expect (b <- flip (accept x) ;;
      if b then ret (x, true) else y <- pmf_law residual ;; ret (y, false)) (fun tb => f (fst tb))
      == accept x * f x + (1 - accept x) * recovered).
  { intro x. rewrite expect_bind. unfold flip. cbn [expect]. rewrite expect_ret. cbn [fst].
    rewrite expect_bind. rewrite (expect_ext (pmf_law residual) _ f); [unfold recovered; ring|].
    intro y. apply (expect_ret (y, false) (fun tb => f (fst tb))). }
  transitivity (total (fun t => Qmin (p t) (q t) * f t + recovered * (q t * (1 - accept t)))).
  { apply expect_ext; intro t. rewrite B, <- Ha. ring. }
  unfold total at 1. rewrite expect_plus, expect_mult. fold (total (fun t => q t * (1 - accept t))). rewrite R.
  assert (Z : recovered * excess p q == total (fun t => positive_part (p t - q t) * f t)).
  { unfold recovered. rewrite expect_pmf, Qmult_comm. unfold total at 1. rewrite <- expect_mult.
    apply expect_ext; intro t. rewrite Qmult_assoc, Hr. ring. }
  rewrite Z, expect_pmf. unfold total. rewrite <- expect_plus. apply expect_ext; intro t.
  rewrite <- (min_plus_positive (p t) (q t)) at 3. ring.
Qed.

(** The textbook formulas satisfy the two equations (division by zero is harmless). *)
Definition accept_formula (p q : token -> Q) t := Qmin 1 (p t / q t).
Definition residual_formula (p q : token -> Q) t := positive_part (p t - q t) / excess p q.

Lemma total_nonneg_zero (f : token -> Q) : (forall t, 0 <= f t) -> total f == 0 -> forall t, In t vocab -> f t == 0.
Proof.
  intros N. unfold total.
  assert (P : forall v, 0 <= expect (map (fun t => (t, 1)) v) f).
  { induction v as [|u v IH]; cbn; [lra|]. specialize (N u). lra. }
  induction vocab as [|u v IH]; cbn; [tauto|]. intros Z t [<-|H].
  - specialize (P v). specialize (N u). lra.
  - apply IH; [|exact H]. specialize (P v). specialize (N u). lra.
Qed.

(** THEOREM (instance). [min(1, p/q)] and the normalised positive part are a verifier. *)
Theorem formulas_verify p q :
  is_pmf p -> is_pmf q -> (forall t, In t vocab) -> is_verifier p q (accept_formula p q) (residual_formula p q).
Proof.
  intros Hp Hq Full. split; intro t.
  - unfold accept_formula. pose proof (pmf_nonneg p Hp t) as P. pose proof (pmf_nonneg q Hq t) as Q0.
    destruct (Qeq_dec (q t) 0) as [Z|NZ].
    + rewrite Z, Qmult_0_l. rewrite Q.min_r; [reflexivity|exact P].
    + assert (L : 0 < q t) by (apply Qle_lt_or_eq in Q0; destruct Q0 as [?|E]; [assumption|]; symmetry in E; contradiction).
      destruct (Qlt_le_dec (p t) (q t)) as [H|H].
      * rewrite (Q.min_l (p t)) by lra. rewrite Q.min_r; [field; exact NZ|].
        apply Qle_shift_div_r; lra.
      * rewrite (Q.min_r (p t)) by lra. rewrite Q.min_l; [ring|].
        apply Qle_shift_div_l; lra.
  - unfold residual_formula. destruct (Qeq_dec (excess p q) 0) as [Z|NZ].
    + assert (E : positive_part (p t - q t) == 0).
      { apply (total_nonneg_zero (fun t => positive_part (p t - q t))); auto. intro u. apply Q.le_max_l. }
      rewrite E. unfold Qdiv. rewrite Qmult_0_l. apply Qmult_0_r.
    + field. exact NZ.
Qed.

End OneToken.
