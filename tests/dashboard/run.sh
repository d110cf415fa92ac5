#!/bin/sh
# Finds or fetches a Chromium, and runs the tests of the page in it. Where there is none to be had they are skipped.
set -eu
cd "$(dirname "$0")/../.."
if ! METASYNC_CHROMIUM=$(tests/dashboard/chromium.sh); then
    echo "the tests of the page in a browser were skipped: no Chromium" >&2
    exit 0
fi
export METASYNC_CHROMIUM
exec "${PYTHON:-python3}" -m pytest -m browser tests/dashboard "$@"
