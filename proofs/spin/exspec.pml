/* The grouped (EXSPEC) scheduler with refill: W sequences in the window, in order of arrival, B run in a round.

   A finished sequence is replaced at once by a fresh one of any short length, so there is always competition.
   AGING is the bound A; without it the scheduler prefers full groups for ever. The key is (tokens, lag).
   A sequence ages in every round that passes it over once it has run, or while it is the oldest.
   One sequence, the tagged one, is followed; when it ends, the tag goes to the sequence that takes its place. */

#ifndef B
#define B 2
#endif
#ifndef W
#define W 4
#endif
#ifndef AGING
#define AGING 255           /* no aging */
#endif
#define END 4               /* a sequence of this length has spent its budget */
#define FRESH 2             /* prompts have 1 ... FRESH tokens */
#define CAP 9               /* waits are counted up to here */
#ifndef BOUND
#define BOUND (AGING + W / B)
#endif

byte tokens[W], lag[W], wait[W];
bool runs[W], begun[W];
byte tagged;
bool tagged_ran = false;
byte longest_wait = 0;
byte size, i, j, best, count;

/* With TRACE a simulation prints its rounds, for proofs/conformance/drift.py. */
#ifdef TRACE
#define show(word) printf(word); for (i : 0 .. W - 1) { printf(" %d,%d,%d,%d,%d", tokens[i], lag[i], wait[i], begun[i], runs[i]) } printf("\n")
#else
#define show(word) skip
#endif

#define same_key(x, y) (tokens[x] == tokens[y] && lag[x] == lag[y])

inline choose_by_age() {
  size = 0;
  do
  :: size < B ->
     best = W;
     for (i : 0 .. W - 1) {
       if
       :: !runs[i] && (best == W || wait[i] > wait[best]) -> best = i
       :: else
       fi
     }
     runs[best] = true; size++
  :: else -> break
  od
}

inline choose_group() {     /* the first key to reach B members in window order */
  best = W; i = 0;
  do
  :: i < W && best == W ->
     count = 0;
     for (j : 0 .. i) { if :: same_key(i, j) -> count++ :: else fi }
     if :: count == B -> best = i :: else fi
     i++
  :: else -> break
  od;
  if
  :: best < W ->
     for (j : 0 .. best) { if :: same_key(best, j) -> runs[j] = true :: else fi }
  :: else                   /* no full group: the oldest */
     -> for (j : 0 .. B - 1) { runs[j] = true }
  fi
}

inline choose() {
  best = 0;
  for (i : 0 .. W - 1) { if :: wait[i] > wait[best] -> best = i :: else fi }
  if
  :: wait[best] >= AGING -> choose_by_age()
  :: else -> choose_group()
  fi
}

inline check_round() {
  size = 0;
  for (i : 0 .. W - 1) { if :: runs[i] -> size++ :: else fi }
  assert(size == B)
}

inline advance(x) {         /* any number of accepted drafts; full acceptance leaves the draft one behind */
  if
  :: tokens[x]++; lag[x] = 1
  :: tokens[x] + 2 <= END -> tokens[x] = tokens[x] + 2; lag[x] = 1
  :: tokens[x] + 2 <= END -> tokens[x] = tokens[x] + 2; lag[x] = 2
  fi
}

inline replace(x) {         /* later arrivals move up, a fresh sequence enters at the end */
  for (j : x .. W - 2) { tokens[j] = tokens[j + 1]; lag[j] = lag[j + 1]; wait[j] = wait[j + 1]; runs[j] = runs[j + 1];
    begun[j] = begun[j + 1] }
  if
  :: tagged == x -> tagged = W - 1
  :: tagged > x && tagged != x -> tagged--
  :: else
  fi;
  select(j : 1 .. FRESH);
  tokens[W - 1] = j; lag[W - 1] = 1; wait[W - 1] = 0; runs[W - 1] = false; begun[W - 1] = false; j = 0
}

init {
  atomic {
    for (i : 0 .. W - 1) { select(j : 1 .. FRESH); tokens[i] = j; lag[i] = 1 }
    select(j : 0 .. W - 1); tagged = j; i = 0; j = 0
  }
  do
  :: atomic {
       choose();
       check_round();
       show("BEFORE");
       tagged_ran = runs[tagged];
       longest_wait = 0;
       for (i : 0 .. W - 1) {
         if
         :: runs[i] -> wait[i] = 0; begun[i] = true; advance(i)
         :: else -> if :: (begun[i] || i == 0) && wait[i] < CAP -> wait[i]++ :: else fi
         fi;
         if :: wait[i] > longest_wait -> longest_wait = wait[i] :: else fi
       }
       show("AFTER");
       i = 0;
       do
       :: i < W -> if :: tokens[i] >= END -> replace(i) :: else -> i++ fi
       :: else -> break
       od;
       for (i : 0 .. W - 1) { runs[i] = false }
       i = 0; j = 0; best = 0; count = 0; size = 0
     }
  od
}

ltl bounded_waiting { [] (longest_wait <= BOUND) }
ltl no_starvation { [] <> tagged_ran }
