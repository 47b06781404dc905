#!/usr/bin/env bash
# Compile the theorems, demand that they rest on nothing, re-check them with coqchk, build the trace checkers.
# Usage: check.sh WORK_FOLDER; leaves check_trace, replay, replay_blocks and formulas in it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$1
files=(FiniteLaw Rejection Autoregressive EngineRound BlockRule BlockRound BlockGain Batch Keyed Selection Scheduling Layouts
  Machine Cases Draws Law FreshLaw Replay Blocks Tables Room Chunks Cohorts Trace TraceWaiting Checker Extract Instances InstancesOfRounds
  Audit)
mkdir -p "$work"
cp "$here"/*.v "$here"/*.ml "$here"/exempt.txt "$work"
cd "$work"
failed=0
fault() { echo "  FAIL  $*"; failed=$((failed + 1)); }

# Words that would let a theorem rest on something unproved.
if grep -nE '\b(Admitted|Abort|admit|Axioms?|Parameters?|Conjecture|give_up)\b|Unset (Guard|Positivity|Universe)|bypass_check|type-in-type' ./*.v; then
  fault "an unproved statement or a disabled check"
fi
[ "$(ls ./*.v | wc -l)" = "${#files[@]}" ] || fault "a file that is not compiled"
# Every theorem is in the register whose assumptions are printed.
for theorem in $(sed -nE "s/^ *(Theorem|Corollary) ([A-Za-z0-9_']+).*/\2/p" ./*.v); do
  grep -qE "@$theorem[,)]" Audit.v || fault "$theorem is not in Audit.v"
done
# Each of them is applied to a small case, or exempt for a reason.
audited() { sed -nE "s/^  @([A-Za-z0-9_']+)[,)].*/\1/p" Audit.v; }
applied() { sed -nE "s/^Example ([A-Za-z0-9_']+)_applies.*/\1/p" Instances*.v; }
diff <(audited | sort) <({ applied; sed -nE "s/^([A-Za-z0-9_']+): ..*/\1/p" exempt.txt; } | sort) ||
  fault "a theorem is neither applied nor exempt (<), or twice, or no theorem (>)"
for file in "${files[@]}"; do
  coqc -q -Q . RaggedSpec "$file.v" > "$file.out"
done
# What is said to be applied is, and so is what another proof is said to rest on.
python3 "$here/uses.py" . || fault "what is said of a theorem's use is not so"
grep -qx "Closed under the global context" Audit.out || { fault "the register has assumptions"; cat Audit.out; }
ocamlopt -w -a checker.mli checker.ml check_trace.ml -o check_trace
ocamlopt -w -a machine.mli machine.ml replay.ml -o replay
ocamlopt -w -a block_machine.mli block_machine.ml replay_blocks.ml -o replay_blocks
ocamlopt -w -a layouts_formulas.mli layouts_formulas.ml formulas.ml -o formulas

audited | sed 's/^/  ok    /'
applied | sed 's/.*/  ok    the premises of & can hold/'
claims=$(($(audited | wc -l) + $(applied | wc -l)))
echo "coq: $claims claims checked, $failed failed"
[ "$failed" = 0 ]
