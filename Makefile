# Every target sets up what it needs: a virtual environment in .venv, made anew when pyproject.toml or constraints.txt
# changes. PYTHON picks the interpreter that makes it.
PYTHON ?= python3
PY := .venv/bin/python
INSTALLED := .venv/.installed

.PHONY: demo test slow types lint fmt golden docs install clean
.DEFAULT_GOAL := test

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "stateir needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

install: $(INSTALLED)

# The whole path once: every rule is checked, QED is shown and proved, three rules learn the overwriting task.
demo: $(INSTALLED)
	.venv/bin/stateir check --all
	.venv/bin/stateir check qed
	$(PY) -m stateir.models.demo

# pytest comes last: its summary is the closing line.
test: lint types
	$(PY) -m pytest -n 2

slow: $(INSTALLED)
	$(PY) -m pytest -n 2 -m slow

lint: $(INSTALLED)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(INSTALLED)
	$(PY) tests/wheelcheck.py

fmt: $(INSTALLED)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	.venv/bin/stateir fmt recurrences/*.rule

# Rewrites the golden files of generated code; read their diff before you commit it.
golden: $(INSTALLED)
	$(PY) -m pytest -n 2 --update-golden tests

# The documentation as a site, in build/site; a warning is an error.
docs: $(INSTALLED)
	$(PY) -m mkdocs build --strict

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
