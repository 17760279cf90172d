# Every target sets up what it needs; `make` alone lists them.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# What mypy looks at; benchmarks join as soon as they exist.
SOURCES := src tests scripts $(wildcard benchmarks)
ARGS ?=
# Compiled modules are kept, also where the environment says otherwise: else every process of the tests compiles all of
# its libraries once more, and there are thousands.
unexport PYTHONDONTWRITEBYTECODE
# How many processes the tests share; each has a Postgres and, where it needs one, a Spark of its own, 5 GB in all. Three
# also on two cores: tests that kill and wait leave half of the time unused.
WORKERS ?= $(shell awk '/MemTotal/ {n = int($$2 / 5000000); print (n < 1) ? 1 : (n > 3) ? 3 : n}' /proc/meminfo 2>/dev/null || echo 2)
# Where the tests write: into memory, where it has room for them. Thousands of small catalogs come and go, and nothing of
# them has to outlive the machine.
SCRATCH ?= $(shell df -k --output=avail /dev/shm 2>/dev/null | awk 'NR == 2 && $$1 > 8000000 {print "/dev/shm"}')

.DEFAULT_GOAL := help
.PHONY: help setup peers jar demo test check format bench bench-quick soak docs dist pins clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv with pinned versions (PYTHON=python3.12 picks another Python)

$(READY): pyproject.toml constraints.txt
	@scripts/setup.sh "$(PYTHON)"

peers: $(READY) ## bring the engines that need a place of their own (build/peers); what cannot be had is told
	@$(BIN)/python scripts/peers.py

jar: $(READY) peers ## compile the jar for Delta on Spark (needs a JDK 17 and Maven, or says what is missing)
	@$(BIN)/python scripts/jar.py

demo: $(READY) ## the whole story on SQLite, in under two minutes (data: build/demo; ARGS=--keep keeps its page open)
	@rm -rf build/demo
	@$(BIN)/python -m deltalakedb demo --folder build/demo $(ARGS)

test: $(READY) jar ## run the tests, a real Postgres included (ARGS="-k name" narrows them)
	@if [ -n "$(SCRATCH)" ]; then \
		TMPDIR=$$(mktemp -d "$(SCRATCH)/deltalakedb-XXXXXX") && export TMPDIR && chmod 1777 "$$TMPDIR" \
			&& trap 'rm -rf "$$TMPDIR"' EXIT && trap 'exit 130' HUP INT TERM; \
	fi; $(BIN)/python -m pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder $(ARGS)

check: $(READY) ## lint, format, types, layering
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict $(SOURCES)
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_source.py

format: $(READY) ## rewrite the code in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## run the benchmarks, with peers in the same run
	$(BIN)/python -m benchmarks $(ARGS)

bench-quick: $(READY) ## the benchmarks on small data: do they still run?
	$(BIN)/python -m benchmarks --quick $(ARGS)

soak: $(READY) jar ## long contention, kill and fault runs
	DELTALAKEDB_SOAK=1 $(BIN)/python -m pytest --timeout=3600 $(ARGS)

docs: $(READY) ## build the documentation (build/site), and check that every link in it leads somewhere
	@$(BIN)/python scripts/check_docs.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "docs: build/site/index.html"

dist: $(READY) peers ## build wheel and sdist (dist/), and try the wheel in an empty environment for each extra
	$(BIN)/python scripts/jar.py --required
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	$(BIN)/python scripts/check_dist.py $(ARGS)

pins: $(READY) ## rewrite constraints.txt with the newest versions that fit together
	@$(BIN)/python scripts/pins.py

clean: ## remove .venv and everything that can be made again
	rm -rf .venv .venv.lock build dist .coverage* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
