# Everything a contributor types. `make help` lists it.
#
# Python and its tools live in .venv; the native parts are built by CMake in build/native, which writes them beside the
# Python files in src/gemlet, where the editable installation finds them. A second `make` of anything does nothing anew.
# The environment is changed by `make PYTHON=python3.13 VENV=.venv313 test`.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= $(shell nproc)
PYTEST_ARGS ?=
BIN := $(VENV)/bin
BUILD := build/native
STAMP := $(VENV)/.gemlet-setup
NATIVE_SOURCES = $(shell git ls-files 'native/*.cpp' 'native/*.hpp' 'native/*.h' 'bench/*.cpp' 'bench/*.hpp')

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(STAMP) native  ## .venv with gemlet and all tools in it, native parts built

.PHONY: demo
demo: setup  ## three programs share one device: the first GPU, or a simulated one
	@$(BIN)/gemlet demo

.PHONY: test
test: setup  ## all tests that need no GPU; PYTEST_ARGS='-k ledger' chooses
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

.PHONY: lint style types layers spelling
lint: style types layers spelling  ## style, types, layers, spelling; `make -k lint` goes on after the first that fails
style: $(STAMP)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/clang-format --dry-run -Werror $(NATIVE_SOURCES)
types: $(STAMP)
	@$(BIN)/mypy
layers: $(STAMP)
	@$(BIN)/lint-imports
spelling: $(STAMP)
	@$(BIN)/codespell

.PHONY: format
format: $(STAMP)  ## rewrites the sources in the style that lint wants
	@$(BIN)/ruff check --fix-only --quiet
	@$(BIN)/ruff format --quiet
	@$(BIN)/clang-format -i $(NATIVE_SOURCES)

.PHONY: native
native: $(BUILD)/build.ninja  ## the native parts only, what has changed
	@PATH="$(abspath $(BIN)):$$PATH" cmake --build $(BUILD) -j $(JOBS) -- --quiet

.PHONY: sanitize
sanitize: setup  ## tests of the native parts under address, undefined-behaviour and thread sanitizers
	@.ci/sanitize $(VENV)

.PHONY: fuzz
fuzz: setup  ## property tests and the fuzzer of the server, with many more examples than `make test` tries
	@GEMLET_FUZZ_SECONDS=60 $(BIN)/python -m pytest --hypothesis-profile=fuzz --timeout=3600 -m "not slow" tests/unit \
	    tests/sim/robustness/test_fuzz.py $(PYTEST_ARGS)

.PHONY: cluster-test
cluster-test: image  ## a real Kubernetes cluster with simulated GPUs; needs root; builds Kubernetes the first time
	@$(BIN)/python -m pip install --quiet --group chart
	@tests/cluster/run $(abspath $(BIN))/python $(abspath build/image/gemlet.tar) $(PYTEST_ARGS)

.PHONY: image
image: setup  ## build/image/gemlet.tar, the container image that the chart installs; needs Debian 12, no Docker, no root
	@$(BIN)/python packaging/image/build.py build/image/gemlet.tar

.PHONY: chart-test
chart-test: setup  ## the Helm chart, rendered by Helm and checked against the schemas of Kubernetes
	@$(BIN)/python -m pip install --quiet --group chart
	@$(BIN)/python -m pytest tests/chart $(PYTEST_ARGS)

.PHONY: ray-test
ray-test: setup  ## executors placed by a real Ray cluster of several nodes on this machine; installs Ray
	@$(BIN)/python -m pip install --quiet 'ray>=2.40'
	@$(BIN)/python -m pytest tests/ray --timeout=300 $(PYTEST_ARGS)

.PHONY: protocol
protocol: $(STAMP)  ## the messages of the kubelet and of inference clients anew from their .proto files
	@cd src && $(abspath $(BIN))/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. gemlet/kube/protocol/*.proto \
	    gemlet/inference_protocol/*.proto

.PHONY: bench
bench: setup  ## the benchmarks, into build/bench; ARGS='--quick --simulate' goes to bench.all
	@ARGS="$(ARGS)" .ci/bench $(VENV)

.PHONY: clean
clean:  ## removes what was built; .venv stays
	rm -rf build dist src/gemlet/_lib src/gemlet/_native*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests bench tools -name __pycache__ -prune -exec rm -rf {} +
	rm -f $(STAMP)

# Two steps of pip: --no-build-isolation needs the build requirements first, so that they are downloaded once and CMake
# finds the headers in the environment that is also used to rebuild. CMake itself runs below, where its output is seen.
$(STAMP): pyproject.toml .ci/prerequisites
	@.ci/prerequisites $(PYTHON)
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing into $(VENV)"
	@$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@$(BIN)/python -m pip install --quiet --group dev
	@$(BIN)/python -m pip install --quiet --no-build-isolation --config-settings=wheel.cmake=false --editable '.[metrics,kube,serve]'
	@touch $@

$(BUILD)/build.ninja: $(STAMP)
	@echo "building the native parts (a few minutes the first time)"
	@PATH="$(abspath $(BIN)):$$PATH" cmake -S . -B $(BUILD) -G Ninja -DPython_EXECUTABLE="$(abspath $(BIN))/python" \
	    $(CMAKE_ARGS) --log-level=WARNING > $(VENV)/configure.log || { cat $(VENV)/configure.log; exit 1; }
	@touch $@
