# Everything a contributor types. `make help` lists it.
#
# Python and its tools live in .venv; the native parts are built by CMake in build/native, which writes them beside the
# Python files in src/gemlet, where the editable installation finds them. A second `make` of anything does nothing anew.
# The environment is changed by `make PYTHON=python3.13 VENV=.venv313 test`.
#
# There are two sizes of everything: `make install` brings what runs gemlet, `make setup` also what its contributors use,
# and builds the native parts again with debug information.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= $(shell nproc)
PYTEST_ARGS ?=
# Most tests wait for processes and times more than they compute.
WORKERS ?= $(shell echo $$((2 * $$(nproc))))
RUNS ?= 10
SOAK_SECONDS ?= 3600
SOAK_CLIENTS ?= 500
BIN := $(VENV)/bin
BUILD := build/native
INSTALLED := $(VENV)/.gemlet-installed
STAMP := $(VENV)/.gemlet-setup
NATIVE_SOURCES = $(shell git ls-files 'native/*.cpp' 'native/*.hpp' 'native/*.h' 'bench/*.cpp' 'bench/*.hpp')

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:  # the steps follow one another; ninja and pytest start processes side by side themselves

.PHONY: help
help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: install
install: $(INSTALLED) native  ## .venv/bin/gemlet, native parts built: what it takes to run gemlet

.PHONY: setup
setup: $(STAMP) native  ## the same with debug information, and all tools: what it takes to change gemlet

.PHONY: demo
demo: install  ## three programs share one device: the first GPU, or a simulated one
	@$(BIN)/gemlet demo

