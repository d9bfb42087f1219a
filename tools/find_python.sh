#!/bin/sh
# Prints the Python that `make` is to use: the newest tested one that runs and can make environments.
# One that was not tested comes after those that were, and what pyenv has but does not activate comes last.
# What is found need not run: pyenv has a file for each version, active or not.

versions="3.13 3.12 3.11 3.14"
works='import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))'

for python in $(for v in $versions; do echo "python$v"; done) python3 python \
    $(for v in $versions; do ls -d "${PYENV_ROOT:-$HOME/.pyenv}/versions/$v"*/bin/python 2>/dev/null; done); do
    if "$python" -c "$works" 2>/dev/null >&2; then
        command -v "$python"
        exit 0
    fi
done

cat >&2 <<EOF
No Python of 3.11 or later that can make environments was found (looked for python$(echo $versions | sed 's/ /, python/g'), python3, python, and pyenv's).
Install one (with its venv module: Debian's python3-venv), or name it: make PYTHON=/path/to/python
EOF
exit 1
