(** Deterministic selection: greedy decoding, and sampling with keyed noise (the coupled rule). *)
From Coq Require Import QArith Arith List Lia Bool.
Import ListNotations.
Open Scope nat_scope.

Section Selection.
Variable token : Type.
Variable token_dec : forall x y : token, {x = y} + {x <> y}.
Notation text := (list token).

(** After each generated text the target chooses one token: an argmax, with or without keyed noise added. *)
Record job := { choose : text -> token; stops : text -> bool; budget : nat }.

Definition ended (j : job) (g : text) : bool := (budget j <=? length g) || stops j g.

Fixpoint decode (fuel : nat) (j : job) (g : text) : text :=
  match fuel with
  | O => g
  | S n => if ended j g then g else decode n j (g ++ [choose j g])
  end.

(** Autoregressive decoding of the rest. *)
Definition complete (j : job) (g : text) : text := decode (budget j - length g) j g.

(** A round with any drafts: keep a draft while it is the target's choice, then add the target's choice. *)
Fixpoint answer (j : job) (g drafts : text) : text :=
  match drafts with
  | [] => [choose j g]
  | x :: xs => if token_dec x (choose j g) then x :: answer j (g ++ [x]) xs else [choose j g]
  end.

Fixpoint extend (j : job) (g ys : text) : text :=
  match ys with
  | [] => g
  | y :: rest => if ended j g then g else extend j (g ++ [y]) rest
  end.

Lemma complete_ended j g : ended j g = true -> complete j g = g.
Proof. intro H. unfold complete. destruct (budget j - length g); cbn; [|rewrite H]; reflexivity. Qed.

Lemma complete_step j g : ended j g = false -> complete j g = complete j (g ++ [choose j g]).
Proof.
  intro H. unfold complete. pose proof H as H'. apply orb_false_iff in H' as [B _]. apply Nat.leb_gt in B.
  destruct (budget j - length g) as [|n] eqn:E; [lia|]. cbn. rewrite H, app_length. cbn. f_equal. lia.
Qed.

(** THEOREM (progress). A round yields at least one token and at most one more than it drafted. *)
Theorem answer_length j g drafts : 1 <= length (answer j g drafts) <= S (length drafts).
Proof.
  revert g; induction drafts as [|x xs IH]; intro g; cbn; [lia|].
  destruct (token_dec x (choose j g)); cbn; [specialize (IH (g ++ [x])); cbn in IH|]; lia.
Qed.

(** THEOREM (one round). Whatever was drafted and wherever the commit is cut, decoding on leads to the same text. *)
Theorem answer_complete j drafts cap g :
  complete j (extend j g (firstn cap (answer j g drafts))) = complete j g.
Proof.
  revert cap g; induction drafts as [|x xs IH]; intros cap g; cbn [answer].
  - destruct cap as [|cap]; [reflexivity|]. cbn. destruct (ended j g) eqn:E; [reflexivity|].
    destruct cap; cbn; symmetry; apply complete_step; exact E.
  - destruct (token_dec x (choose j g)) as [->|_]; (destruct cap as [|cap]; [reflexivity|]); cbn [firstn extend];
      destruct (ended j g) eqn:E; try reflexivity; rewrite (complete_step j g E).
    + apply IH.
    + destruct cap; reflexivity.
Qed.

