(** A batch of rows under an adaptive scheduler: the joint law is the product of the autoregressive laws. *)
From Coq Require Import QArith Arith List Lia Bool.
From RaggedSpec Require Import FiniteLaw Rejection Autoregressive BlockRule BlockRound.
Import ListNotations.
Open Scope Q_scope.

Section Batch.
Variable token : Type.
Variable vocab : list token.
Notation text := (list token).
Notation job := (job token vocab).
Notation drafter := (drafter token vocab).
Notation complete := (complete token vocab).
Notation extend := (extend token vocab).
Notation round := (round token vocab).
Notation block_round := (block_round token vocab).

(** Every row decoded to its end on its own: the product of the autoregressive laws. *)
Fixpoint finish (js : list job) (gs : list text) : law (list text) :=
  match js, gs with
  | j :: js', g :: gs' => x <- complete j g ;; xs <- finish js' gs' ;; ret (x :: xs)
  | _, _ => ret []
  end.

Lemma expect_finish_cons j g js gs F :
  expect (finish (j :: js) (g :: gs)) F
  == expect (complete j g) (fun x => expect (finish js gs) (fun xs => F (x :: xs))).
Proof.
  cbn [finish]. rewrite expect_bind. apply expect_ext; intro x.
  rewrite expect_bind. apply expect_ext; intro xs. apply expect_ret.
Qed.

(** [finish] is a product: the rows are independent and each has its autoregressive law. *)
Theorem finish_independent j g js gs u v :
  expect (finish (j :: js) (g :: gs)) (fun xs => match xs with x :: r => u x * v r | [] => 0 end)
  == expect (complete j g) u * expect (finish js gs) v.
Proof.
  rewrite expect_finish_cons. rewrite Qmult_comm, <- expect_mult. apply expect_ext; intro x.
  rewrite expect_mult. ring.
Qed.

(** ** Exchange: replacing, row by row, what is committed by something of the same conditional law. *)
Section Exchange.
Variable outcome : Type.
Variable weight : outcome -> Q.
Variables this that : job -> text -> outcome -> text.

Fixpoint each (P : job -> text -> law outcome -> Prop) js gs ds : Prop :=
  match js, gs, ds with
  | [], [], [] => True
  | j :: js', g :: gs', d :: ds' => P j g d /\ each P js' gs' ds'
  | _, _, _ => False
  end.

Fixpoint commit (c : job -> text -> outcome -> text) js gs os : list text :=
  match js, gs, os with
  | j :: js', g :: gs', o :: os' => c j g o :: commit c js' gs' os'
  | _, _, _ => []
  end.

Fixpoint weights (os : list outcome) : Q :=
  match os with [] => 1 | o :: os' => weight o * weights os' end.

Definition exchanges (j : job) (g : text) (d : law outcome) : Prop :=
  forall F, expect d (fun o => weight o * expect (complete j (this j g o)) F)
            == expect d (fun o => weight o * expect (complete j (that j g o)) F).

Lemma exchange_batch js gs ds : each exchanges js gs ds ->
  forall F, expect (product ds) (fun os => weights os * expect (finish js (commit this js gs os)) F)
            == expect (product ds) (fun os => weights os * expect (finish js (commit that js gs os)) F).
Proof.
  revert gs ds. induction js as [|j js IH]; intros [|g gs] [|d ds] H F; try destruct H; try reflexivity.
  rename H into Hrow, H0 into Hrest.
  rewrite !expect_product_cons.
  assert (Split : forall c, expect d (fun o => expect (product ds) (fun os =>
      weights (o :: os) * expect (finish (j :: js) (commit c (j :: js) (g :: gs) (o :: os))) F))
    == expect d (fun o => weight o * expect (complete j (c j g o)) (fun x => expect (product ds) (fun os =>
      weights os * expect (finish js (commit c js gs os)) (fun xs => F (x :: xs)))))).
  { intro c. apply expect_ext; intro o. rewrite expect_swap, <- expect_mult. apply expect_ext; intro os.
    cbn [weights commit]. rewrite expect_finish_cons, expect_mult. ring. }
  rewrite !Split.
  transitivity (expect d (fun o => weight o * expect (complete j (this j g o)) (fun x => expect (product ds) (fun os =>
      weights os * expect (finish js (commit that js gs os)) (fun xs => F (x :: xs)))))).
  - apply expect_ext; intro o. apply Qmult_comp; [reflexivity|]. apply expect_ext; intro x. apply IH. exact Hrest.
  - apply Hrow.
