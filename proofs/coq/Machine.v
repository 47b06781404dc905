(** From slots and schedule to the text: one machine. Layouts.v says what layouts do to slots, Cases.v that each of them
    is a case of the machine.

    The state of a row is its text and a store: which position each column claims, and the text that its entry was
    computed from. A round feeds the last token and the drafts, reads one answer of the network at each of them, and
    commits. The network is any function of what a query sees, columns taken in any order. *)
From Coq Require Import ZArith QArith Arith List Lia Bool.
From RaggedSpec Require Import Layouts Autoregressive Selection.
Import ListNotations.
Open Scope nat_scope.

Section Machine.
Variable token : Type.
Variable token_dec : forall x y : token, {x = y} + {x <> y}.
Notation text := (list token).
Notation size t := (Z.of_nat (length t)).

Record store := { claims : Z -> Z; entry : Z -> text }.

(** ** The network *)
Open Scope Z_scope.
Variable answered : Type.  (* logits, or what is made of them *)
Variable network : store -> Z -> answered.

(** Two stores look alike to a query at [p] if the columns that it sees correspond one to one, with the same position
    and the same entry. *)
Definition alike (p : Z) (a b : store) : Prop := exists f : Z -> Z,
  (forall c, sees (claims a) p c -> sees (claims b) p (f c) /\ claims b (f c) = claims a c /\ entry b (f c) = entry a c)
  /\ (forall c c', sees (claims a) p c -> sees (claims a) p c' -> f c = f c' -> c = c')
  /\ (forall d, sees (claims b) p d -> exists c, sees (claims a) p c /\ f c = d).
Hypothesis sees_only : forall p a b, alike p a b -> network a p = network b p.

(** A store with nothing but the text: what plain decoding has. *)
Definition plain (t : text) : store := {| claims := fun c => c; entry := prefix token t |}.
Definition after (t : text) : answered := network (plain t) (size t - 1).

Lemma plain_prefix t p : 0 <= p < size t -> network (plain t) p = after (firstn (Z.to_nat (p + 1)) t).
Proof.
  intro P. unfold after. rewrite firstn_length_le by lia.
  replace (Z.of_nat (Z.to_nat (p + 1)) - 1) with p by lia. apply sees_only.
  exists (fun c => c). unfold sees, plain. cbn. repeat split; try lia.
  - unfold prefix. rewrite firstn_firstn. f_equal. lia.
  - eauto.
Qed.

(** THEOREM (the view). Where all positions up to a query's are cached, the network answers as after the text up to
    it, wherever the entries stand and whatever else the store holds. *)
Theorem view_is_plain s t n p : cached token (claims s) (entry s) t n -> 0 <= p < n -> n <= size t ->
  network s p = after (firstn (Z.to_nat (p + 1)) t).
Proof.
  intros H P N. rewrite <- plain_prefix by lia. apply sees_only. exists (claims s).
  destruct (cached_view token (claims s) (entry s) t n p H P) as [Right Once].
  repeat split; unfold sees, plain in *; cbn; try lia.
  - symmetry. apply Right. assumption.
  - intros c c' S S' E. destruct (Once (claims s c)) as (d & _ & _ & Only); [exact S|].
    rewrite (Only c eq_refl). symmetry. apply Only. symmetry. exact E.
  - intros d D. destruct (Once d D) as (c & S & C & _). exists c. auto.
Qed.

(** ** Layouts *)

(** What a layout has to do for a row of a round, and what may be done to a row between rounds. *)
Definition feeds (s : store) (t drafts : text) (fed : store) : Prop :=
  cached token (claims s) (entry s) t (size t - 1) ->
  cached token (claims fed) (entry fed) (t ++ drafts) (size (t ++ drafts)).
Definition keeps (fed : store) (u : text) (s : store) (t : text) : Prop :=
  cached token (claims fed) (entry fed) u (size u) -> agree token u t (size t - 1) -> size t - 1 <= size u ->
  cached token (claims s) (entry s) t (size t - 1).
