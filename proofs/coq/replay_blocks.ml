(* Reads what runs did to their pools as lines of numbers, and replays each with the machine extracted from Blocks.v.

   run BLOCKS SIZE
   begins QUOTA TOKENS… | KEY…            rows, blocks and slots count from 0; QUOTA: tokens of prompt and budget
   take ROW BLOCK                         a block joins the end of a table
   share ROW BLOCK                        the same, for a block that was found by its text
   give ROW                               the last block of a table
   note ROW INDEX                         a block of the table can be found
   write ROW POSITION BLOCK SLOT TOKEN
   commits ROW TOKENS…
   sent ROW CACHED QUOTA TOKENS… | KEY…   sent back; CACHED: tokens that count as cached all the same
   left ROW QUOTA TOKENS… | KEY…          the same, at the end of the run, when nobody asks what counts as cached
   unwritten ROW POSITION                 a pass has looked at a slot that none had written: refused
   round                                  in which rows decode
   counts REFERENCES… | FREE…             the engine's own books
   end                                    prints "valid" or "fault EVENT" *)
open Block_machine

let rec nat n = if n = 0 then O else S (nat (n - 1))
let number word = nat (int_of_string word)
let numbers = List.map number

let rec split_at_bar seen = function
  | "|" :: rest -> (List.rev seen, rest)
  | word :: rest -> split_at_bar (word :: seen) rest
  | [] -> failwith "no bar"

let both words = let a, b = split_at_bar [] words in (numbers a, numbers b)

let event = function
  | "begins" :: quota :: rest -> let text, key = both rest in Begins (text, number quota, key)
  | [ "take"; row; block ] -> Take (number row, number block)
  | [ "share"; row; block ] -> Share (number row, number block)
  | [ "give"; row ] -> Give (number row)
  | [ "note"; row; index ] -> Note (number row, number index)
  | [ "write"; row; position; block; slot; token ] ->
      Write (number row, number position, number block, number slot, number token)
  | "commits" :: row :: tokens -> Commits (number row, numbers tokens)
  | "sent" :: row :: cached :: quota :: rest ->
      let text, key = both rest in
      Left (number row, text, number quota, key, number cached)
  | "left" :: row :: quota :: rest ->
      let text, key = both rest in
      Left (number row, text, number quota, key, O)
  | [ "round" ] -> Round
  | "counts" :: rest -> let counts, free = both rest in Counts (free, counts)
  | line -> failwith (String.concat " " line)

let words line = List.filter (fun word -> word <> "") (String.split_on_char ' ' line)

let rec run total size n reached =
  match words (input_line stdin) with
  | [ "end" ] -> print_endline (match reached with Ok _ -> "valid" | Error line -> Printf.sprintf "fault %d" line)
  | "unwritten" :: _ -> run total size (n + 1) (match reached with Ok _ -> Error n | fault -> fault)
  | line ->
      let after =
        match reached with
        | Ok st -> ( match step total size st (event line) with Some st -> Ok st | None -> Error n)
        | fault -> fault in
      run total size (n + 1) after

let () =
  try
    while true do
      match words (input_line stdin) with
      | [ "run"; total; size ] ->
          let total = number total in
          run total (number size) 0 (Ok (opened total))
      | line -> failwith (String.concat " " line)
    done
  with End_of_file -> ()
