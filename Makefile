# Each target makes a virtual environment and installs what it needs; a repeat starts at once.
PYTHON ?= python3
VENV ?= .venv
# An exact jax version to test with; empty takes the newest that the Python allows.
JAX ?=
# Python-jax pairs: the oldest and newest jax of each minor version that is supported.
PAIRS = 3.11-0.10.2 3.12-0.11.2 3.12-0.12.0.1
PYTEST_FLAGS ?= -n 2

RUN = $(VENV)/bin/python

.PHONY: demo test test-all bench lint docs clean

demo: $(VENV)/.has-demo
	$(RUN) -m examples.digits
	$(RUN) -m examples.train_digits

test: $(VENV)/.has-test
	$(RUN) -m pytest $(PYTEST_FLAGS)

test-all: $(PAIRS:%=test-%)

# One pair, for example test-3.12-0.11.2.
test-%:
	@if python=$$(.ci/find-python $(firstword $(subst -, ,$*))); then \
	    $(MAKE) test VENV=$(VENV)-$* PYTHON=$$python JAX=$(lastword $(subst -, ,$*)) PYTEST_FLAGS='$(PYTEST_FLAGS) -m ""'; \
	else \
	    echo "not tested: Python $(firstword $(subst -, ,$*)) with jax $(lastword $(subst -, ,$*)): no such Python here"; \
	fi

# All kernels against jnp: the table on the terminal, the picture beside it. BENCH picks, for example BENCH="softmax --quick".
bench: $(VENV)/.has-bench
	$(RUN) -m benchmarks --png bench.png $(BENCH)

lint: $(VENV)/.has-lint
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m pyright --pythonpath $(RUN)

docs: $(VENV)/.has-docs
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

clean:
	rm -rf $(VENV) $(PAIRS:%=$(VENV)-%) site demo.png bench.png

$(VENV)/.has-%: pyproject.toml | $(RUN)
	$(RUN) -m pip install --quiet --quiet --disable-pip-version-check --editable '.[$*]' $(if $(JAX),jax==$(JAX))
	@touch $@

$(RUN):
	$(PYTHON) -m venv $(VENV)

.PRECIOUS: $(VENV)/.has-%
