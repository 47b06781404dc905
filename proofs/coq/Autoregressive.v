(** One row: autoregressive decoding, and a speculative round of any length with any drafts. *)
From Coq Require Import QArith Arith List Lia Bool.
From RaggedSpec Require Import FiniteLaw Rejection.
Import ListNotations.
Open Scope Q_scope.

(** Facts that hold of every outcome of a law. *)
Definition always {A} (P : A -> Prop) (d : law A) : Prop := Forall (fun aw => P (fst aw)) d.

Lemma always_ret {A} (P : A -> Prop) a : P a -> always P (ret a).
Proof. intro H. constructor; [exact H|constructor]. Qed.

Lemma always_bind {A B} (P : A -> Prop) (R : B -> Prop) d (k : A -> law B) :
  always P d -> (forall a, P a -> always R (k a)) -> always R (bind d k).
Proof.
  intros Hd Hk. induction d as [|[a w] d IH]; [constructor|]. inversion Hd as [|x l Ha Hr]; subst.
  cbn. apply Forall_app. split; [|apply IH; exact Hr].
  unfold scale. apply Forall_map. exact (Hk a Ha).
Qed.

Lemma always_true {A} (d : law A) : always (fun _ => True) d.
Proof. induction d; constructor; auto. Qed.

Lemma expect_ext_always {A} (P : A -> Prop) (d : law A) f g :
  always P d -> (forall a, P a -> f a == g a) -> expect d f == expect d g.
Proof.
  intros Hd H. induction Hd as [|[a w] d Ha Hd IH]; cbn; [reflexivity|].
  rewrite IH, (H a Ha). reflexivity.
Qed.

Section Row.
Variable token : Type.
Variable vocab : list token.
Notation text := (list token).

