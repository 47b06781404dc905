#!/usr/bin/env bash
# Check every proof. Ends with "N claims checked, 0 failed", or fails.
#   proofs/check.sh              everything; needs the packages of proofs/setup.sh
#   proofs/check.sh --pip-only   Z3, cvc5 and enumeration; needs no Coq and no Spin
set -uo pipefail
cd "$(dirname "$0")/.."
all_claims=773  # of all stages
case "$*" in
  "") pip_only=0 ;;
  --pip-only) pip_only=1 ;;
  *) echo "usage: proofs/check.sh [--pip-only], not $*" >&2; exit 2 ;;
esac
python=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
export PYTHONPATH=. OMP_NUM_THREADS=1
log=$(mktemp -d)
trap 'rm -rf "$log"' EXIT
begun=$SECONDS

for tool in coqc coqchk ocamlopt spin gcc; do
  command -v "$tool" > /dev/null || absent="${absent:-} $tool"
done
if [ "$pip_only" = 1 ]; then
  echo "pip-only: the theorems (Coq), the extracted trace checker and the model search (Spin) are NOT checked here"
  echo "absent on this machine:${absent:- none of their tools}"
elif [ -n "${absent:-}" ]; then
  echo "missing:$absent; run proofs/setup.sh, or proofs/check.sh --pip-only"
  exit 1
fi

# stage NAME COMMAND…: run it, keep its output and its time
stage() {
  local name=$1 start=$SECONDS status=0
  shift
  "$@" > "$log/$name.out" 2>&1 || status=$?
  echo "$status $((SECONDS - start))" > "$log/$name.status"
}

python_stages() {
  stage z3 "$python" -m proofs.stages z3
  stage z3-faults "$python" -m proofs.stages z3-faults
  stage schedulers "$python" -m proofs.stages schedulers
  stage laws "$python" -m proofs.stages laws
  stage reach "$python" -m proofs.stages reach
  if [ "$pip_only" = 1 ]; then
    stage runs "$python" -m proofs.stages runs
  else
    until [ -f "$log/coq.status" ]; do sleep 1; done
    stage traces "$python" -m proofs.stages traces "$log/coq/check_trace"
    stage replay "$python" -m proofs.stages replay "$log/coq/replay"
    stage books "$python" -m proofs.stages books "$log/coq/replay_blocks"
    stage drift "$python" -m proofs.stages drift "$log/coq/formulas"
  fi
}

tool_stages() {
  stage coq proofs/coq/check.sh "$log/coq"
  stage coqchk proofs/coq/recheck.sh "$log/coq"
  stage spin proofs/spin/check.sh
}

# Two lanes for two cores, each a group of processes, so that all of them end with this script.
set -m
lanes=()
stop() {
  kill -- "${lanes[@]/#/-}" 2> /dev/null
  wait
  exit "$1"
}
trap 'stop 130' INT
trap 'stop 143' TERM
stages=(z3 z3-faults schedulers laws reach)
python_stages &
lanes+=($!)
if [ "$pip_only" = 1 ]; then
  stages+=(runs register)
else
  stages=(coq coqchk spin "${stages[@]}" traces replay books drift register)
  tool_stages &
  lanes+=($!)
fi
wait
stage register "$python" -m proofs.register "$log"

claims=0 failures=0
for name in "${stages[@]}"; do
  read -r status seconds < "$log/$name.status"
  summary=$(grep -E '^[a-z0-9-]+: [0-9]+ claims checked, [0-9]+ failed$' "$log/$name.out" | tail -1)
  echo "== $name (${seconds} s)"
  cat "$log/$name.out"
  counted=$(sed -nE 's/.*: ([0-9]+) claims.*/\1/p' <<< "$summary")
  failed=$(sed -nE 's/.* ([0-9]+) failed/\1/p' <<< "$summary")
  # A stage that dies, or claims nothing, has failed even if it printed no failure.
  if [ "$status" != 0 ] || [ -z "$counted" ] || [ "$counted" = 0 ]; then failed=$((${failed:-0} > 0 ? failed : 1)); fi
  claims=$((claims + ${counted:-0})) failures=$((failures + failed))
done
left=${ALSO_LEFT_OUT:-}
if [ "$pip_only" = 1 ]; then
  left="$((all_claims - claims)) claims that need Coq and Spin (make proof-tools)${left:+, $left}"
elif [ "$claims" != "$all_claims" ]; then
  echo "all_claims in proofs/check.sh is $all_claims, not $claims"
  failures=$((failures + 1))
fi
echo "$((SECONDS - begun)) s; $claims claims checked, $failures failed${left:+; left out: $left}"
[ "$failures" = 0 ]
