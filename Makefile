# make parity   set up .venv and prove MiniLM identical in the three frameworks
# make test     set up .venv and run the tests
# make lint     set up .venv, then ruff and pyright
# make fuzz     set up .venv and read a million damaged checkpoints, and some with every bit of a header flipped
# make audit    set up .venv, then planted bugs with 20 seeds each, correct code with 200 seeds in 4 dtypes, compiled modes
# make articles  set up .venv and run the articles' own code at the sizes of the papers in every framework
# make training  set up .venv and compare 300 steps of training in the three frameworks, all six pairs in turn
# make convergence  set up .venv and train the toy translation to the end in each framework (an hour, one after the other)
# make generation  set up .venv and measure how much faster decoding is with kept keys and values
# make gpu      set up .venv and run what only a GPU shows, in the frameworks that find one
# make bench-proof  set up .venv and prove the benchmark itself: noise, sensitivity, cost, an independent clock
# make startup  set up .venv and measure how long the command takes to start
# make checkpoints  set up .venv and measure how long checkpoints of 0.4 and 6 GB take to open
# All of them reuse .venv as long as pyproject.toml and constraints.txt stay as they are.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/ready
MODEL ?= minilm
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: parity test lint format fuzz audit articles training convergence generation gpu bench-proof startup checkpoints clean

parity: $(READY)
	$(BIN)/triglot parity $(MODEL)

test: $(READY)
	$(BIN)/pytest -n auto --dist loadgroup

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

fuzz: $(READY)
	$(BIN)/python tests/helpers/fuzzing.py everything --count 1000000

audit: $(READY)
	$(BIN)/pytest -n auto --seeds 20 --junitxml build/audit.xml tests/parity/test_planted_bugs.py tests/parity/test_false_alarms.py tests/models/test_awkward_models.py tests/models/test_modes.py

articles: $(READY)
	$(BIN)/pytest --paper-sizes tests/docs/test_article_outputs.py

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

format: $(READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf .venv build dist triglot.egg-info

# One environment for everything: what CI tests is what the commands run in. Its bytecode is made on all cores at once;
# pip would do so on one, and passes over files that are for other Pythons as well.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Triglot needs Python 3.11 or newer, this is " + sys.version) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[all,text,peers,report,test,lint]'
	$(BIN)/python -m compileall -qq -j 0 .venv/lib || true
	touch $@
