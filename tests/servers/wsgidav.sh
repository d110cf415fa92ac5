#!/bin/sh
# Prints the path of the Python that runs wsgidav for tests; makes a virtual environment for it where there is none yet.
set -eu
cd "$(dirname "$0")/../.."
versions="wsgidav==4.4.0 cheroot==11.1.2"
venv=$PWD/.servers/wsgidav

if [ -z "${METASYNC_WSGIDAV_PYTHON:-}" ]; then
    METASYNC_WSGIDAV_PYTHON=$venv/bin/python
    if [ ! -x "$METASYNC_WSGIDAV_PYTHON" ] || [ "$(cat "$venv/versions" 2>/dev/null)" != "$versions" ]; then
        echo "installing $versions into .servers/wsgidav (once)" >&2
        rm -rf "$venv"
        # shellcheck disable=SC2086
        if ! { "${PYTHON:-python3}" -m venv "$venv" && "$venv/bin/pip" install --quiet $versions; } >&2; then
            echo "wsgidav could not be installed: it needs Python's venv module and the package index." >&2
            exit 1
        fi
        echo "$versions" >"$venv/versions"
    fi
fi
echo "$METASYNC_WSGIDAV_PYTHON"
