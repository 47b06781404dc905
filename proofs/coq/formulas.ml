(* The formulas of layouts and rooms as Coq states them, evaluated on lines of numbers.

   padded PAD COLUMN                                   position that a column claims
   append CLAIMED CACHED START FIRST SIZE COLUMN       … after a block was appended; CLAIMED: before
   kill CLAIMED CACHED                                 … after a commit
   held SIZE TOKENS                                    blocks of a row between rounds
   wanted SIZE SPAN TOKENS MOST                        … while it runs *)
open Layouts_formulas

let rec positive n = if n = 1 then XH else if n land 1 = 0 then XO (positive (n / 2)) else XI (positive (n / 2))
let rec int_of = function XH -> 1 | XO p -> 2 * int_of p | XI p -> (2 * int_of p) + 1
let z n = if n = 0 then Z0 else if n > 0 then Zpos (positive n) else Zneg (positive (-n))
let int = function Z0 -> 0 | Zpos p -> int_of p | Zneg p -> -int_of p

let rec nat n = if n = 0 then O else S (nat (n - 1))
let rec count = function O -> 0 | S n -> 1 + count n

let value = function
  | "padded", [ pad; c ] -> int (padded_claims (z pad) (z c))
  | "append", [ claimed; cached; start; first; size; c ] ->
      int (append_claims (fun _ -> z claimed) (z cached) (z start) (z first) (z size) (z c))
  | "kill", [ claimed; cached ] -> int (kill (fun _ -> z claimed) (z cached) Z0)
  | "held", [ size; tokens ] -> count (held (nat size) (nat tokens))
  | "wanted", [ size; span; tokens; most ] -> count (wanted (nat size) (nat span) (nat tokens) (nat most))
  | word, _ -> failwith word

let () =
  try
    while true do
      match String.split_on_char ' ' (input_line stdin) with
      | word :: numbers -> Printf.printf "%d\n" (value (word, List.map int_of_string numbers))
      | [] -> ()
    done
  with End_of_file -> ()
