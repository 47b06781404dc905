#!/usr/bin/env bash
# What proofs/check.sh needs, on Debian 12: Coq with OCaml, Spin with gcc; and the solvers from pip.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$(id -u)" = 0 ]; then sudo=""; else sudo=sudo; fi
$sudo apt-get update -q
# Debian 12 has coq 8.16.1, ocaml 4.13.1 and spin 6.5.2
$sudo apt-get install -y -q --no-install-recommends coq libcoq-stdlib ocaml-nox spin gcc libc6-dev
python=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
"$python" -m pip install -q "z3-solver==5.4.0.0" "cvc5==1.4.2"
