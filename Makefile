# SPDX-License-Identifier: Apache-2.0
# `make demo` and `make test` set up what they need; `make help` lists the rest.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup demo test lint chip-report clean

help:  ## list the targets
	@sed -n -E 's/^([a-z-]+):.*## (.*)/  make \1	\2/p' Makefile

setup:  ## install and build everything, in this folder
	@scripts/setup.sh

demo: setup  ## plan 20 contexts in separate processes and show them
	@. ./env.sh && alpamayo demo

test: setup  ## run all tests; ARGS='tests/plan -x' goes to pytest
	@. ./env.sh && ALPAMAYO_REQUIRE="$${ALPAMAYO_REQUIRE-ros}" python -m pytest $(ARGS)

chip-report: setup  ## on a machine with a chip: test and time it, write out/chip_report.json
	@. ./env.sh && ALPAMAYO_REQUIRE=chip python -m pytest tests/chip/test_silicon.py $(ARGS)

lint: setup  ## ruff and mypy
	@. ./env.sh && ruff check . && ruff format --check . && mypy

clean:  ## remove what was built; the virtual environment stays
	rm -rf ros2_ws/build ros2_ws/install ros2_ws/log out .setup/workspace
