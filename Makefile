# make walk    install into .venv, then walk through one capsule convolution on a real digit; the
#              pictures are in walk/, the page is walk.html
# make test    install into .venv, then run the quick part of the ptx and simulator tiers, which need no GPU:
#              every kernel once through the compiler, and once against the reference
# make test-all  run all of both tiers, and test-torch; it installs the extras lessons and explore for that
# make test-torch  install PyTorch (TORCH=torch==2.13.0), which is large, and JAX, and test numbacaps.torch and numbacaps.jax
#              on CPU tensors, and training by PyTorch, in one process and in two
# make gpu     run the gpu tier and record it under experiments/results/
# make drawn   check 2000 drawn convolutions on the GPU in one process, and record that
# make campaign  hours of drawn cases on the GPU, recorded as they come: convolutions, networks, training that is broken
#              off, threads, memory; the next call goes on
# make records list the results and test records that are older than their kernels; needs no GPU
# make record  measure such results again on the GPU, most important first, for MINUTES=10
#
# CUDA=cu12 takes the CUDA 12 libraries. PY=python3 INSTALLED= uses an environment of your own.

PYTHON ?= python3
CUDA ?= cu13
VENV := .venv
PY := $(VENV)/bin/python
INSTALLED := $(VENV)/installed
SIDE_BY_SIDE := -n auto --maxprocesses 8 --dist worksteal  # a process a core

MINUTES ?= 10
TORCH ?= torch==2.13.0
JAX ?= jax==0.10.2

# Both tiers read the same test files, and tests start processes: what Python and pytest compile is kept. Of what is
# installed (--no-compile) that is what is imported, a small part.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: walk test test-all test-rest test-torch gpu drawn campaign records record clean

walk: $(INSTALLED)
	$(PY) -m experiments.walk --html walk.html

test: $(INSTALLED)
	$(PY) -m pytest $(SIDE_BY_SIDE) --part quick --tier ptx
	$(PY) -m pytest $(SIDE_BY_SIDE) --part quick --tier simulator

test-all: test test-rest test-torch

test-rest: $(INSTALLED)
	$(PY) -m pip install --quiet --editable '.[lessons,explore]'
	$(PY) -m pytest $(SIDE_BY_SIDE) --part rest --tier ptx
	$(PY) -m pytest $(SIDE_BY_SIDE) --part rest --tier simulator

test-torch: $(INSTALLED)
	$(PY) -m pip install --quiet '$(TORCH)' '$(JAX)'
	$(PY) -m pytest $(SIDE_BY_SIDE) --tier simulator tests/torch tests/jax tests/experiments/test_modules.py tests/experiments/test_capsnets.py \
		tests/experiments/test_torch_layers.py tests/experiments/test_routing_speed.py \
		tests/experiments/test_routing_curves.py

gpu: $(INSTALLED)
	$(PY) -m tests.record_gpu

drawn: $(INSTALLED)
	$(PY) -m tests.record_drawn

campaign: $(INSTALLED)
	$(PY) -m tests.record_campaign

records: $(INSTALLED)
	$(PY) -m experiments.record --list

record: $(INSTALLED)
	$(PY) -m experiments.record --minutes $(MINUTES)

clean:
	rm -rf $(VENV) build *.egg-info

$(VENV)/installed: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --upgrade pip
	$(PY) -m pip install --quiet --no-compile --editable '.[experiments,test,page,data,$(CUDA)]'
	touch $@
