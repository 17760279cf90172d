#!/usr/bin/env bash
# Creates .venv with the pinned versions and this package, editable. `make setup` calls it when pyproject.toml or
# constraints.txt changed. Usage: scripts/setup.sh [python]
set -euo pipefail
cd "$(dirname "$0")/.."

python=${1:-python3}
venv=.venv

if ! command -v "$python" >/dev/null; then
    echo "setup: no '$python' on the PATH. Install Python 3.11 or newer, or name one: make setup PYTHON=/path/to/python3" >&2
    exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "setup: '$python' is $("$python" --version 2>&1), but deltalakedb needs Python 3.11 or newer." >&2
    echo "       Name another one: make setup PYTHON=/path/to/python3.11" >&2
    exit 1
fi

# Two setups at once would spoil each other's environment.
if command -v flock >/dev/null; then
    exec 9>.venv.lock
    flock 9
fi

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    "$python" -m venv --clear "$venv" || {
        echo "setup: '$python -m venv' failed. On Debian and Ubuntu: apt install python3-venv" >&2
        exit 1
    }
fi

install_with_uv() {
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt uv || return 1
    # uv does not read pip's settings: hand on the index that pip would use.
    local index
    index=${PIP_INDEX_URL:-$("$venv/bin/python" -m pip config get global.index-url 2>/dev/null || true)}
    if [ -n "$index" ] && [ -z "${UV_DEFAULT_INDEX:-}" ]; then
        export UV_DEFAULT_INDEX=$index
    fi
    UV_PYTHON_DOWNLOADS=never "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" \
        --constraints constraints.txt --build-constraints constraints.txt --editable '.[dev]'
}

install_with_pip() {
    echo "setup: uv is not usable here; pip does the same, only slower" >&2
    PIP_CONSTRAINT=constraints.txt "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        --editable '.[dev]'
}

install_with_uv || install_with_pip
scripts/java.sh
touch "$venv/.ready"
