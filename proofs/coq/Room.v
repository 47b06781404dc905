(** Room for rows in a pool of blocks: how many blocks a row has, and that a round can always run.

    Rows are residents of the window, the youngest first. Which blocks a row gets is the affair of Blocks.v; here it matters
    how many it has, and how many no table names. Tables may name the same blocks. *)
From Coq Require Import Arith List Lia Permutation.
Import ListNotations.

(** Blocks of so many tokens. *)
Definition blocks (size n : nat) : nat := (n + (size - 1)) / size.

(** A row of [len] tokens: its blocks between rounds are those of what is cached, all but the last token; while it runs,
    those of all that the round may write, [span] tokens more, but no more than the row can become. *)
Definition held (size len : nat) : nat := blocks size (len - 1).
Definition wanted (size span len most : nat) : nat := blocks size (Nat.min (len + span) most).

Section Room.
Variables total size span : nat.

Record row := { len : nat; most : nat; table : list nat }.
Notation has r := (length (table r)).
Definition keeps (r : row) : nat := held size (len r).
Definition wants (r : row) : nat := wanted size span (len r) (most r).

(** ** No more blocks than needed *)

(** A row sits out; or it takes what it misses, whatever blocks these are, commits, and gives back what its new length does
    not need. *)
Inductive plays (r r' : row) : Prop :=
  | sits_out : r' = r -> plays r r'
  | runs new : length new = wants r - has r -> len r < len r' -> len r' <= S (len r + span) -> len r' <= most r ->
      table r' = firstn (keeps r') (table r ++ new) -> plays r r'.

(** A row enters: some of its first blocks are found, the others are taken. Or a row leaves: it has ended, was cancelled,
    or is sent back. Or a round runs. *)
