(** Rounds with numbers of their own, from slots and schedule to the joint law: any rule that emits a prefix of its drafts and one
    more token, with the law of rejection or of block verification.

    Law.v is about numbers with keys, which later rounds read again. Where a round of block verification ends depends on drafts
    behind that place, so it needs numbers that no other round reads. *)
From Coq Require Import ZArith QArith Arith List Lia Bool.
From RaggedSpec Require Import FiniteLaw Rejection Autoregressive EngineRound BlockRule BlockRound Batch Layouts Machine Cases
  Draws.
Import ListNotations.
Open Scope nat_scope.

Section Rows.
Variable token : Type.
Variable vocab : list token.
Notation text := (list token).
Notation size t := (Z.of_nat (length t)).
Variable answered : Type.
Variable network : store token -> Z -> answered.
Hypothesis sees_only : forall p a b, alike token p a b -> network a p = network b p.

(** Each row has its own prompt, stops, budget, drafter and rule. *)
Variable rows : nat.
Variable prompt : nat -> text.
Hypothesis prompted : forall i, 1 <= length (prompt i).
Variable j : nat -> Autoregressive.job token vocab.
Variable s : forall i, drafter token vocab (j i).
Variable weighs : nat -> bool.
Notation who := (seq 0 rows).
Notation ended i := (ended token vocab (j i)).
Notation extend i := (Autoregressive.extend token vocab (j i)).
Notation told i g := (after token answered network (prompt i ++ g)).

(** The numbers of a round of one row make its drafts, and with the network's answers after 0, 1, … of them, how many are
    accepted and the token behind them. *)
Variable numbers : Type.
Variable blank : numbers.
Variable ns : law numbers.
Hypothesis ns_mass : (mass ns == 1)%Q.
Variable propose : nat -> nat -> text -> numbers -> text.
Variable decide : nat -> nat -> text -> text -> list answered -> numbers -> nat * token.

Definition emits (i limit : nat) (g xs : text) (answers : list answered) (w : numbers) : text :=
  let (a, y) := decide i limit g xs answers w in firstn (Nat.min a (length xs)) xs ++ [y].
Definition plain_answers (i : nat) (g xs : text) : list answered :=
  map (fun t => told i (g ++ firstn t xs)) (seq 0 (S (length xs))).
Definition plain_round (i k limit : nat) (g : text) (w : numbers) : text :=
  let xs := propose i k g w in emits i limit g xs (plain_answers i g xs) w.

(** How many are drafted and may be accepted is chosen from the texts after all rounds so far, the latest first. *)
Variable policy : list (list text) -> nat -> option (nat * nat).
Variable width : nat.
Variable rolls_back : bool.

(** With plain decoding's answers a round has the rule's law, for all that the policy may choose. *)
Definition rule_round (i k limit : nat) (g : text) : law text :=
  if weighs i then block_engine_round token vocab (j i) (s i) k limit g else engine_round token vocab (j i) (s i) k limit g.
Hypothesis follows_rule : forall h i k limit g, policy h i = Some (k, limit) ->
  limit <= k /\ forall f, (expect ns (fun w => f (plain_round i k limit g w)) == expect (rule_round i k limit g) f)%Q.

(** ** One row of a layout *)
Section Layout.
Variable l : layout token.
Notation place := (text * store token * mark token l)%type.
Notation stands i := (stands token (prompt i) l).

Definition read_answers (i : nat) (fed : store token) (g xs : text) : list answered :=
  map (fun t => network fed (size (prompt i ++ g) - 1 + Z.of_nat t)%Z) (seq 0 (S (length xs))).

(** A row is moved, or feeds its drafts, reads slots, and commits up to [cap] of what it is offered. *)
Inductive turn (i cap : nat) (w : numbers) : option (nat * nat) -> text -> place -> place -> Prop :=
  | is_moved g st m m' st' : moved token l m st (prompt i ++ g) m' st' -> turn i cap w None [] (g, st, m) (g, st', m')
  | runs_round g st m k limit m' f m'' st'' :
      let xs := propose i k g w in fed token l m st (prompt i ++ g) xs m' f ->
      let offered := emits i limit g xs (read_answers i f g xs) w in
      let u := extend i g (firstn cap offered) in
      kept token l m' f (prompt i ++ u) m'' st'' -> turn i cap w (Some (k, limit)) offered (g, st, m) (u, st'', m'').

Definition offers (i : nat) (p : option (nat * nat)) (g : text) (w : numbers) : text :=
  match p with None => [] | Some (k, limit) => plain_round i k limit g w end.

Lemma turn_offers i cap w p ys r r' : turn i cap w p ys r r' -> stands i r ->
  stands i r' /\ ys = offers i p (fst (fst r)) w /\ fst (fst r') = extend i (fst (fst r)) (firstn cap ys).
