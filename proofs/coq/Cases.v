(** Every layout is a case of the machine: rounds of a layout, one after the other, are rounds of the machine.

    A layout is given by what holds of a row's store between rounds, by what a pass, a commit and a move do to it, and
    by the proof that they keep it so. What the pass leaves in columns of no cached position is free: rows are fed junk
    where others are longer. *)
From Coq Require Import ZArith Arith List Lia Bool.
From RaggedSpec Require Import Layouts Selection Machine.
Import ListNotations.
Open Scope Z_scope.

Section Cases.
Variable token : Type.
Variable token_dec : forall x y : token, {x = y} + {x <> y}.
Notation text := (list token).
Notation size t := (Z.of_nat (length t)).
Notation store := (store token).
Notation claims := (claims token).
Notation entry := (entry token).
Notation row := (row token).
Notation said := (said token).
Notation held := (held token).
Notation holding s t n := (cached token (claims s) (entry s) t n).

(** [mark] is what a layout knows of a row beside its store: the number of pads, the first free column. [fed] and
    [moved] relate a store and a text to the store that follows, [fed] for given drafts; [kept] the store after the
    pass to the store of the new text. *)
Record layout := {
  mark : Type;
  ok : mark -> store -> text -> Prop;
  fed : mark -> store -> text -> text -> mark -> store -> Prop;
  kept : mark -> store -> text -> mark -> store -> Prop;
  moved : mark -> store -> text -> mark -> store -> Prop;
  ok_cached : forall m s t, ok m s t -> holding s t (size t - 1);
  ok_feeds : forall m s t drafts m' f, ok m s t -> 1 <= size t -> fed m s t drafts m' f ->
    holding f (t ++ drafts) (size (t ++ drafts));
  ok_keeps : forall m s t drafts m' f u m'' s'', ok m s t -> 1 <= size t -> fed m s t drafts m' f ->
    1 <= size u -> agree token (t ++ drafts) u (size u - 1) -> size u - 1 <= size (t ++ drafts) ->
    kept m' f u m'' s'' -> ok m'' s'' u;
  ok_moves : forall m s t m' s', ok m s t -> 1 <= size t -> moved m s t m' s' -> ok m' s' t }.

(** ** Any layout *)
Section Any.
Variable l : layout.
Notation place := (row * mark l)%type.

Definition good (r : place) : Prop := (1 <= length (said (fst r)))%nat /\ ok l (snd r) (held (fst r)) (said (fst r)).

Section OneRow.
Variable network : store -> Z -> token.
Hypothesis sees_only : forall p a b, alike token p a b -> network a p = network b p.
Variable stop_rule : text -> bool.
Variable limit : nat.
Notation job := (plain_job token network stop_rule limit).

