(** A round of block verification: it has the target's law, however many drafts, wherever it is cut. *)
From Coq Require Import QArith Qminmax Arith List Lia Lqa Bool.
From RaggedSpec Require Import FiniteLaw Rejection Autoregressive EngineRound BlockRule.
Import ListNotations.
Open Scope Q_scope.

Section Round.
Variable token : Type.
Variable vocab : list token.
Notation text := (list token).
Notation total := (total token vocab).
Notation pmf_law := (pmf_law token vocab).
Variable j : job token vocab.
Variable s : drafter token vocab j.
Notation target := (target token vocab j).
Notation draft := (draft token vocab j s).
Notation rest := (rest token vocab target draft).
Notation passes := (passes token vocab target draft).
Notation left_law := (left_law token vocab target draft).
Notation prefix_mass := (prefix_mass token target draft).
Notation complete := (complete token vocab j).
Notation extend := (extend token vocab j).
Notation ended := (ended token vocab j).
Notation longer m g x := (longer_mass token target draft m g x).

(** A prefix that no deeper test has kept passes with probability [pass], and then a token of what is left follows it. *)
Definition own (n : nat) (pass m : Q) (g : text) : law (option text) :=
  b <- flip pass ;; if b then t <- pmf_law (left_law n m g) ;; ret (Some [t]) else ret None.

(** What follows a prefix of mass [m] with [n] drafts to come: nothing if neither it nor a longer one survives. *)
Fixpoint weigh (n : nat) (pass m : Q) (g : text) : law (option text) :=
  match n with
  | O => own O pass m g
  | S n' => x <- pmf_law (draft g) ;; o <- weigh n' (passes n' (longer m g x) (g ++ [x])) (longer m g x) (g ++ [x]) ;;
      match o with Some ys => ret (Some (x :: ys)) | None => own n pass m g end
  end.

(** A round: the empty prefix always survives. *)
Definition block_round (n : nat) (g : text) : law text :=
  match n with
  | O => t <- pmf_law (target g) ;; ret [t]
  | S n' => x <- pmf_law (draft g) ;; o <- weigh n' (passes n' (longer 1 g x) (g ++ [x])) (longer 1 g x) (g ++ [x]) ;;
      match o with Some ys => ret (x :: ys) | None => t <- pmf_law (left_law n 1 g) ;; ret [t] end
  end.

(** As the engine computes it: draft ahead, test all depths, take the deepest that passes within the row's limit. *)
Fixpoint depth_tests (n : nat) (m : Q) (g drafts : text) : law (list bool) :=
  match drafts with
  | [] => ret []
  | x :: xs => b <- flip (passes (pred n) (longer m g x) (g ++ [x])) ;;
      bs <- depth_tests (pred n) (longer m g x) (g ++ [x]) xs ;; ret (b :: bs)
  end.

Definition after_prefix (n : nat) (m : Q) (g drafts : text) (a : nat) : law text :=
  let kept := firstn a drafts in
  t <- pmf_law (left_law (n - a) (prefix_mass m g kept) (g ++ kept)) ;; ret (kept ++ [t]).

Definition block_engine_round (k limit : nat) (g : text) : law text :=
  xs <- draft_tokens token vocab s k g ;; bs <- depth_tests limit 1 g xs ;;
  after_prefix limit 1 g xs (fold_last limit 0 0 bs).

(** The worth of what follows a prefix: nothing if nothing does. *)
Definition worth (f : text -> Q) (o : option text) : Q := match o with Some ys => f ys | None => 0 end.

(** [pass] is what lets a prefix survive with its mass, by its own test or by a deeper one. *)
Definition fair (n : nat) (pass m : Q) (g : text) : Prop :=
  0 <= m <= 1 /\ block_total m (rest n m g) * pass == rest n m g.

Lemma target_is g : is_pmf token vocab (target g).
Proof. apply target_pmf. Qed.
Lemma draft_is g : is_pmf token vocab (draft g).
Proof. apply draft_pmf. Qed.
Lemma mass_left_law n m g : mass (pmf_law (left_law n m g)) == 1.
Proof. apply mass_left. exact target_is. Qed.

Lemma mass_flip a : mass (flip a) == 1.
Proof. unfold mass, flip. cbn. ring. Qed.

Lemma longer_range m g x : 0 <= m -> 0 <= longer m g x <= 1.
Proof.
  intro M. apply block_mass_range; [exact M|apply (pmf_nonneg token vocab), target_is|apply (pmf_nonneg token vocab), draft_is].
Qed.

Lemma fair_passes n m g x : 0 <= m -> fair n (passes n (longer m g x) (g ++ [x])) (longer m g x) (g ++ [x]).
Proof.
  intro M. pose proof (longer_range m g x M) as L. split; [exact L|].
  apply passes_share. exact L.
Qed.

Lemma fair_one n g : fair n 1 1 g.
Proof. split; [lra|]. unfold block_total. ring. Qed.

Lemma fair_last pass m g : fair 0 pass m g -> pass == m.
Proof.
  intros [M F]. unfold block_total in F. rewrite !rest_last in F by (try exact target_is; lra). lra.
Qed.

Lemma expect_own n pass m g h : expect (own n pass m g) h
  == pass * expect (pmf_law (left_law n m g)) (fun t => h (Some [t])) + (1 - pass) * h None.
Proof.
  unfold own. rewrite expect_bind. unfold flip. cbn [expect]. rewrite expect_bind, expect_ret.
  rewrite (expect_ext (pmf_law (left_law n m g)) _ (fun t => h (Some [t]))); [ring|].
  intro t. apply (expect_ret (Some [t]) h).
Qed.

Lemma mass_own n pass m g : mass (own n pass m g) == 1.
Proof. unfold mass. rewrite expect_own, expect_sure by apply mass_left_law. ring. Qed.

Lemma expect_weigh n pass m g h : expect (weigh (S n) pass m g) h
  == expect (pmf_law (draft g)) (fun x =>
       expect (weigh n (passes n (longer m g x) (g ++ [x])) (longer m g x) (g ++ [x]))
         (fun o => match o with Some ys => h (Some (x :: ys)) | None => expect (own (S n) pass m g) h end)).
Proof.
  cbn [weigh]. rewrite expect_bind. apply expect_ext; intro x. rewrite expect_bind. apply expect_ext; intros [ys|].
  - apply (expect_ret (Some (x :: ys)) h).
  - reflexivity.
Qed.

Lemma mass_weigh n pass m g : mass (weigh n pass m g) == 1.
Proof.
  revert pass m g; induction n as [|n IH]; intros pass m g; [apply mass_own|].
  unfold mass. rewrite expect_weigh. rewrite (expect_ext _ _ (fun _ => 1)); [apply mass_pmf, draft_is|].
  intro x. rewrite (expect_ext _ _ (fun _ => 1)); [apply IH|]. intros [ys|]; [reflexivity|apply mass_own].
Qed.

Lemma expect_or n pass m g f c :
  expect (weigh n pass m g) (fun o => match o with Some ys => f ys | None => c end)
  == expect (weigh n pass m g) (worth f) + c * (1 - expect (weigh n pass m g) (worth (fun _ => 1))).
Proof.
  rewrite <- (mass_weigh n pass m g) at 1. unfold mass.
  transitivity (expect (weigh n pass m g) (fun o => worth f o + (c * 1 + (- c) * worth (fun _ => 1) o))).
  - apply expect_ext; intros [ys|]; cbn [worth]; ring.
  - rewrite !expect_plus, !expect_mult. unfold mass. ring.
Qed.

Lemma expect_worth_const n pass m g c :
  expect (weigh n pass m g) (worth (fun _ => c)) == c * expect (weigh n pass m g) (worth (fun _ => 1)).
Proof. rewrite <- expect_mult. apply expect_ext; intros [ys|]; cbn [worth]; ring. Qed.

(** One draft further. *)
Definition further (n : nat) (pass m : Q) (g : text) (f : text -> Q) : Q :=
  total (fun x => draft g x * (
    expect (weigh n (passes n (longer m g x) (g ++ [x])) (longer m g x) (g ++ [x])) (worth (fun ys => f (x :: ys)))
    + (1 - longer m g x) * (pass * expect (pmf_law (left_law (S n) m g)) (fun t => f [t])))).

Lemma weigh_further_if n pass m g f :
  (forall x, expect (weigh n (passes n (longer m g x) (g ++ [x])) (longer m g x) (g ++ [x])) (worth (fun _ => 1))
    == longer m g x) -> expect (weigh (S n) pass m g) (worth f) == further n pass m g f.
Proof.
  intro S. rewrite expect_weigh, expect_pmf. apply expect_ext; intro x. apply Qmult_comp; [reflexivity|].
  rewrite (expect_or _ _ _ _ (fun ys => worth f (Some (x :: ys)))), S, expect_own. cbn [worth]. ring.
Qed.

(** A prefix survives, alone or as the beginning of a longer one, with its mass. *)
Lemma survives n pass m g : fair n pass m g -> expect (weigh n pass m g) (worth (fun _ => 1)) == m.
Proof.
  revert pass m g; induction n as [|n IH]; intros pass m g F.
  - cbn [weigh]. rewrite expect_own, (fair_last _ _ _ F). cbn [worth]. rewrite expect_sure by apply mass_left_law. ring.
  - assert (E : forall x, expect (weigh n (passes n (longer m g x) (g ++ [x])) (longer m g x) (g ++ [x]))
      (worth (fun _ => 1)) == longer m g x) by (intro x; apply IH, fair_passes; apply F).
    rewrite (weigh_further_if n pass m g _ E).
    transitivity (m * expect (pmf_law (target g)) (fun _ => 1));
      [|rewrite expect_sure by apply mass_pmf, target_is; ring].
    rewrite <- (weighed token vocab target draft target_is draft_is n m g pass (fun _ => 1)) by apply F.
    apply expect_ext; intro x. rewrite E. ring.
Qed.

Lemma weigh_further n pass m g f : fair (S n) pass m g ->
  expect (weigh (S n) pass m g) (worth f) == further n pass m g f.
Proof. intro F. apply weigh_further_if. intro x. apply survives, fair_passes. apply F. Qed.

Lemma survives_const n pass m g c : fair n pass m g -> expect (weigh n pass m g) (worth (fun _ => c)) == m * c.
Proof. intro F. rewrite expect_worth_const, (survives _ _ _ _ F). ring. Qed.

Lemma weigh_last pass m g f : fair 0 pass m g ->
  expect (weigh 0 pass m g) (worth f) == m * expect (pmf_law (target g)) (fun t => f [t]).
Proof.
  intro F. cbn [weigh]. rewrite expect_own, (fair_last _ _ _ F). cbn [worth].
  rewrite (left_law_last token vocab target draft target_is m g) by apply F. ring.
Qed.

(** A step of the induction over the drafts, for what each next token is worth. *)
Lemma weighed_step n pass m g c : fair (S n) pass m g ->
  total (fun x => draft g x * (longer m g x * c x
    + (1 - longer m g x) * (pass * expect (pmf_law (left_law (S n) m g)) c))) == m * expect (pmf_law (target g)) c.
Proof. intros [M F]. apply weighed; [exact target_is|exact draft_is|exact M|exact F]. Qed.

(** Whatever is cut off, a surviving prefix goes on with the target's law. *)
Lemma weigh_exact n cap pass m g F : fair n pass m g ->
  expect (weigh n pass m g) (worth (fun ys => expect (complete (extend g (firstn cap ys))) F))
  == m * expect (complete g) F.
Proof.
  revert cap pass m g; induction n as [|n IH]; intros cap pass m g Fair.
  all: destruct (ended g) eqn:E; [rewrite <- (survives_const _ _ _ _ (expect (complete g) F) Fair);
    apply expect_ext; intros [ys|]; cbn [worth]; [rewrite extend_ended by exact E|]; reflexivity|].
  all: destruct cap as [|cap]; [rewrite <- (survives_const _ _ _ _ (expect (complete g) F) Fair); reflexivity|].
  all: rewrite (complete_step token vocab j g E), expect_bind.
  - rewrite (weigh_last _ _ _ _ Fair). apply Qmult_comp; [reflexivity|]. apply expect_ext; intro t.
    cbn [firstn Autoregressive.extend]. rewrite E, firstn_nil. reflexivity.
  - rewrite (weigh_further _ _ _ _ _ Fair), <- (weighed_step n pass m g _ Fair). apply expect_ext; intro x.
    apply Qmult_comp; [reflexivity|]. apply Qplus_comp.
    + rewrite <- (IH cap _ _ _ (fair_passes n m g x (proj1 (proj1 Fair)))). apply expect_ext; intros [ys|]; [|reflexivity].
      cbn [worth firstn Autoregressive.extend]. rewrite E. reflexivity.
    + do 2 (apply Qmult_comp; [reflexivity|]). apply expect_ext; intro t.
      cbn [firstn Autoregressive.extend]. rewrite E, firstn_nil. reflexivity.
Qed.

(** A round is the case of the empty prefix. *)
Lemma block_round_weigh n g f : expect (block_round n g) f == expect (weigh n 1 1 g) (worth f).
Proof.
  destruct n as [|n]; [rewrite (weigh_last _ _ _ _ (fair_one 0 g))|rewrite expect_weigh]; cbn [block_round];
    rewrite expect_bind.
  - rewrite Qmult_1_l. apply expect_ext; intro t. exact (expect_ret [t] f).
  - apply expect_ext; intro x. rewrite expect_bind. apply expect_ext; intros [ys|]; [exact (expect_ret (x :: ys) f)|].
    rewrite expect_own, expect_bind. cbn [worth].
    rewrite (expect_ext (pmf_law (left_law (S n) 1 g)) _ (fun t => f [t])); [ring|]. intro t. exact (expect_ret [t] f).
Qed.

Lemma mass_block_round n g : mass (block_round n g) == 1.
Proof. unfold mass. rewrite block_round_weigh. apply survives, fair_one. Qed.

(** THEOREM (block verification keeps the law). A round of [n] drafts, committed up to any [cap], the budget and the stop rule,
    leaves the law of the finished text as it was. *)
Theorem block_round_exact n cap g : row_exact token vocab j g (ys <- block_round n g ;; ret (extend g (firstn cap ys))).
Proof.
  intro F. rewrite expect_bind.
  transitivity (expect (block_round n g) (fun ys => expect (complete (extend g (firstn cap ys))) F)).
  { apply expect_ext; intro ys. apply (expect_ret (extend g (firstn cap ys)) (fun g' => expect (complete g') F)). }
  rewrite block_round_weigh, (weigh_exact n cap 1 1 g F (fair_one n g)). ring.
Qed.

Lemma weigh_length n pass m g :
  always (fun o => match o with Some ys => 1 <= length ys <= S n | None => True end)%nat (weigh n pass m g).
Proof.
  assert (Own : forall k n pass m g, always (fun o => match o with Some ys => 1 <= length ys <= S k | None => True end)%nat
    (own n pass m g)).
  { intros k i q m' h. eapply always_bind; [apply always_true|]. intros [|] _; [|apply always_ret; exact I].
    eapply always_bind; [apply always_true|]. intros t _. apply always_ret. cbn. lia. }
  revert pass m g; induction n as [|n IH]; intros pass m g; [apply Own|]. cbn [weigh].
  eapply always_bind; [apply always_true|]. intros x _. eapply always_bind; [apply IH|].
  intros [ys|] H; [apply always_ret; cbn in *; lia|apply Own].
Qed.

(** THEOREM (progress). A round yields at least one and at most [n + 1] tokens. *)
Theorem block_round_length n g : always (fun ys => 1 <= length ys <= S n)%nat (block_round n g).
Proof.
  destruct n as [|n]; cbn [block_round]; (eapply always_bind; [apply always_true|]); intros x _.
  - apply always_ret. cbn. lia.
  - eapply always_bind; [apply weigh_length|]. intros [ys|] H; [apply always_ret; cbn in *; lia|].
    eapply always_bind; [apply always_true|]. intros t _. apply always_ret. cbn. lia.
Qed.

(** ** The engine's order of things *)

Definition chosen (n : nat) (m : Q) (g xs : text) (b : bool) (bs : list bool) (h : option text -> Q) : Q :=
  match deepest n bs, b with
  | O, false => h None
  | a, _ => expect (after_prefix n m g xs a) (fun ys => h (Some ys))
  end.

Lemma mass_depth_tests n m g drafts : mass (depth_tests n m g drafts) == 1.
Proof.
  revert n m g; induction drafts as [|x xs IH]; intros n m g; [apply mass_ret|].
  cbn [depth_tests]. apply mass_bind; [apply mass_flip|]. intro b. apply mass_bind; [apply IH|]. intro. apply mass_ret.
Qed.

Lemma expect_after_cons n m g x xs a f : expect (after_prefix (S n) m g (x :: xs) (S a)) f
  == expect (after_prefix n (longer m g x) (g ++ [x]) xs a) (fun ys => f (x :: ys)).
Proof.
  unfold after_prefix. cbn [firstn BlockRule.prefix_mass Nat.sub]. rewrite <- app_assoc. cbn [app].
  rewrite !expect_bind. apply expect_ext; intro t. rewrite !expect_ret. reflexivity.
Qed.

Lemma expect_after_none n m g xs h :
  expect (after_prefix n m g xs 0) h == expect (pmf_law (left_law n m g)) (fun t => h [t]).
Proof.
  unfold after_prefix. cbn [firstn BlockRule.prefix_mass app]. rewrite Nat.sub_0_r, app_nil_r, expect_bind.
  apply expect_ext; intro t. apply (expect_ret [t] h).
Qed.

Lemma expect_own_chosen n pass m g xs h : expect (own n pass m g) h
  == expect (flip pass) (fun b => if b then expect (after_prefix n m g xs 0) (fun ys => h (Some ys)) else h None).
Proof. rewrite expect_own. unfold flip. cbn [expect]. rewrite expect_after_none. ring. Qed.

Lemma expect_depth_tests n m g x xs f : expect (depth_tests (S n) m g (x :: xs)) f
  == expect (flip (passes n (longer m g x) (g ++ [x]))) (fun b =>
       expect (depth_tests n (longer m g x) (g ++ [x]) xs) (fun bs => f (b :: bs))).
Proof.
  cbn [depth_tests pred]. rewrite expect_bind. apply expect_ext; intro b. rewrite expect_bind. apply expect_ext; intro bs.
  apply (expect_ret (b :: bs) f).
Qed.

Lemma weigh_engine n k pass m g h : (n <= k)%nat -> expect (weigh n pass m g) h
  == expect (draft_tokens token vocab s k g) (fun xs => expect (flip pass) (fun b =>
       expect (depth_tests n m g xs) (fun bs => chosen n m g xs b bs h))).
Proof.
  revert k pass m g h; induction n as [|n IH]; intros k pass m g h L.
  - cbn [weigh]. symmetry. apply expect_all_same; [apply mass_draft_tokens|]. intro xs.
    rewrite (expect_own_chosen 0 pass m g xs). apply expect_ext; intro b. apply expect_all_same; [apply mass_depth_tests|].
    intro bs. unfold chosen. cbn [deepest]. destruct b; reflexivity.
  - destruct k as [|k]; [lia|]. rewrite expect_weigh. cbn [draft_tokens]. rewrite expect_bind. apply expect_ext; intro x.
    rewrite expect_bind, (IH k _ _ _ _ ltac:(lia)). apply expect_ext; intro xs.
    rewrite (expect_ret (x :: xs) (fun xs => expect (flip pass) (fun b =>
      expect (depth_tests (S n) m g xs) (fun bs => chosen (S n) m g xs b bs h)))).
    transitivity (expect (flip (passes n (longer m g x) (g ++ [x]))) (fun b' =>
      expect (depth_tests n (longer m g x) (g ++ [x]) xs) (fun bs => expect (flip pass) (fun b =>
        chosen (S n) m g (x :: xs) b (b' :: bs) h)))).
    2: { transitivity (expect (flip (passes n (longer m g x) (g ++ [x]))) (fun b' => expect (flip pass) (fun b =>
           expect (depth_tests n (longer m g x) (g ++ [x]) xs) (fun bs => chosen (S n) m g (x :: xs) b (b' :: bs) h)))).
         - apply expect_ext; intro b'. apply expect_swap.
         - rewrite expect_swap. apply expect_ext; intro b. symmetry. apply expect_depth_tests. }
    apply expect_ext; intro b'. apply expect_ext; intro bs. unfold chosen. cbn [deepest].
    destruct (deepest n bs) as [|a].
    + destruct b'; [|rewrite (expect_own_chosen (S n) pass m g (x :: xs)); apply expect_ext; intros [|]; reflexivity].
      symmetry. apply expect_all_same; [apply mass_flip|]. intro b. rewrite expect_after_cons. reflexivity.
    + symmetry. apply expect_all_same; [apply mass_flip|]. intro b. rewrite expect_after_cons. reflexivity.
Qed.

(** THEOREM. Drafting ahead, and testing all depths at once with a limit for each row, has the law of a round of [limit]
    drafts. *)
Theorem block_engine_law k limit g : (limit <= k)%nat -> same_law (block_engine_round k limit g) (block_round limit g).
Proof.
  intros L f. rewrite block_round_weigh, (weigh_engine limit k 1 1 g (worth f) L). unfold block_engine_round.
  rewrite expect_bind. apply expect_ext; intro xs. rewrite expect_bind. unfold flip. cbn [expect].
  transitivity (expect (depth_tests limit 1 g xs) (fun bs => chosen limit 1 g xs true bs (worth f))); [|ring].
  apply expect_ext; intro bs. rewrite last_is_deepest. unfold chosen. destruct (deepest limit bs); reflexivity.
Qed.

End Round.
