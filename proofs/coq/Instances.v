(** A theorem whose premises cannot hold says nothing. Here, and in InstancesOfRounds.v, theorems with premises are applied to
    one small case each, so that they can. exempt.txt says of every other theorem why it needs no case. *)
From Coq Require Import ZArith QArith Arith List Lia Lqa Bool.
From RaggedSpec Require Import FiniteLaw Rejection Autoregressive BlockRule BlockRound BlockGain Batch EngineRound Keyed Layouts
  Machine Cases Draws Law.
From RaggedSpec Require Selection FreshLaw.
Import ListNotations.
Open Scope Q_scope.

(** ** Laws: fair coins *)
Definition coins : list bool := [true; false].
Definition half (_ : bool) : Q := 1 # 2.

Lemma half_pmf : is_pmf bool coins half.
Proof. split; [intro; unfold half; lra|reflexivity]. Qed.

(** Two tosses. *)
Definition toss : job bool coins :=
  {| target := fun _ => half; stops := fun _ => false; budget := 2; target_pmf := fun _ => half_pmf |}.

Definition cells : law bool := pmf_law bool coins half.
Lemma cells_mass : mass cells == 1.
Proof. reflexivity. Qed.

(** *** Batch.v: one draft a round *)
Program Definition alike_draft : drafter bool coins toss :=
  {| draft := fun _ => half; accept := fun _ _ => 1; residual := fun _ => half |}.
Next Obligation. exact half_pmf. Qed.
Next Obligation. split; intros [|]; reflexivity. Qed.

Definition round_plan (_ : unit) (gs : list (list bool)) : list (law (list bool * list bool)) :=
  map (fun g => ys <- round bool coins alike_draft 1 g ;; ret (extend bool coins toss g (firstn 2 ys), ys)) gs.
Definition forget (_ : unit) (_ : list (list bool)) (_ : list (list bool * list bool)) : unit := tt.

Lemma round_plan_moves m gs : length gs = length [toss] -> each bool coins _ (move bool coins) [toss] gs (round_plan m gs).
Proof. destruct gs as [|g [|]]; intro L; try discriminate L. split; [constructor|exact I]. Qed.

Example joint_law_applies F :
  expect (run bool unit (scheduled_round bool coins unit [toss] round_plan forget) 2 tt [[]]) (fun gm => F (fst gm))
  == expect (finish bool coins [toss] [[]]) F.
Proof.
  apply joint_law; [apply scheduled_round_exact, round_plan_moves|].
  unfold always. vm_compute. repeat constructor.
Qed.

(** One of two rows runs, and is cut to the batch minimum. *)
Example rollback_exact_applies F :
  let offered := ys <- round bool coins alike_draft 1 [] ;; ret (Some ys) in
  expect (product [offered; ret None]) (fun os => expect (finish bool coins [toss; toss]
    (commit bool coins _ (take bool coins (common bool 2 os)) [toss; toss] [[]; []] os)) F)
  == expect (finish bool coins [toss; toss] [[]; []]) F.
Proof.
  intro offered. apply rollback_exact. split; [apply (offers_round bool coins toss [] alike_draft 1)|].
  split; [apply offers_nothing|exact I].
Qed.

(** *** BlockGain.v: two drafts of a model that takes one of two tokens for the other *)
Definition third (b : bool) : Q := if b then 1 # 3 else 2 # 3.
Definition other_third (b : bool) : Q := third (negb b).

Lemma third_pmf : is_pmf bool coins third.
Proof. split; [intros [|]; cbn; lra|reflexivity]. Qed.
Lemma other_third_pmf : is_pmf bool coins other_third.
Proof. split; [intros [|]; cbn; lra|reflexivity]. Qed.

Definition thirds : job bool coins :=
  {| target := fun _ => third; stops := fun _ => false; budget := 3; target_pmf := fun _ => third_pmf |}.
Program Definition mistaken : drafter bool coins thirds :=
  {| draft := fun _ => other_third; accept := fun _ => accept_formula bool third other_third;
     residual := fun _ => residual_formula bool coins third other_third |}.
Next Obligation. exact other_third_pmf. Qed.
Next Obligation. apply formulas_verify; [exact third_pmf|exact other_third_pmf|intros [|]; cbn; auto]. Qed.

