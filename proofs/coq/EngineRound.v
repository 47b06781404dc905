(** A round as the engine computes it: draft [k] tokens, test all of them at once, keep the leading run within the
    row's own limit, then draw one more token. Same law as proposing token by token, up to the limit. *)
From Coq Require Import QArith Arith List Lia Bool.
From RaggedSpec Require Import FiniteLaw Rejection Autoregressive.
Import ListNotations.
Open Scope Q_scope.

(** ** The length of the accepted prefix, as a fold over the match flags *)

(** The running product and the sum so far, as in [num_accepted]. *)
Fixpoint fold_run (run total : nat) (flags : list bool) : nat :=
  match flags with
  | [] => total
  | b :: rest => let run' := (run * if b then 1 else 0)%nat in fold_run run' (total + run') rest
  end.

Fixpoint leading (flags : list bool) : nat :=
  match flags with true :: rest => S (leading rest) | _ => O end.

Lemma fold_run_stopped total flags : fold_run 0 total flags = total.
Proof. revert total; induction flags as [|b l IH]; intro t; cbn; [reflexivity|]. rewrite IH. lia. Qed.

(** THEOREM. The sum of the running products is the length of the leading run, for any number of drafts. *)
Theorem fold_is_leading total flags : fold_run 1 total flags = (total + leading flags)%nat.
Proof.
  revert total; induction flags as [|[|] l IH]; intro t; cbn [fold_run leading]; [lia| |].
  - change (1 * 1)%nat with 1%nat. rewrite IH. lia.
  - change (1 * 0)%nat with 0%nat. rewrite fold_run_stopped. lia.
Qed.

Lemma expect_all_same {A} (d : law A) f c : mass d == 1 -> (forall a, f a == c) -> expect d f == c.
Proof. intros M H. rewrite (expect_ext d f (fun _ => c) H). apply expect_sure. exact M. Qed.

Section EngineRound.
Variable token : Type.
Variable vocab : list token.
Notation text := (list token).
Variable j : job token vocab.
Variable s : drafter token vocab j.

Notation target_at g := (pmf_law token vocab (target token vocab j g)).
Notation residual_at g := (pmf_law token vocab (residual token vocab j s g)).

(** Independent tests of all drafts, each against the text and the drafts before it. *)
Fixpoint tests (g drafts : text) : law (list bool) :=
  match drafts with
  | [] => ret []
  | x :: xs => b <- flip (accept token vocab j s g x) ;; bs <- tests (g ++ [x]) xs ;; ret (b :: bs)
  end.

(** After [a] accepted drafts: the residual where a draft was rejected, the target's own law at the limit. *)
Definition next_token (g drafts : text) (limit a : nat) : law token :=
  if (a <? limit)%nat then residual_at (g ++ firstn a drafts) else target_at (g ++ firstn a drafts).

Definition engine_round (k limit : nat) (g : text) : law text :=
  xs <- draft_tokens token vocab s k g ;; bs <- tests g xs ;;
  let a := Nat.min (leading bs) limit in
  t <- next_token g xs limit a ;; ret (firstn a xs ++ [t]).

Lemma mass_tests g drafts : mass (tests g drafts) == 1.
Proof.
  revert g; induction drafts as [|x xs IH]; intro g; [apply mass_ret|].
  cbn [tests]. apply mass_bind; [unfold mass, flip; cbn; ring|]. intro b.
  apply mass_bind; [apply IH|]. intro. apply mass_ret.
Qed.

Lemma expect_tests_cons g x xs f :
  expect (tests g (x :: xs)) f
  == expect (flip (accept token vocab j s g x)) (fun b => expect (tests (g ++ [x]) xs) (fun bs => f (b :: bs))).
Proof.
  cbn [tests]. rewrite expect_bind. apply expect_ext; intro b.
  rewrite expect_bind. apply expect_ext; intro bs. apply (expect_ret (b :: bs) f).
Qed.

(** THEOREM. A row may draft more than it can use, beside rows with more room: with its own [limit] the round has the
    law of a round of [limit] drafts. *)
Theorem engine_round_law k limit g : (limit <= k)%nat ->
  same_law (engine_round k limit g) (round token vocab s limit g).
Proof.
  revert k g; induction limit as [|limit IH]; intros k g L f; unfold engine_round; rewrite expect_bind.
  - transitivity (expect (draft_tokens token vocab s k g) (fun _ => expect (target_at g) (fun t => f [t]))).
    + apply expect_ext; intro xs. rewrite expect_bind. apply expect_all_same; [apply mass_tests|].
      intro bs. rewrite Nat.min_0_r. unfold next_token. cbn [Nat.ltb Nat.leb firstn app].
      rewrite app_nil_r, expect_bind. apply expect_ext; intro t. apply (expect_ret [t] f).
    + rewrite expect_sure by apply mass_draft_tokens. cbn [round]. rewrite expect_bind.
      apply expect_ext; intro t. symmetry. apply (expect_ret [t] f).
  - destruct k as [|k]; [lia|]. cbn [draft_tokens round]. unfold try_token, verified_token.
    rewrite !expect_bind. apply expect_ext; intro x. rewrite !expect_bind.
    set (d := draft_tokens token vocab s k (g ++ [x])).
    set (finish_with := fun (xs : text) (bs : list bool) =>
      let a := Nat.min (leading bs) (S limit) in
      expect (t <- next_token g xs (S limit) a ;; ret (firstn a xs ++ [t])) f).
    transitivity (expect d (fun xs => expect (flip (accept token vocab j s g x)) (fun b =>
        expect (tests (g ++ [x]) xs) (fun bs => finish_with (x :: xs) (b :: bs))))).
    { apply expect_ext; intro xs. rewrite expect_ret, expect_bind. apply (expect_tests_cons g x xs (finish_with (x :: xs))). }
    rewrite expect_swap. apply expect_ext; intros [|].
    + rewrite expect_ret. cbn [fst snd]. rewrite expect_bind.
      rewrite <- (IH k (g ++ [x]) ltac:(lia) (fun ys => expect (ret (x :: ys)) f)). unfold engine_round.
      rewrite expect_bind. apply expect_ext; intro xs. rewrite expect_bind. apply expect_ext; intro bs.
      unfold finish_with. cbn [leading Nat.min firstn]. unfold next_token.
      change (S (Nat.min (leading bs) limit) <? S limit)%nat with (Nat.min (leading bs) limit <? limit)%nat.
      rewrite <- app_assoc. cbn [app]. rewrite !expect_bind. apply expect_ext; intro t.
      rewrite !expect_ret. reflexivity.
    + transitivity (expect d (fun _ => expect (residual_at g) (fun t => f [t]))).
      * apply expect_ext; intro xs. apply expect_all_same; [apply mass_tests|].
        intro bs. unfold finish_with, next_token. cbn [leading Nat.min Nat.ltb Nat.leb firstn app].
        rewrite app_nil_r, expect_bind. apply expect_ext; intro t. apply (expect_ret [t] f).
      * rewrite expect_sure by apply mass_draft_tokens. rewrite !expect_bind. apply expect_ext; intro y.
        etransitivity; [|symmetry; apply (expect_ret (y, false))]. cbn [fst snd]. symmetry. apply (expect_ret [y] f).
Qed.

End EngineRound.