Qed.
End Exchange.

(** ** Any adaptive process built from exact actions *)
Section Adaptive.
Variable memory : Type.
Variable jobs : list job.
Variable act : memory -> list text -> law (list text * memory).

(** An action is exact when finishing after it is finishing before it. The memory may hold the whole history. *)
Definition exact_action : Prop := forall m gs F,
  expect (act m gs) (fun gm => expect (finish jobs (fst gm)) F) == expect (finish jobs gs) F.

Fixpoint run (n : nat) (m : memory) (gs : list text) : law (list text * memory) :=
  match n with
  | O => ret (gs, m)
  | S n' => gm <- act m gs ;; run n' (snd gm) (fst gm)
  end.

Lemma run_exact n m gs F : exact_action ->
  expect (run n m gs) (fun gm => expect (finish jobs (fst gm)) F) == expect (finish jobs gs) F.
Proof.
  intro E. revert m gs; induction n as [|n IH]; intros m gs; cbn [run].
  - apply (expect_ret (gs, m) (fun gm => expect (finish jobs (fst gm)) F)).
  - rewrite expect_bind, <- (E m gs F). apply expect_ext; intros [g' m']. apply IH.
Qed.

Fixpoint all_ended (js : list job) (gs : list text) : Prop :=
  match js, gs with
  | [], [] => True
  | j :: js', g :: gs' => ended token vocab j g = true /\ all_ended js' gs'
  | _, _ => False
  end.

Lemma finish_all_ended js gs F : all_ended js gs -> expect (finish js gs) F == F gs.
Proof.
  revert gs F; induction js as [|j js IH]; intros [|g gs] F H; try destruct H.
  - apply expect_ret.
  - rewrite expect_finish_cons, (complete_ended token vocab j g) by assumption.
    rewrite (expect_ret g (fun x => expect (finish js gs) (fun xs => F (x :: xs)))).
    apply (IH gs (fun xs => F (g :: xs))). assumption.
Qed.

Lemma all_ended_map {I} (row_job : I -> job) gf is : (forall i, In i is -> ended token vocab (row_job i) (gf i) = true) ->
  all_ended (map row_job is) (map gf is).
Proof.
  intro E. induction is as [|i is IH]; [constructor|]. split; [apply E; now left|]. apply IH. intros x X. apply E. now right.
Qed.

(** THEOREM (joint law). However the actions are chosen from the past, once every row has ended the batch of
    outputs has the product of the autoregressive laws. *)
Theorem joint_law n m gs : exact_action -> always (fun gm => all_ended jobs (fst gm)) (run n m gs) ->
  forall F, expect (run n m gs) (fun gm => F (fst gm)) == expect (finish jobs gs) F.
Proof.
  intros E Done F. rewrite <- (run_exact n m gs F E).
  apply (expect_ext_always _ _ _ _ Done). intros gm H. symmetry. apply finish_all_ended. exact H.
Qed.
End Adaptive.

(** ** Scheduled rounds are exact actions *)
Section Scheduled.
Variable memory : Type.
Variable jobs : list job.

(** A row sits out, or runs a round with its own drafter, number of drafts, cap and rule. The outcome is the new text
    and everything that the round offered, which the scheduler may remember. *)
Inductive move (j : job) (g : text) : law (text * text) -> Prop :=
  | sits : move j g (ret (g, []))
  | runs (s : drafter j) (k cap : nat) :
      move j g (ys <- round s k g ;; ret (extend j g (firstn cap ys), ys))
  | runs_block (s : drafter j) (k cap : nat) :
      move j g (ys <- block_round j s k g ;; ret (extend j g (firstn cap ys), ys)).

Variable plan : memory -> list text -> list (law (text * text)).
Variable note : memory -> list text -> list (text * text) -> memory.
Hypothesis plan_moves : forall m gs, length gs = length jobs -> each _ move jobs gs (plan m gs).

