#!/bin/sh
# Build the kernels with AddressSanitizer into build/asan, and run their tests on them.
#   packaging/asan.sh PYTHON [pytest arguments]
# Python's own allocations that live until the end are not leaks of ours, so leaks are off.
set -e
python=$1
shift
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
HETRL_KERNEL_FLAGS="-O1 -g -fno-omit-frame-pointer -fsanitize=address" \
	"$python" setup.py --quiet build_ext --build-lib build/asan --build-temp build/asan/objects
cp kernels/hetrl_kernels/__init__.py build/asan/hetrl_kernels/
export LD_PRELOAD="$(${CC:-gcc} -print-file-name=libasan.so)"
export ASAN_OPTIONS="detect_leaks=0:halt_on_error=1" PYTHONMALLOC=malloc
export PYTHONPATH="$root/build/asan:$root:$root/profiler${PYTHONPATH:+:$PYTHONPATH}"
"$python" - <<'CHECK'
import hetrl_kernels.tables as built
assert "build/asan" in built.__file__, built.__file__
CHECK
exec "$python" -m pytest -p no:cacheprovider -p no:xdist "${@:-tests/unit/search}"
