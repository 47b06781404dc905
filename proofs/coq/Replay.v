(** A recorded run with its tokens and its slots, replayed step by step.

    The state is what the slots hold, what the rows say and what they propose. A step may be taken only if what the
    engine fed, saw, chose and committed follows from the state; a run must end with every row's end explained. The
    function [step] is extracted to OCaml and judges the engine's own records. *)
From Coq Require Import NArith Arith List Bool Lia FMapPositive.
Import ListNotations.
Module M := PositiveMap.
Open Scope N_scope.

Definition token := N.
Definition id := positive.     (* of a row *)
Definition slot := positive.   (* of any store: rectangles and pools have numbers of their own *)
Definition entry := (id * N * token)%type.  (* row, position, token *)

Inductive reason := Goes_on | Stopped | Out_of_budget.

Record row := {
  prompt : N; budget : N; stops : list token;
  text : list token; drafts : list token;
  answers : list (N * token);  (* position of a query of the target in this round, and its choice *)
  over : bool }.

Record state := { slots : M.t entry; rows : M.t row }.

Inductive event :=
  | Begin (who : id) (its_prompt : list token) (its_budget : N) (its_stops : list token)
  | Propose (who : id) (its_drafts : list token)
  | Feed (who : id) (first : N) (fed : list (token * slot))  (* from a position on: tokens, and where their K/V go *)
  | Junk (written : list slot)                               (* entries of no row *)
  | Copy (pairs : list (slot * slot))                        (* to, from; all at once *)
  | Query (of_target : bool) (who : id) (position : N) (seen : list slot) (choice : token)
  | Commit (who : id) (accepted : N) (why : reason) (emitted : list token)
  | Cancel (who : id).

(** ** The checks *)

Definition size (t : list token) : N := N.of_nat (length t).

(** Entries of a text from a position on. *)
Fixpoint entries (who : id) (at_ : N) (t : list token) : list entry :=
  match t with [] => [] | x :: xs => (who, at_, x) :: entries who (N.succ at_) xs end.

(** What is seen, in the order of slots, must be the text from its first token on; how far does it go? *)
Fixpoint reads (st : M.t entry) (who : id) (at_ : N) (t : list token) (seen : list slot) {struct seen} : option N :=
  match seen, t with
  | [], _ => Some at_
  | s :: ss, x :: xs =>
      match M.find s st with
      | Some (w, p, y) => if Pos.eqb w who && N.eqb p at_ && N.eqb y x then reads st who (N.succ at_) xs ss else None
      | None => None
      end
  | _ :: _, [] => None
  end.

Fixpoint write (st : M.t entry) (who : id) (at_ : N) (t : list token) (fed : list (token * slot))
  {struct fed} : option (M.t entry) :=
  match fed, t with
  | [], _ => Some st
  | (y, s) :: rest, x :: xs =>
      if N.eqb y x then write (M.add s (who, at_, y) st) who (N.succ at_) xs rest else None
  | _ :: _, [] => None
  end.

Definition copy (old : M.t entry) (pairs : list (slot * slot)) : M.t entry :=
  fold_left (fun st ts => match M.find (snd ts) old with
    | Some e => M.add (fst ts) e st | None => M.remove (fst ts) st end) pairs old.

(** Every emitted token was chosen by a query of this round; only the last may differ from the drafts. *)
Fixpoint chosen (exact : bool) (asked : list (N * token)) (p : N) (emitted : list token) : bool :=
  match emitted with
  | [] => true
  | x :: xs => existsb (fun a => N.eqb (fst a) p && (negb exact || N.eqb (snd a) x)) asked
      && chosen exact asked (N.succ p) xs
  end.

Fixpoint follows (proposed emitted : list token) {struct emitted} : bool :=
  match emitted, proposed with
  | [], _ => false
  | [_], _ => true
  | x :: xs, d :: ds => N.eqb x d && follows ds xs
  | _ :: _, [] => false
  end.

Fixpoint stop_is_last (stops_at emitted : list token) : bool :=
  match emitted with
  | [] => true
  | [_] => true
  | x :: xs => negb (existsb (N.eqb x) stops_at) && stop_is_last stops_at xs
  end.

Definition fate (r : row) (t : list token) : reason :=
  if existsb (N.eqb (last t 0)) (stops r) then Stopped
  else if prompt r + budget r <=? size t then Out_of_budget else Goes_on.

Definition same_reason (a b : reason) : bool :=
  match a, b with Goes_on, Goes_on | Stopped, Stopped | Out_of_budget, Out_of_budget => true | _, _ => false end.

Definition may_commit (exact : bool) (r : row) (accepted : N) (why : reason) (emitted : list token) : bool :=
  follows (drafts r) emitted && (accepted <=? size (drafts r)) && (size emitted <=? N.succ accepted)
  && chosen exact (answers r) (size (text r) - 1) emitted
  && stop_is_last (stops r) emitted
  && (size (text r ++ emitted) <=? prompt r + budget r)
  && same_reason why (fate r (text r ++ emitted)).

Definition of_row (st : state) (who : id) : option row :=
  match M.find who (rows st) with Some r => if over r then None else Some r | None => None end.
Definition with_row (st : state) (who : id) (r : row) : state := {| slots := slots st; rows := M.add who r (rows st) |}.
Definition with_slots (st : state) (m : M.t entry) : state := {| slots := m; rows := rows st |}.

Definition proposes (r : row) (ds : list token) : row :=
  {| prompt := prompt r; budget := budget r; stops := stops r; text := text r; drafts := ds; answers := []; over := false |}.
Definition answered (r : row) (p : N) (choice : token) : row :=
  {| prompt := prompt r; budget := budget r; stops := stops r; text := text r; drafts := drafts r;
     answers := (p, choice) :: answers r; over := false |}.
Definition grown (r : row) (why : reason) (emitted : list token) : row :=
  {| prompt := prompt r; budget := budget r; stops := stops r; text := text r ++ emitted; drafts := []; answers := [];
     over := negb (same_reason why Goes_on) |}.
Definition cancelled (r : row) : row :=
  {| prompt := prompt r; budget := budget r; stops := stops r; text := text r; drafts := []; answers := []; over := true |}.

(** [exact]: tokens must be the choices, as under greedy and coupled selection. *)
Definition step (exact : bool) (st : state) (e : event) : option state :=
  match e with
  | Begin who p b s =>
      match M.find who (rows st), p with
      | None, _ :: _ => Some (with_row st who {| prompt := size p; budget := b; stops := s; text := p; drafts := [];
          answers := []; over := false |})
      | _, _ => None
      end
  | Propose who ds => match of_row st who with Some r => Some (with_row st who (proposes r ds)) | None => None end
  | Feed who first fed =>
      match of_row st who with
      | Some r => match write (slots st) who first (skipn (N.to_nat first) (text r ++ drafts r)) fed with
          | Some m => Some (with_slots st m) | None => None end
      | None => None
      end
  | Junk written => Some (with_slots st (fold_left (fun m s => M.remove s m) written (slots st)))
  | Copy pairs => Some (with_slots st (copy (slots st) pairs))
  | Query of_target who p seen choice =>
      match of_row st who with
      | Some r => match reads (slots st) who 0 (text r ++ drafts r) seen with
          | Some n => if N.eqb n (N.succ p)
              then Some (if of_target then with_row st who (answered r p choice) else st) else None
          | None => None end
      | None => None
      end
  | Commit who accepted why emitted =>
      match of_row st who with
      | Some r => if may_commit exact r accepted why emitted then Some (with_row st who (grown r why emitted)) else None
      | None => None
      end
  | Cancel who => match of_row st who with Some r => Some (with_row st who (cancelled r)) | None => None end
  end.

Definition untouched : state := {| slots := M.empty entry; rows := M.empty row |}.
Definition all_over (st : state) : bool := forallb (fun kr => over (snd kr)) (M.elements (rows st)).

(** ** What it means *)

Lemma reads_right st who t seen : forall at_ n, reads st who at_ t seen = Some n ->
  map (fun s => M.find s st) seen = map Some (entries who at_ (firstn (length seen) t))
  /\ (length seen <= length t)%nat /\ n = at_ + N.of_nat (length seen).
Proof.
  revert t; induction seen as [|s ss IH]; intros t at_ n; cbn [reads].
  - intro E. injection E as <-. cbn. repeat split; lia.
  - destruct t as [|x xs]; [discriminate|]. destruct (M.find s st) as [[[w p] y]|] eqn:F; [|discriminate].
    destruct (Pos.eqb_spec w who), (N.eqb_spec p at_), (N.eqb_spec y x); cbn [andb]; try discriminate. subst.
    intro R. destruct (IH xs (N.succ at_) n R) as (A & B & C). cbn [map firstn length entries]. rewrite F, A. repeat split; lia.
Qed.

(** THEOREM (views, INV-3 and INV-4). A query that is replayed saw the row's own text, from its first token to the
    query's own position, every position once and in a slot that holds its entry. *)
Theorem replay_views exact st st' of_target who p seen choice : step exact st (Query of_target who p seen choice) = Some st' ->
  exists r, M.find who (rows st) = Some r /\
    map (fun s => M.find s (slots st)) seen = map Some (entries who 0 (firstn (N.to_nat (p + 1)) (text r ++ drafts r)))
    /\ (N.to_nat (p + 1) <= length (text r ++ drafts r))%nat.
Proof.
  cbn [step]. unfold of_row. destruct (M.find who (rows st)) as [r|]; [|discriminate]. destruct (over r); [discriminate|].
  destruct (reads (slots st) who 0 (text r ++ drafts r) seen) as [n|] eqn:R; [|discriminate].
  destruct (N.eqb_spec n (N.succ p)) as [E|]; [|discriminate]. intros _. exists r. split; [reflexivity|].
  destruct (reads_right _ _ _ _ _ _ R) as (A & B & C). replace (N.to_nat (p + 1)) with (length seen) by lia. auto.
Qed.

(** A network that answers as after the text that a query sees. *)
Definition honest (plain : list token -> token) (st : state) (e : event) : Prop :=
  match e with
  | Query true who p _ choice => forall r, M.find who (rows st) = Some r ->
      choice = plain (firstn (N.to_nat (p + 1)) (text r ++ drafts r))
  | _ => True
  end.

Inductive replayed (exact : bool) (plain : list token -> token) : state -> list event -> state -> Prop :=
  | at_end st : replayed exact plain st [] st
  | next st e es st' st'' : honest plain st e -> step exact st e = Some st' -> replayed exact plain st' es st'' ->
      replayed exact plain st (e :: es) st''.

(** From the prompt on, every token is the choice after those before it. *)
Definition is_plain (plain : list token -> token) (r : row) : Prop :=
  (1 <= prompt r) /\ (prompt r <= size (text r)) /\
  forall i, (N.to_nat (prompt r) <= i < length (text r))%nat -> nth i (text r) 0 = plain (firstn i (text r)).
Definition asked_plain (plain : list token -> token) (r : row) : Prop :=
  forall p c, In (p, c) (answers r) -> c = plain (firstn (N.to_nat (p + 1)) (text r ++ drafts r)).
Definition explained (r : row) : Prop :=
  size (text r) <= prompt r + budget r /\
  (over r = true -> existsb (N.eqb (last (text r) 0)) (stops r) = true \/ size (text r) = prompt r + budget r).

Lemma follows_prefix ds xs i : follows ds xs = true -> (i < length xs)%nat -> firstn i xs = firstn i ds.
Proof.
  revert ds i; induction xs as [|x xs IH]; intros ds i F L; [cbn in L; lia|].
  destruct i as [|i]; [reflexivity|]. destruct xs as [|y ys]; [cbn in L; lia|]. destruct ds as [|d ds]; [cbn in F; discriminate|].
  cbn [follows] in F. apply andb_true_iff in F as [E F]. apply N.eqb_eq in E. subst.
  cbn [firstn]. f_equal. apply IH; [exact F|cbn in *; lia].
Qed.

Lemma chosen_at asked xs : forall p i, chosen true asked p xs = true -> (i < length xs)%nat ->
  In (p + N.of_nat i, nth i xs 0) asked.
Proof.
  induction xs as [|x xs IH]; intros p i C L; [cbn in L; lia|]. cbn [chosen] in C. apply andb_true_iff in C as [E C].
  destruct i as [|i].
  - apply existsb_exists in E as ((q & c) & I & E). cbn [fst snd negb orb] in E. apply andb_true_iff in E as [E1 E2].
    apply N.eqb_eq in E1, E2. subst. replace (p + N.of_nat 0) with p by lia. exact I.
  - replace (p + N.of_nat (S i)) with (N.succ p + N.of_nat i) by lia. apply IH; [exact C|cbn in L; lia].
Qed.

Lemma commit_plain plain r accepted why emitted : is_plain plain r -> asked_plain plain r ->
  may_commit true r accepted why emitted = true -> is_plain plain (grown r why emitted).
Proof.
  intros (P1 & P2 & P) A C. unfold may_commit in C. repeat (apply andb_true_iff in C as [C ?]).
  unfold is_plain, grown, size in *. cbn [prompt text]. rewrite app_length. split; [exact P1|]. split; [lia|].
  intros i [L U]. destruct (Nat.lt_ge_cases i (length (text r))) as [B|B].
  - rewrite app_nth1, firstn_app by lia. replace (i - length (text r))%nat with 0%nat by lia. cbn. rewrite app_nil_r. auto.
  - rewrite app_nth2 by lia. set (k := (i - length (text r))%nat).
    assert (I : In (N.of_nat (length (text r)) - 1 + N.of_nat k, nth k emitted 0) (answers r)).
    { apply chosen_at; [assumption|lia]. }
    rewrite (A _ _ I). f_equal. replace (N.to_nat (N.of_nat (length (text r)) - 1 + N.of_nat k + 1)) with (length (text r) + k)%nat by lia.
    replace i with (length (text r) + k)%nat by lia. rewrite !firstn_app_2. f_equal.
    symmetry. apply follows_prefix; [assumption|lia].
Qed.

Lemma commit_explained exact r accepted why emitted : may_commit exact r accepted why emitted = true ->
  explained (grown r why emitted).
Proof.
  intro C. unfold may_commit in C. repeat (apply andb_true_iff in C as [C ?]). apply N.leb_le in H0.
  unfold explained, grown. cbn [text prompt budget over stops]. split; [exact H0|]. intro O.
  unfold fate in H. destruct (existsb (N.eqb (last (text r ++ emitted) 0)) (stops r)); [left; reflexivity|right].
  destruct (N.leb_spec (prompt r + budget r) (size (text r ++ emitted))) as [L|L]; [lia|].
  destruct why; cbn in *; discriminate.
Qed.

Definition was_cancelled (es : list event) (who : id) : Prop := In (Cancel who) es.

(** All rows are as they should be; [ends]: also why they ended. *)
Definition right (plain : list token -> token) (st : state) : Prop :=
  forall who r, M.find who (rows st) = Some r -> is_plain plain r /\ asked_plain plain r.
Definition ends (gone : list event) (st : state) : Prop :=
  forall who r, M.find who (rows st) = Some r -> explained r \/ was_cancelled gone who.

Lemma find_add {A} (m : M.t A) k x k' : M.find k' (M.add k x m) = if Pos.eqb k' k then Some x else M.find k' m.
Proof. destruct (Pos.eqb_spec k' k) as [->|N]; [apply M.gss|apply M.gso; exact N]. Qed.

Lemma step_right plain st e st' : right plain st -> honest plain st e -> step true st e = Some st' -> right plain st'.
Proof.
  intros R H S. assert (Put : forall who r, is_plain plain r /\ asked_plain plain r -> right plain (with_row st who r)).
  { intros who r G w q F. cbn [with_row rows] in F. rewrite find_add in F. destruct (Pos.eqb w who); [injection F as <-; exact G|eauto]. }
  assert (Own : forall who r, of_row st who = Some r -> M.find who (rows st) = Some r /\ is_plain plain r /\ asked_plain plain r).
  { intros who r F. unfold of_row in F. destruct (M.find who (rows st)) as [q|] eqn:E; [|discriminate].
    destruct (over q); [discriminate|]. injection F as <-. split; [reflexivity|eauto]. }
  destruct e as [who p b s|who ds|who f fed|w|pairs|t who p seen c|who a why em|who]; cbn [step] in S.
  - destruct (M.find who (rows st)); [discriminate|]. destruct p as [|x xs]; [discriminate|]. injection S as <-. apply Put. split.
    + unfold is_plain, size. cbn [prompt text]. repeat split; cbn [length]; lia.
    + intros q c I. destruct I.
  - destruct (of_row st who) as [r|] eqn:E; [|discriminate]. injection S as <-. destruct (Own _ _ E) as (_ & P & A).
    apply Put. split; [exact P|intros q c I; destruct I].
  - destruct (of_row st who); [|discriminate]. destruct (write _ _ _ _ _); [|discriminate]. injection S as <-. exact R.
  - injection S as <-. exact R.
  - injection S as <-. exact R.
  - destruct (of_row st who) as [r|] eqn:E; [|discriminate]. destruct (reads _ _ _ _ _); [|discriminate].
    destruct (n =? N.succ p); [|discriminate]. injection S as <-. destruct t; [|exact R].
    destruct (Own _ _ E) as (F & P & A). apply Put. split; [exact P|]. intros q d [I|I]; [|exact (A q d I)].
    injection I as <- <-. exact (H r F).
  - destruct (of_row st who) as [r|] eqn:E; [|discriminate]. destruct (may_commit true r a why em) eqn:C; [|discriminate].
    injection S as <-. destruct (Own _ _ E) as (_ & P & A). apply Put.
    split; [apply (commit_plain plain r a why em P A C)|intros q c I; destruct I].
  - destruct (of_row st who) as [r|] eqn:E; [|discriminate]. injection S as <-. destruct (Own _ _ E) as (_ & P & A).
    apply Put. split; [exact P|intros q c I; destruct I].
Qed.

(** THEOREM (texts). If the network answers each view as it would after the text that it shows, the texts of a run that
    is replayed are those of plain decoding: every token is the choice after the tokens before it. *)
Theorem replay_text plain es st who r : replayed true plain untouched es st -> M.find who (rows st) = Some r -> is_plain plain r.
Proof.
  intros X F. assert (R : right plain untouched) by (intros w q G; cbn in G; rewrite M.gempty in G; discriminate).
  revert R. induction X as [st|st e es st' st'' H S X IH]; intro R; [apply (R who r F)|].
  apply IH; [exact F|]. exact (step_right plain st e st' R H S).
Qed.

Fixpoint replay (exact : bool) (st : state) (es : list event) : option state :=
  match es with
  | [] => Some st
  | e :: rest => match step exact st e with Some st' => replay exact st' rest | None => None end
  end.

Lemma step_ends exact gone st e st' : ends gone st -> step exact st e = Some st' -> ends (gone ++ [e]) st'.
Proof.
  intros R S. assert (Old : ends (gone ++ [e]) st).
  { intros w q F. destruct (R w q F) as [X|X]; [left; exact X|right]. apply in_or_app. now left. }
  assert (Put : forall who r, explained r \/ was_cancelled (gone ++ [e]) who -> ends (gone ++ [e]) (with_row st who r)).
  { intros who r G w q F. cbn [with_row rows] in F. rewrite find_add in F.
    destruct (Pos.eqb_spec w who) as [->|]; [injection F as <-; exact G|eauto]. }
  assert (Own : forall who r, of_row st who = Some r -> M.find who (rows st) = Some r /\ over r = false).
  { intros who r F. unfold of_row in F. destruct (M.find who (rows st)) as [q|] eqn:E; [|discriminate].
    destruct (over q) eqn:O; [discriminate|]. injection F as <-. auto. }
  assert (Same : forall who r q, of_row st who = Some r -> text q = text r -> prompt q = prompt r -> budget q = budget r ->
      over q = false -> explained q \/ was_cancelled (gone ++ [e]) who).
  { intros who r q F T P B O. destruct (Own _ _ F) as [G _]. destruct (Old who r G) as [[L _]|X]; [left|right; exact X].
    unfold explained. rewrite T, P, B, O. split; [exact L|discriminate]. }
  destruct e as [who p b s|who ds|who f fed|w|pairs|t who p seen c|who a why em|who]; cbn [step] in S.
  - destruct (M.find who (rows st)); [discriminate|]. destruct p as [|x xs]; [discriminate|]. injection S as <-.
    apply Put. left. unfold explained. cbn [text prompt budget over]. split; [lia|discriminate].
  - destruct (of_row st who) as [r|] eqn:E; [|discriminate]. injection S as <-. apply Put. eapply Same; eauto.
  - destruct (of_row st who); [|discriminate]. destruct (write _ _ _ _ _); [|discriminate]. injection S as <-. exact Old.
  - injection S as <-. exact Old.
  - injection S as <-. exact Old.
  - destruct (of_row st who) as [r|] eqn:E; [|discriminate]. destruct (reads _ _ _ _ _); [|discriminate].
    destruct (n =? N.succ p); [|discriminate]. injection S as <-. destruct t; [|exact Old]. apply Put. eapply Same; eauto.
  - destruct (of_row st who) as [r|] eqn:E; [|discriminate]. destruct (may_commit exact r a why em) eqn:C; [|discriminate].
    injection S as <-. apply Put. left. exact (commit_explained exact r a why em C).
  - destruct (of_row st who) as [r|] eqn:E; [|discriminate]. injection S as <-. apply Put. right. apply in_or_app. right. now left.
Qed.

(** THEOREM (ends, INV-7). When a run has been replayed to its end, no row has more than its budget, and each one that
    was not cancelled has a stop token as its last or its budget used up: an end without an explanation is invalid. *)
Theorem replay_ends exact es st : replay exact untouched es = Some st -> all_over st = true -> forall who r,
  M.find who (rows st) = Some r -> ~ was_cancelled es who ->
  size (text r) <= prompt r + budget r /\
  (existsb (N.eqb (last (text r) 0)) (stops r) = true \/ size (text r) = prompt r + budget r).
Proof.
  intros X O who r F C.
  assert (E : ends es st).
  { assert (G : forall gone st0 es0, ends gone st0 -> replay exact st0 es0 = Some st -> ends (gone ++ es0) st).
    { intros gone st0 es0. revert gone st0. induction es0 as [|e es0 IH]; intros gone st0 A B; cbn [replay] in B.
      - injection B as <-. rewrite app_nil_r. exact A.
      - destruct (step exact st0 e) as [st1|] eqn:S; [|discriminate].
        replace (gone ++ e :: es0) with ((gone ++ [e]) ++ es0) by (rewrite <- app_assoc; reflexivity).
        apply (IH _ st1); [exact (step_ends exact gone st0 e st1 A S)|exact B]. }
    apply (G [] untouched es); [|exact X]. intros w q Z. cbn in Z. rewrite M.gempty in Z. discriminate. }
  destruct (E who r F) as [[L K]|K]; [|contradiction]. split; [exact L|]. apply K.
  unfold all_over in O. rewrite forallb_forall in O. apply (O (who, r)). apply M.elements_correct. exact F.
Qed.
