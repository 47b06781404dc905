(** Finite laws over exact rationals: weighted lists, compared through expectations. *)
From Coq Require Import QArith List Lqa Setoid Morphisms.
Import ListNotations.
Open Scope Q_scope.

Definition law (A : Type) := list (A * Q).

Fixpoint expect {A} (d : law A) (f : A -> Q) : Q :=
  match d with
  | [] => 0
  | (a, w) :: rest => w * f a + expect rest f
  end.

Definition ret {A} (a : A) : law A := [(a, 1)].

Definition scale {A} (w : Q) (d : law A) : law A := map (fun bv => (fst bv, w * snd bv)) d.

Fixpoint bind {A B} (d : law A) (k : A -> law B) : law B :=
  match d with
  | [] => []
  | (a, w) :: rest => scale w (k a) ++ bind rest k
  end.

Notation "x <- d ;; e" := (bind d (fun x => e)) (at level 80, d at level 79, right associativity).

Definition mass {A} (d : law A) : Q := expect d (fun _ => 1).

(** Two laws are the same when every observable has the same expectation. *)
Definition same_law {A} (d e : law A) : Prop := forall f, expect d f == expect e f.

Global Instance expect_proper {A} (d : law A) :
  Proper (pointwise_relation A Qeq ==> Qeq) (expect d).
Proof.
  intros f g H. induction d as [|[a w] d IH]; cbn; [reflexivity|].
  rewrite IH, (H a). reflexivity.
Qed.

Lemma expect_ext {A} (d : law A) f g : (forall a, f a == g a) -> expect d f == expect d g.
Proof. intro H. apply expect_proper. exact H. Qed.

Lemma expect_ret {A} (a : A) f : expect (ret a) f == f a.
Proof. cbn. lra. Qed.

Lemma expect_app {A} (d e : law A) f : expect (d ++ e) f == expect d f + expect e f.
Proof. induction d as [|[a w] d IH]; cbn; [lra|]. rewrite IH. ring. Qed.

Lemma expect_scale_law {A} w (d : law A) f : expect (scale w d) f == w * expect d f.
Proof. induction d as [|[a v] d IH]; cbn; [ring|]. unfold scale in IH. rewrite IH. ring. Qed.

Lemma expect_bind {A B} (d : law A) (k : A -> law B) f :
  expect (bind d k) f == expect d (fun a => expect (k a) f).
Proof.
  induction d as [|[a w] d IH]; cbn; [reflexivity|].
  rewrite expect_app, expect_scale_law, IH. reflexivity.
Qed.

Lemma expect_plus {A} (d : law A) f g :
  expect d (fun a => f a + g a) == expect d f + expect d g.
Proof. induction d as [|[a w] d IH]; cbn; [lra|]. rewrite IH. ring. Qed.

Lemma expect_mult {A} (d : law A) c f : expect d (fun a => c * f a) == c * expect d f.
Proof. induction d as [|[a w] d IH]; cbn; [ring|]. rewrite IH. ring. Qed.

Lemma expect_const {A} (d : law A) c : expect d (fun _ => c) == mass d * c.
Proof. unfold mass. induction d as [|[a w] d IH]; cbn; [ring|]. rewrite IH. ring. Qed.

Lemma expect_sure {A} (d : law A) c : mass d == 1 -> expect d (fun _ => c) == c.
Proof. intro H. rewrite expect_const, H. ring. Qed.

(** Fubini: two independent draws may be made in either order. *)
Lemma expect_swap {A B} (d : law A) (e : law B) f :
  expect d (fun a => expect e (fun b => f a b)) == expect e (fun b => expect d (fun a => f a b)).
Proof.
  induction d as [|[a w] d IH]; cbn.
  - rewrite expect_const. ring.
  - rewrite IH, <- expect_mult, <- expect_plus. reflexivity.
Qed.

Lemma mass_ret {A} (a : A) : mass (ret a) == 1.
Proof. exact (expect_ret a (fun _ => 1)). Qed.

Lemma mass_bind {A B} (d : law A) (k : A -> law B) :
  mass d == 1 -> (forall a, mass (k a) == 1) -> mass (bind d k) == 1.
Proof.
  intros Hd Hk. unfold mass. rewrite expect_bind.
  rewrite (expect_ext d _ (fun _ => 1)); [exact Hd|]. intro a. exact (Hk a).
Qed.

(** Independent draws from a list of laws. *)
Fixpoint product {A} (ds : list (law A)) : law (list A) :=
  match ds with
  | [] => ret []
  | d :: rest => x <- d ;; xs <- product rest ;; ret (x :: xs)
  end.

Lemma expect_product_cons {A} (d : law A) ds f :
  expect (product (d :: ds)) f == expect d (fun x => expect (product ds) (fun xs => f (x :: xs))).
Proof.
  cbn. rewrite expect_bind. apply expect_ext; intro x.
  rewrite expect_bind. apply expect_ext; intro xs. apply expect_ret.
Qed.

Lemma mass_product {A} (ds : list (law A)) : (forall d, In d ds -> mass d == 1) -> mass (product ds) == 1.
Proof.
  induction ds as [|d ds IH]; intro H; [apply mass_ret|].
  cbn. apply mass_bind; [apply H; now left|]. intro x.
  apply mass_bind; [apply IH; intros e He; apply H; now right|]. intro. apply mass_ret.
Qed.
