# Two commands: `make run` and `make test`. Everything else is here to be read.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.farflung-setup

.PHONY: setup run test test-all soak bench mutants docs clean

setup: $(STAMP)

# The stamp is made last: an installation that was interrupted is done again.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("farflung needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train,report,dev]'
	@touch $(STAMP)

run: setup
	$(BIN)/farflung run $(ARGS)

# Lint, types, import contracts; all short tests, and the long ones that import what changed since this last passed
# (on a fresh clone: since main). It says how many it left out.
test: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -n 3 --dist loadgroup --tier change $(ARGS)

# All tests that need neither root, nor extras, nor a browser; .ci/run adds those. Whole networks wait for much of their
# time: with four at once two cores are busy.
test-all: setup
	$(BIN)/pytest -n 4 --dist loadgroup --tier all $(ARGS)

# Whole trees killed at every failpoint and at random times, 20 seeds; each kind of process killed 20 times; the
# committee's longest, and most of its seeds and of the cheats'; disputes whose players die, or say nothing; all methods
# of synchronisation with all counts of peers; further moments of a stop, and a run of another seed.
soak: setup
	$(BIN)/pytest -m soak -s -v $(ARGS)

# ARGS=--quick: at most a minute each, on two idle cores.
bench: setup
	$(BIN)/python bench/run.py $(ARGS)
	$(BIN)/python bench/strangers.py $(ARGS)

# What each row of docs/guarantees.md rests on, taken away: its test must fail. Some minutes; root for the rows of netns.
mutants: setup
	$(BIN)/python bench/mutants.py $(ARGS)

# The pages, in docs/_build/html; a warning is an error.
docs: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/sphinx-build -q -n -W --keep-going -b html docs docs/_build/html $(ARGS)

clean:
	rm -rf .venv .wheels .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis docs/_build
