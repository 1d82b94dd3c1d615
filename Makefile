# Two commands are all a newcomer needs: make run · make test
# Python 3.11 or newer and make are enough; everything else is set up in .venv, and a second time it is quick.

PYTHON ?= python3
PORT ?=
STORE ?= demo-store

BIN := .venv/bin
PIP := $(BIN)/python -m pip install --constraint constraints.txt
INSTALLED := .venv/installed
DEV := .venv/installed-dev
DOCS := .venv/installed-docs
BROWSER := .venv/browser
STRACE := .venv/strace
COUNTS := $(CURDIR)/.cache/faults.json

# What make gpu runs under, if not .venv; and what to fetch small packages for.
GPU_PYTHON ?=
GPU_PYTHON_VERSION ?= 3.12
CARRIED := portalocker msgspec xxhash zstandard platformdirs click pytest nvidia-cuda-cuobjdump

# The PyTorch of make torch, and further options of pip: its page says how to get the one for the CPU alone, which is enough.
TORCH ?= torch>=2.6
TORCH_OPTIONS ?=

.PHONY: run test lint pytest docs bench soak torch gpu gpu-packages format clean

# The dashboard on a demonstration store, which is compiled the first time.
run: $(INSTALLED)
	$(BIN)/gemm-cache --store $(STORE) warm --sample
	$(BIN)/gemm-cache --store $(STORE) dashboard $(if $(PORT),--port $(PORT))

# Bytecode is kept, also where the environment says otherwise: the tests start many hundreds of processes, and each would
# compile the engine again.
pytest soak: export PYTHONDONTWRITEBYTECODE =

# Everything CI checks. Checking the types keeps one processor busy for minutes, so the tests run at the same time.
test: $(DEV) $(DOCS) $(BROWSER) $(STRACE)
	@$(MAKE) --no-print-directory --jobs 2 lint pytest

pytest:
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not soak and not gpu" --ignore tests/gpu

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	@$(BIN)/python .ci/weight
	$(BIN)/mypy

# The documents and the API reference as a site, in site/; a link that leads nowhere is an error. No network is needed.
docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html, or with search: $(BIN)/python -m http.server --bind 127.0.0.1 --directory site 8000"

format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Speed, as ratios measured side by side in one run.
bench: $(DEV) $(BROWSER)
	$(PIP) --quiet --editable ".[bench]"
	$(BIN)/python -m benchmarks all
	$(BIN)/python -m benchmarks dashboard

# The long tests.
soak: $(DEV) $(BROWSER) $(STRACE)
	$(PIP) --quiet "atheris; python_version < '3.14'"
	@mkdir -p .cache; rm -f $(COUNTS)
	FAULT_REPORT=$(COUNTS) $(BIN)/python -m pytest -n auto --dist worksteal -m "soak and not gpu"
	FAULT_REPORT=$(COUNTS) $(BIN)/python -m pytest tests/faults/test_damage.py
	@$(BIN)/python -m tests.faults.summary $(COUNTS) docs/reliability.md

# The tests of cache_engine.torch. PyTorch, hundreds of megabytes, goes into an environment of its own that sees .venv.
torch: .venv-torch/installed
	.venv-torch/bin/python -m pytest -n auto --dist worksteal -m "not gpu" tests/torch

.venv-torch/installed: $(DEV)
	$(BIN)/python -m venv .venv-torch
	echo "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
		> "$$(.venv-torch/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tests.pth"
	.venv-torch/bin/python -m pip install --constraint constraints.txt $(TORCH_OPTIONS) "$(TORCH)"
	@touch $@

# On a machine with an NVIDIA GPU: the tests that need one, then kernels compared with cuBLAS. With GPU_PYTHON=python3 under the
# machine's own Python, nothing installed; it lists what is missing.
gpu: $(if $(GPU_PYTHON),,$(DEV))
	@sh .ci/gpu $(or $(GPU_PYTHON),$(BIN)/python)

# The small packages of those that make gpu needs, to be carried to a machine that has no network.
gpu-packages:
	$(PYTHON) -m pip install --quiet --constraint constraints.txt --target .gpu-packages --upgrade \
		--python-version $(GPU_PYTHON_VERSION) --only-binary=:all: $(CARRIED)
	@echo "copy .gpu-packages into the checkout there"

clean:
	rm -rf .venv .venv-torch demo-store dist site .cache .gpu-packages

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "gemm-cache needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12"; exit 1; }
	@echo "Installing gemm-cache and its dashboard into .venv. This takes a minute or two; later runs skip it."
	$(PYTHON) -m venv .venv
	$(PIP) --editable ".[dashboard]"
	@touch $@

$(DEV): $(INSTALLED)
	@echo "Installing what the tests need, another compiler and Triton among it. This takes a few minutes."
	$(PIP) --editable ".[all,dev,nvcc,triton]"
	@touch $@

$(DOCS): $(DEV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	@touch $@

# Browser tests need Chromium: the system's, else one from the package manager, else Playwright's own.
$(BROWSER): $(DEV)
	@sh .ci/get-browser $(BIN)
	@touch $@

# Fault tests interrupt system calls with strace.
$(STRACE): $(DEV)
	@sh .ci/get-strace
	@touch $@