Proof.
  intros T O. destruct T as [g st m m' st' M|g st m k limit m' f m'' st'' xs F offered u K]; unfold Draws.stands in *;
    cbn [fst snd offers] in *.
  - split; [|rewrite firstn_nil; split; reflexivity].
    apply (ok_moves token l m st (prompt i ++ g) m' st'); [exact O|rewrite app_length; specialize (prompted i); lia|exact M].
  - pose proof (prompted i) as P.
    assert (H : cached token (claims token f) (entry token f) ((prompt i ++ g) ++ xs) (size ((prompt i ++ g) ++ xs))).
    { apply (ok_feeds token l m st (prompt i ++ g) _ m' f); [exact O|rewrite app_length; lia|exact F]. }
    assert (A : read_answers i f g xs = plain_answers i g xs).
    { apply map_ext_in. intros t I. apply in_seq in I.
      apply (answers_plain token answered network sees_only (prompt i) (prompted i) f g xs t H). lia. }
    split; [|split; [unfold offered; rewrite A; reflexivity|reflexivity]].
    assert (C : exists a y, offered = firstn a xs ++ [y] /\ a <= length xs).
    { unfold offered, emits. destruct (decide _ _ _ _ _ _) as [a y]. exists (Nat.min a (length xs)), y. split; [reflexivity|lia]. }
    destruct C as (a & y & E & La). destruct (extend_cuts token vocab (j i) g (firstn cap offered)) as [c X].
    assert (U : prompt i ++ u = (prompt i ++ g) ++ firstn (Nat.min c cap) (firstn a xs ++ [y]))
      by (unfold u; rewrite X, firstn_firstn, E, app_assoc; reflexivity).
    assert (Lg : 1 <= length (prompt i ++ g)) by (rewrite app_length; lia).
    destruct (cut_agrees token (prompt i) (prompted i) (prompt i ++ g) xs (prompt i ++ u) a y _ Lg La U) as [Agree N].
    apply (ok_keeps token l m st (prompt i ++ g) xs m' f (prompt i ++ u) m'' st'');
      [exact O|rewrite app_length; lia|exact F|rewrite app_length; lia|exact Agree|exact N|exact K].
Qed.

(** ** Rounds of all rows *)
Definition committed (r : place) : text := fst (fst r).
Definition texts (rs : nat -> place) : list text := map (fun i => committed (rs i)) who.

(** Of a row that runs and has not ended, what it is offered. *)
Definition counted (h : list (list text)) (gs : nat -> text) (offered : nat -> text) (i : nat) : option text :=
  if ended i (gs i) then None else match policy h i with None => None | Some _ => Some (offered i) end.
Definition cut (os : list (option text)) : nat := if rolls_back then common token width os else width.

Notation noise := (list numbers).
Inductive rounds : list noise -> list (list text) -> (nat -> place) -> (nat -> place) -> Prop :=
  | no_round h rs : rounds [] h rs rs
  | one_more ws wss h offered rs rs' rs'' :
      let cap := cut (map (counted h (fun i => committed (rs i)) offered) who) in
      (forall i, turn i cap (nth i ws blank) (policy h i) (offered i) (rs i) (rs' i)) ->
      rounds wss (texts rs' :: h) rs' rs'' -> rounds (ws :: wss) h rs rs''.

(** The same without slots. *)
Definition offer_of (h : list (list text)) (gs : nat -> text) (ws : noise) (i : nat) : option text :=
  counted h gs (fun i => offers i (policy h i) (gs i) (nth i ws blank)) i.
Definition next_texts (h : list (list text)) (gs : nat -> text) (ws : noise) (i : nat) : text :=
  take token vocab (cut (map (offer_of h gs ws) who)) (j i) (gs i) (offer_of h gs ws i).

Fixpoint text_rounds (wss : list noise) (h : list (list text)) (gs : nat -> text) : nat -> text :=
  match wss with
  | [] => gs
  | ws :: rest => let gs' := next_texts h gs ws in text_rounds rest (map gs' who :: h) gs'
  end.

Lemma rounds_texts wss h rs rs' : rounds wss h rs rs' -> (forall i, stands i (rs i)) -> forall gs,
  (forall i, committed (rs i) = gs i) -> forall i, committed (rs' i) = text_rounds wss h gs i.
Proof.
  intro R. induction R as [h rs|ws wss h offered rs rs' rs'' cap T _ IH]; intros O gs E; [exact E|].
  assert (A : forall i, stands i (rs' i) /\ offered i = offers i (policy h i) (committed (rs i)) (nth i ws blank)
    /\ committed (rs' i) = extend i (committed (rs i)) (firstn cap (offered i)))
    by (intro i; exact (turn_offers i cap _ _ _ _ _ (T i) (O i))).
  assert (C : cap = cut (map (offer_of h gs ws) who)).
  { unfold cap. f_equal. apply map_ext. intro i. unfold offer_of, counted. rewrite E. destruct (A i) as (_ & Of & _).
    rewrite Of, E. reflexivity. }
  assert (N : forall i, committed (rs' i) = next_texts h gs ws i).
  { intro i. destruct (A i) as (_ & Of & Com). rewrite Com, E, Of, E. unfold next_texts. rewrite <- C.
    unfold offer_of, counted, take. destruct (ended i (gs i)) eqn:End; [apply extend_ended; exact End|].
    destruct (policy h i) as [[k limit]|]; [reflexivity|]. cbn [offers]. rewrite firstn_nil. reflexivity. }
  assert (M : texts rs' = map (next_texts h gs ws) who) by (apply map_ext; exact N).
  rewrite M in IH. exact (IH (fun i => proj1 (A i)) _ N).
Qed.

(** ** Their law *)
Notation finish := (finish token vocab).
Definition round_noise : law noise := product (map (fun _ => ns) who).
Definition all_noise (n : nat) : law (list noise) := product (repeat round_noise n).

(** What a row is offered has one of the laws of Batch.v. *)
Definition offer_law (h : list (list text)) (gs : nat -> text) (i : nat) : law (option text) :=
  if ended i (gs i) then ret None
  else match policy h i with
       | None => ret None
       | Some (_, limit) => ys <- (if weighs i then block_round token vocab (j i) (s i) limit (gs i)
                                   else round token vocab (s i) limit (gs i)) ;; ret (Some ys)
       end.

Lemma offer_law_offers h gs i : offer token vocab (j i) (gs i) (offer_law h gs i).
Proof.
  unfold offer_law. destruct (ended i (gs i)); [constructor|]. destruct (policy h i) as [[k limit]|]; [|constructor].
  destruct (weighs i); [apply offers_block|apply offers_round].
Qed.

Lemma offer_of_law h gs i (o : numbers -> option text) f :
  (forall w, o w = counted h gs (fun i => offers i (policy h i) (gs i) w) i) ->
  (expect ns (fun w => f (o w)) == expect (offer_law h gs i) f)%Q.
Proof.
  intro E. rewrite (expect_ext ns _ (fun w => f (counted h gs (fun i => offers i (policy h i) (gs i) w) i)))
    by (intro w; rewrite E; reflexivity).
  unfold counted, offer_law. destruct (ended i (gs i)); [rewrite expect_ret; apply expect_sure, ns_mass|].
  destruct (policy h i) as [[k limit]|] eqn:P; [|rewrite expect_ret; apply expect_sure, ns_mass].
  destruct (follows_rule h i k limit (gs i) P) as [L R]. cbn [offers]. rewrite (R (fun ys => f (Some ys))).
  unfold rule_round. set (offered := fun ys => f (Some ys)). destruct (weighs i); rewrite expect_bind.
  - rewrite (block_engine_law token vocab (j i) (s i) k limit (gs i) L offered).
    apply expect_ext; intro ys. symmetry. apply (expect_ret (Some ys) f).
  - rewrite (engine_round_law token vocab (j i) (s i) k limit (gs i) L offered).
    apply expect_ext; intro ys. symmetry. apply (expect_ret (Some ys) f).
Qed.

Lemma offers_law h gs n : forall a F,
  (expect (product (map (fun _ => ns) (seq a n)))
     (fun ws => F (map (fun i => counted h gs (fun _ => offers i (policy h i) (gs i) (nth (i - a) ws blank)) i) (seq a n)))
   == expect (product (map (offer_law h gs) (seq a n))) F)%Q.
Proof.
  induction n as [|n IH]; intros a F; [cbn [seq map product]; rewrite !expect_ret; reflexivity|].
  cbn [seq map]. rewrite !expect_product_cons, Nat.sub_diag.
  rewrite <- (offer_of_law h gs a (fun w => counted h gs (fun _ => offers a (policy h a) (gs a) w) a)
    (fun o => expect (product (map (offer_law h gs) (seq (S a) n))) (fun os => F (o :: os)))) by reflexivity.
  apply expect_ext; intro w. rewrite <- (IH (S a)). apply expect_ext; intro ws.
  assert (T : map (fun i => counted h gs (fun _ => offers i (policy h i) (gs i) (nth (i - a) (w :: ws) blank)) i) (seq (S a) n)
    = map (fun i => counted h gs (fun _ => offers i (policy h i) (gs i) (nth (i - S a) ws blank)) i) (seq (S a) n)).
  { apply map_ext_in. intros i I. apply in_seq in I. replace (i - a) with (S (i - S a)) by lia. reflexivity. }
  rewrite T. reflexivity.
Qed.

Lemma commit_map (c : Autoregressive.job token vocab -> text -> option text -> text) (gf : nat -> text) of is :
  commit token vocab (option text) c (map j is) (map gf is) (map of is) = map (fun i => c (j i) (gf i) (of i)) is.
Proof. induction is as [|i is IH]; [reflexivity|]. cbn [map commit]. now rewrite IH. Qed.

Lemma each_offers h gs is : each token vocab _ (offer token vocab) (map j is) (map gs is) (map (offer_law h gs) is).
Proof. induction is as [|i is IH]; cbn [map each]; [exact I|]. split; [apply offer_law_offers|exact IH]. Qed.

(** One round leaves the law of the finished texts as it was. *)
Lemma next_texts_exact h gs F :
  (expect round_noise (fun ws => expect (finish (map j who) (map (next_texts h gs ws) who)) F)
   == expect (finish (map j who) (map gs who)) F)%Q.
Proof.
  set (V := fun os => expect (finish (map j who)
    (commit token vocab _ (take token vocab (cut os)) (map j who) (map gs who) os)) F).
  transitivity (expect (product (map (offer_law h gs) who)) V).
  - rewrite <- (offers_law h gs rows 0 V). apply expect_ext; intro ws. unfold V.
    assert (E : map (fun i => counted h gs (fun _ => offers i (policy h i) (gs i) (nth (i - 0) ws blank)) i) who
      = map (offer_of h gs ws) who).
    { apply map_ext. intro i. rewrite Nat.sub_0_r. reflexivity. }
    rewrite E, commit_map. reflexivity.
  - unfold V, cut. destruct rolls_back; [apply rollback_exact|apply uncut_exact]; apply each_offers.
Qed.

Lemma text_rounds_exact n : forall h gs F,
  (expect (all_noise n) (fun wss => expect (finish (map j who) (map (text_rounds wss h gs) who)) F)
   == expect (finish (map j who) (map gs who)) F)%Q.
Proof.
  induction n as [|n IH]; intros h gs F; unfold all_noise; cbn [repeat].
  - cbn [product]. apply (expect_ret [] (fun wss => expect (finish (map j who) (map (text_rounds wss h gs) who)) F)).
  - rewrite expect_product_cons, <- (next_texts_exact h gs F). apply expect_ext; intro ws. cbn [text_rounds].
    apply (IH (map (next_texts h gs ws) who :: h) (next_texts h gs ws) F).
Qed.

(** THEOREM (layouts to the law, new numbers). Members and numbers of drafts of every round are chosen from what has been
    committed; the batch is cut to its minimum, or it is not. Then rounds of rejection or of block verification, in any layout,
    commit what has the target's law. *)
Theorem fresh_layout_law n h rs outcome :
  (forall i, stands i (rs i)) -> (forall i, committed (rs i) = []) ->
  (forall wss, length wss = n -> rounds wss h rs (outcome wss)) -> forall F,
  (expect (all_noise n) (fun wss => expect (finish (map j who) (texts (outcome wss))) F)
   == expect (finish (map j who) (map (fun _ => []) who)) F)%Q
  /\ ((forall wss i, length wss = n -> i < rows -> ended i (committed (outcome wss i)) = true) ->
     (expect (all_noise n) (fun wss => F (texts (outcome wss)))
      == expect (finish (map j who) (map (fun _ => []) who)) F)%Q).
Proof.
  intros O B R F. assert (Many : always (fun wss => length wss = n) (all_noise n)).
  { unfold all_noise. pose proof (always_product_length (repeat round_noise n)) as H. rewrite repeat_length in H. exact H. }
  assert (X : (expect (all_noise n) (fun wss => expect (finish (map j who) (texts (outcome wss))) F)
    == expect (finish (map j who) (map (fun _ => []) who)) F)%Q).
  { rewrite <- (text_rounds_exact n h (fun _ => []) F). apply (expect_ext_always _ _ _ _ Many). intros wss L.
    assert (T : texts (outcome wss) = map (text_rounds wss h (fun _ => [])) who)
      by (apply map_ext; exact (rounds_texts wss h rs (outcome wss) (R wss L) O (fun _ => []) B)).
    rewrite T. reflexivity. }
  split; [exact X|]. intro E. rewrite <- X. apply (expect_ext_always _ _ _ _ Many). intros wss L. symmetry.
  apply finish_all_ended, all_ended_map. intros i I. apply in_seq in I. apply E; [exact L|lia].
Qed.
End Layout.
End Rows.