Definition scheduled_round (m : memory) (gs : list text) : law (list text * memory) :=
  if (length gs =? length jobs)%nat
  then os <- product (plan m gs) ;; ret (commit _ (fun _ _ => fst) jobs gs os, note m gs os)
  else ret (gs, m).

Lemma round_move j g r cap : mass r == 1 -> row_exact token vocab j g (ys <- r ;; ret (extend j g (firstn cap ys))) ->
  let d := ys <- r ;; ret (extend j g (firstn cap ys), ys) in
  mass d == 1 /\ exchanges _ (fun _ => 1) (fun _ _ => fst) (fun _ g _ => g) j g d.
Proof.
  intros R X d. assert (M : mass d == 1) by (apply mass_bind; [exact R|]; intro; apply mass_ret).
  split; [exact M|]. intro F. rewrite (expect_sure _ _ M), expect_mult, !Qmult_1_l, <- (X F).
  unfold d. rewrite !expect_bind. apply expect_ext; intro ys. cbn. reflexivity.
Qed.

Lemma move_exact j g d : move j g d ->
  mass d == 1 /\ exchanges _ (fun _ => 1) (fun _ _ => fst) (fun _ g _ => g) j g d.
Proof.
  intros [|s k cap|s k cap].
  - split; [apply mass_ret|]. intro F. cbn. reflexivity.
  - apply round_move; [apply mass_round|apply round_exact].
  - apply round_move; [apply mass_block_round|apply block_round_exact].
Qed.

Lemma each_impl {O} (P R : job -> text -> law O -> Prop) js gs ds :
  (forall j g d, P j g d -> R j g d) -> each O P js gs ds -> each O R js gs ds.
Proof.
  intro I. revert gs ds; induction js as [|j js IH]; intros [|g gs] [|d ds]; cbn; auto.
  intros [H K]. split; auto.
Qed.

Lemma each_mass {O} js gs ds : each O (fun _ _ d => mass d == 1) js gs ds -> mass (product ds) == 1.
Proof.
  revert gs ds; induction js as [|j js IH]; intros [|g gs] [|d ds] H; try destruct H; [apply mass_ret|].
  cbn. apply mass_bind; [assumption|]. intro. apply mass_bind; [eapply IH; eassumption|]. intro. apply mass_ret.
Qed.

Lemma weights_one {O} (os : list O) : weights O (fun _ => 1) os == 1.
Proof. induction os as [|o os IH]; cbn; [reflexivity|]. rewrite IH. reflexivity. Qed.

Lemma each_length {O} P js gs ds : each O P js gs ds -> length gs = length js /\ length ds = length js.
Proof.
  revert gs ds; induction js as [|j js IH]; intros [|g gs] [|d ds] H; try destruct H; cbn; auto.
  destruct (IH _ _ H0). split; congruence.
Qed.

Lemma always_product_length {O} (ds : list (law O)) : always (fun os => length os = length ds) (product ds).
Proof.
  induction ds as [|d ds IH]; [apply always_ret; reflexivity|]. cbn.
  eapply always_bind; [apply always_true|]. intros x _.
  eapply always_bind; [exact IH|]. intros xs H. apply always_ret. cbn. congruence.
Qed.

Lemma commit_unchanged {O} js gs (os : list O) :
  length gs = length js -> length os = length js -> commit O (fun _ g _ => g) js gs os = gs.
Proof.
  revert gs os; induction js as [|j js IH]; intros [|g gs] [|o os] Hg Ho; cbn in *; try lia; auto.
  f_equal. apply IH; lia.
Qed.

(** THEOREM. A round of any scheduler that looks only at the past is an exact action: which rows run, with how many
    drafts, which drafter, which rule and which cap may all depend on everything that happened before. *)