(** A row's history: for each of its rounds the drafts and how many tokens at most were committed beyond one. *)
Fixpoint speculate (j : job) (rounds : list (text * nat)) (g : text) : text :=
  match rounds with
  | [] => g
  | (drafts, cap) :: rest => speculate j rest (extend j g (firstn (S cap) (answer j g drafts)))
  end.

Lemma speculate_complete j rounds g : complete j (speculate j rounds g) = complete j g.
Proof.
  revert g; induction rounds as [|[drafts cap] rest IH]; intro g; cbn [speculate]; [reflexivity|].
  rewrite IH. apply answer_complete.
Qed.

Lemma extend_grows j g ys : 1 <= length ys -> ended j g = false -> S (length g) <= length (extend j g ys).
Proof.
  intros L H. destruct ys as [|y ys]; cbn in L; [lia|]. cbn. rewrite H. clear L H.
  assert (G : forall zs h, length h <= length (extend j h zs)).
  { induction zs as [|z zs IH]; intro h; cbn; [lia|]. destruct (ended j h); [lia|].
    specialize (IH (h ++ [z])). rewrite app_length in IH. cbn in IH. lia. }
  specialize (G ys (g ++ [y])). rewrite app_length in G. cbn in G. lia.
Qed.

Lemma speculate_ended j rounds g : ended j g = true -> speculate j rounds g = g.
Proof.
  intro H. induction rounds as [|[drafts cap] rest IH]; cbn [speculate]; [reflexivity|].
  replace (extend j g (firstn (S cap) (answer j g drafts))) with g; [exact IH|].
  destruct (firstn (S cap) (answer j g drafts)); cbn; [|rewrite H]; reflexivity.
Qed.

(** THEOREM (termination). As many rounds as the budget allows tokens are enough. *)
Theorem speculate_ends j rounds g :
  budget j - length g <= length rounds -> ended j (speculate j rounds g) = true.
Proof.
  revert g; induction rounds as [|[drafts cap] rest IH]; intros g H; cbn in H.
  - unfold ended. cbn. apply orb_true_iff. left. apply Nat.leb_le. lia.
  - destruct (ended j g) eqn:E; [rewrite speculate_ended by exact E; exact E|]. cbn [speculate]. apply IH.
    assert (L : 1 <= length (firstn (S cap) (answer j g drafts))).
    { pose proof (answer_length j g drafts). rewrite firstn_length. lia. }
    pose proof (extend_grows j g _ L E). lia.
Qed.

(** THEOREM (one row). Once it has ended, a row holds the autoregressive text: any drafts, any [k], any cut. *)
Theorem speculate_text j rounds g :
  ended j (speculate j rounds g) = true -> speculate j rounds g = complete j g.
Proof. intro H. rewrite <- (speculate_complete j rounds g). symmetry. apply complete_ended. exact H. Qed.

(** ** Batches *)

(** A schedule says for each round which rows run, with which drafts and caps. *)
Definition schedule := list (nat -> option (text * nat)).

Definition step_row (j : job) (m : option (text * nat)) (g : text) : text :=
  match m with
  | None => g
  | Some (drafts, cap) => extend j g (firstn (S cap) (answer j g drafts))
  end.

Fixpoint run (js : nat -> job) (s : schedule) (gs : nat -> text) : nat -> text :=
  match s with
  | [] => gs
  | moves :: rest => run js rest (fun i => step_row (js i) (moves i) (gs i))
  end.

Lemma run_complete js s gs i : complete (js i) (run js s gs i) = complete (js i) (gs i).
Proof.
  revert gs; induction s as [|moves rest IH]; intro gs; cbn [run]; [reflexivity|].
  rewrite IH. cbn beta. destruct (moves i) as [[drafts cap]|]; cbn [step_row]; [apply answer_complete|reflexivity].
Qed.

(** THEOREM (batch). Under any schedule, a row that has ended holds its own autoregressive text. *)
Theorem run_text js s gs i : ended (js i) (run js s gs i) = true -> run js s gs i = complete (js i) (gs i).
Proof. intro H. rewrite <- (run_complete js s gs i). symmetry. apply complete_ended. exact H. Qed.

(** THEOREM (schedule independence). Two schedules that both bring a row to its end bring it to the same text. *)
Theorem schedule_independence js s s' gs i :
  ended (js i) (run js s gs i) = true -> ended (js i) (run js s' gs i) = true -> run js s gs i = run js s' gs i.
Proof. intros H H'. rewrite (run_text _ _ _ _ H), (run_text _ _ _ _ H'). reflexivity. Qed.

End Selection.

(** ** Greedy and coupled selection are of this kind *)
Section Instances.
Variable token : Type.
Variable token_dec : forall x y : token, {x = y} + {x <> y}.
Variable first : token.
Variable vocab : list token.
Notation text := (list token).

(** First maximum in vocabulary order, as every argmax here breaks ties. *)
Fixpoint argmax_from (best : token) (rest : list token) (score : token -> Q) : token :=
  match rest with
  | [] => best
  | t :: ts => argmax_from (if Qle_bool (score t) (score best) then best else t) ts score
  end.
Definition argmax := argmax_from first vocab.

Variable logit : text -> token -> Q.
Variable noise : nat -> nat -> token -> Q.  (* sequence, position, token: INV-12 *)
Variables (stop_rule : text -> bool) (limit : nat).

Definition greedy_job : job token :=
  {| choose := fun g => argmax (logit g); stops := stop_rule; budget := limit |}.

Definition coupled_job (sequence : nat) : job token :=
  {| choose := fun g => argmax (fun t => logit g t + noise sequence (length g) t)%Q;
     stops := stop_rule; budget := limit |}.

(** THEOREM (greedy). Greedy speculative decoding is greedy autoregressive decoding. *)
Theorem greedy_is_autoregressive rounds :
  limit <= length rounds ->
  speculate token token_dec greedy_job rounds [] = complete token greedy_job [].
Proof. intro H. apply speculate_text, speculate_ends. cbn. lia. Qed.

(** THEOREM (coupled). With noise keyed by sequence and position, speculative decoding draws, token for token, the
    sample that autoregressive decoding draws with the same noise, whatever the drafter proposes. *)
Theorem coupled_is_autoregressive sequence rounds :
  limit <= length rounds ->
  speculate token token_dec (coupled_job sequence) rounds [] = complete token (coupled_job sequence) [].
Proof. intro H. apply speculate_text, speculate_ends. cbn. lia. Qed.

End Instances.

(** ** Names of tokens *)
Section Renaming.
Variables token token' : Type.
Variable token_dec : forall x y : token, {x = y} + {x <> y}.
Variable token_dec' : forall x y : token', {x = y} + {x <> y}.
Variable name : token -> token'.
Hypothesis distinct : forall x y, name x = name y -> x = y.
Notation text := (list token).
Variables (j : job token) (j' : job token').
Hypothesis same_choice : forall g, choose token' j' (map name g) = name (choose token j g).
Hypothesis same_stops : forall g, stops token' j' (map name g) = stops token j g.
Hypothesis same_budget : budget token' j' = budget token j.

Lemma answer_renamed drafts g :
  answer token' token_dec' j' (map name g) (map name drafts) = map name (answer token token_dec j g drafts).
Proof.
  revert g; induction drafts as [|x xs IH]; intro g; cbn [answer map]; rewrite same_choice; [reflexivity|].
  destruct (token_dec x (choose token j g)) as [E|E], (token_dec' (name x) (name (choose token j g))) as [E'|E']; cbn.
  - f_equal. rewrite <- IH, map_app. reflexivity.
  - contradiction E'. now f_equal.
  - contradiction E. now apply distinct.
  - reflexivity.
Qed.

Lemma extend_renamed ys g : extend token' j' (map name g) (map name ys) = map name (extend token j g ys).
Proof.
  assert (End : forall h, ended token' j' (map name h) = ended token j h).
  { intro h. unfold ended. rewrite map_length, same_stops, same_budget. reflexivity. }
  revert g; induction ys as [|y ys IH]; intro g; cbn [extend map]; [reflexivity|].
  rewrite End. destruct (ended token j g); [reflexivity|]. rewrite <- IH, map_app. reflexivity.
Qed.

(** THEOREM (INV-8). With other names for the tokens a row takes the same steps, and so has the same lengths, accepts
    as many drafts and ends in the same round: no length is found by looking for a token. *)
Theorem renaming rounds g :
  speculate token' token_dec' j' (map (fun r => (map name (fst r), snd r)) rounds) (map name g)
  = map name (speculate token token_dec j rounds g).
Proof.
  revert g; induction rounds as [|[drafts cap] rest IH]; intro g; cbn [speculate map fst snd]; [reflexivity|].
  rewrite answer_renamed, firstn_map, extend_renamed. apply IH.
Qed.
End Renaming.
