#!/bin/sh
# Fetches the servers, starts the tests that need them. The tests start and stop the servers themselves, on loopback.
# What cannot be fetched here is said before the tests and after them; its tests are skipped.
set -eu
cd "$(dirname "$0")/../.."
. tests/servers/fetched.sh

status=0
"${PYTHON:-python3}" -m pytest -m servers tests/servers "$@" || status=$?
if [ -n "$missing" ]; then
    echo "tests without their server were skipped; not to be had:$missing" >&2
fi
exit "$status"