Inductive step : list row -> list row -> Prop :=
  | enters n m found new rs : length found <= held size n -> length new = held size n - length found ->
      step rs ({| len := n; most := m; table := found ++ new |} :: rs)
  | leaves rs r rs' : step (rs ++ r :: rs') (rs ++ rs')
  | round rs rs' : Forall2 plays rs rs' -> step rs rs'.

Inductive reachable : list row -> Prop :=
  | nobody : reachable []
  | after rs rs' : reachable rs -> step rs rs' -> reachable rs'.

Lemma blocks_mono m n : m <= n -> blocks size m <= blocks size n.
Proof.
  intro L. unfold blocks. destruct size as [|z]; [cbn; lia|]. apply Nat.div_le_mono; lia.
Qed.

Lemma plays_exactly r r' : plays r r' -> has r = keeps r -> has r' = keeps r'.
Proof.
  intros [->|new N _ S M T] H; [exact H|]. rewrite T, firstn_length, app_length, N.
  assert (keeps r' <= wants r) by (apply blocks_mono; lia). lia.
Qed.

Lemma has_what_it_keeps rs : reachable rs -> forall r, In r rs -> has r = keeps r.
Proof.
  intro X. apply Forall_forall. induction X as [|rs rs' _ IH S]; [constructor|].
  destruct S as [n m found new rs F N|rs r rs'|rs rs' P].
  - constructor; [|exact IH]. cbn [table]. unfold keeps. cbn [len]. rewrite app_length. lia.
  - apply Forall_app in IH as [A B]. inversion B; subst. apply Forall_app. now split.
  - induction P as [|r r' rs rs' P _ IHP]; [constructor|]. inversion IH; subst. constructor; [|auto].
    now apply (plays_exactly r).
Qed.

Lemma in_some_block n i : 0 < size -> i < blocks size n <-> exists p, p < n /\ p / size = i.
Proof.
  intro Z. unfold blocks. pose proof (Nat.div_mod (n + (size - 1)) size ltac:(lia)) as D.
  pose proof (Nat.mod_upper_bound (n + (size - 1)) size ltac:(lia)) as M. split.
  - intro L. exists (i * size). split; [nia|]. apply Nat.div_mul. lia.
  - intros (p & P & <-). pose proof (Nat.div_mod p size ltac:(lia)). nia.
Qed.

(** THEOREM (exactly what is cached, INV-15). However rows enter, run, grow and leave, between rounds the block at each place
    of a table has a position of the row's tokens but the last, those that are cached once its prompt is, and each such
    position has a block. A round moves none of them. *)
Theorem blocks_of_what_is_cached rs : 0 < size -> reachable rs -> forall r, In r rs ->
  (forall i, i < has r <-> exists p, p < len r - 1 /\ p / size = i)
  /\ (forall r', plays r r' -> firstn (has r) (table r') = table r).
Proof.
  intros Z X r I. pose proof (has_what_it_keeps rs X r I) as H. split.
  - intro i. rewrite H. now apply in_some_block.
  - intros r' [->|new N L _ _ T]; [apply firstn_all|]. rewrite T, firstn_firstn, Nat.min_l.
    + rewrite firstn_app, firstn_all, Nat.sub_diag. apply app_nil_r.
    + rewrite H. apply blocks_mono. lia.
Qed.

(** ** A round always has a member *)

Definition named (rs : list row) (b : nat) : bool := existsb (Nat.eqb b) (concat (map table rs)).
Definition unnamed (rs : list row) : nat := length (filter (fun b => negb (named rs b)) (seq 0 total)).
Definition missing (r : row) : nat := wants r - has r.
Definition fits (members residents : list row) : bool := list_sum (map missing members) <=? unnamed residents.

(** Members are some of the residents, in any order; who, is the affair of the scheduler. *)
Variable select : list row -> list row.
Hypothesis selects : forall rs, rs <> [] -> select rs <> [] /\ exists others, Permutation (select rs ++ others) rs.

(** While they do not fit, the youngest is sent back, and members are selected anew. *)
Fixpoint stay (rs : list row) : list row :=
  match rs with
  | [] => []
  | _ :: older => if fits (select rs) rs then rs else stay older
  end.

Lemma filter_split {A} (f : A -> bool) l : length (filter f l) + length (filter (fun x => negb (f x)) l) = length l.
Proof. induction l as [|x l IH]; cbn; [reflexivity|]. destruct (f x); cbn; lia. Qed.

Lemma unnamed_at_least rs : total <= unnamed rs + length (concat (map table rs)).
Proof.
  unfold unnamed. pose proof (filter_split (named rs) (seq 0 total)) as S. rewrite seq_length in S.
  assert (length (filter (named rs) (seq 0 total)) <= length (concat (map table rs))); [|lia].
  apply NoDup_incl_length; [apply NoDup_filter, seq_NoDup|]. intros b B. apply filter_In in B as [_ B].
  unfold named in B. apply existsb_exists in B as (c & C & E). apply Nat.eqb_eq in E. now subst.
Qed.

(** The longest row fits alone: that is asked of the pool. *)
Definition fits_alone (r : row) : Prop := blocks size (most r) <= total.

(** THEOREM (nobody waits before an empty window). The first of the queue can enter, whatever it finds of its blocks. *)
Theorem first_can_enter r : fits_alone r -> fits [r] [r] = true.
Proof.
  intro A. apply Nat.leb_le. pose proof (unnamed_at_least [r]) as U. cbn [map concat] in U. rewrite app_nil_r in U.
  assert (wants r <= blocks size (most r)) by (apply blocks_mono; lia).
  cbn [map list_sum fold_right]. unfold missing, fits_alone in *. lia.
Qed.

Lemma alone r : select [r] = [r].
Proof.
  destruct (selects [r]) as [N (others & P)]; [discriminate|]. pose proof (Permutation_length P) as L.
  rewrite app_length in L. destruct (select [r]) as [|x [|y l]]; cbn in L; [congruence| |lia].
  destruct others as [|z others]; cbn in L; [|lia]. f_equal. apply Permutation_length_1. exact P.
Qed.

(** THEOREM (progress, INV-16, INV-19). Where every row fits alone, a round of a window that is not empty has members, and
    there is room for what each of them may write. Who was sent back for it are the youngest; the oldest stays. *)
Theorem round_has_members rs : rs <> [] -> (forall r, In r rs -> fits_alone r) ->
  (exists sent, rs = sent ++ stay rs) /\ stay rs <> [] /\ select (stay rs) <> [] /\ fits (select (stay rs)) (stay rs) = true.
Proof.
  intros N A. induction rs as [|r older IH]; [congruence|]. cbn [stay].
  destruct (fits (select (r :: older)) (r :: older)) eqn:F.
  - split; [now exists []|]. split; [discriminate|]. split; [apply selects; discriminate|exact F].
  - destruct older as [|o older].
    + rewrite alone, first_can_enter in F by (apply A; now left). discriminate.
    + destruct IH as ((sent & E) & I); [discriminate|intros x X; apply A; now right|]. split; [|exact I].
      exists (r :: sent). cbn [app]. now f_equal.
Qed.

End Room.
