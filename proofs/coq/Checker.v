(** A checker of traces, extracted to OCaml. Its answer is the specification's, by its very type. *)
From Coq Require Import Arith List Bool.
From RaggedSpec Require Import Trace.
Import ListNotations.

(** Decidable propositions compose. *)
Class Decide (P : Prop) := decide : {P} + {~ P}.
Arguments decide P {_}.

Global Instance decide_and P Q `{Decide P} `{Decide Q} : Decide (P /\ Q).
Proof. destruct (decide P), (decide Q); [left|right|right|right]; tauto. Defined.
Global Instance decide_or P Q `{Decide P} `{Decide Q} : Decide (P \/ Q).
Proof. destruct (decide P), (decide Q); [left|left|left|right]; tauto. Defined.
Global Instance decide_implies P Q `{Decide P} `{Decide Q} : Decide (P -> Q).
Proof. destruct (decide P), (decide Q); [left|right|left|left]; tauto. Defined.
Global Instance decide_not P `{Decide P} : Decide (~ P).
Proof. destruct (decide P); [right|left]; tauto. Defined.
Global Instance decide_iff P Q `{Decide P} `{Decide Q} : Decide (P <-> Q).
Proof. destruct (decide P), (decide Q); [left|right|right|left]; tauto. Defined.
Global Instance decide_false : Decide False := right (fun x => x).
Global Instance decide_nat (m n : nat) : Decide (m = n) := Nat.eq_dec m n.
Global Instance decide_nats (l m : list nat) : Decide (l = m) := list_eq_dec Nat.eq_dec l m.
Global Instance decide_le m n : Decide (m <= n) := le_dec m n.
Global Instance decide_lt m n : Decide (m < n) := lt_dec m n.
Global Instance decide_bool (a b : bool) : Decide (a = b) := bool_dec a b.
Global Instance decide_kind (a b : token_kind) : Decide (a = b).
Proof. unfold Decide. decide equality. Defined.
Global Instance decide_in (x : nat) l : Decide (In x l) := in_dec Nat.eq_dec x l.
Global Instance decide_forall {A} (P : A -> Prop) `{forall a, Decide (P a)} l : Decide (Forall P l) :=
  Forall_dec P (fun a => decide (P a)) l.
Global Instance decide_exists {A} (P : A -> Prop) `{forall a, Decide (P a)} l : Decide (Exists P l) :=
  Exists_dec P l (fun a => decide (P a)).
Global Instance decide_incl (l m : list nat) : Decide (incl l m).
Proof.
  destruct (decide (Forall (fun x => In x m) l)) as [H|H]; [left|right]; rewrite Forall_forall in H; exact H.
Defined.
Global Instance decide_distinct (l : list nat) : Decide (NoDup l).
Proof.
  induction l as [|x l IH]; [left; constructor|].
  destruct (decide (In x l)) as [H|H]; [right; intro N; inversion N; contradiction|].
  destruct IH as [N|N]; [left; constructor; assumption|right; intro M; inversion M; contradiction].
Defined.
Global Instance decide_nonempty (l : list row) : Decide (l <> []).
Proof. destruct l; [right; tauto|left; discriminate]. Defined.

Section Checker.
Variable cfg : config.

Global Instance decide_row st rd r : Decide (row_follows cfg st rd r).
Proof. unfold row_follows. apply _. Defined.
Global Instance decide_overdue st aging : Decide (overdue cfg st aging).
Proof. unfold overdue. apply _. Defined.
Global Instance decide_key st i j : Decide (same_key st i j).
Proof. unfold same_key. apply _. Defined.
Global Instance decide_same_members l m : Decide (same_members l m).
Proof. unfold same_members. apply _. Defined.
Global Instance decide_scheduled st rd : Decide (scheduled cfg st rd).
Proof. unfold scheduled. destruct (policy cfg), (chosen_by rd); apply _. Defined.
Global Instance decide_enabled st rd : Decide (enabled cfg st rd).
Proof. unfold enabled. apply _. Defined.

(** Index of the first round that is not enabled; one past the last if the run stops too early. *)
Fixpoint first_fault (st : list memory) (n : nat) (trace : list round) : option nat :=
  match trace with
  | [] => if decide (Forall (fun s => ended s = true) st) then None else Some n
  | rd :: rest => if decide (enabled cfg st rd) then first_fault (after cfg st rd) (S n) rest else Some n
  end.

Definition check (trace : list round) : option nat := first_fault (start cfg) 0 trace.

(** THEOREM (sound and complete). The checker finds no fault exactly in the valid traces. *)
Theorem check_correct trace : check trace = None <-> valid cfg trace.
Proof.
  unfold check, valid. generalize 0, (start cfg). induction trace as [|rd rest IH]; intros n st; cbn.
  - destruct (decide (Forall (fun s => ended s = true) st)) as [D|D]; split; intro H; try discriminate; auto.
    + constructor. exact D.
    + inversion H. contradiction.
  - destruct (decide (enabled cfg st rd)) as [G|G].
    + rewrite IH. split; intro H; [constructor; assumption|inversion H; assumption].
    + split; intro H; [discriminate|inversion H; contradiction].
Qed.

End Checker.