(** A job is a prompt seen from outside: the target's law after each generated text, when to stop, the budget. *)
Record job := {
  target : text -> token -> Q;
  stops : text -> bool;
  budget : nat;
  target_pmf : forall g, is_pmf token vocab (target g) }.

Definition ended (j : job) (g : text) : bool := (budget j <=? length g)%nat || stops j g.

Fixpoint decode (fuel : nat) (j : job) (g : text) : law text :=
  match fuel with
  | O => ret g
  | S n => if ended j g then ret g else t <- pmf_law token vocab (target j g) ;; decode n j (g ++ [t])
  end.

(** The law of the finished text, given the text generated so far. *)
Definition complete (j : job) (g : text) : law text := decode (budget j - length g) j g.

Lemma complete_ended j g : ended j g = true -> complete j g = ret g.
Proof. intro H. unfold complete. destruct (budget j - length g)%nat; cbn; [|rewrite H]; reflexivity. Qed.

Lemma complete_step j g : ended j g = false ->
  complete j g = (t <- pmf_law token vocab (target j g) ;; complete j (g ++ [t])).
Proof.
  intro H. unfold complete. pose proof H as H'. unfold ended in H'. apply orb_false_iff in H' as [B _].
  apply Nat.leb_gt in B.
  destruct (budget j - length g)%nat as [|n] eqn:E; [lia|]. cbn. rewrite H.
  assert (X : forall t, (budget j - length (g ++ [t]))%nat = n) by (intro; rewrite app_length; cbn; lia).
  clear E B H. induction (pmf_law token vocab (target j g)) as [|[t w] d IH]; [reflexivity|].
  cbn. rewrite X, IH. reflexivity.
Qed.

(** A drafter proposes from any law [draft]; the verifier's formulas answer it. *)
Record drafter (j : job) := {
  draft : text -> token -> Q;
  accept : text -> token -> Q;
  residual : text -> token -> Q;
  draft_pmf : forall g, is_pmf token vocab (draft g);
  verifies : forall g, is_verifier token vocab (target j g) (draft g) (accept g) (residual g) }.
Arguments draft {j}. Arguments accept {j}. Arguments residual {j}.

Definition try_token {j} (s : drafter j) (g : text) : law (token * bool) :=
  verified_token token vocab (draft s g) (accept s g) (residual s g).

Lemma try_token_law {j} (s : drafter j) g f :
  expect (try_token s g) (fun tb => f (fst tb)) == expect (pmf_law token vocab (target j g)) f.
Proof.
  apply verified_token_law; [apply target_pmf|apply (draft_pmf j s)|apply (verifies j s)].
Qed.

(** A round with [k] drafts: the accepted prefix and one more token. *)
Fixpoint round {j} (s : drafter j) (k : nat) (g : text) : law text :=
  match k with
  | O => t <- pmf_law token vocab (target j g) ;; ret [t]
  | S k' => tb <- try_token s g ;;
      if snd tb then ys <- round s k' (g ++ [fst tb]) ;; ret (fst tb :: ys) else ret [fst tb]
  end.

(** The same as engines compute it: draft all [k] first, then verify. *)
Fixpoint draft_tokens {j} (s : drafter j) (k : nat) (g : text) : law text :=
  match k with
  | O => ret []
  | S k' => x <- pmf_law token vocab (draft s g) ;; xs <- draft_tokens s k' (g ++ [x]) ;; ret (x :: xs)
  end.

Fixpoint verify {j} (s : drafter j) (g : text) (drafts : text) : law text :=
  match drafts with
  | [] => t <- pmf_law token vocab (target j g) ;; ret [t]
  | x :: xs => b <- flip (accept s g x) ;;
      if b then ys <- verify s (g ++ [x]) xs ;; ret (x :: ys)
      else y <- pmf_law token vocab (residual s g) ;; ret [y]
  end.

Lemma mass_draft_tokens {j} (s : drafter j) k g : mass (draft_tokens s k g) == 1.
Proof.
  revert g; induction k as [|k IH]; intro g; [apply mass_ret|].
  cbn. apply mass_bind; [apply mass_pmf, (draft_pmf j s)|]. intro x.
  apply mass_bind; [apply IH|]. intro. apply mass_ret.
Qed.

(** THEOREM. Drafting ahead and verifying in one pass has the law of proposing token by token. *)
Theorem draft_then_verify {j} (s : drafter j) k g :
  same_law (xs <- draft_tokens s k g ;; verify s g xs) (round s k g).
Proof.
  revert g; induction k as [|k IH]; intros g f.
  - rewrite expect_bind. cbn [draft_tokens]. rewrite expect_ret. reflexivity.
  - cbn [draft_tokens round]. unfold try_token, verified_token.
    rewrite !expect_bind. apply expect_ext; intro x.
    rewrite !expect_bind. set (d := draft_tokens s k (g ++ [x])).
    transitivity (expect d (fun xs => expect (verify s g (x :: xs)) f)).
    { apply expect_ext; intro xs. apply (expect_ret (x :: xs) (fun ys => expect (verify s g ys) f)). }
    cbn [verify]. transitivity (expect d (fun xs => expect (flip (accept s g x)) (fun b => expect
        (if b then ys <- verify s (g ++ [x]) xs ;; ret (x :: ys)
         else y <- pmf_law token vocab (residual s g) ;; ret [y]) f))).
    { apply expect_ext; intro xs. apply expect_bind. }
    rewrite expect_swap. apply expect_ext; intros [|].
    + rewrite expect_ret. cbn [fst snd]. rewrite expect_bind, <- (IH (g ++ [x]) (fun ys => expect (ret (x :: ys)) f)).
      fold d. rewrite expect_bind. apply expect_ext; intro xs. rewrite expect_bind. reflexivity.
    + rewrite expect_sure by apply mass_draft_tokens. rewrite !expect_bind.
      apply expect_ext; intro y. etransitivity; [|symmetry; apply (expect_ret (y, false))]. reflexivity.
Qed.

Lemma mass_round {j} (s : drafter j) k g : mass (round s k g) == 1.
Proof.
  revert g; induction k as [|k IH]; intro g; cbn.
  - apply mass_bind; [apply mass_pmf, target_pmf|]. intro. apply mass_ret.
  - apply mass_bind.
    + unfold mass. rewrite (try_token_law s g (fun _ => 1)). apply mass_pmf, target_pmf.
    + intros [t b]; cbn. destruct b; [|apply mass_ret]. apply mass_bind; [apply IH|]. intro. apply mass_ret.
Qed.

(** THEOREM (progress). A round yields at least one and at most [k + 1] tokens. *)
Theorem round_length {j} (s : drafter j) k g : always (fun ys => 1 <= length ys <= S k)%nat (round s k g).
Proof.
  revert g; induction k as [|k IH]; intro g; cbn.
  - eapply always_bind; [apply always_true|]. intros t _. apply always_ret. cbn. lia.
  - eapply always_bind; [apply always_true|]. intros [t b] _; cbn. destruct b; [|apply always_ret; cbn; lia].
    eapply always_bind; [apply IH|]. intros ys H. cbn in H. apply always_ret. cbn. lia.
Qed.

(** What a row commits: tokens up to its end, whatever the round offers beyond it. *)
Fixpoint extend (j : job) (g ys : text) : text :=
  match ys with
  | [] => g
  | y :: rest => if ended j g then g else extend j (g ++ [y]) rest
  end.

Lemma extend_ended j g ys : ended j g = true -> extend j g ys = g.
Proof. intro H. destruct ys; cbn; [|rewrite H]; reflexivity. Qed.

Lemma extend_grows j g ys : (1 <= length ys)%nat -> ended j g = false -> (S (length g) <= length (extend j g ys))%nat.
Proof.
  intros L H. destruct ys as [|y ys]; cbn in L; [lia|]. cbn. rewrite H. clear L H.
  assert (G : forall zs h, (length h <= length (extend j h zs))%nat).
  { induction zs as [|z zs IH]; intro h; cbn; [lia|]. destruct (ended j h); [lia|].
    specialize (IH (h ++ [z])). rewrite app_length in IH. cbn in IH. lia. }
  specialize (G ys (g ++ [y])). rewrite app_length in G. cbn in G. lia.
Qed.

(** A law of "text after some action" is exact when finishing from there is finishing from here. *)
Definition row_exact (j : job) (g : text) (d : law text) : Prop :=
  forall F, expect d (fun g' => expect (complete j g') F) == expect (complete j g) F.

(** THEOREM (chain and truncation). A round of [k] drafts, committed up to any [cap], the budget and the stop
    rule, leaves the law of the finished text as it was. *)
Theorem round_exact {j} (s : drafter j) k cap g :
  row_exact j g (ys <- round s k g ;; ret (extend j g (firstn cap ys))).
Proof.
  intro F. rewrite expect_bind.
  transitivity (expect (round s k g) (fun ys => expect (complete j (extend j g (firstn cap ys))) F)).
  { apply expect_ext; intro ys.
    apply (expect_ret (extend j g (firstn cap ys)) (fun g' => expect (complete j g') F)). }
  revert cap g. induction k as [|k IH]; intros cap g.
  all: destruct (ended j g) eqn:E; [rewrite (expect_ext _ _ (fun _ => expect (complete j g) F));
    [apply expect_sure, mass_round|intro ys; rewrite extend_ended by exact E; reflexivity]|].
  all: destruct cap as [|cap]; [cbn [firstn extend]; apply expect_sure, mass_round|].
  - cbn [round]. rewrite expect_bind, (complete_step j g E), expect_bind. apply expect_ext; intro t.
    rewrite expect_ret. destruct cap; cbn; rewrite E; reflexivity.
  - cbn [round]. rewrite expect_bind, (complete_step j g E), expect_bind.
    rewrite <- (try_token_law s g (fun t => expect (complete j (g ++ [t])) F)).
    apply expect_ext; intros [t b]; cbn [fst snd]. destruct b.
    + rewrite expect_bind, <- (IH cap (g ++ [t])). apply expect_ext; intro ys.
      rewrite expect_ret. cbn [firstn extend]. rewrite E. reflexivity.
    + rewrite expect_ret. cbn [firstn extend]. rewrite E. destruct cap; reflexivity.
