# What each target does: make help
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup fuzz test test-releases test-device lint bench clean

VENV := .venv
SCHEDFUZZ := $(VENV)/bin/schedfuzz
# Strings hash alike in every run, so that a finding is one everywhere.
export PYTHONHASHSEED := 0

# The release that `make fuzz` finds bugs in, and the releases that the tests run.
FUZZ_RELEASE := 0.19.0
# What most deployments use: a first look at a few bugs, not at the thirty that all features show in an old release.
FUZZ_FEATURES := chunked_prefill,long_prefill,prefix_cache,preemption,priority,abort,async,spec,mm,stop,max_model_len
TEST_RELEASES := 0.19.0 0.20.2 0.23.0 0.24.0 0.32.0 0.33.0
ALL_RELEASES := 0.12.0 0.13.0 0.14.1 0.15.1 0.16.0 0.17.1 0.18.1 0.19.0 0.19.1 0.20.2 0.21.0 0.22.1 0.23.0 0.24.0 \
  0.25.1 0.26.0 0.27.1 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0 0.33.0

# Where vLLM's own model runner runs: cpu, or cuda with an installed vLLM (SCHEDFUZZ_VLLM=installed).
DEVICE := cpu
DEVICE_RELEASES := 0.12.0 0.19.0 0.24.0 0.28.0 0.29.0 0.32.0 0.33.0

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST)

setup: ## make the environment in .venv (nothing to do when it is up to date)
	@scripts/setup.sh $(VENV)

fuzz: setup ## find bugs of vLLM 0.19.0 in 90 seconds, from an empty corpus
	@$(SCHEDFUZZ) targets fetch $(FUZZ_RELEASE)
	@rm -rf out/fuzz
	@$(SCHEDFUZZ) run --vllm $(FUZZ_RELEASE) --features $(FUZZ_FEATURES) --seconds 90 --seed 1 --out out/fuzz; status=$$?; \
	case $$status in \
	  1) echo "make fuzz: bugs found in vLLM $(FUZZ_RELEASE), which is success here; they are in out/fuzz/findings" ;; \
	  0) echo "make fuzz: no finding, although vLLM $(FUZZ_RELEASE) has known bugs: this is a failure" >&2; exit 1 ;; \
	  *) echo "make fuzz: schedfuzz ended with status $$status" >&2; exit $$status ;; \
	esac

test: setup ## run the tests (PYTEST_ARGS="-k name" to choose)
	@rotating=$$(scripts/rotating_releases.sh $(ALL_RELEASES)); \
	$(SCHEDFUZZ) targets fetch $(TEST_RELEASES) $$rotating && \
	SCHEDFUZZ_RELEASES="$$rotating" $(VENV)/bin/python -m pytest $(PYTEST_ARGS)

test-releases: setup ## run scenarios on every supported release of vLLM
	@$(SCHEDFUZZ) targets fetch $(ALL_RELEASES)
	SCHEDFUZZ_RELEASES="$(ALL_RELEASES)" $(VENV)/bin/python -m pytest tests/test_releases.py $(PYTEST_ARGS)

test-device: ## run the tests of vLLM's own model runner beside the stub (DEVICE=cuda on a machine with a GPU)
	@EXTRAS=dev,device scripts/setup.sh $(VENV)
	@$(SCHEDFUZZ) targets fetch $(DEVICE_RELEASES)
	SCHEDFUZZ_DEVICE=$(DEVICE) $(VENV)/bin/python -m pytest -m device $(PYTEST_ARGS)

lint: setup ## check style and types
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy --strict harness fuzz

bench: setup ## measure executions/s, steps/s and the share of time spent in vLLM
	$(VENV)/bin/python -m fuzz.bench

clean: ## remove the environment and what runs left here (the cache of releases stays)
	rm -rf $(VENV) $(VENV).lock out build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find harness fuzz tests -name __pycache__ -type d -prune -exec rm -rf {} +
