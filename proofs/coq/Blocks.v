(** Blocks of K/V: who owns them, who shares them, and what being sent back leaves.

    The machine follows the books of a pool: which blocks are free, which blocks each row's table names, which token each
    slot was last written for, and which blocks can be found by their text. `step` is extracted, and what a run of the
    engine did to its pool is replayed through it (`replay_blocks.ml`). *)
From Coq Require Import Arith List Lia Bool.
Import ListNotations.

Notation text := (list nat).

(** A row: its text, prompt included; how many tokens that may become; the key of its random numbers; its blocks. *)
Record row := { said : text; quota : nat; key : list nat; table : list nat }.

(** [holds]: the text, from the first token on, that ends with a block, where it can be found. *)
Record books := {
  free : list nat; rows : list row; holds : nat -> option text; slots : nat -> nat -> option nat; grown : bool }.

Inductive event :=
  | Begins (t : text) (q : nat) (k : list nat)
  | Take (w b : nat)
  | Share (w b : nat)
  | Give (w : nat)  (** the last block of a table *)
  | Note (w i : nat)  (** block [i] of a table can be found *)
  | Write (w p b j x : nat)  (** token [x] of position [p] goes to slot [j] of block [b] *)
  | Commits (w : nat) (ts : text)
  | Left (w : nat) (t : text) (q : nat) (k : list nat) (cached : nat)  (** sent back, or ended: what is left of it *)
  | Round  (** a round in which rows decode has ended *)
  | Counts (f counts : list nat).  (** the engine's own books *)

Definition same (a b : text) : bool := if list_eq_dec Nat.eq_dec a b then true else false.
Definition mem (b : nat) (l : list nat) : bool := existsb (Nat.eqb b) l.
Definition names (b : nat) (r : row) : nat := count_occ Nat.eq_dec (table r) b.
Definition named (b : nat) (rs : list row) : nat := list_sum (map (names b) rs).
Definition put {A} (f : nat -> A) (k : nat) (v : A) : nat -> A := fun x => if x =? k then v else f x.
Definition set_row (w : nat) (r : row) (rs : list row) : list row := firstn w rs ++ r :: skipn (S w) rs.
Definition with_table (r : row) (t : list nat) : row := {| said := said r; quota := quota r; key := key r; table := t |}.
Definition with_said (r : row) (t : text) : row := {| said := t; quota := quota r; key := key r; table := table r |}.
Definition cell (o : option nat) (x : nat) : bool := match o with Some y => x =? y | None => false end.

Section Size.
Variable total size : nat.

(** Tokens [i * size … (i + 1) * size) of a row are what the slots of its block say. *)
Definition filled (sl : nat -> option nat) (t : text) (i : nat) : bool :=
  forallb (fun j => match nth_error t (i * size + j) with Some x => cell (sl j) x | None => false end) (seq 0 size).

Definition step (st : books) (e : event) : option books :=
  match e with
  | Begins t q k =>
      if length t <=? q then
        Some {| free := free st; rows := rows st ++ [{| said := t; quota := q; key := k; table := [] |}];
                holds := holds st; slots := slots st; grown := grown st |}
      else None
  | Take w b =>
      match nth_error (rows st) w with
      | Some r => if mem b (free st) then
          Some {| free := remove Nat.eq_dec b (free st); rows := set_row w (with_table r (table r ++ [b])) (rows st);
                  holds := put (holds st) b None; slots := slots st; grown := grown st |} else None
      | None => None
      end
  | Share w b =>
      match nth_error (rows st) w, holds st b with
      | Some r, Some t =>
          let n := S (length (table r)) * size in
          if (b <? total) && (n <=? length (said r)) && same t (firstn n (said r)) then
            Some {| free := remove Nat.eq_dec b (free st); rows := set_row w (with_table r (table r ++ [b])) (rows st);
                    holds := holds st; slots := slots st; grown := grown st |} else None
      | _, _ => None
      end
  | Give w =>
      match nth_error (rows st) w with
      | Some r =>
          match rev (table r) with
          | b :: before =>
              let rs := set_row w (with_table r (rev before)) (rows st) in
              Some {| free := if named b rs =? 0 then b :: free st else free st; rows := rs;
                      holds := holds st; slots := slots st; grown := grown st |}
          | [] => None
          end
      | None => None
      end
  | Note w i =>
      match nth_error (rows st) w with
      | Some r =>
          let n := S i * size in
          match nth_error (table r) i with
          | Some b =>
              if (n <=? length (said r)) && filled (slots st b) (said r) i &&
                 match holds st b with Some t => same t (firstn n (said r)) | None => named b (rows st) =? 1 end
              then Some {| free := free st; rows := rows st; holds := put (holds st) b (Some (firstn n (said r)));
                           slots := slots st; grown := grown st |} else None
          | None => None
          end
      | None => None
      end
  | Write w p b j x =>
      match nth_error (rows st) w with
      | Some r =>
          match nth_error (table r) (p / size), holds st b with
          | Some c, None =>
              if (b =? c) && (j =? p mod size) && (named b (rows st) =? 1) then
                Some {| free := free st; rows := rows st; holds := holds st;
                        slots := put (slots st) b (put (slots st b) j (Some x)); grown := grown st |} else None
          | _, _ => None
          end
      | None => None
      end
  | Commits w ts =>
      match nth_error (rows st) w with
      | Some r => if (1 <=? length ts) && (length (said r) + length ts <=? quota r) then
          Some {| free := free st; rows := set_row w (with_said r (said r ++ ts)) (rows st); holds := holds st;
                  slots := slots st; grown := true |} else None
      | None => None
      end
  | Left w t q k cached =>
      match nth_error (rows st) w with
      | Some r =>
          if same (said r) t && (quota r =? q) && same (key r) k && same (table r) [] && (cached =? 0) then Some st else None
      | None => None
      end
  | Round =>
      if grown st then Some {| free := free st; rows := rows st; holds := holds st; slots := slots st; grown := false |}
      else None
  | Counts f counts =>
      if (length counts =? total) && (length f =? length (free st)) &&
         forallb (fun b => eqb (mem b f) (mem b (free st)) && (nth b counts 0 =? named b (rows st))) (seq 0 total)
      then Some st else None
  end.

Definition opened : books :=
  {| free := seq 0 total; rows := []; holds := fun _ => None; slots := fun _ _ => None; grown := false |}.

Inductive replayed : list event -> books -> books -> Prop :=
  | nothing st : replayed [] st st
  | more e es st st' st'' : step st e = Some st' -> replayed es st' st'' -> replayed (e :: es) st st''.

(** ** Tables and counts *)

Lemma same_eq a b : same a b = true -> a = b.
Proof. unfold same. destruct (list_eq_dec Nat.eq_dec a b); congruence. Qed.

Lemma mem_in b l : mem b l = true <-> In b l.
Proof.
  unfold mem. rewrite existsb_exists. split.
  - intros (x & I & E). apply Nat.eqb_eq in E. now subst.
  - intro I. exists b. split; [exact I|apply Nat.eqb_refl].
Qed.

Lemma set_row_split w r r' rs : nth_error rs w = Some r ->
  exists l l', rs = l ++ r :: l' /\ length l = w /\ set_row w r' rs = l ++ r' :: l'.
Proof.
  intro H. destruct (nth_error_split rs w H) as (l & l' & E & L). exists l, l'. split; [exact E|]. split; [exact L|].
  unfold set_row. rewrite E, <- L. rewrite firstn_app, firstn_all, Nat.sub_diag. cbn [firstn]. rewrite app_nil_r.
  replace (S (length l)) with (length (l ++ [r])) by (rewrite app_length; cbn; lia).
  replace (l ++ r :: l') with ((l ++ [r]) ++ l') by (rewrite <- app_assoc; reflexivity).
  rewrite skipn_app, skipn_all, Nat.sub_diag. reflexivity.
Qed.

Lemma named_app b l l' : named b (l ++ l') = named b l + named b l'.
Proof. unfold named. rewrite map_app, list_sum_app. reflexivity. Qed.

Lemma named_cons b r l : named b (r :: l) = names b r + named b l.
Proof. reflexivity. Qed.

Lemma named_set b w r r' rs : nth_error rs w = Some r ->
  named b (set_row w r' rs) + names b r = named b rs + names b r'.
Proof.
  intro H. destruct (set_row_split w r r' rs H) as (l & l' & E & _ & ->). rewrite E, !named_app, !named_cons. lia.
Qed.

Lemma nth_set w r r' rs v : nth_error rs w = Some r ->
  nth_error (set_row w r' rs) v = if v =? w then Some r' else nth_error rs v.
Proof.
  intro H. destruct (set_row_split w r r' rs H) as (l & l' & E & L & ->). subst w.
  destruct (Nat.eqb_spec v (length l)) as [->|N].
  - rewrite nth_error_app2, Nat.sub_diag by lia. reflexivity.
  - rewrite E. destruct (Nat.lt_ge_cases v (length l)) as [Lt|Ge].
    + rewrite !nth_error_app1 by lia. reflexivity.
    + rewrite !nth_error_app2 by lia. destruct (v - length l) as [|m] eqn:D; [lia|]. reflexivity.
Qed.

Lemma count_at b (l : list nat) i : nth_error l i = Some b -> 1 <= count_occ Nat.eq_dec l b.
Proof. intro H. apply nth_error_In in H. apply (count_occ_In Nat.eq_dec) in H. lia. Qed.

Lemma names_named b w r rs : nth_error rs w = Some r -> names b r <= named b rs.
Proof.
  intro H. destruct (nth_error_split rs w H) as (l & l' & -> & _). rewrite named_app, named_cons. lia.
Qed.

Lemma named_at b w r rs i : nth_error rs w = Some r -> nth_error (table r) i = Some b -> 1 <= named b rs.
Proof. intros H I. pose proof (names_named b w r rs H). pose proof (count_at b _ i I). unfold names in *. lia. Qed.

Lemma place_once b (l : list nat) i j :
  count_occ Nat.eq_dec l b <= 1 -> nth_error l i = Some b -> nth_error l j = Some b -> i = j.
Proof.
  revert i j. induction l as [|x l IH]; intros i j C I J; [destruct i; discriminate|].
  cbn [count_occ] in C. destruct i as [|i], j as [|j]; cbn [nth_error] in *; try reflexivity.
  - injection I as ->. pose proof (count_at b l j J). destruct (Nat.eq_dec b b); [lia|congruence].
  - injection J as ->. pose proof (count_at b l i I). destruct (Nat.eq_dec b b); [lia|congruence].
  - f_equal. apply IH; [destruct (Nat.eq_dec x b); lia|assumption|assumption].
Qed.

Lemma owner_once b rs w v r s i j : named b rs <= 1 ->
  nth_error rs w = Some r -> nth_error (table r) i = Some b ->
  nth_error rs v = Some s -> nth_error (table s) j = Some b -> w = v /\ i = j.
Proof.
  revert w v. induction rs as [|q rs IH]; intros w v N W I V J; [destruct w; discriminate|].
  rewrite named_cons in N.
  destruct w as [|w], v as [|v]; cbn [nth_error] in *.
  - injection W as ->. injection V as ->. split; [reflexivity|]. apply (place_once b (table s)); [|exact I|exact J].
    unfold names in N. lia.
  - injection W as ->. pose proof (count_at b _ i I). pose proof (named_at b v s rs j V J). unfold names in N. lia.
  - injection V as ->. pose proof (count_at b _ j J). pose proof (named_at b w r rs i W I). unfold names in N. lia.
  - destruct (IH w v) as [-> ->]; auto. lia.
Qed.

(** ** What every replayed run keeps *)

Definition owned (st : books) : Prop :=
  NoDup (free st) /\ (forall b, In b (free st) <-> b < total /\ named b (rows st) = 0)
  /\ (forall b, 1 <= named b (rows st) -> b < total).

Definition found (st : books) : Prop :=
  (forall w r i b t, nth_error (rows st) w = Some r -> nth_error (table r) i = Some b -> holds st b = Some t ->
     t = firstn (S i * size) (said r) /\ S i * size <= length (said r))
  /\ (forall b, 2 <= named b (rows st) -> holds st b <> None)
  /\ (forall b t j, holds st b = Some t -> j < size -> slots st b j = nth_error t (length t - size + j)).

Lemma count_snoc (l : list nat) b c :
  count_occ Nat.eq_dec (l ++ [c]) b = count_occ Nat.eq_dec l b + if b =? c then 1 else 0.
Proof.
  rewrite count_occ_app. cbn. destruct (Nat.eq_dec c b), (Nat.eqb_spec b c); subst; try congruence; lia.
Qed.

Lemma NoDup_remove_all b (l : list nat) : NoDup l -> NoDup (remove Nat.eq_dec b l).
Proof.
  induction 1 as [|x l N D IH]; cbn; [constructor|]. destruct (Nat.eq_dec b x); [exact IH|]. constructor; [|exact IH].
  intro I. apply in_remove in I. tauto.
Qed.

Lemma in_removed b c (l : list nat) : In c (remove Nat.eq_dec b l) <-> In c l /\ c <> b.
Proof. split; [apply in_remove|intros [I N]; now apply in_in_remove]. Qed.

Lemma longer_owned st r w b h s g : owned st -> nth_error (rows st) w = Some r -> b < total ->
  owned {| free := remove Nat.eq_dec b (free st); rows := set_row w (with_table r (table r ++ [b])) (rows st);
           holds := h; slots := s; grown := g |}.
Proof.
  intros (D & F & U) W L. unfold owned. cbn [free rows].
  assert (N : forall c, named c (set_row w (with_table r (table r ++ [b])) (rows st))
              = named c (rows st) + if c =? b then 1 else 0).
  { intro c. pose proof (named_set c w r (with_table r (table r ++ [b])) (rows st) W) as E. unfold names in E at 2.
    cbn [with_table table] in E. rewrite count_snoc in E. unfold names in E. lia. }
  split; [now apply NoDup_remove_all|]. split; intro c; rewrite N.
  - rewrite in_removed, F. destruct (Nat.eqb_spec c b); lia.
  - specialize (U c). destruct (Nat.eqb_spec c b); lia.
Qed.

Lemma step_owned st e st' : step st e = Some st' -> owned st -> owned st'.
Proof.
  intros Hs O. destruct e as [t q k|w b|w b|w|w i|w p b j x|w ts|w t q k n| |f cs]; cbn [step] in Hs.
  - destruct (_ <=? _); [|discriminate]. injection Hs as <-. destruct O as (D & F & U). unfold owned. cbn [free rows].
    assert (N : forall c, named c (rows st ++ [{| said := t; quota := q; key := k; table := [] |}]) = named c (rows st)).
    { intro c. rewrite named_app, named_cons. unfold names, named at 2. cbn. lia. }
    split; [exact D|]. split; intro c; rewrite N; auto.
  - destruct (nth_error (rows st) w) as [r|] eqn:W; [|discriminate]. destruct (mem b (free st)) eqn:M; [|discriminate].
    injection Hs as <-. apply longer_owned; [exact O|exact W|]. apply mem_in in M. now apply O in M.
  - destruct (nth_error (rows st) w) as [r|] eqn:W; [|discriminate]. destruct (holds st b) as [t|]; [|discriminate].
    destruct (b <? total) eqn:L; cbn [andb] in Hs; [|discriminate]. apply Nat.ltb_lt in L.
    destruct (_ && _); [|discriminate]. injection Hs as <-. now apply longer_owned.
  - destruct (nth_error (rows st) w) as [r|] eqn:W; [|discriminate]. destruct (rev (table r)) as [|b before] eqn:R; [discriminate|].
    injection Hs as <-. assert (T : table r = rev before ++ [b]) by (rewrite <- (rev_involutive (table r)), R; reflexivity).
    destruct O as (D & F & U). set (rs := set_row w (with_table r (rev before)) (rows st)).
    assert (N : forall c, named c rs + (if c =? b then 1 else 0) = named c (rows st)).
    { intro c. pose proof (named_set c w r (with_table r (rev before)) (rows st) W) as E. fold rs in E.
      unfold names in E. cbn [with_table table] in E. rewrite T, count_snoc in E. lia. }
    assert (B : b < total) by (apply U; specialize (N b); rewrite Nat.eqb_refl in N; lia).
    unfold owned. cbn [free rows]. fold rs. destruct (Nat.eqb_spec (named b rs) 0) as [Z|Z]; (split; [|split]).
    + constructor; [|exact D]. rewrite F. specialize (N b). rewrite Nat.eqb_refl in N. lia.
    + intro c. specialize (N c). cbn [In]. rewrite F. destruct (Nat.eqb_spec c b); [subst; intuition lia|].
      split; [intros [->|]; [congruence|lia]|right; lia].
    + intro c. specialize (N c). specialize (U c). lia.
    + exact D.
    + intro c. specialize (N c). rewrite F. destruct (Nat.eqb_spec c b); [subst; split; intro; lia|lia].
    + intro c. specialize (N c). specialize (U c). lia.
  - destruct (nth_error (rows st) w) as [r|]; [|discriminate]. destruct (nth_error (table r) i); [|discriminate].
    destruct (_ && _); [|discriminate]. injection Hs as <-. exact O.
  - destruct (nth_error (rows st) w) as [r|]; [|discriminate]. destruct (nth_error (table r) (p / size)); [|discriminate].
    destruct (holds st b); [discriminate|]. destruct (_ && _); [|discriminate]. injection Hs as <-. exact O.
  - destruct (nth_error (rows st) w) as [r|] eqn:W; [|discriminate]. destruct (_ && _); [|discriminate]. injection Hs as <-.
    destruct O as (D & F & U). unfold owned. cbn [free rows].
    assert (N : forall c, named c (set_row w (with_said r (said r ++ ts)) (rows st)) = named c (rows st)).
    { intro c. pose proof (named_set c w r (with_said r (said r ++ ts)) (rows st) W) as E. unfold names in E.
      cbn [with_said table] in E. lia. }
    split; [exact D|]. split; intro c; rewrite N; auto.
  - destruct (nth_error (rows st) w) as [r|]; [|discriminate]. destruct (_ && _); [|discriminate]. now injection Hs as <-.
  - destruct (grown st); [|discriminate]. injection Hs as <-. exact O.
  - destruct (_ && _); [|discriminate]. now injection Hs as <-.
Qed.

Lemma write_keeps st w p c i x st' : step st (Write w p c i x) = Some st' ->
  rows st' = rows st /\ holds st' = holds st /\
  forall b j, holds st b <> None \/ 2 <= named b (rows st) -> slots st' b j = slots st b j.
Proof.
  intro Hs. cbn [step] in Hs. destruct (nth_error (rows st) w) as [r|]; [|discriminate].
  destruct (nth_error (table r) (p / size)) as [d|]; [|discriminate]. destruct (holds st c) eqn:E; [discriminate|].
  destruct (_ && (named c (rows st) =? 1)) eqn:G in Hs; [|discriminate]. injection Hs as <-.
  apply andb_true_iff in G as [_ N]. apply Nat.eqb_eq in N. cbn [rows holds slots]. split; [reflexivity|].
  split; [reflexivity|]. intros b j H. unfold put. destruct (Nat.eqb_spec b c) as [->|]; [|reflexivity].
  destruct H as [H|H]; [congruence|lia].
Qed.

Lemma nth_firstn {A} (l : list A) n k : k < n -> nth_error (firstn n l) k = nth_error l k.
Proof.
  revert l k. induction n as [|n IH]; intros l k L; [lia|]. destruct l as [|x l]; [reflexivity|].
  destruct k as [|k]; cbn; [reflexivity|]. apply IH. lia.
Qed.

Lemma filled_at sl t i j : filled sl t i = true -> j < size -> sl j = nth_error t (i * size + j).
Proof.
  unfold filled. rewrite forallb_forall. intros H L. specialize (H j). rewrite in_seq in H. specialize (H ltac:(lia)).
  destruct (nth_error t (i * size + j)) as [x|]; [|discriminate]. unfold cell in H. destruct (sl j) as [y|]; [|discriminate].
  apply Nat.eqb_eq in H. now subst.
Qed.

Lemma at_snoc (l : list nat) b i c : nth_error (l ++ [b]) i = Some c ->
  nth_error l i = Some c \/ (i = length l /\ c = b).
Proof.
  intro H. destruct (Nat.lt_ge_cases i (length l)) as [L|G]; [left; now rewrite nth_error_app1 in H|right].
  rewrite nth_error_app2 in H by lia. destruct (i - length l) as [|m] eqn:D; cbn in H.
  - injection H as <-. split; [lia|reflexivity].
  - destruct m; discriminate.
Qed.

Lemma step_found st e st' : step st e = Some st' -> owned st -> found st -> found st'.
Proof.
  intros Hs O (A & C & D). destruct e as [t q k|w b|w b|w|w i|w p b j x|w ts|w t q k n| |f cs].
  6: {
    destruct (write_keeps st w p b j x st' Hs) as (R & H & K). unfold found. rewrite R, H. split; [exact A|].
    split; [exact C|]. intros c u i I J. rewrite (K c i); [now apply D|left; congruence]. }
  all: cbn [step] in Hs.
  - destruct (_ <=? _); [|discriminate]. injection Hs as <-. unfold found. cbn [rows holds slots].
    split; [|split; [|exact D]].
    + intros w r i b u W. destruct (Nat.lt_ge_cases w (length (rows st))) as [L|G].
      * rewrite nth_error_app1 in W by lia. exact (A w r i b u W).
      * rewrite nth_error_app2 in W by lia. destruct (w - length (rows st)) as [|m]; cbn in W.
        -- injection W as <-. cbn. destruct i; discriminate.
        -- destruct m; discriminate.
    + intro b. rewrite named_app, named_cons. unfold names, named at 2. cbn. rewrite !Nat.add_0_r. apply C.
  - destruct (nth_error (rows st) w) as [r|] eqn:W; [|discriminate]. destruct (mem b (free st)) eqn:M; [|discriminate].
    injection Hs as <-. apply mem_in in M. apply O in M. unfold found. cbn [rows holds slots].
    split; [|split].
    + intros v s i c u V I H. unfold put in H. destruct (Nat.eqb_spec c b) as [|N]; [discriminate|].
      rewrite (nth_set w r) in V by exact W. destruct (Nat.eqb_spec v w) as [->|].
      * injection V as <-. cbn [with_table table said] in *. destruct (at_snoc _ _ _ _ I) as [I'|[_ ->]]; [|congruence].
        exact (A w r i c u W I' H).
      * exact (A v s i c u V I H).
    + intros c H. pose proof (named_set c w r (with_table r (table r ++ [b])) (rows st) W) as E. unfold names in E.
      cbn [with_table table] in E. rewrite count_snoc in E. unfold put. destruct (Nat.eqb_spec c b) as [->|]; [lia|].
      apply C. lia.
    + intros c u j H. unfold put in H. destruct (Nat.eqb_spec c b); [discriminate|]. apply D. exact H.
  - destruct (nth_error (rows st) w) as [r|] eqn:W; [|discriminate]. destruct (holds st b) as [t|] eqn:Hb; [|discriminate].
    destruct (b <? total); cbn [andb] in Hs; [|discriminate].
    destruct (Nat.leb_spec (S (length (table r)) * size) (length (said r))) as [L|]; cbn [andb] in Hs; [|discriminate].
    destruct (same t _) eqn:T; [|discriminate]. apply same_eq in T. injection Hs as <-. unfold found. cbn [rows holds slots].
    split; [|split; [|exact D]].
    + intros v s i c u V I H. rewrite (nth_set w r) in V by exact W. destruct (Nat.eqb_spec v w) as [->|].
      * injection V as <-. cbn [with_table table said] in *. destruct (at_snoc _ _ _ _ I) as [I'|[-> ->]].
        -- exact (A w r i c u W I' H).
        -- rewrite Hb in H. injection H as <-. split; [exact T|exact L].
      * exact (A v s i c u V I H).
    + intros c H. pose proof (named_set c w r (with_table r (table r ++ [b])) (rows st) W) as E. unfold names in E.
      cbn [with_table table] in E. rewrite count_snoc in E. destruct (Nat.eqb_spec c b) as [->|]; [congruence|].
      apply C. lia.
  - destruct (nth_error (rows st) w) as [r|] eqn:W; [|discriminate]. destruct (rev (table r)) as [|b before] eqn:R; [discriminate|].
    injection Hs as <-. assert (T : table r = rev before ++ [b]) by (rewrite <- (rev_involutive (table r)), R; reflexivity).
    unfold found. cbn [rows holds slots]. split; [|split; [|exact D]].
    + intros v s i c u V I H. rewrite (nth_set w r) in V by exact W. destruct (Nat.eqb_spec v w) as [->|].
      * injection V as <-. cbn [with_table table said] in *. apply (A w r i c u W); [|exact H]. rewrite T.
        assert (i < length (rev before)) by (apply nth_error_Some; congruence). now rewrite nth_error_app1.
      * exact (A v s i c u V I H).
    + intros c H. pose proof (named_set c w r (with_table r (rev before)) (rows st) W) as E. unfold names in E.
      cbn [with_table table] in E. rewrite T, count_snoc in E. apply C. lia.
  - destruct (nth_error (rows st) w) as [r|] eqn:W; [|discriminate]. destruct (nth_error (table r) i) as [b|] eqn:I; [|discriminate].
    remember (S i * size) as n eqn:En.
    destruct (Nat.leb_spec n (length (said r))) as [L|]; cbn [andb] in Hs; [|discriminate].
    destruct (filled (slots st b) (said r) i) eqn:F; cbn [andb] in Hs; [|discriminate].
    destruct (match holds st b with Some t => same t (firstn n (said r)) | None => named b (rows st) =? 1 end) eqn:G;
      [|discriminate].
    injection Hs as <-. unfold found. cbn [rows holds slots]. split; [|split].
    + intros v s j c u V J H. unfold put in H. destruct (Nat.eqb_spec c b) as [->|]; [|exact (A v s j c u V J H)].
      injection H as <-. destruct (holds st b) as [t|] eqn:Hb.
      * apply same_eq in G. rewrite <- G. exact (A v s j b t V J Hb).
      * apply Nat.eqb_eq in G. destruct (owner_once b (rows st) w v r s i j) as [<- <-]; try assumption; [lia|].
        rewrite W in V. injection V as <-. rewrite <- En. split; [reflexivity|exact L].
    + intros c H. unfold put. destruct (Nat.eqb_spec c b); [discriminate|]. now apply C.
    + intros c u j H J. unfold put in H. destruct (Nat.eqb_spec c b) as [->|]; [|now apply D].
      injection H as <-. rewrite firstn_length_le by exact L. rewrite (filled_at _ _ _ _ F J).
      rewrite nth_firstn by (rewrite En; cbn; lia). f_equal. rewrite En. cbn. lia.
  - destruct (nth_error (rows st) w) as [r|] eqn:W; [|discriminate]. destruct (_ && _); [|discriminate]. injection Hs as <-.
    unfold found. cbn [rows holds slots]. split; [|split; [|exact D]].
    + intros v s i c u V I H. rewrite (nth_set w r) in V by exact W. destruct (Nat.eqb_spec v w) as [->|].
      * injection V as <-. cbn [with_said table said] in *. destruct (A w r i c u W I H) as [-> L].
        rewrite app_length. split; [|lia]. rewrite firstn_app. replace (S i * size - length (said r)) with 0 by lia.
        cbn [firstn]. now rewrite app_nil_r.
      * exact (A v s i c u V I H).
    + intros c H. pose proof (named_set c w r (with_said r (said r ++ ts)) (rows st) W) as E. unfold names in E.
      cbn [with_said table] in E. apply C. lia.
  - destruct (nth_error (rows st) w) as [r|]; [|discriminate]. destruct (_ && _); [|discriminate]. injection Hs as <-. split; auto.
  - destruct (grown st); [|discriminate]. injection Hs as <-. split; auto.
  - destruct (_ && _); [|discriminate]. injection Hs as <-. split; auto.
Qed.

Lemma opened_keeps : owned opened /\ found opened.
Proof.
  split.
  - split; [apply seq_NoDup|]. split; intro b; cbn [opened free rows]; [rewrite in_seq|]; unfold named; cbn; lia.
  - split; [intros [|w] r i b t W; discriminate|]. split; [unfold named; cbn; intros; lia|discriminate].
Qed.

Lemma replayed_keeps es st st' : replayed es st st' -> owned st /\ found st -> owned st' /\ found st'.
Proof.
  induction 1 as [|e es st st' st'' Hs X IH]; intros [O F]; [now split|]. apply IH.
  split; [exact (step_owned _ _ _ Hs O)|exact (step_found _ _ _ Hs O F)].
Qed.

(** ** The theorems *)

(** THEOREM (ownership and conservation, INV-13, INV-15). In every state of a run that is replayed, a block of the pool
    is free, once, or some table names it, and never both; no table names another block. *)
Theorem block_ownership es st : replayed es opened st ->
  NoDup (free st) /\ (forall b, In b (free st) <-> b < total /\ named b (rows st) = 0)
  /\ (forall b, 1 <= named b (rows st) -> b < total).
Proof. intro X. exact (proj1 (replayed_keeps es opened st X opened_keeps)). Qed.

(** THEOREM (counts, INV-13). Where the engine's books are accepted, its counts are the numbers of tables that name each
    block, and what it takes for free is named by none. *)
Theorem block_counts es st f counts st' : replayed es opened st -> step st (Counts f counts) = Some st' ->
  forall b, b < total -> nth b counts 0 = named b (rows st) /\ (In b f <-> named b (rows st) = 0).
Proof.
  intros X Hs b L. cbn [step] in Hs. destruct (_ && _) eqn:G in Hs; [|discriminate].
  apply andb_true_iff in G as [_ G]. rewrite forallb_forall in G. specialize (G b). rewrite in_seq in G.
  specialize (G ltac:(lia)). apply andb_true_iff in G as [M N]. apply Nat.eqb_eq in N. apply eqb_prop in M.
  split; [exact N|]. rewrite <- mem_in, M, mem_in. destruct (block_ownership es st X) as (_ & F & _). rewrite F. lia.
Qed.

(** THEOREM (sharing, INV-18). A block that can be found has in its slots the tokens of every row that names it, at the
    positions where the row names it. *)
Theorem block_sharing es st w r i b t j : replayed es opened st ->
  nth_error (rows st) w = Some r -> nth_error (table r) i = Some b -> holds st b = Some t -> j < size ->
  slots st b j = nth_error (said r) (i * size + j).
Proof.
  intros X W I H J. destruct (proj2 (replayed_keeps es opened st X opened_keeps)) as (A & _ & D).
  destruct (A w r i b t W I H) as [E L]. rewrite (D b t j H J), E. rewrite firstn_length_le by exact L.
  rewrite nth_firstn by (cbn; lia). f_equal. cbn. lia.
Qed.

(** THEOREM (read only, INV-14, INV-18). A block that two tables name can be found; and what can be found, or what two
    tables name, is not written. *)
Theorem block_read_only es st : replayed es opened st ->
  (forall b, 2 <= named b (rows st) -> holds st b <> None) /\
  (forall w p c i x st' b j, step st (Write w p c i x) = Some st' -> holds st b <> None \/ 2 <= named b (rows st) ->
     slots st' b j = slots st b j).
Proof.
  intro X. destruct (proj2 (replayed_keeps es opened st X opened_keeps)) as (_ & C & _). split; [exact C|].
  intros w p c i x st' b j Hs H. exact (proj2 (proj2 (write_keeps st w p c i x st' Hs)) b j H).
Qed.

Definition continues (r r' : row) : Prop :=
  quota r' = quota r /\ key r' = key r /\ exists more, said r' = said r ++ more.

Lemma continues_itself r : continues r r.
Proof. unfold continues. repeat split. exists []. now rewrite app_nil_r. Qed.

Lemma step_continues st e st' w r : step st e = Some st' -> nth_error (rows st) w = Some r ->
  exists r', nth_error (rows st') w = Some r' /\ continues r r'.
Proof.
  intros Hs W. assert (Set_ : forall v q q', nth_error (rows st) v = Some q -> continues q q' ->
    exists r', nth_error (set_row v q' (rows st)) w = Some r' /\ continues r r').
  { intros v q q' V K. rewrite (nth_set v q) by exact V. destruct (Nat.eqb_spec w v) as [->|].
    - rewrite W in V. injection V as ->. eauto.
    - exists r. split; [exact W|apply continues_itself]. }
  assert (Same : exists r', nth_error (rows st) w = Some r' /\ continues r r')
    by (exists r; split; [exact W|apply continues_itself]).
  destruct e as [t q k|v b|v b|v|v i|v p b j x|v ts|v t q k n| |f cs].
  6: { destruct (write_keeps st v p b j x st' Hs) as (-> & _). exact Same. }
  all: cbn [step] in Hs.
  - destruct (_ <=? _); [|discriminate]. injection Hs as <-. cbn [rows]. exists r. split; [|apply continues_itself].
    rewrite nth_error_app1; [exact W|]. apply nth_error_Some. congruence.
  - destruct (nth_error (rows st) v) as [q|] eqn:V; [|discriminate]. destruct (mem b (free st)); [|discriminate].
    injection Hs as <-. apply (Set_ v q); [exact V|]. repeat split. exists []. cbn. now rewrite app_nil_r.
  - destruct (nth_error (rows st) v) as [q|] eqn:V; [|discriminate]. destruct (holds st b); [|discriminate].
    destruct (_ && _); [|discriminate]. injection Hs as <-. apply (Set_ v q); [exact V|]. repeat split. exists []. cbn.
    now rewrite app_nil_r.
  - destruct (nth_error (rows st) v) as [q|] eqn:V; [|discriminate]. destruct (rev (table q)); [discriminate|].
    injection Hs as <-. apply (Set_ v q); [exact V|]. repeat split. exists []. cbn. now rewrite app_nil_r.
  - destruct (nth_error (rows st) v) as [q|]; [|discriminate]. destruct (nth_error (table q) i); [|discriminate].
    destruct (_ && _); [|discriminate]. injection Hs as <-. exact Same.
  - destruct (nth_error (rows st) v) as [q|] eqn:V; [|discriminate]. destruct (_ && _); [|discriminate].
    injection Hs as <-. apply (Set_ v q); [exact V|]. repeat split. exists ts. reflexivity.
  - destruct (nth_error (rows st) v) as [q'|]; [|discriminate]. destruct (_ && _); [|discriminate]. injection Hs as <-.
    exact Same.
  - destruct (grown st); [|discriminate]. injection Hs as <-. exact Same.
  - destruct (_ && _); [|discriminate]. injection Hs as <-. exact Same.
Qed.

(** THEOREM (preemption, INV-19). What a row has said, its budget and the key of its numbers outlive whatever happens to
    its blocks: from any state of a run to any later one its text only grows. A row that is sent back has these three,
    no block, and nothing cached. *)
Theorem preemption_keeps es st st' w r : replayed es st st' -> nth_error (rows st) w = Some r ->
  exists r', nth_error (rows st') w = Some r' /\ continues r r'.
Proof.
  intro X. revert r. induction X as [st|e es st st' st'' Hs X IH]; intros r W; [exists r; split; [exact W|apply continues_itself]|].
  destruct (step_continues st e st' w r Hs W) as (r' & W' & Q & K & more & E).
  destruct (IH r' W') as (r'' & W'' & Q' & K' & more' & E'). exists r''. split; [exact W''|].
  unfold continues. rewrite Q', K', E', E, Q, K. repeat split. exists (more ++ more'). now rewrite app_assoc.
Qed.

Theorem sent_back st w t q k n st' : step st (Left w t q k n) = Some st' ->
  st' = st /\ exists r, nth_error (rows st) w = Some r /\ said r = t /\ quota r = q /\ key r = k /\ table r = [] /\ n = 0.
Proof.
  intro Hs. cbn [step] in Hs. destruct (nth_error (rows st) w) as [r|]; [|discriminate]. destruct (_ && _) eqn:G in Hs; [|discriminate].
  injection Hs as <-. split; [reflexivity|]. exists r. repeat rewrite andb_true_iff in G. destruct G as ((((A & B) & C) & D) & E).
  apply same_eq in A, C, D. apply Nat.eqb_eq in B, E. auto 6.
Qed.

(** Tokens that all rows may still say. *)
Definition spare (rs : list row) : nat := list_sum (map (fun r => quota r - length (said r)) rs).
Definition rounds (es : list event) : nat := list_sum (map (fun e => match e with Round => 1 | _ => 0 end) es).
Definition asked_for (es : list event) : nat :=
  list_sum (map (fun e => match e with Begins t q _ => q - length t | _ => 0 end) es).

Lemma rounds_app l l' : rounds (l ++ l') = rounds l + rounds l'.
Proof. unfold rounds. rewrite map_app, list_sum_app. reflexivity. Qed.

Lemma asked_app l l' : asked_for (l ++ l') = asked_for l + asked_for l'.
Proof. unfold asked_for. rewrite map_app, list_sum_app. reflexivity. Qed.

Lemma spare_cons r l : spare (r :: l) = quota r - length (said r) + spare l.
Proof. reflexivity. Qed.

Lemma spare_app l l' : spare (l ++ l') = spare l + spare l'.
Proof. unfold spare. rewrite map_app, list_sum_app. reflexivity. Qed.

Lemma spare_set w r r' rs : nth_error rs w = Some r ->
  spare (set_row w r' rs) + (quota r - length (said r)) = spare rs + (quota r' - length (said r')).
Proof.
  intro H. destruct (set_row_split w r r' rs H) as (l & l' & E & _ & ->). rewrite E, !spare_app, !spare_cons. lia.
Qed.

Definition debt (st : books) : nat := spare (rows st) + if grown st then 1 else 0.

Lemma step_progress st e st' : step st e = Some st' -> rounds [e] + debt st' <= debt st + asked_for [e].
Proof.
  intro Hs. unfold debt. destruct e as [t q k|v b|v b|v|v i|v p b j x|v ts|v t q k n| |f cs]; cbn [step] in Hs;
    unfold rounds, asked_for; cbn [map list_sum fold_right].
  - destruct (_ <=? _); [|discriminate]. injection Hs as <-. cbn [rows grown]. unfold spare. rewrite map_app, list_sum_app.
    cbn. lia.
  - destruct (nth_error (rows st) v) as [q|] eqn:V; [|discriminate]. destruct (mem b (free st)); [|discriminate].
    injection Hs as <-. cbn [rows grown]. pose proof (spare_set v q (with_table q (table q ++ [b])) _ V) as E. cbn in E. lia.
  - destruct (nth_error (rows st) v) as [q|] eqn:V; [|discriminate]. destruct (holds st b); [|discriminate].
    destruct (_ && _); [|discriminate]. injection Hs as <-. cbn [rows grown].
    pose proof (spare_set v q (with_table q (table q ++ [b])) _ V) as E. cbn in E. lia.
  - destruct (nth_error (rows st) v) as [q|] eqn:V; [|discriminate]. destruct (rev (table q)) as [|b l]; [discriminate|].
    injection Hs as <-. cbn [rows grown]. pose proof (spare_set v q (with_table q (rev l)) _ V) as E. cbn in E. lia.
  - destruct (nth_error (rows st) v) as [q|]; [|discriminate]. destruct (nth_error (table q) i); [|discriminate].
    destruct (_ && _); [|discriminate]. injection Hs as <-. cbn [rows grown]. lia.
  - destruct (nth_error (rows st) v) as [r|]; [|discriminate]. destruct (nth_error (table r) (p / size)); [|discriminate].
    destruct (holds st b); [discriminate|]. destruct (_ && _); [|discriminate]. injection Hs as <-. cbn [rows grown]. lia.
  - destruct (nth_error (rows st) v) as [q|] eqn:V; [|discriminate].
    destruct (Nat.leb_spec 1 (length ts)); cbn [andb] in Hs; [|discriminate].
    destruct (Nat.leb_spec (length (said q) + length ts) (quota q)); [|discriminate]. injection Hs as <-. cbn [rows grown].
    pose proof (spare_set v q (with_said q (said q ++ ts)) _ V) as E. cbn [with_said quota said] in E.
    rewrite app_length in E. destruct (grown st); lia.
  - destruct (nth_error (rows st) v) as [q'|]; [|discriminate]. destruct (_ && _); [|discriminate]. injection Hs as <-. lia.
  - destruct (grown st); [|discriminate]. injection Hs as <-. cbn [rows grown]. lia.
  - destruct (_ && _); [|discriminate]. injection Hs as <-. lia.
Qed.

Lemma run_progress es st st' : replayed es st st' -> rounds es + debt st' <= debt st + asked_for es.
Proof.
  induction 1 as [st|e es st st' st'' Hs X IH]; [unfold rounds, asked_for; cbn; lia|].
  pose proof (step_progress st e st' Hs) as P. change (e :: es) with ([e] ++ es). rewrite rounds_app, asked_app. lia.
Qed.

(** THEOREM (progress, INV-19). However often rows are sent back, a run has no more rounds in which rows decode than
    tokens were asked for. *)
Theorem preemption_progress es st : replayed es opened st -> rounds es <= asked_for es.
Proof. intro X. apply run_progress in X. unfold debt at 2 in X. cbn in X. lia. Qed.
End Size.