Qed.

(** Speculative decoding of one row: drafter, number of drafts and cap may depend on the text so far. *)
Fixpoint speculate (fuel : nat) {j} (s : text -> drafter j) (k cap : text -> nat) (g : text) : law text :=
  match fuel with
  | O => ret g
  | S n => if ended j g then ret g
           else ys <- round (s g) (k g) g ;; speculate n s k cap (extend j g (firstn (S (cap g)) ys))
  end.

(** THEOREM (one row). Speculative decoding has the law of autoregressive decoding, for any drafters, any [k] and
    any cap that depend on the context, after at most [budget] rounds. *)
Theorem speculate_law fuel {j} (s : text -> drafter j) k cap g :
  (budget j - length g <= fuel)%nat -> same_law (speculate fuel s k cap g) (complete j g).
Proof.
  revert g; induction fuel as [|n IH]; intros g B F; cbn.
  - rewrite complete_ended; [reflexivity|]. unfold ended. apply orb_true_iff. left. apply Nat.leb_le. lia.
  - destruct (ended j g) eqn:E; [rewrite complete_ended by exact E; reflexivity|].
    rewrite <- (round_exact (s g) (k g) (S (cap g)) g F), !expect_bind.
    apply (expect_ext_always _ _ _ _ (round_length (s g) (k g) g)). intros ys [L _].
    rewrite (expect_ret (extend j g (firstn (S (cap g)) ys)) (fun g' => expect (complete j g') F)). apply IH.
    assert (L' : (1 <= length (firstn (S (cap g)) ys))%nat) by (rewrite firstn_length; lia).
    pose proof (extend_grows j g _ L' E). lia.
Qed.

End Row.
