(** Where K/V live: in place, left-padded with realignment, masked with compaction.

    An entry is identified with the text it was computed from: the K/V of position [p] of a row are right when they
    come from the row's first [p + 1] tokens. A layout says which position each column claims (negative: none);
    a query at position [p] sees the columns that claim a position in [0, p]. *)
From Coq Require Import ZArith List Lia Bool.
Import ListNotations.
Open Scope Z_scope.

Section Layouts.
Variable token : Type.
Notation text := (list token).

Definition prefix (t : text) (p : Z) : text := firstn (Z.to_nat (p + 1)) t.
Definition agree (t u : text) (n : Z) : Prop := firstn (Z.to_nat n) t = firstn (Z.to_nat n) u.
Definition sees (claims : Z -> Z) (p c : Z) : Prop := 0 <= claims c <= p.

(** Position [p] is held by exactly one column, with the right entry. *)
Definition holds (claims : Z -> Z) (entry : Z -> text) (t : text) (p : Z) : Prop :=
  exists c, claims c = p /\ entry c = prefix t p /\ forall c', claims c' = p -> c' = c.

Definition cached (claims : Z -> Z) (entry : Z -> text) (t : text) (n : Z) : Prop :=
  forall p, 0 <= p < n -> holds claims entry t p.

(** THEOREM (INV-3 and INV-4 from [cached]). A query at a cached position sees each position up to its own exactly
    once, each with the K/V of the row's own token, and nothing else. *)
Theorem cached_view claims entry t n p : cached claims entry t n -> 0 <= p < n ->
  (forall c, sees claims p c -> entry c = prefix t (claims c))
  /\ (forall p', 0 <= p' <= p -> exists c, sees claims p c /\ claims c = p' /\ forall c', claims c' = p' -> c' = c).
Proof.
  intros H P. split.
  - intros c [L U]. destruct (H (claims c)) as (d & _ & E & Only); [lia|].
    rewrite (Only c eq_refl). rewrite (Only c eq_refl) in E at 1. exact E.
  - intros p' P'. destruct (H p') as (c & C & _ & Only); [lia|]. exists c. unfold sees. rewrite C. split; [lia|auto].
Qed.

Lemma agree_prefix t u n p : agree t u n -> 0 <= p < n -> prefix t p = prefix u p.
Proof.
  intros A P. unfold prefix. unfold agree in A.
  replace (Z.to_nat (p + 1)) with (Nat.min (Z.to_nat (p + 1)) (Z.to_nat n)) by lia.
  rewrite <- !firstn_firstn, A. reflexivity.
Qed.

Lemma agree_le t u n m : agree t u n -> 0 <= m <= n -> agree t u m.
Proof.
  intros A P. unfold agree in *. replace (Z.to_nat m) with (Nat.min (Z.to_nat m) (Z.to_nat n)) by lia.
  rewrite <- !firstn_firstn, A. reflexivity.
Qed.

(** THEOREM (forgetting). What is cached for a text is cached for any text with the same first tokens: after a
    round the row's new text agrees with what was fed up to the last accepted draft. *)
Theorem cached_agree claims entry t u n m :
  cached claims entry t n -> agree t u m -> m <= n -> cached claims entry u m.
Proof.
  intros H A M p P. destruct (H p) as (c & C & E & Only); [lia|]. exists c. split; [exact C|]. split; [|exact Only].
  rewrite E. apply (agree_prefix t u m p); assumption.
Qed.

(** The row's text after a round: the accepted drafts and one more token. *)
Theorem committed_text t drafts accepted next n : 0 <= accepted <= Z.of_nat (length drafts) ->
  n = Z.of_nat (length t) ->
  agree (t ++ drafts) (t ++ firstn (Z.to_nat accepted) drafts ++ [next]) (n + accepted).
Proof.
  intros A N. unfold agree. replace (Z.to_nat (n + accepted)) with (length t + Z.to_nat accepted)%nat by lia.
  rewrite !firstn_app_2, firstn_app, firstn_firstn, Nat.min_id.
  rewrite firstn_length_le by lia. rewrite Nat.sub_diag. cbn. rewrite app_nil_r. reflexivity.
Qed.

(** ** In place: position [p] in column [p]; a block overwrites from its first position on. *)
Definition inplace_claims (c : Z) : Z := c.
Definition write (entry : Z -> text) (t : text) (column : Z -> Z) (first size c : Z) : text :=
  let p := column c in if (first <=? p) && (p <? first + size) then prefix t p else entry c.

Theorem inplace_block entry t u n first size :
  cached inplace_claims entry t n -> 0 <= first <= n -> agree t u first ->
  cached inplace_claims (write entry u inplace_claims first size) u (first + size).
Proof.
  intros H F A p P. unfold inplace_claims, write in *. exists p. split; [reflexivity|].
  split; [|intros c' E; exact E].
  destruct (Z.leb_spec first p), (Z.ltb_spec p (first + size)); cbn; try lia; [reflexivity|].
  destruct (H p) as (c & <- & E & _); [lia|]. rewrite E. apply (agree_prefix t u first); [exact A|lia].
Qed.

(** THEOREM (in place). Feeding the last token and [k] drafts, then keeping any number of them, preserves "all but
    the last token cached" with nothing moved: rejected entries are overwritten before a query may see them. *)
Theorem inplace_round entry t drafts accepted next n :
  n = Z.of_nat (length t) -> 1 <= n -> 0 <= accepted <= Z.of_nat (length drafts) ->
  cached inplace_claims entry t (n - 1) ->
  let fed := t ++ drafts in
  let after := t ++ firstn (Z.to_nat accepted) drafts ++ [next] in
  let entry' := write entry fed inplace_claims (n - 1) (Z.of_nat (length drafts) + 1) in
  cached inplace_claims entry' fed (n + Z.of_nat (length drafts))
  /\ cached inplace_claims entry' after (Z.of_nat (length after) - 1).
Proof.
  intros N N1 A H fed after entry'.
  assert (Fed : cached inplace_claims entry' fed (n + Z.of_nat (length drafts))).
  { replace (n + Z.of_nat (length drafts)) with (n - 1 + (Z.of_nat (length drafts) + 1)) by lia.
    apply (inplace_block entry t fed (n - 1)); [exact H|lia|]. unfold agree, fed.
    rewrite firstn_app. replace (Z.to_nat (n - 1) - length t)%nat with 0%nat by lia. cbn. now rewrite app_nil_r. }
  split; [exact Fed|]. apply (cached_agree _ _ fed after (n + Z.of_nat (length drafts))); [exact Fed| |].
  - replace (Z.of_nat (length after) - 1) with (n + accepted); [apply committed_text; assumption|].
    unfold after. rewrite !app_length, firstn_length_le by lia. cbn. lia.
  - unfold after. rewrite !app_length, firstn_length_le by lia. cbn. lia.
Qed.

(** ** Left-padded: position [p] in column [pad + p]. *)
Definition padded_claims (pad c : Z) : Z := c - pad.

(** THEOREM (realignment). Gathering column [c] from column [c - (pad' - pad)] turns a row with [pad] pads into one
    with [pad'] pads and keeps what is cached. *)
Theorem realign_cached entry t n pad pad' :
  cached (padded_claims pad) entry t n ->
  cached (padded_claims pad') (fun c => entry (c - (pad' - pad))) t n.
Proof.
  intros H p P. destruct (H p P) as (c & C & E & _). unfold padded_claims in *. exists (p + pad').
  split; [lia|]. split; [|intros; lia]. replace (p + pad' - (pad' - pad)) with c by lia. exact E.
Qed.

Theorem padded_block entry t u n pad first size :
  cached (padded_claims pad) entry t n -> 0 <= first <= n -> agree t u first ->
  cached (padded_claims pad) (write entry u (padded_claims pad) first size) u (first + size).
Proof.
  intros H F A p P. exists (p + pad). unfold padded_claims, write. replace (p + pad - pad) with p by lia.
  split; [reflexivity|]. split; [|intros c' E; lia].
  destruct (Z.leb_spec first p), (Z.ltb_spec p (first + size)); cbn; try lia; [reflexivity|].
  destruct (H p) as (c & C & E & _); [lia|]. unfold padded_claims in C. replace (p + pad) with c by lia.
  rewrite E. apply (agree_prefix t u first); [exact A|lia].
Qed.

(** THEOREM (realigned round). Verify, keep any prefix, shift to the new pads: "all but the last token cached"
    holds again, and with pads [width - length] the rows are rectangular (INV-1). *)
Theorem realigned_round entry t drafts accepted next n width width' :
  n = Z.of_nat (length t) -> 1 <= n -> 0 <= accepted <= Z.of_nat (length drafts) ->
  cached (padded_claims (width - n)) entry t (n - 1) ->
  let fed := t ++ drafts in
  let after := t ++ firstn (Z.to_nat accepted) drafts ++ [next] in
  let n' := Z.of_nat (length after) in
  let entry' := write entry fed (padded_claims (width - n)) (n - 1) (Z.of_nat (length drafts) + 1) in
  let shift := (width' - n') - (width - n) in
  cached (padded_claims (width - n)) entry' fed (n + Z.of_nat (length drafts))
  /\ cached (padded_claims (width' - n')) (fun c => entry' (c - shift)) after (n' - 1).
Proof.
  intros N N1 A H fed after n' entry' shift.
  assert (Fed : cached (padded_claims (width - n)) entry' fed (n + Z.of_nat (length drafts))).
  { replace (n + Z.of_nat (length drafts)) with (n - 1 + (Z.of_nat (length drafts) + 1)) by lia.
    apply (padded_block entry t fed (n - 1)); [exact H|lia|]. unfold agree, fed.
    rewrite firstn_app. replace (Z.to_nat (n - 1) - length t)%nat with 0%nat by lia. cbn. now rewrite app_nil_r. }
  split; [exact Fed|]. apply realign_cached.
  apply (cached_agree _ _ fed after (n + Z.of_nat (length drafts))); [exact Fed| |].
  - replace (n' - 1) with (n + accepted); [apply committed_text; assumption|].
    unfold n', after. rewrite !app_length, firstn_length_le by lia. cbn. lia.
  - unfold n', after. rewrite !app_length, firstn_length_le by lia. cbn. lia.
Qed.

(** ** Masked: blocks are appended; a slot claims a position or is dead. *)

(** A block of [size] columns from [start] on feeds the positions [first, first + size); entries of positions that
    were cached before are dead on arrival. *)
Definition append_claims (claims : Z -> Z) (n start first size c : Z) : Z :=
  if (start <=? c) && (c <? start + size)
  then let p := first + (c - start) in if (n <=? p) && (0 <=? p) then p else -1
  else claims c.

Definition append_entry (entry : Z -> text) (t : text) (start first size c : Z) : text :=
  if (start <=? c) && (c <? start + size) then prefix t (first + (c - start)) else entry c.

(** Nothing claims a position at or beyond [n], nothing stands in the columns to be written. *)
Definition tidy (claims : Z -> Z) (n start : Z) : Prop :=
  forall c, claims c < n /\ (start <= c -> claims c < 0).

Theorem masked_block claims entry t u n start first size :
  cached claims entry t n -> tidy claims n start -> 0 <= n -> first <= n -> agree t u n -> 0 <= size ->
  n <= first + size ->
  cached (append_claims claims n start first size) (append_entry entry u start first size) u (first + size)
  /\ tidy (append_claims claims n start first size) (first + size) (start + size).
Proof.
  intros H T N F A S0 Long. split.
  - intros p P. unfold append_claims, append_entry. destruct (Z.lt_ge_cases p n) as [Old|New].
    + destruct (H p) as (c & C & E & Only); [lia|]. exists c. destruct (T c) as [_ Tc].
      assert (c < start) by (destruct (Z.lt_ge_cases c start); [assumption|specialize (Tc ltac:(assumption)); lia]).
      destruct (Z.leb_spec start c); cbn; [lia|]. split; [exact C|]. split; [rewrite E; apply (agree_prefix t u n); [exact A|lia]|].
      intros c' E'. destruct (Z.leb_spec start c'), (Z.ltb_spec c' (start + size)); cbn in E'; try (apply Only; exact E').
      destruct (Z.leb_spec n (first + (c' - start))), (Z.leb_spec 0 (first + (c' - start))); cbn in E'; lia.
    + exists (start + (p - first)). destruct (Z.leb_spec start (start + (p - first))), (Z.ltb_spec (start + (p - first)) (start + size)); cbn; try lia.
      replace (first + (start + (p - first) - start)) with p by lia.
      destruct (Z.leb_spec n p), (Z.leb_spec 0 p); cbn; try lia. split; [reflexivity|]. split; [reflexivity|].
      intros c' E'. destruct (Z.leb_spec start c'), (Z.ltb_spec c' (start + size)); cbn in E'.
      * destruct (Z.leb_spec n (first + (c' - start))), (Z.leb_spec 0 (first + (c' - start))); cbn in E'; lia.
      * destruct (T c') as [X _]. lia.
      * destruct (T c') as [X _]. lia.
      * destruct (T c') as [X _]. lia.
  - intro c. unfold append_claims. destruct (T c) as [X Y].
    destruct (Z.leb_spec start c), (Z.ltb_spec c (start + size)); cbn; try (split; [lia|intro; specialize (Y ltac:(lia)); lia]).
    all: try (split; [lia|intro; lia]).
    destruct (Z.leb_spec n (first + (c - start))), (Z.leb_spec 0 (first + (c - start))); cbn; split; lia.
Qed.

(** Slots of rejected tokens die. *)
Definition kill (claims : Z -> Z) (n c : Z) : Z := if (0 <=? claims c) && (claims c <? n) then claims c else -1.

Theorem masked_commit claims entry t u n m start :
  cached claims entry t n -> tidy claims n start -> agree t u m -> 0 <= m <= n ->
  cached (kill claims m) entry u m /\ tidy (kill claims m) m start.
Proof.
  intros H T A M. split.
  - intros p P. destruct (H p) as (c & C & E & Only); [lia|]. exists c. unfold kill. rewrite C.
    destruct (Z.leb_spec 0 p), (Z.ltb_spec p m); cbn; try lia. split; [reflexivity|].
    split; [rewrite E; apply (agree_prefix t u m); [exact A|lia]|]. intros c' E'. apply Only.
    destruct (Z.leb_spec 0 (claims c')), (Z.ltb_spec (claims c') m); cbn in E'; lia.
  - intro c. unfold kill. destruct (T c) as [X Y].
    destruct (Z.leb_spec 0 (claims c)), (Z.ltb_spec (claims c) m); cbn; split; intros; try lia.
Qed.

(** THEOREM (compaction). Gathering the live slots, in order of position, into left-padded form of [width] columns
    keeps what is cached. [column] says where a position stood. *)
Theorem compaction claims entry t n width column :
  cached claims entry t n -> 0 <= n <= width -> (forall p, 0 <= p < n -> claims (column p) = p) ->
  let claims' := fun c => kill (padded_claims (width - n)) n c in
  cached claims' (fun c => entry (column (c - (width - n)))) t n /\ tidy claims' n width.
Proof.
  intros H N Col claims'. split.
  - intros p P. exists (p + (width - n)). unfold claims', kill, padded_claims.
    replace (p + (width - n) - (width - n)) with p by lia.
    destruct (Z.leb_spec 0 p), (Z.ltb_spec p n); cbn; try lia. split; [reflexivity|]. split.
    + destruct (H p P) as (c & _ & E & Only). rewrite (Only (column p)); [exact E|apply Col; exact P].
    + intros c' E'. destruct (Z.leb_spec 0 (c' - (width - n))), (Z.ltb_spec (c' - (width - n)) n); cbn in E'; lia.
  - intro c. unfold claims', kill, padded_claims.
    destruct (Z.leb_spec 0 (c - (width - n))), (Z.ltb_spec (c - (width - n)) n); cbn; split; intros; lia.
Qed.

(** ** The draft's cache (INV-6) *)

(** THEOREM (draft lag). After a round that drafted [k >= 1] tokens the draft lags by 2 exactly when all [k] were
    kept with the bonus token, else by 1. *)
Theorem draft_lag n k accepted n' : 1 <= k -> 0 <= accepted <= k -> n' = n + accepted + 1 ->
  let lag := n' - Z.min (n + k - 1) (n' - 1) in
  1 <= lag <= 2 /\ (lag = 2 <-> accepted = k).
Proof. intros K A N lag. unfold lag. lia. Qed.

(** THEOREM (draft cache). The draft fed the row's text and all drafts but the last; what it keeps is right. *)
Theorem draft_cached claims entry t drafts accepted next n k :
  n = Z.of_nat (length t) -> k = Z.of_nat (length drafts) -> 1 <= k -> 0 <= accepted <= k ->
  cached claims entry (t ++ drafts) (n + k - 1) ->
  let after := t ++ firstn (Z.to_nat accepted) drafts ++ [next] in
  cached claims entry after (Z.min (n + k - 1) (Z.of_nat (length after) - 1)).
Proof.
  intros N K K1 A H after.
  assert (L : Z.of_nat (length after) - 1 = n + accepted).
  { unfold after. rewrite !app_length, firstn_length_le by lia. cbn. lia. }
  apply (cached_agree _ _ (t ++ drafts) after (n + k - 1)); [exact H| |lia].
  apply (agree_le _ _ (n + accepted)); [apply committed_text; lia|lia].
Qed.

End Layouts.
