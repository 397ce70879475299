# The two commands: `make up` runs the whole mesh here, `make test` checks all of it, from nothing.

PYTHON ?= python3
BIN := .venv/bin
export GOOGLEAPIS_INCLUDE = $(shell $(BIN)/python -c "import google.rpc, pathlib; print(pathlib.Path(list(google.rpc.__path__)[0]).parent.parent)" 2>/dev/null)
CARGO := cd sidecar_rs && cargo

.PHONY: up test lint format env sidecar clean unit integration chaos

up: env sidecar ## the mesh in the foreground, and a first request answered
	@$(BIN)/shoal up --first-request

test: env lint sidecar ## everything
	$(CARGO) test --locked --workspace
	$(BIN)/python -m pytest tests

lint: env ## protos, Python and Rust
	$(BIN)/python tools/lint_protos.py
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

format: env
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(CARGO) fmt --all

unit: env ## tests that need no process
	$(BIN)/python -m pytest tests/unit

integration: env sidecar ## tests of processes and of the running mesh
	$(BIN)/python -m pytest tests/integration

chaos: env sidecar ## faults under load, ten minutes of them by force
	SHOAL_FORCE_S=$${SHOAL_FORCE_S:-600} $(BIN)/python -m pytest -s tests/chaos

env: ## the virtual environment and the stubs, when what they are made from changed
	@$(PYTHON) tools/environment.py

sidecar: env
	@command -v cargo >/dev/null || { echo "cargo is missing: install Rust 1.90 or later (rustup.rs), then run this again" >&2; exit 1; }
	@$(CARGO) build --locked -p shoal-sidecar

clean:
	rm -rf .venv sidecar_rs/target .shoal
