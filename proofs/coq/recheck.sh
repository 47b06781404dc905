#!/usr/bin/env bash
# coqchk, a small kernel of its own, on the compiled theorems. Usage: recheck.sh WORK_FOLDER.
set -euo pipefail
cd "$1"
failed=0
coqchk -silent -o -Q . RaggedSpec RaggedSpec.Audit > coqchk.out 2>&1 || failed=1
grep -q "Axioms: <none>" coqchk.out || failed=1
if [ "$failed" = 0 ]; then echo "  ok    coqchk: no axioms"; else echo "  FAIL  coqchk"; cat coqchk.out; fi
echo "coqchk: 1 claims checked, $failed failed"
[ "$failed" = 0 ]
