#!/usr/bin/env bash
# The EXSPEC scheduler under Spin: two properties hold with aging, and one must fail without it.
set -euo pipefail
cd "$(dirname "$0")"
model=$PWD/exspec.pml
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
checked=0 failed=0

# of PREPROCESSOR_FLAGS…: compile the model that the next searches are of
of() {
  spin -a "$@" "$model" > spin.out 2>&1 || { cat spin.out; exit 1; }
  gcc -O1 -w -o pan pan.c
}

# search NAME EXPECTED_ERRORS LTL: one exhaustive search
search() {
  local name=$1 expected=$2 property=$3
  ./pan -a -m6000000 -N "$property" > pan.out 2>&1 || true
  local errors states problem=""
  errors=$(sed -n 's/.*errors: \([0-9]*\).*/\1/p' pan.out)
  states=$(sed -n 's/^ *\([0-9]*\) states, stored.*/\1/p' pan.out)
  if grep -qE "too small|out of memory|Search not completed" pan.out && [ "$expected" = 0 ]; then problem="the search was truncated"; fi
  if [ "${errors:-none}" != "$expected" ]; then problem="errors: ${errors:-none}, expected $expected"; fi
  if [ "$expected $property" = "1 no_starvation" ] && ! grep -q "acceptance cycle" pan.out; then problem="no lasso"; fi
  checked=$((checked + 1))
  if [ -z "$problem" ]; then echo "  ok    $name ($states states)"; else failed=$((failed + 1)); echo "  FAIL  $name: $problem"; cat pan.out; fi
}

of -DAGING=2
search "with aging, no wait exceeds A + W/B, and a round has B members" 0 bounded_waiting
search "with aging, every sequence runs again and again" 0 no_starvation
of -DAGING=2 -DBOUND=3
search "the sharper bound A + (W-1)/B holds, one less for this window" 0 bounded_waiting
of -DAGING=3 -DW=5 -DBOUND=3
search "where nobody is cancelled no wait exceeds A, window 5" 0 bounded_waiting
of -DAGING=3 -DW=5 -DBOUND=2
search "expected failure: waits do reach A, window 5" 1 bounded_waiting
of -DBOUND=8
search "expected failure: without aging a sequence starves (lasso found)" 1 no_starvation
search "expected failure: without aging the waits pass any bound" 1 bounded_waiting
echo "spin: $checked claims checked, $failed failed"
[ "$failed" = 0 ]
