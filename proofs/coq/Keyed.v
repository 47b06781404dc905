(** Random numbers with keys: a number belongs to one position of one sequence, and is the same whenever it is asked for.

    An engine drafts ahead, so it reads numbers of positions that it then gives up, and reads them again in a later
    round. Here a run is taken apart into ticks: in a tick some rows emit one token each, and each of them reads the
    numbers of the position that it fills. What runs next may depend on everything emitted so far, on nothing else.
    Then every number is unread until its position is filled, so it is fresh given the history.
    The engine's rounds are such ticks ([engine_round_reads_once]), and so is a cut to the batch minimum
    ([cut_is_known]). *)
From Coq Require Import QArith Arith List Lia Bool.
From RaggedSpec Require Import FiniteLaw Rejection Autoregressive EngineRound Batch.
Import ListNotations.
Open Scope Q_scope.

(** ** Runs that read every number once *)
Section Ticks.
Variable token : Type.
Variable vocab : list token.
Notation text := (list token).
Notation job := (job token vocab).

(** The numbers of a position, for all purposes. *)
Variable cell : Type.
Variable cells : law cell.
Hypothesis cells_mass : mass cells == 1.

(** The numbers of [n] positions, independent. *)
Definition stream (n : nat) : law (list cell) := product (repeat cells n).

(** A row is its text and how many positions have unread numbers. What it does in a tick: nothing, or it turns the
    numbers of its next position into a token, and a flag that says how it came by it. *)
Notation row := (text * nat)%type.
Notation reading := (cell -> token * bool).
Notation outcome := (row * option bool)%type.

Definition row_tick (p : option reading) (r : row) (cs : list cell) : outcome * list cell :=
  match p, snd r, cs with
  | Some read, S n, c :: rest => (((fst r ++ [fst (read c)], n), Some (snd (read c))), rest)
  | _, _, _ => ((r, None), cs)
  end.

Definition row_law (p : option reading) (r : row) : law outcome :=
  match p, snd r with
  | Some read, S n => c <- cells ;; ret ((fst r ++ [fst (read c)], n), Some (snd (read c)))
  | _, _ => ret (r, None)
  end.

Lemma mass_stream n : mass (stream n) == 1.
Proof. apply mass_product. intros d H. apply repeat_spec in H. subst. exact cells_mass. Qed.

Lemma row_fresh p r H :
  expect (stream (snd r)) (fun cs => H (fst (row_tick p r cs)) (snd (row_tick p r cs)))
  == expect (row_law p r) (fun o => expect (stream (snd (fst o))) (fun rest => H o rest)).
Proof.
  destruct r as [g n]. unfold row_tick, row_law. cbn [fst snd]. destruct p as [read|], n as [|n].
  - symmetry. apply (expect_ret ((g, 0%nat), None) (fun o => expect (stream (snd (fst o))) (fun rest => H o rest))).
  - unfold stream at 1. cbn [repeat]. rewrite expect_product_cons, expect_bind. apply expect_ext; intro c.
    symmetry. apply (expect_ret ((g ++ [fst (read c)], n), Some (snd (read c)))
      (fun o => expect (stream (snd (fst o))) (fun rest => H o rest))).
  - symmetry. apply (expect_ret ((g, 0%nat), None) (fun o => expect (stream (snd (fst o))) (fun rest => H o rest))).
  - symmetry. apply (expect_ret ((g, S n), None) (fun o => expect (stream (snd (fst o))) (fun rest => H o rest))).
Qed.

Definition world (rows : list row) : law (list (list cell)) := product (map (fun r => stream (snd r)) rows).

Fixpoint tick (ps : list (option reading)) (rows : list row) (css : list (list cell))
  : list outcome * list (list cell) :=
  match ps, rows, css with
  | p :: ps', r :: rows', cs :: css' =>
      let here := row_tick p r cs in
      let there := tick ps' rows' css' in (fst here :: fst there, snd here :: snd there)
  | _, _, _ => ([], [])
  end.

Fixpoint tick_laws (ps : list (option reading)) (rows : list row) : list (law outcome) :=
  match ps, rows with
  | p :: ps', r :: rows' => row_law p r :: tick_laws ps' rows'
  | _, _ => []
  end.

(** THEOREM (one tick). The tokens of a tick come as if their numbers had just been made, and given those tokens, all
    numbers that no tick has read are as independent as before. *)
