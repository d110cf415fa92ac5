#!/bin/sh
# Fetches the servers, starts the tests that need them. The tests start and stop the servers themselves, on loopback.
# What cannot be fetched here is said before the tests and after them; its tests are skipped.
set -eu
cd "$(dirname "$0")/../.."
. tests/servers/fetched.sh

run() {
    "${PYTHON:-python3}" -m pytest -o addopts="-q --strict-markers --strict-config" -o cache_dir=build/tests-servers -m servers tests/servers "$@"
}

status=0
run "$@" || status=$?
# The servers are other people's programs, and the busier the machine, the more often one of them answers late or not at
# all. What failed beside them runs once more, on its own: a fault of ours fails again. Both outcomes are printed.
if [ "$status" -eq 1 ]; then
    echo "what failed runs once more, on its own" >&2
    status=0
    run --last-failed "$@" || status=$?
fi
if [ -n "$missing" ]; then
    echo "tests without their server were skipped; not to be had:$missing" >&2
fi
exit "$status"
