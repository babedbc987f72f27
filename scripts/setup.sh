#!/usr/bin/env bash
# The environment of schedfuzz, made the same way by make, by CI and by the Dockerfile.
#
#   scripts/setup.sh [VENV]      default .venv beside this repository's pyproject.toml
#
# Environment: PYTHON  the interpreter to make it from (default: python3, else a supported python3.N)
#              EXTRAS  optional dependency groups (default: dev; empty for none)
#
# Idempotent and quick when nothing changed: a stamp in the environment holds a digest of what it was made from, and is
# written last, so an interrupted run is repeated. A lock lets two callers at once wait for each other.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
venv=${1:-$root/.venv}
extras=${EXTRAS-dev}

supported() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; }

python=${PYTHON:-}
if [ -n "$python" ]; then
    supported "$python" || { echo "setup: $python is not Python 3.11 to 3.13; set PYTHON to one" >&2; exit 2; }
else
    for candidate in python3 python3.11 python3.12 python3.13; do
        if supported "$candidate"; then python=$candidate; break; fi
    done
    [ -n "$python" ] || { echo "setup: found no Python 3.11 to 3.13; install one or set PYTHON" >&2; exit 2; }
fi

mkdir -p -- "$(dirname -- "$venv")"
if command -v flock >/dev/null; then
    exec 9>"$venv.lock"
    flock 9
fi

digest() {
    cat -- "$root/pyproject.toml" "$root/constraints.txt" "$root/scripts/setup.sh"
    "$python" -c 'import sys; print(sys.version)'
    printf '%s\n%s\n' "$root" "$extras"
}
want=$(digest | "$python" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())')
stamp=$venv/.schedfuzz-stamp
if [ -x "$venv/bin/python" ] && [ "$(cat -- "$stamp" 2>/dev/null)" = "$want" ]; then
    exit 0
fi

rm -f -- "$stamp"
# An environment of another interpreter, or whose interpreter is gone, is made anew; any other is brought up to date.
same='import sys; sys.exit(sys.version != sys.argv[1])'
if ! "$venv/bin/python" -c "$same" "$("$python" -c 'import sys; print(sys.version)')" 2>/dev/null; then
    "$python" -m venv --clear "$venv"
fi

pip=("$venv/bin/python" -m pip install -qq --no-input --disable-pip-version-check -c "$root/constraints.txt")
echo "setup: installing into $venv (a few minutes the first time)"
# torch first and alone, so that nothing that depends on it can choose another build.
"${pip[@]}" torch==2.13.0
if [ -n "$extras" ]; then
    "${pip[@]}" -e "$root[$extras]"
else
    "${pip[@]}" -e "$root"
fi
printf '%s\n' "$want" >"$stamp"
echo "setup: done"
