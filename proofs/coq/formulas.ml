(* Formulas as Coq states them, evaluated on lines of numbers.

   padded PAD COLUMN                                   position that a column claims
   append CLAIMED CACHED START FIRST SIZE COLUMN       … after a block was appended; CLAIMED: before
   kill CLAIMED CACHED                                 … after a commit
   held SIZE TOKENS                                    blocks of a row between rounds
   wanted SIZE SPAN TOKENS MOST                        … while it runs
   last LIMIT FLAG …                                   the last draft that is accepted
   passes ROUND … DEPTH                                block verification: a prefix passes its test
   left ROUND … DEPTH TOKEN                            … and a token follows it, of what is left
   runs DRAFTED … / ahead DRAFTED …                    cohorts of a window, as digits; DRAFTED: a flag for each row

   ROUND is: the common denominator of its probabilities, the row's limit, the drafts, the size of the vocabulary; then
   the drafts themselves, and the probabilities of the target and of the draft, one law after the other. *)
open Layouts_formulas

let rec positive n = if n = 1 then XH else if n land 1 = 0 then XO (positive (n / 2)) else XI (positive (n / 2))
let rec int_of = function XH -> 1 | XO p -> 2 * int_of p | XI p -> (2 * int_of p) + 1
let z n = if n = 0 then Z0 else if n > 0 then Zpos (positive n) else Zneg (positive (-n))
let int = function Z0 -> 0 | Zpos p -> int_of p | Zneg p -> -int_of p

let rec nat n = if n = 0 then O else S (nat (n - 1))
let rec count = function O -> 0 | S n -> 1 + count n

let whole n = string_of_int n
let fraction x = let x = qred x in Printf.sprintf "%d/%d" (int x.qnum) (int_of x.qden)

(* A round: its vocabulary, both laws by depth, a prefix, its mass, drafts to come; and the numbers that are left. *)
let round den limit k size numbers =
  let a = Array.of_list numbers in
  let drafts = List.init k (Array.get a) in
  let law first text token = { qnum = z a.(first + (size * List.length text) + token); qden = positive den } in
  let target = law k and draft = law (k + (size * (k + 1))) in
  let depth = a.(k + (size * ((2 * k) + 1))) in
  let prefix = List.filteri (fun i _ -> i < depth) drafts in
  let mass = prefix_mass target draft { qnum = z 1; qden = XH } [] prefix in
  (List.init size Fun.id, target, draft, nat (max 0 (limit - depth)), mass, prefix)

let digits rows = List.fold_left (fun n r -> (10 * n) + count r + 1) 0 rows
let cohort choose flags =
  let rows = List.mapi (fun i flag -> (nat i, flag)) flags in
  digits (choose (List.map fst rows) (List.map fst (List.filter (fun (_, flag) -> flag = 1) rows)))

let value = function
  | "padded", [ pad; c ] -> whole @@ int (padded_claims (z pad) (z c))
  | "append", [ claimed; cached; start; first; size; c ] ->
      whole @@ int (append_claims (fun _ -> z claimed) (z cached) (z start) (z first) (z size) (z c))
  | "kill", [ claimed; cached ] -> whole @@ int (kill (fun _ -> z claimed) (z cached) Z0)
  | "held", [ size; tokens ] -> whole @@ count (held (nat size) (nat tokens))
  | "wanted", [ size; span; tokens; most ] -> whole @@ count (wanted (nat size) (nat span) (nat tokens) (nat most))
  | "last", limit :: flags -> whole @@ count (fold_last (nat limit) O O (List.map (( = ) 1) flags))
  | "passes", den :: limit :: k :: size :: numbers ->
      let vocab, target, draft, n, mass, prefix = round den limit k size numbers in
      fraction (passes vocab target draft n mass prefix)
  | "left", den :: limit :: k :: size :: numbers ->
      let vocab, target, draft, n, mass, prefix = round den limit k size numbers in
      fraction (left_law vocab target draft n mass prefix (List.nth numbers (List.length numbers - 1)))
  | "runs", flags -> whole (cohort runs flags)
  | "ahead", flags -> whole (cohort ahead flags)
  | word, _ -> failwith word

let () =
  try
    while true do
      match String.split_on_char ' ' (input_line stdin) with
      | word :: numbers -> Printf.printf "%s\n" (value (word, List.map int_of_string numbers))
      | [] -> ()
    done
  with End_of_file -> ()