(** A row is moved, or runs a round. *)
Inductive layout_step : option (text * nat) -> place -> place -> Prop :=
  | goes_on t s m m' s' : moved l m s t m' s' ->
      layout_step None ({| Machine.said := t; Machine.held := s |}, m) ({| Machine.said := t; Machine.held := s' |}, m')
  | plays_on t s m drafts cap m' f m'' s'' : fed l m s t drafts m' f ->
      let u := extend token job t (firstn (S cap) (read_answer token token_dec network f (size t - 1) drafts)) in
      kept l m' f u m'' s'' ->
      layout_step (Some (drafts, cap))
        ({| Machine.said := t; Machine.held := s |}, m) ({| Machine.said := u; Machine.held := s'' |}, m'').

Lemma layout_step_is_of_the_machine move r r' : layout_step move r r' -> good r ->
  row_step token token_dec network stop_rule limit move (fst r) (fst r') /\ good r'.
Proof.
  intros S [T O]. destruct S as [t s m m' s' M|t s m drafts cap m' f m'' s'' F u K]; cbn [fst snd Machine.said Machine.held] in *.
  - assert (O' : ok l m' s' t) by (apply (ok_moves l m s t m' s'); [exact O|apply (inj_le 1); exact T|exact M]).
    split; [|split; assumption].
    apply (rests token token_dec network stop_rule limit {| Machine.said := t; Machine.held := s |} s').
    intros _. exact (ok_cached l m' s' t O').
  - assert (H : holding f (t ++ drafts) (size (t ++ drafts))) by (apply (ok_feeds l m s t drafts m' f); [exact O|apply (inj_le 1); exact T|exact F]).
    assert (R : read_answer token token_dec network f (size t - 1) drafts = answer token token_dec job t drafts).
    { pose proof (read_answer_plain token token_dec network sees_only stop_rule limit f t [] drafts H T) as R.
      rewrite app_nil_r in R. exact R. }
    assert (A : follows token t drafts u) by (unfold u; rewrite R; apply extend_agrees).
    destruct A as (A & N & L).
    assert (O' : ok l m'' s'' u).
    { apply (ok_keeps l m s t drafts m' f u m'' s''); [exact O|apply (inj_le 1); exact T|exact F|apply (inj_le 1); exact (Nat.le_trans _ _ _ T L)|exact A|exact N|exact K]. }
    split; [|split; [exact (Nat.le_trans _ _ _ T L)|exact O']].
    apply (plays token token_dec network stop_rule limit {| Machine.said := t; Machine.held := s |} drafts cap f s'').
    + intros _. exact H.
    + intros _ _ _. exact (ok_cached l m'' s'' u O').
Qed.
End OneRow.

(** A batch, each row with its own choices, stops and budget. *)
Variable network : nat -> store -> Z -> token.
Hypothesis sees_only : forall i p a b, alike token p a b -> network i a p = network i b p.
Variable stop_rule : nat -> text -> bool.
Variable limit : nat -> nat.
Notation job_of := (job_of token network stop_rule limit).

Inductive layout_run : schedule token -> (nat -> place) -> (nat -> place) -> Prop :=
  | stays_on rs : layout_run [] rs rs
  | runs_on moves rest rs rs' rs'' :
      (forall i, layout_step (network i) (stop_rule i) (limit i) (moves i) (rs i) (rs' i)) ->
      layout_run rest rs' rs'' -> layout_run (moves :: rest) rs rs''.

(** THEOREM (layouts refine). A run of a layout is a run of the machine, and what holds between rounds goes on to. *)
Theorem layout_refines s rs rs' : layout_run s rs rs' -> (forall i, good (rs i)) ->
  batch_run token token_dec network stop_rule limit s (fun i => fst (rs i)) (fun i => fst (rs' i))
  /\ forall i, good (rs' i).
Proof.
  intro R. induction R as [rs|moves rest rs rs' rs'' S _ IH]; intro G; [split; [constructor|exact G]|].
  assert (A : forall i, row_step token token_dec (network i) (stop_rule i) (limit i) (moves i) (fst (rs i)) (fst (rs' i))
    /\ good (rs' i)).
  { intro i. apply (layout_step_is_of_the_machine (network i) (sees_only i)); [apply S|apply G]. }
  destruct (IH (fun i => proj2 (A i))) as [B G']. split; [|exact G'].
  apply goes with (rs' := fun i => fst (rs' i)); [intro i; apply A|exact B].
Qed.

Lemma good_is_sound r : good r -> sound token (fst r).
Proof. intros [T O]. split; [exact T|]. exact (ok_cached l _ _ _ O). Qed.

End Any.

(** Whatever the choices, stops, budgets and schedule: a row that has ended holds the text of plain decoding. *)
Definition right_text (l : layout) : Prop := forall (network : nat -> store -> Z -> token) stop_rule limit,
  (forall i p a b, alike token p a b -> network i a p = network i b p) ->
  forall s rs rs' i, layout_run l network stop_rule limit s rs rs' -> (forall n, good l (rs n)) ->
  ended token (job_of token network stop_rule limit i) (said (fst (rs' i))) = true ->
  said (fst (rs' i)) = complete token (job_of token network stop_rule limit i) (said (fst (rs i))).

(** THEOREM (layouts to text). *)
Theorem layout_text l : right_text l.
Proof.
  intros network stop_rule limit sees_only s rs rs' i R G E.
  destruct (layout_refines l network sees_only stop_rule limit s rs rs' R G) as [B _].
  apply (machine_text token token_dec network sees_only stop_rule limit s (fun n => fst (rs n)) (fun n => fst (rs' n)) i B);
    [intro n; apply (good_is_sound l), G|exact E].
Qed.

(** ** Left-padded, and in place *)

(** The two stores do not differ in what claims a position below [n]. *)
Definition same_below (n : Z) (s s' : store) : Prop := forall c,
  0 <= claims s c < n \/ 0 <= claims s' c < n -> claims s' c = claims s c /\ entry s' c = entry s c.

Lemma cached_below n s s' t : same_below n s s' -> holding s t n -> holding s' t n.
Proof.
  intros A H p P. destruct (H p P) as (c & C & E & Only). exists c.
  destruct (A c) as [X Y]; [left; lia|]. rewrite X, Y. split; [exact C|]. split; [exact E|].
  intros c' C'. apply Only. destruct (A c') as [X' _]; [right; lia|]. lia.
Qed.

Definition pads (pad : Z) (s : store) : Prop := forall c, claims s c = padded_claims pad c.

Definition padded_fed (pad : Z) (s : store) (t drafts : text) (f : store) : Prop := pads pad f /\
  forall c, padded_claims pad c < size (t ++ drafts) ->
    entry f c = write token (entry s) (t ++ drafts) (padded_claims pad) (size t - 1) (size drafts + 1) c.

Lemma padded_fed_cached pad s t drafts f : pads pad s -> holding s t (size t - 1) -> 1 <= size t ->
  padded_fed pad s t drafts f -> holding f (t ++ drafts) (size (t ++ drafts)).
Proof.
  intros S H T [P E]. apply (cached_below _ (written token pad (entry s) (t ++ drafts) (size t - 1) (size drafts + 1))).
  - intros c C. cbn in *. rewrite P in *. split; [reflexivity|]. apply E. lia.
  - apply (padded_feeds token pad (entry s) t drafts T). apply (cached_below _ s); [|exact H].
    intros c _. cbn. rewrite S. split; reflexivity.
Qed.

Lemma padded_moved_cached pad pad' s s' t n : pads pad s -> pads pad' s' -> holding s t n ->
  (forall p, 0 <= p < n -> entry s' (p + pad') = entry s (p + pad)) -> holding s' t n.
Proof.
  intros S S' H E p P. exists (p + pad'). rewrite S', E by exact P. split; [unfold padded_claims; lia|].
  split; [|intros c C; rewrite S' in C; unfold padded_claims in C; lia].
  destruct (H p P) as (c & C & En & _). rewrite S in C. unfold padded_claims in C.
  replace (p + pad) with c by lia. exact En.
Qed.

(** Realignment, loading from the pool and writing back to it are moves: the entries of the cached positions go to the
    columns that the new pads give them. *)
Definition left_padded : layout.
Proof.
  refine {|
  mark := Z;
  ok := fun pad s t => pads pad s /\ holding s t (size t - 1);
  fed := fun pad s t drafts pad' f => pad' = pad /\ padded_fed pad s t drafts f;
  kept := fun pad f _ pad' s => pad' = pad /\ s = f;
  moved := fun pad s t pad' s' => pads pad' s'
    /\ forall p, 0 <= p < size t - 1 -> entry s' (p + pad') = entry s (p + pad);
    ok_cached := _; ok_feeds := _; ok_keeps := _; ok_moves := _ |}.
  - intros pad s t [_ H]. exact H.
  - intros pad s t drafts pad' f [S H] T [_ F]. exact (padded_fed_cached pad s t drafts f S H T F).
  - intros pad s t drafts pad' f u pad'' s'' [S H] T [-> F] _ A N [-> ->]. split; [exact (proj1 F)|].
    apply (cached_agree token _ _ (t ++ drafts) u (size (t ++ drafts))); [|exact A|exact N].
    exact (padded_fed_cached pad s t drafts f S H T F).
  - intros pad s t pad' s' [S H] _ [S' E]. split; [exact S'|].
    exact (padded_moved_cached pad pad' s s' t (size t - 1) S S' H E).
Defined.

(** In place there are no pads, and nothing moves. *)
Definition inplace : layout := {|
  mark := unit;
  ok := fun _ => ok left_padded 0;
  fed := fun _ s t drafts _ f => fed left_padded 0 s t drafts 0 f;
  kept := fun _ f u _ s => kept left_padded 0 f u 0 s;
  moved := fun _ s t _ s' => moved left_padded 0 s t 0 s';
  ok_cached := fun _ => ok_cached left_padded 0;
  ok_feeds := fun _ s t drafts _ => ok_feeds left_padded 0 s t drafts 0;
  ok_keeps := fun _ s t drafts _ f u _ => ok_keeps left_padded 0 s t drafts 0 f u 0;
  ok_moves := fun _ s t _ => ok_moves left_padded 0 s t 0 |}.

(** ** Masked *)

(** The mark is the width: a block is appended there. Its last slots may be of no token of this row. *)
Definition masked_fed (width : Z) (s : store) (t drafts : text) (width' : Z) (f : store) : Prop := exists first,
  let count := size (t ++ drafts) - first in
  first <= size t - 1 /\ width + count <= width'
  /\ (forall c, claims f c = append_claims (claims s) (size t - 1) width first count c)
  /\ forall c, 0 <= claims f c -> entry f c = append_entry token (entry s) (t ++ drafts) width first count c.

(** Nothing is laid out anew; or the live slots are gathered in order of position, wherever they were. *)
Definition masked_moved (width : Z) (s : store) (t : text) (width' : Z) (s' : store) : Prop :=
  (width <= width' /\ forall c, claims s' c = claims s c /\ (0 <= claims s c -> entry s' c = entry s c))
  \/ exists column, size t - 1 <= width' /\ (forall p, 0 <= p < size t - 1 -> claims s (column p) = p)
    /\ (forall c, claims s' c = kill (padded_claims (width' - (size t - 1))) (size t - 1) c)
    /\ forall c, 0 <= claims s' c -> entry s' c = entry s (column (c - (width' - (size t - 1)))).

Lemma tidy_further cl cl' n start start' : (forall c, cl' c = cl c) -> start <= start' ->
  tidy cl n start -> tidy cl' n start'.
Proof. intros E S T c. rewrite E. destruct (T c) as [X Y]. split; [exact X|]. intro. apply Y. lia. Qed.

Lemma masked_fed_ok width s t drafts width' f : tidy (claims s) (size t - 1) width -> holding s t (size t - 1) ->
  1 <= size t -> masked_fed width s t drafts width' f ->
  holding f (t ++ drafts) (size (t ++ drafts)) /\ tidy (claims f) (size (t ++ drafts)) width'.
Proof.
  intros D H T (first & F & W & C & E). set (count := size (t ++ drafts) - first) in *.
  destruct (masked_block token (claims s) (entry s) t (t ++ drafts) (size t - 1) width first count) as [K D'];
    [exact H|exact D|lia|exact F|apply agree_app; lia| | |].
  1-2: unfold count; rewrite app_length; lia.
  replace (first + count) with (size (t ++ drafts)) in * by (unfold count; lia). split.
  - apply (cached_below _ {| Machine.claims := append_claims (claims s) (size t - 1) width first count;
      Machine.entry := append_entry token (entry s) (t ++ drafts) width first count |}); [|exact K].
    intros c P. cbn in *. rewrite C in *. split; [reflexivity|]. apply E. rewrite C. lia.
  - apply (tidy_further (append_claims (claims s) (size t - 1) width first count) _ _ (width + count)); assumption.
Qed.

Definition masked : layout.
Proof.
  refine {|
  mark := Z;
  ok := fun width s t => tidy (claims s) (size t - 1) width /\ holding s t (size t - 1);
  fed := masked_fed;
  kept := fun width f u width' s => width' = width
    /\ forall c, claims s c = kill (claims f) (size u - 1) c /\ entry s c = entry f c;
  moved := masked_moved;
    ok_cached := _; ok_feeds := _; ok_keeps := _; ok_moves := _ |}.
  - intros width s t [_ H]. exact H.
  - intros width s t drafts width' f [D H] T F. exact (proj1 (masked_fed_ok width s t drafts width' f D H T F)).
  - intros width s t drafts width' f u width'' s'' [D H] T F U A N [-> Same].
    destruct (masked_fed_ok width s t drafts width' f D H T F) as [H' D'].
    destruct (masked_commit token (claims f) (entry f) (t ++ drafts) u (size (t ++ drafts)) (size u - 1) width')
      as [K D'']; [exact H'|exact D'|exact A|lia|]. split.
    + apply (tidy_further (kill (claims f) (size u - 1)) _ _ width'); [intro c; apply Same|lia|exact D''].
    + apply (cached_below _ {| Machine.claims := kill (claims f) (size u - 1); Machine.entry := entry f |}); [|exact K].
      intros c _. cbn. apply Same.
  - intros width s t width' s' [D H] T [[W Same]|(column & N & Col & C & E)].
    + split; [apply (tidy_further (claims s) _ _ width); [intro c; apply Same|exact W|exact D]|].
      apply (cached_below _ s); [|exact H]. intros c P. destruct (Same c) as [X Y]. split; [exact X|apply Y; lia].
    + set (n := size t - 1) in *.
      destruct (compaction token (claims s) (entry s) t n width' column) as [K D']; [exact H|unfold n; lia|exact Col|].
      split; [apply (tidy_further (kill (padded_claims (width' - n)) n) _ _ width'); [exact C|lia|exact D']|].
      apply (cached_below _ {| Machine.claims := kill (padded_claims (width' - n)) n;
        Machine.entry := fun c => entry s (column (c - (width' - n))) |}); [|exact K].
      intros c P. cbn in *. rewrite C in *. split; [reflexivity|]. apply E. rewrite C. lia.
Defined.

(** ** Paged *)

(** Between rounds a table may grow, shrink to what is cached, and other rows may write: what claims a cached position
    of this row stays; or the row was sent back, and a prefill caches its text anew, behind [n] positions that are held
    already: those that it has found. At a pass it has slots of its own for all that is fed (INV-14, INV-16). That a pool
    gives it these slots, and holds what is found, are theorems of Tables.v. *)
Definition paged_fed (s : store) (t drafts : text) (f : store) : Prop := exists place reserved,
  own_slots (claims s) place reserved /\ size (t ++ drafts) <= reserved
  /\ same_below (size (t ++ drafts))
       (paged_store token (claims s) (write token (entry s) (t ++ drafts) (claims s) (size t - 1) (size drafts + 1))) f.

Lemma paged_fed_cached s t drafts f : holding s t (size t - 1) -> 1 <= size t -> paged_fed s t drafts f ->
  holding f (t ++ drafts) (size (t ++ drafts)).
Proof.
  intros H T (place & reserved & Own & R & S). eapply cached_below; [exact S|].
  apply (paged_feeds token (claims s) place reserved (entry s) t drafts Own T R). exact H.
Qed.

Definition paged_prefilled (s' : store) (t : text) : Prop := exists place reserved e n,
  own_slots (claims s') place reserved /\ size t - 1 <= reserved /\ 0 <= n
  /\ holding (paged_store token (claims s') e) t n
  /\ same_below (size t - 1)
       (paged_store token (claims s') (write token e t (claims s') n (size t - 1 - n))) s'.

Lemma paged_prefilled_cached s' t : paged_prefilled s' t -> holding s' t (size t - 1).
Proof.
  intros (place & reserved & e & n & Own & R & N & H & S). eapply cached_below; [exact S|]. intros p P.
  destruct (Own p) as [C Only]; [lia|]. exists (place p). cbn. split; [exact C|]. split; [|exact Only].
  unfold write. rewrite C. destruct (Z.leb_spec n p), (Z.ltb_spec p (n + (size t - 1 - n))); cbn; [reflexivity|lia| |];
    destruct (H p) as (c & X & E & _); try lia; cbn in *; now rewrite <- (Only c X), E.
Qed.

Definition paged : layout.
Proof.
  refine {|
  mark := unit;
  ok := fun _ s t => holding s t (size t - 1);
  fed := fun _ s t drafts _ f => paged_fed s t drafts f;
  kept := fun _ f u _ s => same_below (size u - 1) f s;
  moved := fun _ s t _ s' => same_below (size t - 1) s s' \/ paged_prefilled s' t;
    ok_cached := _; ok_feeds := _; ok_keeps := _; ok_moves := _ |}.
  - intros _ s t H. exact H.
  - intros _ s t drafts _ f H T F. exact (paged_fed_cached s t drafts f H T F).
  - intros _ s t drafts _ f u _ s'' H T F _ A N Same. apply (cached_below _ f); [exact Same|].
    apply (cached_agree token _ _ (t ++ drafts) u (size (t ++ drafts))); [|exact A|exact N].
    exact (paged_fed_cached s t drafts f H T F).
  - intros _ s t _ s' H _ [Same|Anew]; [exact (cached_below _ s s' t Same H)|exact (paged_prefilled_cached s' t Anew)].
Defined.

(** ** One corollary for each layout *)
Corollary inplace_text : right_text inplace.
Proof. apply layout_text. Qed.

(** Realigned, and rolled back: the cap of a round is whatever the batch makes it. *)
Corollary left_padded_text : right_text left_padded.
Proof. apply layout_text. Qed.

Corollary masked_text : right_text masked.
Proof. apply layout_text. Qed.

Corollary paged_text : right_text paged.
Proof. apply layout_text. Qed.
End Cases.