Definition moves (s s' : store) (t : text) (n : Z) : Prop :=
  cached token (claims s) (entry s) t n -> cached token (claims s') (entry s') t n.

Lemma agree_app t u n : n <= size t -> agree token t (t ++ u) n.
Proof.
  intro N. unfold agree. rewrite firstn_app. replace (Z.to_nat n - length t)%nat with 0%nat by lia.
  cbn. now rewrite app_nil_r.
Qed.

(** Columns that claim their distance from the pads: in place with none, left-padded with some. *)
Definition padded (pad : Z) (e : Z -> text) : store := {| claims := padded_claims pad; entry := e |}.
Definition written (pad : Z) (e : Z -> text) (u : text) (first count : Z) : store :=
  padded pad (write token e u (padded_claims pad) first count).

(** THEOREM (layouts: in place, and left-padded). *)
Theorem padded_feeds pad e t drafts : 1 <= size t ->
  feeds (padded pad e) t drafts (written pad e (t ++ drafts) (size t - 1) (size drafts + 1)).
Proof.
  intros T H. rewrite app_length. replace (Z.of_nat (length t + length drafts)) with (size t - 1 + (size drafts + 1)) by lia.
  apply (padded_block token e t (t ++ drafts) (size t - 1)); [exact H|lia|apply agree_app; lia].
Qed.

Theorem padded_keeps pad e u t : keeps (padded pad e) u (padded pad e) t.
Proof. intros H A N. apply (cached_agree token _ _ u t (size u)); assumption. Qed.

(** THEOREM (moves: realignment, loading from the pool and writing back to it). *)
Theorem padded_moves pad pad' e t n : moves (padded pad e) (padded pad' (fun c => e (c - (pad' - pad)))) t n.
Proof. intro H. apply (realign_cached token e t n pad pad'). exact H. Qed.

(** Slots with a position of their own, dead ones among them. *)
Definition loose (cl : Z -> Z) (e : Z -> text) : store := {| claims := cl; entry := e |}.

(** THEOREM (layouts: masked). [first] may lie before what is cached, as for rows that lag by more than others. *)
Theorem masked_feeds cl e t drafts start first : tidy cl (size t - 1) start -> 1 <= size t -> first <= size t - 1 ->
  let count := size (t ++ drafts) - first in
  feeds (loose cl e) t drafts
    (loose (append_claims cl (size t - 1) start first count) (append_entry token e (t ++ drafts) start first count)).
Proof.
  intros D T F count H. cbn in *.
  destruct (masked_block token cl e t (t ++ drafts) (size t - 1) start first count) as [C _];
    [exact H|exact D|lia|exact F|apply agree_app; lia| | |].
  1-2: unfold count; rewrite app_length; lia.
  replace (first + count) with (size (t ++ drafts)) in C by (unfold count; lia). exact C.
Qed.

Theorem masked_keeps cl e u t start : tidy cl (size u) start -> 1 <= size t ->
  keeps (loose cl e) u (loose (kill cl (size t - 1)) e) t.
Proof.
  intros D T H A N. apply (masked_commit token cl e u t (size u) (size t - 1) start); cbn in *; auto. lia.
Qed.

(** Paged: position [p] in slot [place p] of the row's own blocks; no two positions share one. What other rows have
    in their slots, and what is in slots of no row, claims no position of this one. *)
Definition paged_store (at_slot : Z -> Z) (e : Z -> text) : store := {| claims := at_slot; entry := e |}.
Definition own_slots (at_slot place : Z -> Z) (reserved : Z) : Prop :=
  forall p, 0 <= p < reserved -> at_slot (place p) = p /\ forall c, at_slot c = p -> c = place p.

(** THEOREM (layouts: paged). [reserved] positions have slots of their own (INV-14, INV-16). *)
Theorem paged_feeds at_slot place reserved e t drafts : own_slots at_slot place reserved ->
  1 <= size t -> size (t ++ drafts) <= reserved ->
  feeds (paged_store at_slot e) t drafts
    (paged_store at_slot (write token e (t ++ drafts) at_slot (size t - 1) (size drafts + 1))).
Proof.
  intros Own T R H p P. cbn in *. exists (place p). destruct (Own p) as [C Only]; [lia|]. rewrite C.
  split; [reflexivity|]. split; [|exact Only]. unfold write. rewrite C.
  destruct (Z.leb_spec (size t - 1) p), (Z.ltb_spec p (size t - 1 + (size drafts + 1))); cbn; [reflexivity| | |].
  - rewrite app_length in P. lia.
  - destruct (H p) as (c & E & En & _); [lia|]. rewrite <- (Only c E), En.
    apply (agree_prefix token t (t ++ drafts) (size t - 1)); [apply agree_app; lia|lia].
  - rewrite app_length in P. lia.
Qed.

(** ** A round reads the network at the fed positions *)

(** THEOREM (logits). After feeding, query [i] answers as plain decoding does after the text and [i] drafts. *)
Theorem logits_are_plain s t drafts fed i : feeds s t drafts fed ->
  cached token (claims s) (entry s) t (size t - 1) -> 1 <= size t -> (i <= length drafts)%nat ->
  network fed (size t - 1 + Z.of_nat i) = after (t ++ firstn i drafts).
Proof.
  intros F H T I. specialize (F H). rewrite (view_is_plain fed (t ++ drafts) (size (t ++ drafts))); [|exact F| |lia].
  - f_equal. replace (Z.to_nat (size t - 1 + Z.of_nat i + 1)) with (length t + i)%nat by lia. apply firstn_app_2.
  - rewrite app_length. lia.
Qed.
End Machine.

(** ** The machine with deterministic selection: greedy, and coupled noise *)

(** *** One row *)
Section Row.
Variable token : Type.
Variable token_dec : forall x y : token, {x = y} + {x <> y}.
Notation text := (list token).
Notation size t := (Z.of_nat (length t)).
Notation store := (store token).
Variable network : store -> Z -> token.  (* the choice that the rule makes of the logits *)
Hypothesis sees_only : forall p a b, alike token p a b -> network a p = network b p.
Variable stop_rule : text -> bool.
Variable limit : nat.  (* tokens of the prompt and the budget *)

(** The job of plain decoding: texts include the prompt. *)
Definition plain_job : job token :=
  {| choose := after token token network; stops := stop_rule; budget := limit |}.

(** Keep a draft while the network chooses it, then add the network's choice: read from slots. *)
Fixpoint read_answer (fed : store) (p : Z) (drafts : text) : text :=
  match drafts with
  | [] => [network fed p]
  | x :: xs => if token_dec x (network fed p) then x :: read_answer fed (p + 1) xs else [network fed p]
  end.

Lemma read_answer_plain fed t before drafts :
  cached token (claims token fed) (entry token fed) (t ++ before ++ drafts) (size (t ++ before ++ drafts)) ->
  (1 <= length t)%nat ->
  read_answer fed (size (t ++ before) - 1) drafts = answer token token_dec plain_job (t ++ before) drafts.
Proof.
  intros F T. revert before F. induction drafts as [|x xs IH]; intros before F; cbn [read_answer answer choose plain_job].
  all: rewrite (view_is_plain token token network sees_only fed _ _ (size (t ++ before) - 1) F)
    by (rewrite ?app_length in *; cbn [length]; lia).
  all: replace (Z.to_nat (size (t ++ before) - 1 + 1)) with (length (t ++ before) + 0)%nat by lia.
  all: rewrite app_assoc, firstn_app_2; cbn [firstn]; rewrite app_nil_r.
  - reflexivity.
  - destruct (token_dec x (after token token network (t ++ before))); [|reflexivity]. f_equal.
    rewrite <- app_assoc. rewrite <- (IH (before ++ [x])).
    + f_equal. rewrite !app_length. cbn. lia.
    + rewrite <- !app_assoc in *. cbn [app]. exact F.
Qed.

Record row := { said : text; held : store }.

(** What may happen to a row: its store is moved; or it runs a round, with drafts, a cap, and any layout. *)
Inductive row_step : option (text * nat) -> row -> row -> Prop :=
  | rests r s : moves token (held r) s (said r) (size (said r) - 1) -> row_step None r {| said := said r; held := s |}
  | plays r drafts cap fed s :
      feeds token (held r) (said r) drafts fed ->
      let t := extend token plain_job (said r) (firstn (S cap) (read_answer fed (size (said r) - 1) drafts)) in
      keeps token fed (said r ++ drafts) s t ->
      row_step (Some (drafts, cap)) r {| said := t; held := s |}.

(** All but the last token cached (INV-5), each position once and with the right entry (INV-3, INV-4). *)
Definition sound (r : row) : Prop :=
  (1 <= length (said r))%nat /\ cached token (claims token (held r)) (entry token (held r)) (said r) (size (said r) - 1).

Definition follows (g drafts t : text) : Prop :=
  agree token (g ++ drafts) t (size t - 1) /\ (size t - 1 <= size (g ++ drafts))%Z /\ (length g <= length t)%nat.

Lemma follows_itself g drafts : follows g drafts g.
Proof.
  unfold follows, agree. rewrite firstn_app. replace (Z.to_nat (size g - 1) - length g)%nat with 0%nat by lia.
  cbn. rewrite app_nil_r, app_length. repeat split; lia.
Qed.

Lemma follows_one g drafts y : follows g drafts (g ++ [y]).
Proof.
  unfold follows, agree. rewrite !app_length. cbn [length].
  replace (Z.to_nat (Z.of_nat (length g + 1) - 1)) with (length g + 0)%nat by lia.
  rewrite !firstn_app_2. repeat split; lia.
Qed.

Lemma extend_agrees g drafts cap :
  follows g drafts (extend token plain_job g (firstn (S cap) (answer token token_dec plain_job g drafts))).
Proof.
  revert cap g; induction drafts as [|x xs IH]; intros cap g; cbn [answer].
  - replace (firstn (S cap) [choose token plain_job g]) with [choose token plain_job g] by (destruct cap; reflexivity).
    cbn [extend]. destruct (ended token plain_job g); [apply follows_itself|apply follows_one].
  - destruct (token_dec x (choose token plain_job g)) as [->|_].
    + cbn [firstn extend]. destruct (ended token plain_job g); [apply follows_itself|].
      destruct cap as [|cap]; [apply follows_one|].
      specialize (IH cap (g ++ [choose token plain_job g])). unfold follows in *. rewrite <- app_assoc in IH.
      cbn [app] in IH. destruct IH as (A & B & C). rewrite (app_length g [_]) in C. repeat split; [exact A|exact B|lia].
    + replace (firstn (S cap) [choose token plain_job g]) with [choose token plain_job g] by (destruct cap; reflexivity).
      cbn [extend]. destruct (ended token plain_job g); [apply follows_itself|apply follows_one].
Qed.

Lemma step_sound m r r' : row_step m r r' -> sound r ->
  sound r' /\ said r' = step_row token token_dec plain_job m (said r).
Proof.
  intros S [T H]. destruct S as [r s M|r drafts cap fed s F t K].
  - split; [split; [exact T|exact (M H)]|reflexivity].
  - specialize (F H).
    assert (R : read_answer fed (size (said r) - 1) drafts = answer token token_dec plain_job (said r) drafts).
    { pose proof (read_answer_plain fed (said r) [] drafts F T) as R. rewrite app_nil_r in R. exact R. }
    unfold sound. cbn [said held]. unfold t in *. rewrite R in *.
    destruct (extend_agrees (said r) drafts cap) as (A & N & L).
    split; [split; [lia|exact (K F A N)]|reflexivity].
Qed.
End Row.

(** *** A batch *)
Section Texts.
Variable token : Type.
Variable token_dec : forall x y : token, {x = y} + {x <> y}.
Notation text := (list token).
Notation row := (row token).
Notation said := (said token).

(** Rows by number. Each has its own network, that is, its own choices: the noise of coupled sampling is a row's own.
    Each has its own stops and budget, too. *)
Variable network : nat -> store token -> Z -> token.
Hypothesis sees_only : forall i p a b, alike token p a b -> network i a p = network i b p.
Variable stop_rule : nat -> text -> bool.
Variable limit : nat -> nat.

Definition job_of (i : nat) : job token := plain_job token (network i) (stop_rule i) (limit i).

(** What each row does in each round. *)
Inductive batch_run : schedule token -> (nat -> row) -> (nat -> row) -> Prop :=
  | stays rs : batch_run [] rs rs
  | goes moves rest rs rs' rs'' :
      (forall i, row_step token token_dec (network i) (stop_rule i) (limit i) (moves i) (rs i) (rs' i)) ->
      batch_run rest rs' rs'' -> batch_run (moves :: rest) rs rs''.

(** THEOREM (refinement). From sound rows, under any schedule, drafts, cuts and layouts that feed, keep and move as
    layouts do, the texts are those of plain rounds, and the rows stay sound. *)
Theorem machine_refines s rs rs' : batch_run s rs rs' -> (forall i, sound token (rs i)) -> forall i,
  sound token (rs' i) /\ said (rs' i) = run token token_dec job_of s (fun i => said (rs i)) i.
Proof.
  intro B. induction B as [rs|moves rest rs rs' rs'' S _ IH]; intros A i; cbn [run]; [auto|].
  assert (A' : forall i, sound token (rs' i)
    /\ said (rs' i) = step_row token token_dec (job_of i) (moves i) (said (rs i))).
  { intro n. apply (step_sound token token_dec (network n) (sees_only n) (stop_rule n) (limit n)); auto. }
  destruct (IH (fun i => proj1 (A' i)) i) as [Snd T]. split; [exact Snd|]. rewrite T. clear - A'.
  assert (X : forall s gs gs', (forall i, gs i = gs' i) -> forall i,
    run token token_dec job_of s gs i = run token token_dec job_of s gs' i).
  { induction s as [|m s IH]; intros gs gs' E n; cbn [run]; [apply E|]. apply IH. intro x. rewrite E. reflexivity. }
  apply X. intro n. apply A'.
Qed.

(** THEOREM (slots to text). A row of the machine that has ended holds the text of plain decoding. *)
Theorem machine_text s rs rs' i : batch_run s rs rs' -> (forall i, sound token (rs i)) ->
  ended token (job_of i) (said (rs' i)) = true -> said (rs' i) = complete token (job_of i) (said (rs i)).
Proof.
  intros B A E. destruct (machine_refines s rs rs' B A i) as [_ T]. rewrite T in *.
  apply (run_text token token_dec job_of s (fun i => said (rs i)) i). exact E.
Qed.
End Texts.

(** ** The machine with rejection sampling *)
Section Laws.
Variable token : Type.
Variable vocab : list token.
Notation text := (list token).
Notation size t := (Z.of_nat (length t)).
Variable answered : Type.
Variable network : store token -> Z -> answered.
Hypothesis sees_only : forall p a b, alike token p a b -> network a p = network b p.
Variable law_of : answered -> token -> Q.  (* logits to probabilities *)
Variable prompt : text.
Variable j : Autoregressive.job token vocab.
Hypothesis target_of_network : forall g, target token vocab j g = law_of (after token answered network (prompt ++ g)).

(** THEOREM (slots to laws). What the tests and the next token of a round are computed from is the target's law after
    the text and the drafts before them, as [engine_round] and the ticks of keyed numbers take it to be. *)
Theorem machine_law s g drafts fed i : feeds token s (prompt ++ g) drafts fed ->
  cached token (claims token s) (entry token s) (prompt ++ g) (size (prompt ++ g) - 1) ->
  (1 <= size (prompt ++ g))%Z -> i <= length drafts ->
  law_of (network fed (size (prompt ++ g) - 1 + Z.of_nat i)) = target token vocab j (g ++ firstn i drafts).
Proof.
  intros F H N I. rewrite target_of_network, app_assoc. f_equal.
  apply (logits_are_plain token answered network sees_only s (prompt ++ g) drafts fed i); assumption.
Qed.
End Laws.