Theorem scheduled_round_exact : exact_action memory jobs scheduled_round.
Proof.
  intros m gs F. unfold scheduled_round. destruct (Nat.eqb_spec (length gs) (length jobs)) as [L|_].
  2: apply (expect_ret (gs, m) (fun gm => expect (finish jobs (fst gm)) F)).
  pose proof (plan_moves m gs L) as H. set (ds := plan m gs) in *.
  rewrite expect_bind.
  transitivity (expect (product ds) (fun os => weights _ (fun _ => 1) os
      * expect (finish jobs (commit _ (fun _ _ => fst) jobs gs os)) F)).
  { apply expect_ext; intro os. rewrite weights_one, Qmult_1_l.
    apply (expect_ret (commit _ (fun _ _ => fst) jobs gs os, note m gs os)
             (fun gm => expect (finish jobs (fst gm)) F)). }
  rewrite (exchange_batch _ _ _ (fun _ g _ => g)).
  2: { eapply each_impl; [|exact H]. intros j g d Hm. apply move_exact. exact Hm. }
  assert (M : mass (product ds) == 1).
  { apply (each_mass jobs gs). eapply each_impl; [|exact H]. intros j g d Hm. apply (move_exact j g d Hm). }
  rewrite <- (expect_sure (product ds) (expect (finish jobs gs) F) M).
  apply (expect_ext_always _ _ _ _ (always_product_length ds)). intros os Hos.
  rewrite weights_one, Qmult_1_l. destruct (each_length _ _ _ _ H) as [_ Ld].
  rewrite commit_unchanged; [reflexivity|exact L|congruence].
Qed.
End Scheduled.

(** ** Rollback: every running row commits the batch minimum *)
Section Rollback.
Variable jobs : list job.
Variable width : nat.  (* most tokens a round may commit *)

(** [None] sits out; [Some ys] was offered [ys]. *)
Inductive offer (j : job) (g : text) : law (option text) -> Prop :=
  | offers_nothing : offer j g (ret None)
  | offers_round (s : drafter j) (k : nat) : offer j g (ys <- round s k g ;; ret (Some ys))
  | offers_block (s : drafter j) (k : nat) : offer j g (ys <- block_round j s k g ;; ret (Some ys)).

Definition take (n : nat) (j : job) (g : text) (o : option text) : text :=
  match o with None => g | Some ys => extend j g (firstn n ys) end.

Definition longer (n : nat) (o : option text) : Q :=
  match o with None => 1 | Some ys => if (n <? length ys)%nat then 1 else 0 end.

Fixpoint common (n : nat) (os : list (option text)) : nat :=
  match os with
  | [] => n
  | None :: r => common n r
  | Some ys :: r => Nat.min (length ys) (common n r)
  end.

Lemma offer_mass j g d : offer j g d -> mass d == 1.
Proof.
  intros [|s k|s k]; [apply mass_ret| |]; (apply mass_bind; [|intro; apply mass_ret]).
  - apply mass_round.
  - apply mass_block_round.
Qed.

Lemma round_one_more {j} (s : drafter j) k n g F :
  expect (round s k g) (fun ys => longer n (Some ys) * expect (complete j (take (S n) j g (Some ys))) F)
  == expect (round s k g) (fun ys => longer n (Some ys) * expect (complete j (take n j g (Some ys))) F).
Proof.
  revert k g; induction n as [|n IH]; intros k g.
  - assert (One : forall cap, expect (round s k g) (fun ys => longer 0 (Some ys)
        * expect (complete j (take cap j g (Some ys))) F) == expect (complete j g) F).
    { intro cap. rewrite <- (round_exact _ _ s k cap g F), expect_bind.
      apply (expect_ext_always _ _ _ _ (round_length _ _ s k g)). intros ys [L _].
      unfold longer, take. destruct (Nat.ltb_spec 0 (length ys)); [|lia]. cbn. ring. }
    rewrite !One. reflexivity.
  - destruct (ended token vocab j g) eqn:E.
    { apply expect_ext; intro ys. unfold take. rewrite !extend_ended by exact E. reflexivity. }
    destruct k as [|k]; cbn [Autoregressive.round]; rewrite !expect_bind; apply expect_ext.
    + intro t. cbn. ring.
    + intros [t b]. cbn [fst snd]. destruct b; [|cbn; ring]. rewrite !expect_bind.
      transitivity (expect (round s k (g ++ [t])) (fun ys => longer n (Some ys)
          * expect (complete j (take (S n) j (g ++ [t]) (Some ys))) F));
        [|rewrite IH]; apply expect_ext; intro ys; cbn [ret expect]; unfold take, longer;
        cbn [length firstn Autoregressive.extend]; rewrite E; change (S n <? S (length ys))%nat with (n <? length ys)%nat;
        destruct (n <? length ys)%nat; cbn [firstn]; ring.
Qed.

