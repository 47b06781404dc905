(* Reads runs as lines of numbers and replays each with the extracted machine.

   run EXACT                              EXACT: 1 where tokens must be the choices
   begin ROW BUDGET PROMPT… | STOPS…      a row and its prompt; rows and slots count from 1
   propose ROW TOKENS…                    drafts of the round so far
   feed ROW FIRST TOKEN SLOT …            from a position on, and where the K/V go
   junk SLOTS…                            entries of no row
   copy TO FROM …                         all at once
   query TARGET ROW POSITION CHOICE SLOTS…    TARGET: 1 where the choice may be committed; SLOTS: numbers or FIRST-LAST
   commit ROW ACCEPTED WHY TOKENS…        WHY: 0 goes on, 1 stopped, 2 out of budget
   cancel ROW
   end                                    prints "valid", "fault EVENT" or "unfinished" *)
open Machine

let rec positive n = if n = 1 then XH else if n land 1 = 0 then XO (positive (n / 2)) else XI (positive (n / 2))
let number n = if n = 0 then N0 else Npos (positive n)
let ints = List.map int_of_string

let slots words =
  let span word =
    match String.index_opt word '-' with
    | None -> [ positive (int_of_string word) ]
    | Some i ->
        let first = int_of_string (String.sub word 0 i) in
        let last = int_of_string (String.sub word (i + 1) (String.length word - i - 1)) in
        List.init (last - first + 1) (fun k -> positive (first + k)) in
  List.concat_map span words

let rec pairs f g = function
  | a :: b :: rest -> (f a, g b) :: pairs f g rest
  | [] -> []
  | [ _ ] -> failwith "a pair is broken"

let rec split_at_bar seen = function
  | "|" :: rest -> (List.rev seen, rest)
  | word :: rest -> split_at_bar (word :: seen) rest
  | [] -> failwith "no bar"

let why = function 0 -> Goes_on | 1 -> Stopped | 2 -> Out_of_budget | _ -> failwith "why"

let event = function
  | "begin" :: who :: budget :: rest ->
      let prompt, stops = split_at_bar [] rest in
      Begin (positive (int_of_string who), List.map number (ints prompt), number (int_of_string budget),
             List.map number (ints stops))
  | "propose" :: who :: drafts -> Propose (positive (int_of_string who), List.map number (ints drafts))
  | "feed" :: who :: first :: fed ->
      Feed (positive (int_of_string who), number (int_of_string first), pairs number positive (ints fed))
  | "junk" :: written -> Junk (slots written)
  | "copy" :: rest -> Copy (pairs positive positive (ints rest))
  | "query" :: target :: who :: position :: choice :: seen ->
      Query (target = "1", positive (int_of_string who), number (int_of_string position),
             slots seen, number (int_of_string choice))
  | "commit" :: who :: accepted :: reason :: emitted ->
      Commit (positive (int_of_string who), number (int_of_string accepted), why (int_of_string reason),
              List.map number (ints emitted))
  | [ "cancel"; who ] -> Cancel (positive (int_of_string who))
  | line -> failwith (String.concat " " line)

let words line = List.filter (fun word -> word <> "") (String.split_on_char ' ' line)

let rec run exact n reached =
  match words (input_line stdin) with
  | [ "end" ] -> (
      match reached with
      | Ok st -> print_endline (if all_over st then "valid" else "unfinished")
      | Error line -> Printf.printf "fault %d\n" line)
  | line ->
      let after =
        match reached with
        | Ok st -> ( match step exact st (event line) with Some st -> Ok st | None -> Error n)
        | fault -> fault in
      run exact (n + 1) after

let () =
  try
    while true do
      match words (input_line stdin) with
      | [ "run"; exact ] -> run (exact = "1") 0 (Ok untouched)
      | line -> failwith (String.concat " " line)
    done
  with End_of_file -> ()