Theorem tick_is_fresh ps rows : length ps = length rows -> forall H,
  expect (world rows) (fun css => H (fst (tick ps rows css)) (snd (tick ps rows css)))
  == expect (product (tick_laws ps rows)) (fun os => expect (world (map fst os)) (fun rests => H os rests)).
Proof.
  revert ps; induction rows as [|r rows IH]; intros [|p ps] L H; cbn in L; try lia.
  - unfold world. cbn [map tick tick_laws]. cbn [product]. rewrite !expect_ret. cbn [fst snd tick].
    symmetry. apply (expect_ret [] (fun rests => H [] rests)).
  - unfold world. cbn [map tick_laws]. rewrite !expect_product_cons.
    set (G := fun o rest => expect (product (tick_laws ps rows)) (fun os =>
      expect (world (map fst os)) (fun rests => H (o :: os) (rest :: rests)))).
    transitivity (expect (stream (snd r)) (fun cs => G (fst (row_tick p r cs)) (snd (row_tick p r cs)))).
    { apply expect_ext; intro cs. exact (IH ps ltac:(lia)
        (fun os rests => H (fst (row_tick p r cs) :: os) (snd (row_tick p r cs) :: rests))). }
    rewrite (row_fresh p r G). apply expect_ext; intro o. unfold G. rewrite expect_swap. apply expect_ext; intro os.
    cbn [map]. rewrite expect_product_cons. reflexivity.
Qed.

(** *** Whole runs *)
Variable memory : Type.
Variable plan : memory -> list row -> list (option reading).
Variable note : memory -> list outcome -> memory.
Hypothesis plan_covers : forall m rows, length (plan m rows) = length rows.

Fixpoint keyed_run (n : nat) (m : memory) (rows : list row) (css : list (list cell))
  : memory * list row * list (list cell) :=
  match n with
  | O => (m, rows, css)
  | S n' => let after := tick (plan m rows) rows css in
      keyed_run n' (note m (fst after)) (map fst (fst after)) (snd after)
  end.

Fixpoint fresh_run (n : nat) (m : memory) (rows : list row) : law (memory * list row) :=
  match n with
  | O => ret (m, rows)
  | S n' => os <- product (tick_laws (plan m rows) rows) ;; fresh_run n' (note m os) (map fst os)
  end.

(** THEOREM (freshness). Members, drafters, numbers of drafts and cuts are chosen from what was emitted. Then a run on
    keyed numbers has the law of a run that makes new numbers for every tick, and what it has not read yet is
    independent of all that has happened. *)
Theorem next_draws_are_fresh n m rows H :
  expect (world rows) (fun css => H (fst (keyed_run n m rows css)) (snd (keyed_run n m rows css)))
  == expect (fresh_run n m rows) (fun state => expect (world (snd state)) (fun rests => H state rests)).
Proof.
  revert m rows; induction n as [|n IH]; intros m rows; cbn [keyed_run fresh_run].
  - symmetry. apply (expect_ret (m, rows) (fun state => expect (world (snd state)) (fun rests => H state rests))).
  - rewrite (tick_is_fresh (plan m rows) rows (plan_covers m rows) (fun os rests =>
      H (fst (keyed_run n (note m os) (map fst os) rests)) (snd (keyed_run n (note m os) (map fst os) rests)))).
    rewrite expect_bind. apply expect_ext; intro os. apply IH.
Qed.

(** *** The law of the texts *)
Variable jobs : list job.

