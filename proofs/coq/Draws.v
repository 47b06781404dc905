(** Rejection sampling in one row of a layout, for given numbers: a round drafts ahead, feeds its drafts, reads slots, keeps
    what the tests allow, and so offers what the row's text and numbers make of it, wherever K/V stand. *)
From Coq Require Import ZArith QArith Arith List Lia Bool.
From RaggedSpec Require Import FiniteLaw Rejection Autoregressive EngineRound Batch Keyed Layouts Machine Cases.
Import ListNotations.
Open Scope nat_scope.

(** ** What is read from slots *)
Section OneRow.
Open Scope Z_scope.
Variable token : Type.
Variable vocab : list token.
Notation text := (list token).
Notation size t := (Z.of_nat (length t)).
Variable answered : Type.
Variable network : store token -> Z -> answered.
Hypothesis sees_only : forall p a b, alike token p a b -> network a p = network b p.
Variable prompt : text.
Hypothesis prompted : (1 <= length prompt)%nat.
Variable j : Autoregressive.job token vocab.

(** The rule: how numbers make a draft, test it, and make the token after the accepted ones. It is given an answer of
    the network and the text so far. *)
Variable number : Type.
Variable draw : text -> number -> token.
Variable tests : answered -> text -> token -> number -> bool.
Variables recovers chooses : answered -> text -> number -> token.

(** The same with plain decoding's answer. *)
Definition told (g : text) : answered := after token answered network (prompt ++ g).
Definition passes (g : text) : token -> number -> bool := tests (told g) g.
Definition recover (g : text) : number -> token := recovers (told g) g.
Definition choose (g : text) : number -> token := chooses (told g) g.

Variable w : nat -> numbers number.  (* by position *)
Notation proposed k g := (drafts_ahead token number draw w k g).
Notation emitted limit g := (emit token number draw passes recover choose w limit g).
Notation holding s t := (cached token (claims token s) (entry token s) t (size t)).

Fixpoint tested_in (fed : store token) (p : Z) (g drafts : text) : list bool :=
  match drafts with
  | [] => []
  | x :: xs => tests (network fed p) g x (of_test number (w (length g))) :: tested_in fed (p + 1) (g ++ [x]) xs
  end.

(** What a round of [k] drafts emits, read from slots: query [a] answers after the text and [a] drafts. *)
Definition read_round (fed : store token) (k limit : nat) (g : text) : text :=
  let xs := proposed k g in
  let first := size (prompt ++ g) - 1 in
  let a := Nat.min (leading (tested_in fed first g xs)) limit in
  let h := g ++ firstn a xs in
  let rule := if (a <? limit)%nat then recovers else chooses in
  firstn a xs ++ [rule (network fed (first + Z.of_nat a)) h (of_next number (w (length h)))].

Lemma answers_plain fed g xs i : holding fed ((prompt ++ g) ++ xs) -> (i <= length xs)%nat ->
  network fed (size (prompt ++ g) - 1 + Z.of_nat i) = told (g ++ firstn i xs).
Proof.
  intros H I. unfold told.
  rewrite (view_is_plain token answered network sees_only fed ((prompt ++ g) ++ xs) (size ((prompt ++ g) ++ xs)));
    [|exact H|rewrite !app_length; lia|lia].
  replace (Z.to_nat (size (prompt ++ g) - 1 + Z.of_nat i + 1)) with (length (prompt ++ g) + i)%nat by lia.
  rewrite firstn_app_2, <- app_assoc. reflexivity.
Qed.

Lemma tested_in_plain fed xs g :
  (forall i, (i <= length xs)%nat -> network fed (size (prompt ++ g) - 1 + Z.of_nat i) = told (g ++ firstn i xs)) ->
  tested_in fed (size (prompt ++ g) - 1) g xs = tested token number passes w g xs.
Proof.
  revert g. induction xs as [|x xs IH]; intros g A; cbn [tested_in tested]; [reflexivity|]. f_equal.
  - specialize (A 0%nat ltac:(lia)). cbn [firstn] in A. rewrite app_nil_r in A. unfold passes. rewrite <- A.
    do 2 f_equal. lia.
  - rewrite <- IH.
    + f_equal. rewrite !app_length. cbn [length]. lia.
    + intros i I. replace (size (prompt ++ g ++ [x]) - 1 + Z.of_nat i) with (size (prompt ++ g) - 1 + Z.of_nat (S i))
        by (rewrite !app_length; cbn [length]; lia).
      rewrite A by (cbn [length]; lia). rewrite <- app_assoc. reflexivity.
Qed.

Lemma proposed_length k g : length (proposed k g) = k.
Proof. revert g; induction k as [|k IH]; intro g; cbn; [reflexivity|]. now rewrite IH. Qed.

(** Slots give what the text gives: the round emits token by token what its own numbers and text make of it. *)
Lemma read_round_plain fed k limit g : (limit <= k)%nat -> holding fed ((prompt ++ g) ++ proposed k g) ->
  read_round fed k limit g = emitted limit g.
Proof.
  intros L H. rewrite <- (engine_round_reads_once token number draw passes recover choose w k limit g L).
  unfold read_round, keyed_round. cbv zeta.
  rewrite (tested_in_plain fed (proposed k g) g (fun i I => answers_plain fed g (proposed k g) i H I)).
  set (a := Nat.min (leading (tested token number passes w g (proposed k g))) limit).
  assert (A : (a <= length (proposed k g))%nat) by (rewrite proposed_length; unfold a; lia).
  rewrite (answers_plain fed g (proposed k g) a H A). destruct (a <? limit)%nat; reflexivity.
Qed.

(** ** What is committed agrees with what was fed *)

Lemma extend_cuts g ys : exists c, Autoregressive.extend token vocab j g ys = g ++ firstn c ys.
Proof.
  revert g; induction ys as [|y ys IH]; intro g; cbn [Autoregressive.extend].
  - exists 0%nat. cbn. now rewrite app_nil_r.
  - destruct (ended token vocab j g).
    + exists 0%nat. cbn. now rewrite app_nil_r.
    + destruct (IH (g ++ [y])) as [c E]. exists (S c). rewrite E, <- app_assoc. reflexivity.
Qed.

Lemma cut_agrees (t xs u : text) a y c : (1 <= length t)%nat -> (a <= length xs)%nat ->
  u = t ++ firstn c (firstn a xs ++ [y]) -> agree token (t ++ xs) u (size u - 1) /\ size u - 1 <= size (t ++ xs).
Proof.
  intros T A E. destruct (Nat.le_gt_cases c a) as [C|C].
  - assert (X : firstn c (firstn a xs ++ [y]) = firstn c xs).
    { rewrite firstn_app, firstn_firstn, firstn_length_le by exact A. replace (c - a)%nat with 0%nat by lia.
      cbn [firstn]. rewrite app_nil_r, Nat.min_l by exact C. reflexivity. }
    rewrite X, <- firstn_app_2 in E. assert (N : (length u <= length t + c)%nat) by (rewrite E, firstn_length; lia).
    assert (M : (length u <= length (t ++ xs))%nat) by (rewrite E, firstn_length; lia).
    split; [|lia]. unfold agree. set (m := Z.to_nat (size u - 1)). assert (Small : (m <= length t + c)%nat) by lia.
    clearbody m. rewrite E, firstn_firstn, Nat.min_l by exact Small. reflexivity.
  - assert (X : firstn c (firstn a xs ++ [y]) = firstn a xs ++ [y]).
    { apply firstn_all2. rewrite app_length, firstn_length_le by exact A. cbn [length]. lia. }
    rewrite X in E. replace (size u - 1) with (size t + Z.of_nat a)
      by (rewrite E, !app_length, firstn_length_le by exact A; cbn [length]; lia).
    split; [|rewrite app_length; lia].
    pose proof (committed_text token t xs (Z.of_nat a) y (size t)) as K. rewrite Nat2Z.id in K. rewrite E. apply K; lia.
Qed.

Lemma turn_agrees k limit cap g u : (limit <= k)%nat ->
  u = prompt ++ Autoregressive.extend token vocab j g (firstn cap (emitted limit g)) ->
  agree token ((prompt ++ g) ++ proposed k g) u (size u - 1) /\ size u - 1 <= size ((prompt ++ g) ++ proposed k g).
Proof.
  intros L E. rewrite <- (engine_round_reads_once token number draw passes recover choose w k limit g L) in E.
  destruct (extend_cuts g (firstn cap (keyed_round token number draw passes recover choose w k limit g))) as [c X].
  rewrite X, firstn_firstn, app_assoc in E. unfold keyed_round in E. cbv zeta in E.
  eapply cut_agrees; [rewrite app_length; lia| |exact E]. rewrite proposed_length. lia.
Qed.

(** ** A row of a layout *)
Variable l : layout token.
Notation place := (text * store token * mark token l)%type.  (* what the row has generated, its slots, the layout's mark *)

Definition stands (r : place) : Prop := ok token l (snd r) (snd (fst r)) (prompt ++ fst (fst r)).

(** A row is moved, or runs a round with a limit of its own; it may draft more than that. It is offered some tokens, and
    commits up to [cap] of them. *)
Inductive draws (cap : nat) : option nat -> text -> place -> place -> Prop :=
  | is_moved g s m m' s' : moved token l m s (prompt ++ g) m' s' -> draws cap None [] (g, s, m) (g, s', m')
  | runs_round g s m k limit m' f m'' s'' : (limit <= k)%nat -> fed token l m s (prompt ++ g) (proposed k g) m' f ->
      let offered := read_round f k limit g in
      let u := Autoregressive.extend token vocab j g (firstn cap offered) in
      kept token l m' f (prompt ++ u) m'' s'' -> draws cap (Some limit) offered (g, s, m) (u, s'', m'').

(** The same without slots. *)
Definition offers (limit : option nat) (g : text) : text :=
  match limit with None => [] | Some limit => emitted limit g end.

Lemma draws_offers cap limit ys r r' : draws cap limit ys r r' -> stands r ->
  stands r' /\ ys = offers limit (fst (fst r))
  /\ fst (fst r') = Autoregressive.extend token vocab j (fst (fst r)) (firstn cap ys).
Proof.
  intros D O. destruct D as [g s m m' s' M|g s m k limit m' f m'' s'' L F ys u K]; unfold stands in *; cbn [fst snd offers] in *.
  - split; [|rewrite firstn_nil; split; reflexivity].
    apply (ok_moves token l m s (prompt ++ g) m' s'); [exact O|rewrite app_length; lia|exact M].
  - assert (H : holding f ((prompt ++ g) ++ proposed k g)).
    { apply (ok_feeds token l m s (prompt ++ g) _ m' f); [exact O|rewrite app_length; lia|exact F]. }
    assert (R : ys = emitted limit g) by exact (read_round_plain f k limit g L H).
    split; [|split; [exact R|reflexivity]].
    destruct (turn_agrees k limit cap g (prompt ++ u) L) as [A N]; [unfold u; now rewrite R|].
    apply (ok_keeps token l m s (prompt ++ g) (proposed k g) m' f (prompt ++ u) m'' s'');
      [exact O|rewrite app_length; lia|exact F|rewrite app_length; lia|exact A|exact N|exact K].
Qed.
End OneRow.
