# Everything runs in .venv, which each target sets up by itself (tools/setup.sh).
# PYTHON=/path/to/python3.12 chooses the interpreter.

PY := .venv/bin/python

# What Python compiles it keeps, also where it is told not to: tests start hundreds of processes, which would each
# compile all of it again.
export PYTHONDONTWRITEBYTECODE :=

# Where there is room in memory, the tests' files are there: on a disk each of many thousands is waited for.
# `make test-long` has them on the disk.
ifneq ($(shell df -k /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 1000000'),)
IN_MEMORY := TMPDIR=/dev/shm
endif

# Three processes on two cores: tests wait much of the time, for leases to end and for other processes. Files come in
# the order of tests/conftest.py.
FAST := -m "not slow" -n 3 --dist loadfile --no-loadscope-reorder

.PHONY: help setup demo test coverage test-long check bench clean

help:
	@echo "make demo       two servers on one directory, one killed; then leases, workers killed and frozen"
	@echo "make test       the tests; leaves out those marked slow"
	@echo "make coverage   the same, with coverage, which takes twice as long"
	@echo "make test-long  all tests, with coverage"
	@echo "make check      lint, format, types, import directions"
	@echo "make bench      the benchmarks"
	@echo "make clean      removes everything that these made, the environment too"

setup:
	@sh tools/setup.sh

demo: setup
	@$(PY) -m demo

test: setup
	@$(IN_MEMORY) $(PY) -m pytest $(FAST)

coverage: setup
	@$(IN_MEMORY) $(PY) -m pytest $(FAST) --cov --cov-report=term

test-long: setup
	@$(PY) -m pytest -n 2 --dist loadfile --cov --cov-report=term

check: setup
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(PY) .venv/bin/lint-imports --no-logo

bench: setup
	@$(PY) -m benchmarks

clean:
	@rm -rf .venv .venv-agfs* .setup build dist htmlcov .coverage .coverage.* \
	    .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
