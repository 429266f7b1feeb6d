#!/usr/bin/env bash
# Makes .venv, installs the locked packages that a run needs, then this checkout (editable).
#   requirements/install.sh [dev] [serve] [slurm] [mkl] [gguf] [tokenizers] [forms] [events] [s3]
#     [webgpu] [cuda12 | cuda13]
# Uses uv if it is there and works, else the venv and pip that come with Python.
set -euo pipefail
cd "$(dirname "$0")/.."
locks=("${@:-core}") # each lock holds the core as well
# `immutables`, of Snakemake, has no wheel for Python 3.14. Its source holds the same in Python, too,
# which is what is left of it where the "compiler" makes nothing. Nothing else here is compiled.
export CC=true LDSHARED=true

with_uv() {
    command -v uv >/dev/null || return 1
    [ -x .venv/bin/python ] || uv venv --quiet --python '>=3.11,<3.15' .venv || return 1
    for lock in "${locks[@]}"; do
        uv pip install --quiet --python .venv/bin/python --require-hashes \
            -r "requirements/$lock.txt" || return 1
    done
    uv pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation -e .
}

newest_python() {
    for name in python3.13 python3.12 python3.11 python3.14 python3; do
        if command -v "$name" >/dev/null &&
            "$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    local found
    found=$(python3 --version 2>/dev/null || echo none)
    echo "nanoeuler needs Python 3.11 to 3.14 and found $found: install one," \
        "or install uv (https://docs.astral.sh/uv), which brings its own" >&2
    return 1
}

# The wheel of pip that comes with a Python. It runs as it is.
bundled_pip() {
    "$1" -c '
import ensurepip, pathlib, sysconfig
bundled = pathlib.Path(ensurepip.__file__).parent / "_bundled"
folder = pathlib.Path(sysconfig.get_config_var("WHEEL_PKG_DIR") or bundled)
print(max(folder.glob("pip-*.whl")))' 2>/dev/null
}

install_lock() { # name of a lock, then the pip to run; a lock leaves no dependency out
    .venv/bin/python "${@:2}" install --quiet --disable-pip-version-check --no-compile --no-deps \
        --require-hashes -r "requirements/$1.txt"
}

# The pip that comes with Python 3.11 takes twice as long as the locked one, and four seconds to be
# installed first. If no other can be had, it does, too.
make_venv() {
    local python wheel
    python=$(newest_python)
    rm -rf .venv
    if wheel=$(bundled_pip "$python") && "$python" -m venv --without-pip .venv &&
        install_lock pip "$wheel/pip"; then
        return
    fi
    rm -rf .venv
    if ! "$python" -m venv .venv; then
        rm -rf .venv
        echo "$python cannot make a virtual environment: install its venv module" \
            "(on Debian and Ubuntu: apt install python3-venv), or install uv" >&2
        return 1
    fi
    install_lock pip -m pip || true
}

with_pip() {
    if .venv/bin/python -m pip --version >/dev/null 2>&1; then
        install_lock pip -m pip || true
    else
        make_venv
    fi
    for lock in "${locks[@]}"; do
        install_lock "$lock" -m pip
    done
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
        --no-build-isolation -e .
}

echo "installing ${locks[*]} into .venv (a minute or two)"
with_uv || with_pip
# On all cores, where pip uses one. A file for another version of Python may fail. Left out is what
# no command imports, half of all: the packages' own tests, pip, Git, lexers and dialects of SQL; of
# the development tools those of which little is imported, or machine code instead.
unread='/(tests|pip|git|dialects/[a-z]+|huggingface_hub|mypyc?|openai|pkg_resources|setuptools)/'
unread+='|/lexers/[a-z]'
.venv/bin/python -m compileall -q -j 0 -x "$unread" .venv/lib >/dev/null || true