(** A row that reads has not ended, and the token that it emits has the target's law, however it is come by. *)
Definition reads_right (j : job) (p : option reading) (r : row) : Prop :=
  match p with
  | None => True
  | Some read => ended token vocab j (fst r) = false /\
      forall f, expect cells (fun c => f (fst (read c))) == expect (pmf_law token vocab (target token vocab j (fst r))) f
  end.

Fixpoint all_right (js : list job) (ps : list (option reading)) (rows : list row) : Prop :=
  match js, ps, rows with
  | [], [], [] => True
  | j :: js', p :: ps', r :: rows' => reads_right j p r /\ all_right js' ps' rows'
  | _, _, _ => False
  end.

Definition texts (os : list outcome) : list text := map (fun o => fst (fst o)) os.

Lemma row_exact_tick j p r F : reads_right j p r ->
  expect (row_law p r) (fun o => expect (complete token vocab j (fst (fst o))) F)
  == expect (complete token vocab j (fst r)) F.
Proof.
  destruct r as [g n]. unfold reads_right, row_law. cbn [fst snd]. intro R. destruct p as [read|], n as [|n].
  2: { destruct R as [E L]. rewrite expect_bind, (complete_step token vocab j g E), expect_bind.
    rewrite <- (L (fun t => expect (complete token vocab j (g ++ [t])) F)). apply expect_ext; intro c.
    apply (expect_ret ((g ++ [fst (read c)], n), Some (snd (read c)))
      (fun o => expect (complete token vocab j (fst (fst o))) F)). }
  all: rewrite expect_ret; reflexivity.
Qed.

Lemma tick_exact js ps rows F : all_right js ps rows ->
  expect (product (tick_laws ps rows)) (fun os => expect (finish token vocab js (texts os)) F)
  == expect (finish token vocab js (map fst rows)) F.
Proof.
  revert ps rows F; induction js as [|j js IH]; intros [|p ps] [|r rows] F A; try destruct A.
  - cbn [tick_laws product]. apply (expect_ret [] (fun os => expect (finish token vocab [] (texts os)) F)).
  - rename H into R, H0 into A. cbn [tick_laws map]. rewrite expect_product_cons, expect_finish_cons.
    rewrite <- (row_exact_tick j p r _ R). apply expect_ext; intro o.
    transitivity (expect (product (tick_laws ps rows)) (fun os => expect (complete token vocab j (fst (fst o)))
      (fun x => expect (finish token vocab js (texts os)) (fun xs => F (x :: xs))))).
    { apply expect_ext; intro os. unfold texts. cbn [map]. apply expect_finish_cons. }
    rewrite expect_swap. apply expect_ext; intro x. apply (IH ps rows (fun xs => F (x :: xs)) A).
Qed.

Hypothesis plan_reads : forall m rows, length rows = length jobs -> all_right jobs (plan m rows) rows.

Lemma tick_laws_length ps rows : length ps = length rows -> length (tick_laws ps rows) = length rows.
Proof.
  revert ps; induction rows as [|r rows IH]; intros [|p ps] L; cbn in *; try lia. rewrite IH; lia.
Qed.

Lemma fresh_run_exact n m rows F : length rows = length jobs ->
  expect (fresh_run n m rows) (fun state => expect (finish token vocab jobs (map fst (snd state))) F)
  == expect (finish token vocab jobs (map fst rows)) F.
Proof.
  revert m rows; induction n as [|n IH]; intros m rows L; cbn [fresh_run].
  - apply (expect_ret (m, rows) (fun state => expect (finish token vocab jobs (map fst (snd state))) F)).
  - rewrite expect_bind, <- (tick_exact jobs (plan m rows) rows F (plan_reads m rows L)).
    apply (expect_ext_always _ _ _ _ (always_product_length (tick_laws (plan m rows) rows))). intros os Hos.
    rewrite IH; [unfold texts; rewrite map_map; reflexivity|].
    rewrite map_length, Hos, tick_laws_length; [exact L|apply plan_covers].
Qed.

Lemma mass_world rows : mass (world rows) == 1.
Proof.
  apply mass_product. intros d H. apply in_map_iff in H as (r & <- & _). apply mass_stream.
Qed.

(** THEOREM (any state of a run). From whatever a run on keyed numbers has emitted, going on by plain decoding gives the
    product of the autoregressive laws. *)
Theorem keyed_finish_law n m rows : length rows = length jobs -> forall F,
  expect (world rows) (fun css => expect (finish token vocab jobs (map fst (snd (fst (keyed_run n m rows css))))) F)
  == expect (finish token vocab jobs (map fst rows)) F.
Proof.
  intros L F.
  rewrite (next_draws_are_fresh n m rows (fun state _ => expect (finish token vocab jobs (map fst (snd state))) F)).
  rewrite <- (fresh_run_exact n m rows F L). apply expect_ext; intro state. apply expect_sure, mass_world.
Qed.

(** THEOREM (joint law with keys). Once every row has ended, the texts of a run on keyed numbers have the product of
    the autoregressive laws. *)
Theorem keyed_joint_law n m rows : length rows = length jobs ->
  always (fun state => all_ended token vocab jobs (map fst (snd state))) (fresh_run n m rows) -> forall F,
  expect (world rows) (fun css => F (map fst (snd (fst (keyed_run n m rows css)))))
  == expect (finish token vocab jobs (map fst rows)) F.
Proof.
  intros L Done F.
  rewrite (next_draws_are_fresh n m rows (fun state _ => F (map fst (snd state)))).
  rewrite <- (fresh_run_exact n m rows F L). apply (expect_ext_always _ _ _ _ Done). intros state E.
  rewrite (expect_sure _ _ (mass_world (snd state))). symmetry. apply finish_all_ended. exact E.
Qed.
End Ticks.

(** ** The engine's round, as a function of its numbers *)
Section Round.
Variable token : Type.
Notation text := (list token).
Variable number : Type.

(** The numbers of a position: for the draft, for the test, for the token after the accepted ones. *)
Record numbers := { of_draft : number; of_test : number; of_next : number }.

Variable draw : text -> number -> token.     (* from the draft's law *)
Variable passes : text -> token -> number -> bool.
Variable recover : text -> number -> token.  (* from the residual *)
Variable choose : text -> number -> token.   (* from the target's law *)

(** One token: a draft that passes, or the recovered token. *)
Definition attempt (g : text) (c : numbers) : token * bool :=
  let x := draw g (of_draft c) in if passes g x (of_test c) then (x, true) else (recover g (of_next c), false).

Section Numbers.
Variable w : nat -> numbers.  (* by position: the length of the text before it *)

(** Token by token, as ticks do. *)
Fixpoint emit (limit : nat) (g : text) : text :=
  match limit with
  | O => [choose g (of_next (w (length g)))]
  | S l => let tb := attempt g (w (length g)) in
      if snd tb then fst tb :: emit l (g ++ [fst tb]) else [fst tb]
  end.

(** As the engine does: [k] drafts ahead, all tests at once, the leading run within the row's own limit. *)
Fixpoint drafts_ahead (k : nat) (g : text) : text :=
  match k with
  | O => []
  | S k' => let x := draw g (of_draft (w (length g))) in x :: drafts_ahead k' (g ++ [x])
  end.

Fixpoint tested (g drafts : text) : list bool :=
  match drafts with
  | [] => []
  | x :: xs => passes g x (of_test (w (length g))) :: tested (g ++ [x]) xs
  end.

Definition keyed_round (k limit : nat) (g : text) : text :=
  let xs := drafts_ahead k g in
  let a := Nat.min (leading (tested g xs)) limit in
  let h := g ++ firstn a xs in
  firstn a xs ++ [(if (a <? limit)%nat then recover else choose) h (of_next (w (length h)))].

(** THEOREM (each number once). Of all the numbers that a round reads, what it emits depends on those of the emitted
    positions alone: drafting ahead and testing all at once is the same as going on token by token. *)
Theorem engine_round_reads_once k limit g : (limit <= k)%nat -> keyed_round k limit g = emit limit g.
Proof.
  revert k g; induction limit as [|limit IH]; intros k g L; unfold keyed_round.
  - rewrite Nat.min_0_r. cbn. rewrite app_nil_r. reflexivity.
  - destruct k as [|k]; [lia|]. cbn [drafts_ahead tested emit leading]. unfold attempt.
    destruct (passes g (draw g (of_draft (w (length g)))) (of_test (w (length g)))) eqn:P; cbn [snd fst].
    + rewrite <- (IH k) by lia. unfold keyed_round. cbn [Nat.min firstn].
      set (x := draw g (of_draft (w (length g)))).
      set (a := Nat.min (leading (tested (g ++ [x]) (drafts_ahead k (g ++ [x])))) limit).
      change (S a <? S limit)%nat with (a <? limit)%nat. rewrite <- !app_assoc. reflexivity.
    + cbn. rewrite app_nil_r. reflexivity.
Qed.

Lemma emit_length limit g : (1 <= length (emit limit g) <= S limit)%nat.
Proof.
  revert g; induction limit as [|l IH]; intro g; cbn; [lia|].
  destruct (snd (attempt g (w (length g)))); cbn; [specialize (IH (g ++ [fst (attempt g (w (length g)))]))|]; lia.
Qed.
End Numbers.

Definition agree_on (w w' : nat -> numbers) (from n : nat) : Prop :=
  forall p, (from <= p < from + n)%nat -> w p = w' p.

(** THEOREM (no look ahead). The first [n] tokens of a round, and whether it has more, depend on the numbers of those
    [n] positions alone. *)
Theorem emit_looks_at_what_it_fills w w' n limit g : agree_on w w' (length g) n ->
  firstn n (emit w limit g) = firstn n (emit w' limit g)
  /\ (length (emit w limit g) <= n \/ length (emit w' limit g) <= n -> emit w limit g = emit w' limit g)%nat.
Proof.
  revert n g; induction limit as [|l IH]; intros [|n] g A.
  - split; [reflexivity|]. cbn. lia.
  - cbn. rewrite (A (length g)) by lia. split; reflexivity.
  - split; [reflexivity|]. pose proof (emit_length w (S l) g). pose proof (emit_length w' (S l) g). lia.
  - cbn [emit]. rewrite (A (length g)) by lia. set (tb := attempt g (w' (length g))).
    destruct (snd tb); [|split; reflexivity].
    assert (A' : agree_on w w' (length (g ++ [fst tb])) n).
    { intros p P. apply A. rewrite app_length in P. cbn in P. lia. }
    destruct (IH n (g ++ [fst tb]) A') as [F W]. split.
    + cbn [firstn]. rewrite F. reflexivity.
    + intro L. rewrite W; [reflexivity|]. cbn in L. lia.
Qed.

(** ** Rollback: the cut to the batch minimum *)
Notation member := ((nat -> numbers) * nat * text)%type.  (* numbers, limit, text *)

Definition offered (r : member) : text := let '(w, limit, g) := r in emit w limit g.
Definition from (r : member) : nat := length (snd r).
Definition same_rows (n : nat) (r r' : member) : Prop :=
  snd r = snd r' /\ snd (fst r) = snd (fst r') /\ agree_on (fst (fst r)) (fst (fst r')) (from r) n.

Fixpoint minimum (n : nat) (rows : list member) : nat :=
  match rows with [] => n | r :: rest => Nat.min (length (offered r)) (minimum n rest) end.
Definition committed (n : nat) (rows : list member) : list text := map (fun r => firstn n (offered r)) rows.

Lemma same_rows_offer n r r' : same_rows n r r' ->
  firstn n (offered r) = firstn n (offered r')
  /\ Nat.min (length (offered r)) (S n) = Nat.min (length (offered r')) (S n).
Proof.
  destruct r as [[w limit] g], r' as [[w' limit'] g']. intros (T & K & A). cbn in *. subst.
  destruct (emit_looks_at_what_it_fills w w' n limit' g' A) as [F W]. split; [exact F|].
  destruct (Nat.le_gt_cases (length (emit w limit' g')) n) as [L|L]; [rewrite W by lia; reflexivity|].
  destruct (Nat.le_gt_cases (length (emit w' limit' g')) n) as [L'|L']; [rewrite W by lia; reflexivity|lia].
Qed.

Lemma minimum_within n rows rows' : Forall2 (same_rows n) rows rows' -> minimum n rows = minimum n rows'.
Proof.
  intro F. induction F as [|r r' rest rest' S F IH]; [reflexivity|]. cbn [minimum]. rewrite <- IH.
  destruct (same_rows_offer n r r' S) as [_ M].
  assert (minimum n rest <= n)%nat by (clear; induction rest; cbn; lia). lia.
Qed.

Lemma minimum_cap n m rows : (n <= m)%nat -> minimum n rows = Nat.min n (minimum m rows).
Proof. intro L. induction rows as [|r rest IH]; cbn; lia. Qed.

Lemma minimum_reached n rows : (minimum n rows < n)%nat ->
  Exists (fun r => (length (offered r) <= minimum n rows)%nat) rows.
Proof.
  induction rows as [|r rest IH]; cbn; intro W; [lia|].
  destruct (Nat.le_gt_cases (length (offered r)) (minimum n rest)) as [A|A]; [left; lia|].
  right. rewrite Nat.min_r by lia. apply IH. lia.
Qed.

(** THEOREM (rollback's cut). Where the batch is cut, and what every row commits there, depends on the numbers of the
    committed positions alone: a batch whose numbers differ behind the cut is cut there, too, and commits the same.
    So the numbers behind the cut are fresh, though the engine has read them: the accepted draft there was no draw of
    its own. *)
Theorem cut_is_known width rows rows' :
  let n := minimum width rows in
  Forall2 (same_rows n) rows rows' -> (n < width)%nat ->
  minimum width rows' = n /\ committed n rows = committed n rows'.
Proof.
  intros n F W. split.
  - pose proof (minimum_within n rows rows' F) as E.
    rewrite (minimum_cap n width rows), (minimum_cap n width rows') in E by lia. fold n in E.
    enough (minimum width rows' <= n)%nat by lia.
    pose proof (minimum_reached width rows W) as Some_row. fold n in Some_row. clear E W. revert F Some_row.
    generalize n. clear n. intros n F. induction F as [|r r' rest rest' S F IH]; intro E; inversion E as [x l A|x l A]; subst; cbn.
    + destruct (same_rows_offer n r r' S) as [_ M]. lia.
    + specialize (IH A). lia.
  - unfold committed. clear W. revert F. generalize n. intros m F. induction F as [|r r' rest rest' S F IH]; [reflexivity|].
    cbn. rewrite IH. destruct (same_rows_offer m r r' S) as [E _]. rewrite E. reflexivity.
Qed.

(** ** Rejection sampling without rollback: no row sees another *)

(** A row goes on from its own text with its own numbers; [limit] is its own affair. *)
Variables (over : text -> bool) (limit : text -> nat) (cut : text -> text -> text).
Hypothesis cut_over : forall g ys, over g = true -> cut g ys = g.

Definition row_round (w : nat -> numbers) (g : text) : text := cut g (emit w (limit g) g).

(** A schedule says for each round whether the row runs. *)
Fixpoint scheduled (w : nat -> numbers) (schedule : list bool) (g : text) : text :=
  match schedule with
  | [] => g
  | on :: rest => scheduled w rest (if on then row_round w g else g)
  end.

Lemma scheduled_over w schedule g : over g = true -> scheduled w schedule g = g.
Proof.
  intro E. revert g E; induction schedule as [|[|] rest IH]; intros g E; cbn; auto.
  unfold row_round. rewrite (cut_over _ _ E). auto.
Qed.

Fixpoint rounds_alone (w : nat -> numbers) (n : nat) (g : text) : text :=
  match n with O => g | S n' => rounds_alone w n' (row_round w g) end.

Lemma scheduled_alone w schedule g : scheduled w schedule g = rounds_alone w (length (filter (fun b => b) schedule)) g.
Proof. revert g; induction schedule as [|[|] rest IH]; intro g; cbn; auto. Qed.

Lemma rounds_alone_over w n g : over g = true -> rounds_alone w n g = g.
Proof.
  intro E. revert g E; induction n as [|n IH]; intros g E; cbn; auto.
  unfold row_round. rewrite (cut_over _ _ E). auto.
Qed.

Lemma rounds_alone_plus w m n g : rounds_alone w (m + n) g = rounds_alone w n (rounds_alone w m g).
Proof. revert g; induction m as [|m IH]; intro g; cbn; auto. Qed.

(** THEOREM (INV-12 for rejection). Where a row's limit depends on its own text, any two schedules that bring the row
    to its end bring it to the same text. *)
Theorem rejection_schedule_independence w s s' g :
  over (scheduled w s g) = true -> over (scheduled w s' g) = true -> scheduled w s g = scheduled w s' g.
Proof.
  rewrite !scheduled_alone. generalize (length (filter (fun b => b) s)), (length (filter (fun b => b) s')).
  assert (Half : forall m n, (m <= n)%nat -> over (rounds_alone w m g) = true -> rounds_alone w m g = rounds_alone w n g).
  { intros m n L E. replace n with (m + (n - m))%nat by lia. rewrite rounds_alone_plus.
    symmetry. apply rounds_alone_over. exact E. }
  intros m n E E'. destruct (Nat.le_ge_cases m n) as [L|L]; [|symmetry]; apply Half; assumption.
Qed.
End Round.

(** ** Numbers make choices of the right law *)
Section Attempts.
Variable token : Type.
Variable vocab : list token.
Notation text := (list token).
Variable j : job token vocab.
Variable s : drafter token vocab j.
Variable number : Type.
Variable ns : law number.
Variables (draw recover choose : text -> number -> token) (passes : text -> token -> number -> bool).

(** What is asked of the way in which numbers are used, one text at a time. Nothing is asked of recovery where no
    draft can be rejected: the residual is empty there. *)
Record uses_numbers (g : text) : Prop := {
  draws : forall f, expect ns (fun u => f (draw g u)) == expect (pmf_law token vocab (draft token vocab j s g)) f;
  tests_pass : forall x f, expect ns (fun u => f (passes g x u)) == expect (flip (accept token vocab j s g x)) f;
  recovers : forall x f, draft token vocab j s g x * (1 - accept token vocab j s g x) * expect ns (fun u => f (recover g u))
    == draft token vocab j s g x * (1 - accept token vocab j s g x) * expect (pmf_law token vocab (residual token vocab j s g)) f;
  chooses : forall f, expect ns (fun u => f (choose g u)) == expect (pmf_law token vocab (target token vocab j g)) f }.

Definition three : law (numbers number) :=
  a <- ns ;; b <- ns ;; c <- ns ;; ret {| of_draft := a; of_test := b; of_next := c |}.

Lemma expect_three f :
  expect three f == expect ns (fun a => expect ns (fun b => expect ns (fun c =>
    f {| of_draft := a; of_test := b; of_next := c |}))).
Proof.
  unfold three. rewrite expect_bind. apply expect_ext; intro a. rewrite expect_bind. apply expect_ext; intro b.
  rewrite expect_bind. apply expect_ext; intro c. apply expect_ret.
Qed.

Hypothesis ns_mass : mass ns == 1.

(** THEOREM (an attempt). A draft that passes its test, or the token recovered with a third number: the token has the
    target's law, as [reads_right] demands of a tick. *)
Theorem attempt_law g : uses_numbers g -> forall f,
  expect three (fun c => f (fst (attempt token number draw passes recover g c)))
  == expect (pmf_law token vocab (target token vocab j g)) f.
Proof.
  intros U f. rewrite expect_three. set (R := expect ns (fun u => f (recover g u))).
  set (R' := expect (pmf_law token vocab (residual token vocab j s g)) f).
  set (al := accept token vocab j s g).
  transitivity (expect ns (fun a => (fun x => al x * f x + (1 - al x) * R) (draw g a))).
  { apply expect_ext; intro a. set (x := draw g a). cbn beta.
    transitivity (expect ns (fun b => (fun ok : bool => if ok then f x else R) (passes g x b))).
    - apply expect_ext; intro b. unfold attempt. cbn [of_draft of_test of_next]. fold x.
      destruct (passes g x b); cbn [fst]; [apply expect_sure; exact ns_mass|reflexivity].
    - rewrite (tests_pass g U x (fun ok : bool => if ok then f x else R)). unfold flip. cbn [expect]. fold al. ring. }
  rewrite (draws g U (fun x => al x * f x + (1 - al x) * R)).
  rewrite <- (verified_token_law token vocab _ _ _ _ (target_pmf token vocab j g) (draft_pmf token vocab j s g)
    (verifies token vocab j s g) f).
  unfold verified_token. rewrite expect_bind, !expect_pmf. apply expect_ext; intro x.
  rewrite expect_bind. unfold flip. cbn [expect]. rewrite expect_ret, expect_bind. cbn [fst].
  rewrite (expect_ext (pmf_law token vocab (residual token vocab j s g)) _ f).
  2: { intro y. apply (expect_ret (y, false) (fun tb => f (fst tb))). }
  fold al. fold R'. pose proof (recovers g U x f) as E. fold al in E. fold R in E. fold R' in E.
  transitivity (draft token vocab j s g x * (al x * f x) + draft token vocab j s g x * (1 - al x) * R); [ring|].
  rewrite E. ring.
Qed.

Theorem choice_law g : uses_numbers g -> forall f,
  expect three (fun c => f (choose g (of_next number c))) == expect (pmf_law token vocab (target token vocab j g)) f.
Proof.
  intros U f. rewrite expect_three, <- (chooses g U f).
  change (expect ns (fun _ => expect ns (fun _ => expect ns (fun u => f (choose g u)))) == expect ns (fun u => f (choose g u))).
  rewrite !(fun c => expect_sure ns c ns_mass). reflexivity.
Qed.
End Attempts.