.PHONY: test
test: setup  ## the tests that need neither a GPU nor an idle machine; PYTEST_ARGS='-k ledger' chooses
	@$(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=worksteal -m "not alone" $(PYTEST_ARGS)

.PHONY: test-alone
test-alone: setup  ## the tests that measure the sharing of time, one after another: leave the machine alone meanwhile
	@$(BIN)/python -m pytest -m alone $(PYTEST_ARGS)

.PHONY: test-busy
test-busy: setup  ## `make test` RUNS times beside stress-ng, which keeps every processor busy; prints a table
	@$(BIN)/python tools/test_busy.py --runs $(RUNS) -- $(MAKE) --no-print-directory test

.PHONY: lint style types stubs layers spelling messages
lint: style types stubs layers spelling messages  ## style, types, stubs, layers, spelling, commit messages; `make -k lint` tries all
messages: $(STAMP)
	@$(BIN)/python tools/commit_messages.py
style: $(STAMP)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/clang-format --dry-run -Werror $(NATIVE_SOURCES)
types: $(STAMP)
	@$(BIN)/mypy
stubs: $(STAMP) native
	@$(BIN)/stubtest --mypy-config-file pyproject.toml --ignore-disjoint-bases --allowlist tools/stubtest.allowlist gemlet._native
layers: $(STAMP)
	@$(BIN)/lint-imports
	@$(BIN)/python tools/check_includes.py
spelling: $(STAMP)
	@$(BIN)/codespell
	@$(BIN)/python tools/words.py

.PHONY: format
format: $(STAMP)  ## rewrites the sources in the style that lint wants
	@$(BIN)/ruff check --fix-only --quiet
	@$(BIN)/ruff format --quiet
	@$(BIN)/clang-format -i $(NATIVE_SOURCES)

.PHONY: native
native: $(BUILD)/build.ninja  ## the native parts only: those that have changed
	@PATH="$(abspath $(BIN)):$$PATH" cmake --build $(BUILD) -j $(JOBS) -- --quiet

.PHONY: sanitize
sanitize: setup  ## tests of the native parts under address, undefined-behaviour and thread sanitizers
	@.ci/sanitize $(VENV)

.PHONY: fuzz
fuzz: setup  ## property tests and the fuzzer of the server, with many more examples than `make test` tries
	@GEMLET_FUZZ_SECONDS=60 GEMLET_FUZZ_MESSAGES=1000000 $(BIN)/python -m pytest --hypothesis-profile=fuzz --timeout=3600 -m "not slow" tests/unit \
	    tests/sim/robustness/test_fuzz.py $(PYTEST_ARGS)

.PHONY: soak
soak: setup  ## an hour of harm to 500 programs and their daemon on the simulated machine; SOAK_SECONDS=600 for less
	@$(BIN)/python -m tests.sim.soak --seconds $(SOAK_SECONDS) --clients $(SOAK_CLIENTS)

.PHONY: upgrade-test
upgrade-test: setup  ## 20 daemons take over from one another under 100 busy programs on the simulated machine; two minutes
	@$(BIN)/python -m tests.sim.upgrade $(UPGRADE_ARGS)

.PHONY: cluster-test
cluster-test: image serve-image  ## a real Kubernetes cluster with simulated GPUs; needs root and Go; builds Kubernetes the first time
	@$(BIN)/python -m pip install --quiet --group chart
	@tests/cluster/run 1.36 $(abspath $(BIN))/python $(abspath build/image/gemlet.tar) $(PYTEST_ARGS)

.PHONY: cluster-test-old
cluster-test-old: image  ## the same on Kubernetes 1.20, which has no claims: what Debian 12 has the source of
	@$(BIN)/python -m pip install --quiet --group chart
	@tests/cluster/run 1.20 $(abspath $(BIN))/python $(abspath build/image/gemlet.tar) $(PYTEST_ARGS)

.PHONY: cluster-upgrade-test
cluster-upgrade-test: image  ## the release before, built here, upgraded to this one under running pods of that cluster
	@$(BIN)/python -m pip install --quiet --group chart
	@tests/cluster/build-before $(abspath $(BIN))/python $(abspath build/before)
	@GEMLET_CLUSTER_BEFORE=$(abspath build/before) tests/cluster/run 1.36 $(abspath $(BIN))/python $(abspath build/image/gemlet.tar) \
	    tests/cluster/test_upgrade.py $(PYTEST_ARGS)

.PHONY: image
image: setup  ## build/image/gemlet.tar, the container image that the chart installs; needs Debian 12, no Docker, no root
	@$(BIN)/python packaging/image/build.py build/image/gemlet.tar

.PHONY: serve-image
serve-image: setup  ## build/image/gemlet-serve.tar, the image of `gemlet serve` for CPUs, likewise; with PyTorch: packaging/docker/serve.Dockerfile
	@$(BIN)/python packaging/image/build.py build/image/gemlet-serve.tar gemlet-serve

.PHONY: wheels
wheels: setup  ## dist/: the wheels of every Python and architecture, sources, symbols, checksums; needs Python 3.11 and 3.12
	@$(BIN)/python -m pip install --quiet --group wheels
	@$(BIN)/python packaging/wheels/build.py

.PHONY: zig
zig: setup  ## the native parts for this machine by the compiler of the wheels, whose C and C++ libraries differ from this machine's
	@$(BIN)/python -m pip install --quiet --group wheels
	@$(BIN)/python packaging/wheels/build.py --compile-only

.PHONY: deb
deb: $(STAMP)  ## dist/*.deb from the wheels there: an environment with all that gemlet needs, the unit, for each architecture
	@$(BIN)/python packaging/deb/build.py

.PHONY: wheel-test
wheel-test: setup  ## what `make wheels` and `make deb` left in dist: symbol versions, roots of old and new Debian and Ubuntu, aarch64, empty environments
	@$(BIN)/python -m pip install --quiet --group wheels uv
	@$(BIN)/python -m pytest tests/wheels --timeout=1800 $(PYTEST_ARGS)

.PHONY: chart-test
chart-test: setup  ## the Helm charts, rendered by Helm and checked against the schemas of Kubernetes
	@$(BIN)/python -m pip install --quiet --group chart
	@$(BIN)/python -m pytest tests/chart $(PYTEST_ARGS)

.PHONY: docs
docs: $(STAMP)  ## build/docs/site: the documents as a site; a link that leads nowhere is an error
	@$(BIN)/python -m pip install --quiet --group docs
	@$(BIN)/python tools/docs_site.py

.PHONY: page
page:  ## the page of `gemlet web` anew from web/, by npm; commit what it writes
	@cd web && npm ci --silent --no-fund --no-audit && npm run --silent build

.PHONY: web-test
web-test: setup  ## the page of `gemlet web` in Debian's Chromium on a simulated machine; what is missing is skipped and said
	@$(BIN)/python -m pip install --quiet --group web
	@cd web && npm ci --silent --no-fund --no-audit || echo "npm installs nothing here: what needs it is skipped"
	@$(BIN)/python -m pytest tests/web $(PYTEST_ARGS)

.PHONY: ray-test
ray-test: setup  ## executors placed by a real Ray cluster of several nodes on this machine; installs Ray
	@$(BIN)/python -m pip install --quiet 'ray>=2.40'
	@$(BIN)/python -m pytest tests/ray --timeout=300 $(PYTEST_ARGS)

.PHONY: triton-test
triton-test: setup  ## a repository of Triton's, the same questions and clients to a real tritonserver and to gemlet; installs both
	@tests/triton/install $(BIN)/python
	@$(BIN)/python -m pip install --quiet 'onnxruntime>=1.20'
	@$(BIN)/python -m pytest tests/triton tests/e2e/test_serve_triton_repository.py --timeout=600 $(PYTEST_ARGS)

.PHONY: jupyter-test
jupyter-test: setup  ## a kernel of `gemlet jupyter` and a server of JupyterHub on the simulated machine; installs both
	@$(BIN)/python -m pip install --quiet --group jupyter
	@npm install --silent --no-fund --no-audit --prefix build/jupyter configurable-http-proxy || \
	    echo "npm installs nothing here: what needs it is skipped"
	@$(BIN)/python -m pytest tests/jupyter --timeout=300 $(PYTEST_ARGS)

.PHONY: slurm-test
slurm-test: setup  ## packaging/slurm with a real Slurm on the simulated machine; needs root, and apt-get for its packages
	@tests/slurm/install
	@$(BIN)/python -m pytest tests/slurm $(PYTEST_ARGS)

.PHONY: protocol
protocol: $(STAMP)  ## the messages of the kubelet and of inference clients anew from their .proto files
	@cd src && $(abspath $(BIN))/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. gemlet/kube/protocol/*.proto \
	    gemlet/inference_protocol/*.proto

.PHONY: bench
bench: setup  ## the benchmarks, into build/bench; ARGS='--quick --simulate' goes to bench.all
	@ARGS="$(ARGS)" .ci/bench $(VENV)

.PHONY: churn
churn: setup  ## five minutes of models that come, go and fail on one server, and what their neighbours lose; ARGS='--seconds 60'
	@$(BIN)/python -m bench.churn $(ARGS)

.PHONY: clean
clean:  ## removes what was built; .venv stays
	rm -rf build dist src/gemlet/_lib src/gemlet/_native*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests bench tools -name __pycache__ -prune -exec rm -rf {} +
	rm -f $(STAMP) $(INSTALLED)

# Two steps of pip: --no-build-isolation needs the build requirements first, so that they are downloaded once and CMake
# finds the headers in the environment that is also used to rebuild. CMake itself runs below, where its output is seen.
$(INSTALLED): pyproject.toml .ci/prerequisites
	@.ci/prerequisites $(PYTHON)
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing into $(VENV)"
	@$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@$(BIN)/python -m pip install --quiet --no-compile --group build
	@$(BIN)/python -m pip install --quiet --no-compile --no-build-isolation --config-settings=wheel.cmake=false \
	    --editable '.[metrics,kube,serve]'
	@touch $@

$(STAMP): $(INSTALLED)
	@echo "installing the tools of contributors into $(VENV)"
	@$(BIN)/python -m pip install --quiet --group dev
	@touch $@

# Release, unless the tools of contributors are there. The file changes only when the answer does.
$(BUILD)/build-type: always
	@mkdir -p $(BUILD)
	@now=$@.$$$$; if test -e $(STAMP); then echo RelWithDebInfo; else echo Release; fi > $$now; \
	    if cmp -s $$now $@; then rm $$now; else mv $$now $@; fi
.PHONY: always
always:

$(BUILD)/build.ninja: $(INSTALLED) $(BUILD)/build-type
	@echo "building the native parts (a minute or two the first time)"
	@PATH="$(abspath $(BIN)):$$PATH" cmake -S . -B $(BUILD) -G Ninja -DPython_EXECUTABLE="$(abspath $(BIN))/python" \
	    -DCMAKE_BUILD_TYPE="$$(cat $(BUILD)/build-type)" \
	    $(CMAKE_ARGS) --log-level=WARNING > $(VENV)/configure.log || { cat $(VENV)/configure.log; exit 1; }
	@touch $@
