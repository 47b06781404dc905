# Two commands on a fresh machine: `make demo` and `make test`. Needs Python ≥ 3.11 with venv, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint types imports unit claims nightly test-bounds test-lowest test-newest readme docs notebooks html lab proof-tools proofs clean

demo: $(STAMP)
	$(BIN)/raggedspec demo

# The last line says what was left out.
test: export ALSO_LEFT_OUT := tests marked nightly (make nightly), tests/gpu without a GPU
test: lint types imports unit claims

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "raggedspec needs Python 3.11 or newer; set PYTHON=…"; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { echo "python venv is missing: apt-get install python3-venv"; exit 2; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,proofs]'
	@touch $@

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports

# Shapes are checked where nearly every function with annotated tensors is called; by night everywhere.
SHAPED := tests/property tests/stateful tests/sampling tests/statistical/test_block_rule.py tests/statistical/test_rule_law.py \
  tests/engine/models/test_varlen.py tests/engine/models/test_varlen_runs.py tests/engine/viz/test_viz.py tests/engine/decoding/test_capture_is_legal.py \
  tests/engine/decoding/test_head.py tests/conformance/test_tie_or_bug.py
# A test that hangs ends the run after twenty minutes, and its stack is shown.
STUCK := -o faulthandler_timeout=1200 -o faulthandler_exit_on_timeout=true --max-worker-restart=0
PYTEST := HYPOTHESIS_PROFILE=ci OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile $(STUCK)

unit: $(STAMP)
	$(PYTEST) $(SHAPED:%=--ignore=%)
	CHECK_SHAPES=1 $(PYTEST) $(SHAPED)

# Every proof where Coq and Spin are installed, else those that pip packages can check; the script says which.
claims: $(STAMP)
	if command -v coqc > /dev/null && command -v spin > /dev/null; then proofs/check.sh; else proofs/check.sh --pip-only; fi

# Hours: every proof, tests that are too long for every day, many more examples a property, planted errors, every mutant not judged yet.
nightly: proofs
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[notebooks]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m nightly
	CHECK_SHAPES=1 $(PYTEST) tests/engine tests/statistical tests/conformance
	OMP_NUM_THREADS=1 HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest -n 2 tests/property tests/stateful tests/sampling
	OMP_NUM_THREADS=1 PYTHONPATH=. $(BIN)/python -m proofs.stages laws-long
	proofs/coq/check.sh .work/coq && proofs/coq/recheck.sh .work/coq all
	OMP_NUM_THREADS=1 PYTHONPATH=. $(BIN)/python -m proofs.conformance.replay .work/coq/replay 10000
	OMP_NUM_THREADS=1 $(BIN)/python tools/planted.py
	OMP_NUM_THREADS=1 $(BIN)/python tools/mutate.py

# With the lowest versions that pyproject.toml admits, then with the newest, each in an environment of its own. torch stays
# at its pin both times: its versions differ by gigabytes. What the lowest versions depend on is new, and may warn of them.
test-bounds: test-lowest test-newest
test-lowest: RESOLUTION := --resolution lowest-direct
test-lowest: LENIENT := -W default::DeprecationWarning
test-lowest test-newest: test-%:
	$(PYTHON) -m venv --clear .venv-$*
	grep ^torch== constraints.txt > .venv-$*/torch.txt
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check -r .venv-$*/torch.txt uv
	.venv-$*/bin/uv pip install --quiet --python .venv-$*/bin/python $(RESOLUTION) -c .venv-$*/torch.txt -e '.[test]'
	CHECK_SHAPES=1 OMP_NUM_THREADS=1 .venv-$*/bin/python -m pytest $(LENIENT)

readme: $(STAMP)
	$(BIN)/python tools/readme.py
	$(BIN)/python tools/reproduction.py

# The reference of all public names; the pages themselves are docs/*.md.
docs: $(STAMP)
	$(BIN)/python tools/reference.py build/reference

# Runs notebooks/*.py, writes the .ipynb files with their figures and answers.
notebooks: $(STAMP)
	$(BIN)/python tools/notebooks.py

# Pages for people without Jupyter: the notebooks as they are committed, and the what-if panel on measured and on computed costs.
html: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[notebooks]'
	$(BIN)/jupyter nbconvert --to html --output-dir build/html notebooks/*.ipynb
	$(BIN)/raggedspec sim panel --set cost.kind=table --set cost.calibration=cpu/tiny --workers 2 --out build/html/panel.html
	$(BIN)/raggedspec sim panel --set "name=64 requests at once on a GPU" --axis device=h100,a100-80,l40s \
	  --axis models=qwen3-8b+qwen3-0.6b,vicuna-7b+vicuna-68m --axis batch_size=1,4,16 --axis num_speculative_tokens=1,3,5 \
	  --axis acceptance=0.5,0.7,0.9 --axis deviation=0.15 --workers 2 --out build/html/panel-gpus.html

lab: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[notebooks]'
	$(BIN)/jupyter lab notebooks

proof-tools: $(STAMP)
	proofs/setup.sh

proofs: proof-tools
	proofs/check.sh

clean:
	rm -rf $(VENV) .venv-lowest .venv-newest build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
