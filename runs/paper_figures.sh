#!/bin/sh
# The paper's figures 1 to 4 and table 1 from its formulas, with what we measured on top.
#   runs/paper_figures.sh [MEASUREMENT.json ...]     files of `outpace bench --json`; by default those of docs/results
set -e
cd "$(dirname "$0")/.."
exec "${PYTHON:-.venv/bin/python}" runs/paper_figures.py --out docs/results/paper "$@"
