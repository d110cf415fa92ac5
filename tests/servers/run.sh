#!/bin/sh
# Fetches the servers, starts the tests that need them. The tests start and stop the servers themselves, on loopback.
set -eu
cd "$(dirname "$0")/../.."
METASYNC_S3_SERVER=$(tests/servers/versitygw.sh)
export METASYNC_S3_SERVER
exec "${PYTHON:-python3}" -m pytest -m servers tests/servers "$@"
