#!/usr/bin/env bash
# coqchk, a small kernel of its own, on the compiled theorems. Usage: recheck.sh WORK_FOLDER [all]
# Checks every file of ours; with `all`, what they use of Coq's library, too. Axioms are listed wherever they are.
set -euo pipefail
cd "$1"
failed=0
own=()
for file in *.vo; do own+=($([ "${2:-}" = all ] || echo -norec) "RaggedSpec.${file%.vo}"); done
coqchk -silent -o -Q . RaggedSpec "${own[@]}" > coqchk.out 2>&1 || failed=1
# Where Coq's library is not checked, a module that it seals (Under_rel, of its rewriting tactics) is listed as an axiom.
axioms=$(sed -n '/^\* Axioms:/,/^ *$/p' coqchk.out | grep -v '^ *Coq\.ssr\.ssrunder\.Under_rel\.' || true)
case "$(tr -d ' \n' <<< "$axioms")" in
  "*Axioms:" | "*Axioms:<none>") ;;
  *) failed=1 ;;
esac
if [ "$failed" = 0 ]; then echo "  ok    coqchk: no axioms"; else echo "  FAIL  coqchk"; cat coqchk.out; fi
echo "coqchk: 1 claims checked, $failed failed"
[ "$failed" = 0 ]