(** The same of block verification, for what follows a prefix that survives. *)
Lemma weigh_one_more {j} (s : drafter j) c n pass m g F : fair token vocab j s n pass m g ->
  let after cap := expect (weigh token vocab j s n pass m g) (worth token (fun ys =>
    longer c (Some ys) * expect (complete j (take cap j g (Some ys))) F)) in after (S c) == after c.
Proof.
  revert n pass m g; induction c as [|c IH]; intros n pass m g Fair after.
  - assert (One : forall cap, after cap == m * expect (complete j g) F).
    { intro cap. rewrite <- (weigh_exact token vocab j s n cap pass m g F Fair).
      apply (expect_ext_always _ _ _ _ (weigh_length token vocab j s n pass m g)). intros [ys|] L; [|reflexivity].
      cbn [worth]. unfold longer, take. destruct (Nat.ltb_spec 0 (length ys)); [ring|lia]. }
    rewrite !One. reflexivity.
  - destruct (ended token vocab j g) eqn:E.
    { apply expect_ext; intros [ys|]; [|reflexivity]. cbn [worth]. unfold take. rewrite !extend_ended by exact E. reflexivity. }
    unfold after. destruct n as [|n].
    + rewrite !(weigh_last token vocab j s _ _ _ _ Fair). apply Qmult_comp; [reflexivity|].
      apply expect_ext; intro t. cbn. ring.
    + rewrite !(weigh_further token vocab j s _ _ _ _ _ Fair). apply expect_ext; intro x.
      apply Qmult_comp; [reflexivity|]. apply Qplus_comp.
      * pose proof (IH n _ _ _ (fair_passes token vocab j s n m g x (proj1 (proj1 Fair)))) as H. cbv zeta in H.
        etransitivity; [|etransitivity; [exact H|]]; apply expect_ext; intros [ys|]; try reflexivity;
          cbn [worth]; unfold take, longer; cbn [length firstn Autoregressive.extend]; rewrite E; reflexivity.
      * do 2 (apply Qmult_comp; [reflexivity|]). apply expect_ext; intro t. cbn. ring.
Qed.

Lemma block_one_more {j} (s : drafter j) k n g F :
  expect (block_round j s k g) (fun ys => longer n (Some ys) * expect (complete j (take (S n) j g (Some ys))) F)
  == expect (block_round j s k g) (fun ys => longer n (Some ys) * expect (complete j (take n j g (Some ys))) F).
Proof. rewrite !block_round_weigh. apply weigh_one_more, fair_one. Qed.

Lemma expect_offered r h : expect (ys <- r ;; ret (Some ys)) h == expect r (fun ys : text => h (Some ys)).
Proof. rewrite expect_bind. apply expect_ext; intro ys. apply (expect_ret (Some ys) h). Qed.

Lemma offer_one_more n j g d : offer j g d -> exchanges _ (longer n) (take (S n)) (take n) j g d.
Proof.
  intros [|s k|s k] F; [cbn; reflexivity| |]; rewrite !expect_offered; [apply round_one_more|apply block_one_more].
Qed.

Lemma common_longer n os :
  (weights _ (longer n) os == 1 /\ common (S n) os = S n /\ common n os = n)
  \/ (weights _ (longer n) os == 0 /\ common (S n) os = common n os).
Proof.
  induction os as [|[ys|] os IH]; cbn [weights common longer].
  - left. split; [reflexivity|split; reflexivity].
  - destruct (Nat.ltb_spec n (length ys)) as [H|H].
    + destruct IH as [(W & C & D)|(W & C)]; [left|right]; rewrite W, ?C, ?D; (split; [ring|]); [split; lia|reflexivity].
    + right. split; [ring|]. destruct IH as [(_ & C & D)|(_ & C)]; [rewrite C, D; lia|rewrite C; reflexivity].
  - destruct IH as [(W & C & D)|(W & C)]; [left|right]; rewrite W; (split; [ring|]); auto.
Qed.

(** THEOREM (rollback). Committing the batch minimum, and so emitting a longer row's accepted draft at the cut,
    leaves the joint law as it was: the cut depends on other rows, but never on what lies behind it. *)
Theorem rollback_exact gs ds : each _ offer jobs gs ds -> forall F,
  expect (product ds) (fun os => expect (finish jobs (commit _ (take (common width os)) jobs gs os)) F)
  == expect (finish jobs gs) F.
