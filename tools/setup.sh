#!/bin/sh
# Makes .venv with the project and all that its tests need. Does nothing if that is already so.
#
# Needs Python 3.11 or newer. Debian ships it without ensurepip and without pip, so several ways
# are tried. Everything is written inside the project, except by the last way, apt-get as root.
set -eu

cd "$(dirname "$0")/.."

exec 3>&2 # the terminal, also for what runs with its output put aside
say() { echo "setup: $*" >&3; }
stop() { say "$@"; exit 1; }
quietly() { "$@" >/dev/null 2>&1; }

# Two targets started at the same time wait for each other here.
if quietly command -v flock; then
    exec 9<tools/setup.sh
    flock 9 || say "this file system has no locks, going on without"
fi

# ------------------------------------------------------------------------------ which python

new_enough() { quietly "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; }
version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

choose_python() {
    if [ -n "${PYTHON:-}" ]; then
        new_enough "$PYTHON" || stop "PYTHON=$PYTHON is not a Python 3.11 or newer"
        python=$PYTHON
    else
        for python in python3.11 python3.12 python3.13 python3.14 python3; do
            if new_enough "$python"; then break; fi
        done
        new_enough "$python" ||
            stop "no Python 3.11 or newer found: install one, or name it with PYTHON=/path/to/python3"
    fi
    # In a shell where .venv is active this would be .venv/bin/python, which is about to go.
    python=$("$python" -c 'import sys; print(sys._base_executable)')
}

# ------------------------------------------------- ways to an environment; each ends with pip

with_venv() { "$python" -m venv .venv && .venv/bin/python -m pip --version; }

with_a_pip_from_outside() {
    "$python" -m venv --without-pip .venv || return 1
    "$python" -m pip --python .venv/bin/python install pip ||
        python3 -m pip --python .venv/bin/python install pip ||
        pip3 --python .venv/bin/python install pip ||
        pip --python .venv/bin/python install pip
}

with_virtualenv() {
    "$python" -m pip install --target .setup/lib virtualenv &&
        PYTHONPATH=.setup/lib "$python" -m virtualenv .venv
}

with_apt_get() {
    [ "$(id -u)" = 0 ] && quietly command -v apt-get || return 1
    say "installing python$(version_of "$python")-venv with apt-get"
    apt-get update
    DEBIAN_FRONTEND=noninteractive apt-get install -y "python$(version_of "$python")-venv" && with_venv
}

make_environment() {
    rm -rf .setup
    mkdir .setup
    for way in with_venv with_a_pip_from_outside with_virtualenv with_apt_get; do
        rm -rf .venv
        mkdir .venv
        : >.venv/.unfinished
        if $way >>.setup/log 2>&1; then
            rm -rf .setup
            return
        fi
    done
    stop "$python cannot make an environment (see .setup/log): install pip or python$(version_of "$python")-venv"
}

# ---------------------------------------------------------------------------------- the work

# An environment that was copied or moved still points to the place where it was made.
usable() {
    [ ! -e .venv/.unfinished ] && quietly .venv/bin/python -c 'import pip' || return 1
    [ ! -e .venv/.place ] || [ "$(cat .venv/.place)" = "$(pwd)" ] || return 1
    [ -z "${PYTHON:-}" ] || [ "$(version_of .venv/bin/python)" = "$(version_of "$PYTHON")" ]
}

made_from=$(cat pyproject.toml tools/setup.sh | cksum)
if usable; then
    if [ "$(cat .venv/.made_from 2>/dev/null)" = "$made_from" ]; then exit 0; fi
    say "updating .venv"
else
    choose_python
    say "making .venv with $python, this takes a minute"
    make_environment
fi

# Left behind only if this is interrupted. A pip that fails puts things back and may be tried again.
: >.venv/.unfinished
if .venv/bin/python -m pip install -qq --disable-pip-version-check --editable '.[dev]'; then
    pwd >.venv/.place
    echo "$made_from" >.venv/.made_from
    rm .venv/.unfinished
else
    rm .venv/.unfinished
    stop "the dependencies could not be installed, see above (is the package index within reach?)"
fi
