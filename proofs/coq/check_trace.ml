(* Reads runs as lines of numbers and asks the extracted checker about each.

   config POLICY AGING BATCH WINDOW ROLLBACK        POLICY: 0 static, 1 fifo, 2 grouped
   sequence PROMPT_LEN MAX_NEW_TOKENS NUM_SPECULATIVE_TOKENS
   round MODE                                       MODE: 0 static, 1 fifo, 2 grouped, 3 fallback, 4 aged
   row INDEX SEQ_LEN DRAFT_LAG K DRAFTED ACCEPTED KEPT NEXT FINISHED    NEXT: 0 draft, 1 recovered, 2 bonus
   end                                              prints "valid" or "fault ROUND" *)
open Checker

let rec nat n = if n = 0 then O else S (nat (n - 1))
let rec int = function O -> 0 | S n -> 1 + int n
let policy kind aging = match kind with 0 -> Static | 1 -> Fifo | 2 -> Grouped (nat aging) | _ -> failwith "policy"

let mode = function
  | 0 -> StaticMode | 1 -> FifoMode | 2 -> GroupedMode | 3 -> FallbackMode | 4 -> AgedMode | _ -> failwith "mode"

let kind = function 0 -> Draft | 1 -> Recovered | 2 -> Bonus | _ -> failwith "next token"

let row index seq_len draft_lag k drafted accepted kept next finished =
  { index = nat index; seq_len = nat seq_len; draft_lag = nat draft_lag; k = nat k; drafted = nat drafted;
    accepted = nat accepted; kept = nat kept; next_token = kind next; finished = finished = 1 }

let judge (kind, aging, batch, window, rollback) sequences rounds =
  let cfg =
    { sequences = List.rev sequences; policy = policy kind aging; batch_size = nat batch;
      window_size = nat window; rollback = rollback = 1 } in
  let rounds = List.rev_map (fun (m, rows) -> { chosen_by = mode m; rows = List.rev rows }) rounds in
  match check cfg rounds with None -> print_endline "valid" | Some n -> Printf.printf "fault %d\n" (int n)

let rec read config sequences rounds =
  match String.split_on_char ' ' (input_line stdin), rounds with
  | "config" :: fields, _ -> (
      match List.map int_of_string fields with
      | [ p; a; b; w; r ] -> read (p, a, b, w, r) [] []
      | _ -> failwith "config")
  | "sequence" :: fields, _ -> (
      match List.map (fun s -> nat (int_of_string s)) fields with
      | [ prompt_len; max_new_tokens; num_speculative_tokens ] ->
          read config ({ prompt_len; max_new_tokens; num_speculative_tokens } :: sequences) rounds
      | _ -> failwith "sequence")
  | [ "round"; m ], _ -> read config sequences ((int_of_string m, []) :: rounds)
  | "row" :: fields, (m, rows) :: rest -> (
      match List.map int_of_string fields with
      | [ i; n; l; k; d; a; c; t; f ] -> read config sequences ((m, row i n l k d a c t f :: rows) :: rest)
      | _ -> failwith "row")
  | [ "end" ], _ -> judge config sequences rounds; read config [] []
  | line, _ -> failwith (String.concat " " line)
  | exception End_of_file -> ()

let () = read (0, 0, 0, 0, 0) [] []
