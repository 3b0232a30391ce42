# `make demo` and `make test` create .venv and install what they need. PYTHON selects the interpreter.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint format docs clean

demo: $(VENV)/demo-installed
	$(BIN)/marginattack demo

# The tests start many processes: bytecode spares each of them compiling what it imports.
test: lint
	PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n 2 --dist worksteal -q

# The same checks as .pre-commit-config.yaml.
lint: $(VENV)/dev-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(VENV)/dev-installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Runs the notebooks, builds the site into site/, offline, with every warning an error, and checks all its links.
docs: $(VENV)/dev-installed
	$(BIN)/pytest -q tests/test_notebooks.py
	SITE=site $(BIN)/pytest -q tests/test_site.py

# The demo needs the report's packages only: no linters, no test tools, no other extras. Without bytecode, which Python
# writes on first import, they install in half the time.
$(VENV)/demo-installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --no-compile -e '.[report]'
	touch $@

# adv-lib requires visdom, which cannot be built any more, torchattacks a requests of 2021; the tests need neither.
$(VENV)/dev-installed: $(VENV)/demo-installed
	$(PIP) -e '.[dev]'
	$(PIP) --no-deps adv-lib==0.2.8 torchattacks==3.5.1
	touch $@

clean:
	rm -rf $(VENV) site .mypy_cache .ruff_cache .hypothesis .import_linter_cache
