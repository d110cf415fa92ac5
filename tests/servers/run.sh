#!/bin/sh
# Fetches the servers, starts the tests that need them. The tests start and stop the servers themselves, on loopback.
# What cannot be fetched here is said before the tests and after them; its tests are skipped.
set -eu
cd "$(dirname "$0")/../.."
missing=""

# One script a server. Where one cannot be had its tests are skipped, and the end says so.
fetch() {
    if path=$("tests/servers/$2"); then
        export "$1=$path"
    else
        missing="$missing $2"
    fi
}

fetch METASYNC_S3_SERVER versitygw.sh
fetch METASYNC_AZURITE azurite.sh
fetch METASYNC_FAKE_GCS fakegcs.sh
fetch METASYNC_SWIFT_SERVER swift_server.sh
fetch METASYNC_SSH_SERVER openssh.sh
fetch METASYNC_APACHE apache.sh
fetch METASYNC_WSGIDAV_PYTHON wsgidav.sh

status=0
"${PYTHON:-python3}" -m pytest -m servers tests/servers "$@" || status=$?
if [ -n "$missing" ]; then
    echo "tests without their server were skipped; not to be had:$missing" >&2
fi
exit "$status"