Proof.
  intros H F. induction width as [|n IH].
  - assert (M : mass (product ds) == 1).
    { apply (each_mass jobs gs). eapply each_impl; [|exact H]. intros j g d. apply offer_mass. }
    rewrite <- (expect_sure (product ds) (expect (finish jobs gs) F) M).
    destruct (each_length _ _ _ _ H) as [Lg Ld].
    apply (expect_ext_always _ _ _ _ (always_product_length ds)). intros os Hos.
    assert (C : common 0 os = 0%nat) by (induction os as [|[|] os IH]; cbn; auto; clear -os; induction os as [|[|] os IH]; cbn; lia).
    rewrite C. assert (X : commit _ (take 0) jobs gs os = commit _ (fun _ g _ => g) jobs gs os).
    { clear. revert gs os; induction jobs as [|j js IH]; intros [|g gs] [|o os]; cbn; auto.
      rewrite IH. destruct o; reflexivity. }
    rewrite X, commit_unchanged; [reflexivity|exact Lg|congruence].
  - rewrite <- IH. set (V := fun m os => expect (finish jobs (commit _ (take m) jobs gs os)) F).
    assert (S1 : expect (product ds) (fun os => V (common (S n) os) os)
      == expect (product ds) (fun os => V (common n os) os + (weights _ (longer n) os * V (S n) os
           + (-1) * (weights _ (longer n) os * V n os)))).
    { apply expect_ext; intro os. destruct (common_longer n os) as [(W & C & D)|(W & C)]; rewrite W, C, ?D; ring. }
    assert (S2 : expect (product ds) (fun os => weights _ (longer n) os * V (S n) os)
      == expect (product ds) (fun os => weights _ (longer n) os * V n os)).
    { apply exchange_batch. eapply each_impl; [|exact H]. intros j g d. apply offer_one_more. }
    transitivity (expect (product ds) (fun os => V (common (S n) os) os)); [reflexivity|].
    rewrite S1, !expect_plus, expect_mult, S2. unfold V. ring.
Qed.
(** Where nothing is rolled back, all are cut alike. *)
Lemma uncut_exact gs ds : each _ offer jobs gs ds -> forall F,
  expect (product ds) (fun os => expect (finish jobs (commit _ (take width) jobs gs os)) F) == expect (finish jobs gs) F.
Proof.
  intros H F.
  assert (Row : forall j g d, offer j g d -> exchanges _ (fun _ => 1) (take width) (fun _ g _ => g) j g d).
  { intros j g d [|s k|s k] G; [cbn; reflexivity| |]; rewrite !expect_mult, !expect_offered, !Qmult_1_l; unfold take;
      (rewrite (expect_sure _ (expect (complete j g) G)); [|first [apply mass_round|apply mass_block_round]]).
    - rewrite <- (round_exact _ _ s k width g G), expect_bind. apply expect_ext; intro ys. symmetry.
      apply (expect_ret (extend j g (firstn width ys)) (fun g' => expect (complete j g') G)).
    - rewrite <- (block_round_exact _ _ j s k width g G), expect_bind. apply expect_ext; intro ys. symmetry.
      apply (expect_ret (extend j g (firstn width ys)) (fun g' => expect (complete j g') G)). }
  pose proof (exchange_batch _ (fun _ => 1) _ (fun _ g _ => g) jobs gs ds
    (each_impl _ _ _ _ _ Row H) F) as X.
  transitivity (expect (product ds) (fun os => weights _ (fun _ => 1) os
    * expect (finish jobs (commit _ (take width) jobs gs os)) F)).
  { apply expect_ext; intro os. rewrite weights_one. ring. }
  rewrite X. assert (M : mass (product ds) == 1).
  { apply (each_mass jobs gs). eapply each_impl; [|exact H]. intros j g d. apply offer_mass. }
  rewrite <- (expect_sure (product ds) (expect (finish jobs gs) F) M). destruct (each_length _ _ _ _ H) as [Lg Ld].
  apply (expect_ext_always _ _ _ _ (always_product_length ds)). intros os Hos.
  rewrite weights_one, commit_unchanged; [ring|exact Lg|congruence].
Qed.
End Rollback.

End Batch.
