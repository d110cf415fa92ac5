#!/bin/sh
# Prints the folder with the commands of OpenStack Swift and memcached for the tests; fetches both first where they are
# not there yet. Needs no root: memcached comes from the PATH, or out of its Debian package.
set -eu
cd "$(dirname "$0")/../.."
version=2.38.3
place=$PWD/.servers/swift

if [ -z "${METASYNC_SWIFT_SERVER:-}" ]; then
    METASYNC_SWIFT_SERVER=$place/bin
    # The version is part of what "there already" means: a new one in this file fetches anew.
    if [ "$(cat "$place/version" 2>/dev/null)" != "$version" ]; then
        echo "fetching OpenStack Swift $version (once; some seconds)" >&2
        rm -rf "$place"
        mkdir -p "$place"
        if ! "${PYTHON:-python3}" -m venv "$place" || ! "$place/bin/python" -m pip install --quiet "swift==$version" >&2; then
            echo "Swift $version could not be installed with ${PYTHON:-python3}: it needs its venv module and the package index." >&2
            rm -rf "$place"
            exit 1
        fi
        if ! command -v memcached >/dev/null 2>&1; then
            mkdir "$place/deb"
            if ! (cd "$place/deb" && apt-get download memcached >/dev/null 2>&1 && dpkg -x memcached_*.deb .) \
                || ! cp "$place/deb/usr/bin/memcached" "$place/bin/" || ! "$place/bin/memcached" -V >/dev/null 2>&1; then
                echo "Swift needs memcached, which is not on the PATH and cannot be unpacked from a Debian package here." >&2
                echo "Install memcached, or set METASYNC_SWIFT_SERVER to a folder with it and swift-proxy-server." >&2
                rm -rf "$place"
                exit 1
            fi
            rm -rf "$place/deb"
        fi
        echo "$version" >"$place/version"
    fi
fi
echo "$METASYNC_SWIFT_SERVER"
