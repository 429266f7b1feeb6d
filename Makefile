# nanoeuler, on any Linux or macOS (Windows: in WSL2) with Python 3.11 to 3.14, or uv; no compiler.
#
#   make demo       .venv, then the offline demo from raw text to a chatting model
#   make test       .venv with the development tools, then lint and the tests
#   make lint       style, types, which room imports which, and the workflow's own checks
#   make fuzz       damaged input for every reader; `MINUTES=60`
#   make torture    runs under kill -9 and on full disks; `KILLS=200`
#   make mutants    mistakes planted in the computation, and what catches each
#   make install    .venv, and what to do next; `EXTRAS="serve gguf"` with optional packages, of
#                   slurm serve gguf tokenizers forms events s3 mkl webgpu
#   make lock       renew requirements/ from pyproject.toml (needs uv and the network)
#   make clean      remove .venv and caches; data/ and results/ stay
SHELL := bash
BIN := .venv/bin
LOCKS := core dev serve slurm mkl gguf tokenizers forms events s3 webgpu cuda12 cuda13
# The driver's version of CUDA; empty without a driver.
CUDA := $(shell nvidia-smi 2>/dev/null | sed -nE \
  -e 's/.*CUDA Version: *12\..*/cuda12/p' -e 's/.*CUDA Version: *1[3-9]\..*/cuda13/p')
EXTRAS :=
MINUTES := 60
KILLS := 200

.PHONY: demo test lint types workflow-style fuzz torture mutants install lock clean

demo: .venv/core.stamp
	$(BIN)/snakemake --cores all
	@$(BIN)/python -m nanoeuler.cli.greeting config/config.yaml

# The tests start hundreds of processes: each would compile this project's sources again.
test: lint
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest \
	  --numprocesses logical --dist loadfile --no-loadscope-reorder

# mypy takes longer than all else.
lint: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-logo --no-cache
	@$(MAKE) --no-print-directory --jobs 2 types workflow-style

types:
	$(BIN)/mypy

workflow-style:
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint

fuzz: .venv/core.stamp
	$(BIN)/python -m fuzz --minutes $(MINUTES)

torture: .venv/core.stamp
	$(BIN)/python -m fuzz.torture --kills $(KILLS)
	$(BIN)/python -m fuzz.full_disk

mutants: .venv/dev.stamp
	$(BIN)/python -m fuzz.mutants --write

install:
	requirements/install.sh $(EXTRAS) $(CUDA)
	@$(BIN)/nanoeuler

.venv/core.stamp: pyproject.toml requirements/core.txt
	requirements/install.sh $(CUDA)
	@touch $@

.venv/dev.stamp: pyproject.toml requirements/dev.txt
	requirements/install.sh dev $(CUDA)
	@touch $@ .venv/core.stamp

# Versions and hashes, without the package index. Wheels only, except connection-pool: it is pure
# Python and has no wheel (and see requirements/install.sh for Python 3.14).
lock:
	for lock in $(LOCKS) pip; do \
	  case $$lock in \
	    pip) what="--group pip";; \
	    core) what="pyproject.toml --group build";; \
	    *) what="pyproject.toml --group build --extra $$lock";; \
	  esac; \
	  uv pip compile $$what --quiet --universal --python-version 3.11 \
	    --generate-hashes --no-emit-index-url --only-binary :all: --no-binary connection-pool \
	    --custom-compile-command "make lock" --output-file requirements/$$lock.txt || exit 1; \
	done

clean:
	rm -rf .venv .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