Notation one_by_one := (engine_round bool coins thirds mistaken 2 2 []).
Notation together := (block_engine_round bool coins thirds mistaken 2 2 []).

Example block_accepts_no_fewer_applies : expect one_by_one (accepted bool) <= expect together (accepted bool)
  /\ expect one_by_one (accepted bool) == 10 # 9 /\ expect together (accepted bool) == 11 # 9.
Proof. split; [apply block_accepts_no_fewer, le_n|]. split; vm_compute; reflexivity. Qed.

(** *** Keyed.v: two rows, a position each in every tick *)
Definition tick_plan (_ : unit) (rows : list (list bool * nat)) : list (option (bool -> bool * bool)) :=
  map (fun r => if ended bool coins toss (fst r) then None else Some (fun c => (c, false))) rows.
Definition forget_tick (_ : unit) (_ : list (list bool * nat * option bool)) : unit := tt.
Definition two_rows : list (list bool * nat) := [([], 2%nat); ([], 2%nat)].

Lemma tick_plan_reads m rows : length rows = length [toss; toss] ->
  all_right bool coins bool cells [toss; toss] (tick_plan m rows) rows.
Proof.
  assert (R : forall r, reads_right bool coins bool cells toss
    (if ended bool coins toss (fst r) then None else Some (fun c => (c, false))) r).
  { intro r. destruct (ended bool coins toss (fst r)) eqn:E; [exact I|]. split; [exact E|]. intro f. reflexivity. }
  destruct rows as [|r [|r' [|]]]; intro L; try discriminate L. split; [apply R|]. split; [apply R|exact I].
Qed.

Example keyed_joint_law_applies F :
  expect (world bool bool cells two_rows)
    (fun css => F (map fst (snd (fst (keyed_run bool bool unit tick_plan forget_tick 2 tt two_rows css)))))
  == expect (finish bool coins [toss; toss] [[]; []]) F.
Proof.
  apply (keyed_joint_law bool coins bool cells cells_mass unit tick_plan forget_tick
    (fun m rows => map_length _ rows) [toss; toss] tick_plan_reads); [reflexivity|].
  unfold always. vm_compute. repeat constructor.
Qed.

Example attempt_law_applies f :
  expect (three bool cells) (fun c => f (fst (attempt bool bool (fun _ u => u) (fun _ _ _ => true) (fun _ u => u) [] c)))
  == expect (pmf_law bool coins half) f.
Proof.
  apply (attempt_law bool coins toss alike_draft bool cells (fun _ u => u) (fun _ u => u) (fun _ u => u)
    (fun _ _ _ => true) cells_mass).
  split; intros; try reflexivity. cbn. unfold half. ring.
Qed.

Example rejection_schedule_independence_applies :
  let over := fun g : list bool => (2 <=? length g)%nat in
  let cut := fun g ys : list bool => if over g then g else g ++ ys in
  let w := fun _ : nat => {| of_draft := true; of_test := true; of_next := false |} in
  let rounds := scheduled bool bool (fun _ u => u) (fun _ _ u => u) (fun _ u => u) (fun _ u => u) (fun _ => 1%nat) cut w in
  rounds [true; false; true] [] = rounds [false; true] [].
Proof.
  intros over cut w rounds.
  apply (rejection_schedule_independence bool bool (fun _ u => u) (fun _ _ u => u) (fun _ u => u) (fun _ u => u) over
    (fun _ => 1%nat) cut); [|reflexivity|reflexivity].
  intros g ys E. unfold cut. rewrite E. reflexivity.
Qed.

(** ** Texts: the network chooses by the position *)
Definition by_position (_ : nat) (_ : store bool) (p : Z) : bool := Z.even p.
Lemma by_position_sees_only i p a b : alike bool p a b -> by_position i a p = by_position i b p.
Proof. reflexivity. Qed.
Definition no_stop (_ : nat) (_ : list bool) : bool := false.
Definition two (_ : nat) : nat := 2.

(** A round after [true]: the draft [false] is not what the network chooses there. *)
Lemma one_round (l : layout bool) (right : right_text bool bool_dec l) m s m' f m'' s'' : ok bool l m s [true] -> fed bool l m s [true] [false] m' f ->
  kept bool l m' f [true; true] m'' s'' ->
  [true; true] = Selection.complete bool (job_of bool by_position no_stop two 0) [true].
Proof.
  intros O F K.
  apply (right by_position no_stop two by_position_sees_only
    [fun _ => Some ([false], 0%nat)] (fun _ => ({| said := [true]; held := s |}, m))
    (fun _ => ({| said := [true; true]; held := s'' |}, m'')) 0%nat).
  - eapply runs_on; [|apply stays_on]. intro i.
    exact (plays_on bool bool_dec l (by_position i) (no_stop i) (two i) [true] s m [false] 0%nat m' f m'' s'' F K).
  - intro n. split; [apply le_n|exact O].
  - reflexivity.
Qed.

Notation written_store cl := {| claims := cl; entry := write bool (fun _ => []) [true; false] cl 0 2 |}.

Example left_padded_text_applies (pad : Z) :
  [true; true] = Selection.complete bool (job_of bool by_position no_stop two 0) [true].
Proof.
  apply (one_round (left_padded bool) (left_padded_text bool bool_dec) pad (padded bool pad (fun _ => [])) pad (written_store (padded_claims pad))
    pad (written_store (padded_claims pad))).
  - split; [intro; reflexivity|]. intros p P. cbn in P. lia.
  - split; [reflexivity|]. split; [intro; reflexivity|]. intros c _. reflexivity.
  - split; reflexivity.
Qed.

Example inplace_text_applies : [true; true] = Selection.complete bool (job_of bool by_position no_stop two 0) [true].
Proof.
  apply (one_round (inplace bool) (inplace_text bool bool_dec) tt (padded bool 0 (fun _ => [])) tt (written_store (padded_claims 0))
    tt (written_store (padded_claims 0))).
  - split; [intro; reflexivity|]. intros p P. cbn in P. lia.
  - split; [reflexivity|]. split; [intro; reflexivity|]. intros c _. reflexivity.
  - split; reflexivity.
Qed.

(** The block has a third slot, of no token. *)
Example masked_text_applies : [true; true] = Selection.complete bool (job_of bool by_position no_stop two 0) [true].
Proof.
  set (dead := loose bool (fun _ => (-1)%Z) (fun _ => [])).
  set (block := loose bool (append_claims (fun _ => (-1)%Z) 0 0 0 2) (append_entry bool (fun _ => []) [true; false] 0 0 2)).
  apply (one_round (masked bool) (masked_text bool bool_dec) 0%Z dead 3%Z block 3%Z (loose bool (kill (claims bool block) 1) (entry bool block))).
  - split; [intro c; cbn; lia|]. intros p P. cbn in P. lia.
  - exists 0%Z. cbn. split; [lia|]. split; [lia|]. split; intros; reflexivity.
  - split; [reflexivity|]. intro c. split; reflexivity.
Qed.

(** The row has the slots 8 … 11. *)
Definition eight_to_eleven (c : Z) : Z := if ((8 <=? c) && (c <? 12))%Z then (c - 8)%Z else (-1)%Z.

Lemma own_eight_to_eleven : own_slots eight_to_eleven (fun p => p + 8)%Z 4.
Proof.
  intros p P. cbn. unfold eight_to_eleven. split.
  - destruct (Z.leb_spec 8 (p + 8)), (Z.ltb_spec (p + 8) 12); cbn; lia.
  - intros c E. destruct (Z.leb_spec 8 c), (Z.ltb_spec c 12); cbn in E; lia.
Qed.

Example paged_text_applies : [true; true] = Selection.complete bool (job_of bool by_position no_stop two 0) [true].
Proof.
  apply (one_round (paged bool) (paged_text bool bool_dec) tt (paged_store bool eight_to_eleven (fun _ => [])) tt (written_store eight_to_eleven)
    tt (written_store eight_to_eleven)).
  - intros p P. cbn in P. lia.
  - exists (fun p => p + 8)%Z, 4%Z.
    split; [exact own_eight_to_eleven|split; [cbn; lia|intros c _; split; reflexivity]].
  - intros c _. split; reflexivity.
Qed.

(** An empty store, which is fed the row's token and a draft. *)
Example machine_law_applies : half = target bool coins toss ([] ++ firstn 1 [false]).
Proof.
  apply (machine_law bool coins bool (by_position 0) (by_position_sees_only 0) (fun _ => half) [true] toss (fun _ => eq_refl)
    (padded bool 0 (fun _ => [])) [] [false] (written bool 0 (fun _ => []) [true; false] 0 2) 1).
  - apply (padded_feeds bool 0 (fun _ => []) [true] [false]). cbn. lia.
  - intros p P. cbn in P. lia.
  - cbn. lia.
  - apply le_n.
Qed.

(** *** Law.v: two rows, one round with one draft that is tossed, accepted, and followed by a toss *)
Definition unseen (_ : store bool) (_ : Z) : unit := tt.
Definition toss_number (_ : nat) (_ : list bool) (u : bool) : bool := u.
Definition toss_answer (_ : nat) (_ : unit) (_ : list bool) (u : bool) : bool := u.
Definition accepts (_ : nat) (_ : unit) (_ : list bool) (_ _ : bool) : bool := true.
Definition one_draft (_ : list (list (list bool))) (_ : nat) : option nat := Some 1%nat.
Definition blank : numbers bool := {| of_draft := true; of_test := true; of_next := true |}.

Definition lawful (l : layout bool) (outcome : list (list (numbers bool)) -> nat -> list bool * store bool * mark bool l) : Prop :=
  forall F, expect (world bool (numbers bool) (three bool cells) (state bool coins 2 (fun _ => toss) 1 (fun _ => [])))
    (fun css => F (texts bool 2 l (outcome css)))
  == expect (finish bool coins [toss; toss] [[]; []]) F.

Lemma toss_uses i g : uses_numbers bool coins toss alike_draft bool cells (toss_number i)
  (Draws.recover bool unit unseen [true] bool (toss_answer i)) (Draws.choose bool unit unseen [true] bool (toss_answer i))
  (Draws.passes bool unit unseen [true] bool (accepts i)) g.
Proof. split; intros; try reflexivity. unfold passes, accepts. cbn. unfold half. ring. Qed.

Notation toss_right back l := (right_law bool coins unit unseen 2 (fun _ => [true]) (fun _ => toss) bool blank cells
  toss_number accepts toss_answer toss_answer 1 one_draft back l).
Notation tossed corollary := (fun back : bool => corollary bool coins unit unseen (fun _ _ _ _ => eq_refl) 2%nat
  (fun _ => [true]) (fun _ => le_n 1) (fun _ => toss) (fun _ => alike_draft) bool blank cells cells_mass toss_number accepts
  toss_answer toss_answer toss_uses 1%nat one_draft back).

(** A layout in which a row of one token stands, is fed one draft, and keeps it. *)
Section Tossed.
Variable l : layout bool.
Hypothesis right : forall rolls_back : bool, toss_right rolls_back l.
Variables (begun fed_mark left_mark : mark bool l) (before : store bool) (fed_with kept_with : bool -> store bool).
Hypothesis standing : ok bool l begun before [true].
Hypothesis feeding : forall x, fed bool l begun before [true] [x] fed_mark (fed_with x).
Hypothesis keeping : forall x y, kept bool l fed_mark (fed_with x) [true; x; y] left_mark (kept_with x).

Definition drafted (css : list (list (numbers bool))) (i : nat) : bool :=
  hd true (drafts_ahead bool bool (toss_number i) (numbers_of bool blank css i) 1 []).
Definition offered_toss (css : list (list (numbers bool))) (i : nat) : list bool :=
  read_round bool unit unseen [true] bool (toss_number i) (accepts i) (toss_answer i) (toss_answer i)
    (numbers_of bool blank css i) (fed_with (drafted css i)) 1 1 [].
Definition before_toss (_ : nat) : list bool * store bool * mark bool l := ([], before, begun).
Definition after_toss (css : list (list (numbers bool))) (i : nat) : list bool * store bool * mark bool l :=
  (extend bool coins toss [] (firstn 2 (offered_toss css i)), kept_with (drafted css i), left_mark).

Lemma toss_law (rolls_back : bool) : lawful l after_toss.
Proof.
  intro F. refine (proj2 (right rolls_back 1%nat [] before_toss after_toss _ _ _ F) _).
  - intro i. exact standing.
  - reflexivity.
  - intro css. apply (one_more _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ (offered_toss css) _ (after_toss css)); [|apply no_round].
    intro i. cbv zeta. match goal with |- context [cut ?rows ?back ?n ?offered] =>
      assert (Two : cut rows back n offered = 2%nat) by (destruct rolls_back; reflexivity); rewrite Two end.
    apply (runs_round bool coins unit unseen [true] toss bool (toss_number i) (accepts i) (toss_answer i) (toss_answer i)
      (numbers_of bool blank css i) l 2 [] before begun 1 1 fed_mark (fed_with (drafted css i)) left_mark
      (kept_with (drafted css i)) (le_n 1)).
    + exact (feeding (drafted css i)).
    + exact (keeping (drafted css i) (nth 1 (offered_toss css i) true)).
  - intros css i _. reflexivity.
Qed.
End Tossed.

Definition tossed_store cl (x : bool) : store bool :=
  {| claims := cl; entry := write bool (fun _ => []) [true; x] cl 0 2 |}.

Example inplace_law_applies (rolls_back : bool) :
  lawful (inplace bool) (after_toss (inplace bool) tt (tossed_store (padded_claims 0)) (tossed_store (padded_claims 0))).
Proof.
  apply (toss_law (inplace bool) (tossed inplace_law) tt tt tt (padded bool 0 (fun _ => []))); [| | |exact rolls_back].
  - split; [intro; reflexivity|]. intros p P. cbn in P. lia.
  - intro x. split; [reflexivity|]. split; [intro; reflexivity|]. intros c _. reflexivity.
  - intros x y. split; reflexivity.
Qed.

Example left_padded_law_applies (pad : Z) (rolls_back : bool) : let s := tossed_store (padded_claims pad) in
  lawful (left_padded bool) (after_toss (left_padded bool) pad s s).
Proof.
  apply (toss_law (left_padded bool) (tossed left_padded_law) pad pad pad (padded bool pad (fun _ => []))); [| | |exact rolls_back].
  - split; [intro; reflexivity|]. intros p P. cbn in P. lia.
  - intro x. split; [reflexivity|]. split; [intro; reflexivity|]. intros c _. reflexivity.
  - intros x y. split; reflexivity.
Qed.

(** The block has a third slot, of no token. *)
Example masked_law_applies (rolls_back : bool) :
  let block x := loose bool (append_claims (fun _ => (-1)%Z) 0 0 0 2) (append_entry bool (fun _ => []) [true; x] 0 0 2) in
  lawful (masked bool) (after_toss (masked bool) 3%Z block
    (fun x => loose bool (kill (claims bool (block x)) 2) (entry bool (block x)))).
Proof.
  intro block.
  apply (toss_law (masked bool) (tossed masked_law) 0%Z 3%Z 3%Z (loose bool (fun _ => (-1)%Z) (fun _ => []))); [| | |exact rolls_back].
  - split; [intro c; cbn; lia|]. intros p P. cbn in P. lia.
  - intro x. exists 0%Z. cbn. split; [lia|]. split; [lia|]. split; intros; reflexivity.
  - intros x y. split; [reflexivity|]. intro c. split; reflexivity.
Qed.

(** The row has the slots 8 … 11. *)
Example paged_law_applies (rolls_back : bool) :
  let s := tossed_store eight_to_eleven in lawful (paged bool) (after_toss (paged bool) tt s s).
Proof.
  apply (toss_law (paged bool) (tossed paged_law) tt tt tt (paged_store bool eight_to_eleven (fun _ => []))); [| | |exact rolls_back].
  - intros p P. cbn in P. lia.
  - intro x. exists (fun p => p + 8)%Z, 4%Z.
    split; [exact own_eight_to_eleven|split; [cbn; lia|intros c _; split; reflexivity]].
  - intros x y c _. split; reflexivity.
Qed.

(** *** FreshLaw.v: the same under block verification, with two new numbers for each round *)
Definition two_tosses : law (bool * bool) := a <- cells ;; b <- cells ;; ret (a, b).
Definition toss_draft (_ _ : nat) (_ : list bool) (w : bool * bool) : list bool := [fst w].
Definition takes_it (_ _ : nat) (_ _ : list bool) (_ : list unit) (w : bool * bool) : nat * bool := (1%nat, snd w).
Definition one_of_one (_ : list (list (list bool))) (_ : nat) : option (nat * nat) := Some (1, 1)%nat.

Definition before_fresh (_ : nat) : list bool * store bool * mark bool (inplace bool) := ([], padded bool 0 (fun _ => []), tt).
Definition fed_fresh (ws : list (bool * bool)) (i : nat) : store bool :=
  written bool 0 (fun _ => []) ([true] ++ [fst (nth i ws (true, true))]) 0 2.
Definition after_fresh (wss : list (list (bool * bool))) (i : nat) : list bool * store bool * mark bool (inplace bool) :=
  let w := nth i (hd [] wss) (true, true) in (extend bool coins toss [] [fst w; snd w], fed_fresh (hd [] wss) i, tt).

Notation first_mass g x := (longer_mass bool (fun _ => half) (fun _ => half) 1 g x).
Lemma toss_passes g x : BlockRule.passes bool coins (fun _ => half) (fun _ => half) 0 (first_mass g x) (g ++ [x]) == 1.
Proof. destruct x; vm_compute; reflexivity. Qed.
Lemma toss_left g x t : left_law bool coins (fun _ => half) (fun _ => half) 0 (first_mass g x) (g ++ [x]) t == half t.
Proof. destruct x, t; vm_compute; reflexivity. Qed.

Lemma tosses_are_block i g f : expect two_tosses (fun w =>
    f (FreshLaw.plain_round bool unit unseen (fun _ => [true]) (bool * bool) toss_draft takes_it i 1 1 g w))
  == expect (block_engine_round bool coins toss alike_draft 1 1 g) f.
Proof.
  unfold two_tosses, cells, pmf_law. cbn -[Qmult Qplus block_mass BlockRule.passes left_law].
  rewrite !toss_passes, !toss_left. ring.
Qed.

Example fresh_layout_law_applies (rolls_back : bool) F :
  expect (FreshLaw.all_noise 2 (bool * bool) two_tosses 1)
    (fun wss => F (FreshLaw.texts bool 2 (inplace bool) (after_fresh wss)))
  == expect (finish bool coins [toss; toss] [[]; []]) F.
Proof.
  apply (FreshLaw.fresh_layout_law bool coins unit unseen (fun _ _ _ _ => eq_refl) 2 (fun _ => [true]) (fun _ => le_n 1)
    (fun _ => toss) (fun _ => alike_draft) (fun _ => true) (bool * bool) (true, true) two_tosses) with
    (propose := toss_draft) (decide := takes_it) (policy := one_of_one) (width := 2%nat) (rolls_back := rolls_back)
    (n := 1%nat) (h := []) (rs := before_fresh) (outcome := after_fresh).
  - reflexivity.
  - intros h i k limit g E. injection E as <- <-. split; [apply le_n|]. intro f. apply tosses_are_block.
  - intro i. split; [intro; reflexivity|]. intros p P. cbn in P. lia.
  - reflexivity.
  - intros [|ws [|]] L; try discriminate L.
    apply (FreshLaw.one_more bool coins unit unseen 2 (fun _ => [true]) (fun _ => toss) (bool * bool) (true, true) toss_draft
      takes_it one_of_one 2 rolls_back (inplace bool) ws [] []
      (fun i => [fst (nth i ws (true, true)); snd (nth i ws (true, true))]) _ (after_fresh [ws])); [|apply FreshLaw.no_round].
    intro i. cbv zeta. match goal with |- context [FreshLaw.cut ?rows ?width ?back ?os] =>
      assert (Two : FreshLaw.cut rows width back os = 2%nat) by (destruct rolls_back; reflexivity); rewrite Two end.
    apply (FreshLaw.runs_round bool coins unit unseen (fun _ => [true]) (fun _ => toss) (bool * bool) toss_draft takes_it
      (inplace bool) i 2 (nth i ws (true, true)) [] (padded bool 0 (fun _ => [])) tt 1 1 tt (fed_fresh ws i) tt (fed_fresh ws i)).
    + split; [reflexivity|]. split; [intro; reflexivity|]. intros c _. reflexivity.
    + split; reflexivity.
  - intros [|ws [|]] i L I; try discriminate L. reflexivity.
Qed.
