#!/bin/sh
# Prints the path of Azurite's blob server, for tests and benchmarks; fetches it first where it is not there yet.
set -eu
cd "$(dirname "$0")/../.."
version=3.35.0
home=$PWD/.servers/azurite

if [ -z "${METASYNC_AZURITE:-}" ]; then
    METASYNC_AZURITE=$home/node_modules/.bin/azurite-blob
    # The version is part of what "there already" means: a new one in this file fetches anew.
    if [ ! -x "$METASYNC_AZURITE" ] || [ "$(cat "$home/version" 2>/dev/null)" != "$version" ]; then
        if ! command -v npm >/dev/null 2>&1 || ! command -v node >/dev/null 2>&1; then
            echo "Azurite needs Node.js 18 or newer with npm, and there is none on the PATH." >&2
            echo "Install Node.js (https://nodejs.org), or set METASYNC_AZURITE to an azurite-blob." >&2
            exit 1
        fi
        echo "fetching Azurite $version (once; about a minute)" >&2
        mkdir -p "$home"
        # No package of it runs anything while it is installed: --ignore-scripts.
        if ! npm install --prefix "$home" --ignore-scripts --no-audit --no-fund --no-save "azurite@$version" >&2; then
            echo "Azurite $version could not be fetched with npm $(npm --version); it needs npm's package registry." >&2
            exit 1
        fi
        echo "$version" >"$home/version"
    fi
fi
echo "$METASYNC_AZURITE"
