# Every target sets up what it needs. PYTHON may name another interpreter, 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

DRAFTERS := build/drafters
TRAIN := $(BIN)/spectune train --heldout $(DRAFTERS)/prompts/heldout.jsonl

.PHONY: demo test check test-long remeasure drafters bench-drafters bench-engine bench-scaling bench-search grid-search \
	vllm-venv compiler clean

## Search the embedded default and publish the result to .spectuned/ (at most 15 minutes).
demo: $(VENV)/.installed
	$(BIN)/spectune tune

## Measure the published result a second time, independently.
remeasure: $(VENV)/.installed
	$(BIN)/spectune remeasure

## Linters, types, layers and all tests but the long ones.
test: check compiler
	$(BIN)/spectune models fetch
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not long" -n auto --dist loadfile

check: $(VENV)/.installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

## The tests that take long or need a real vLLM.
test-long: $(VENV)/.installed-dev vllm-venv
	$(BIN)/spectune models fetch
	$(BIN)/python -m pytest -m long

## Train the shipped drafters anew into build/drafters/ (about two hours on 2 cores).
drafters: $(VENV)/.installed
	$(BIN)/python assets/drafters/recipe/make_prompts.py --out $(DRAFTERS)/prompts
	$(TRAIN) --method eagle3 --budget 75m --workload $(DRAFTERS)/prompts/train.jsonl \
		--keep-work --out $(DRAFTERS)/eagle3
	$(TRAIN) --method layer-pruned --layers 2 --budget 20m \
		--corpus $(DRAFTERS)/eagle3.work/corpus --out $(DRAFTERS)/pruned-2
	$(TRAIN) --method layer-pruned --layers 1 --budget 12m \
		--corpus $(DRAFTERS)/eagle3.work/corpus --out $(DRAFTERS)/pruned-1

## The shipped drafters at batch 1 beside n-gram, layer-skip and vLLM (at most 50 minutes).
bench-drafters: $(VENV)/.installed-dev vllm-venv
	$(BIN)/spectune models fetch
	$(BIN)/python -m tests.benchmarks.bench_drafters --vllm .venv-vllm/bin/python

## The engine beside vLLM and transformers, and its overhead (at most 25 minutes).
bench-engine: $(VENV)/.installed-dev vllm-venv
	$(BIN)/spectune models fetch
	$(BIN)/python -m tests.benchmarks.bench_engine --vllm .venv-vllm/bin/python

## Round time against batch size, tokens, K, context and layers, with a fitted model.
bench-scaling: $(VENV)/.installed-dev
	$(BIN)/spectune models fetch
	$(BIN)/python -m tests.benchmarks.bench_scaling

## One more pass over every arm at every batch size, kept in docs/benchmarks/ (about 20 minutes).
grid-search: $(VENV)/.installed-dev
	$(BIN)/spectune models fetch
	$(BIN)/python -m tests.benchmarks.bench_grid

## A search beside the grid: what it gives away, and what it costs (about 20 minutes).
bench-search: $(VENV)/.installed-dev
	$(BIN)/spectune models fetch
	$(BIN)/python -m tests.benchmarks.bench_search

# The tests build the native kernels; the product goes on without.
compiler:
	@command -v $${CXX:-g++} >/dev/null || \
		(apt-get update -qq && apt-get install -y -qq --no-install-recommends g++) || \
		(echo "no C++ compiler: install g++"; exit 1)

## A real vLLM (CPU build) in an environment of its own.
vllm-venv:
	PYTHON=$(PYTHON) deploy/make-vllm-venv.sh

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -e .
	mkdir -p .spectuned
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP_INSTALL) -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .venv-vllm .spectuned build *.egg-info .mypy_cache .ruff_cache .pytest_cache
