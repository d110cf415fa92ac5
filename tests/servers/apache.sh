#!/bin/sh
# Prints the path of Apache 2.4 for tests: the system's own, or Debian's packages unpacked where they need no root.
# Apache comes in no form that is built in a minute, so there is no pinned version: any 2.4 with mod_dav_fs serves.
set -eu
cd "$(dirname "$0")/../.."
root=$PWD/.servers/apache

has_dav() { # $1: the binary; its modules lie beside it, in one of a few places
    for modules in "$(dirname "$1")/../lib/apache2/modules" /usr/lib/apache2/modules /usr/lib64/httpd/modules \
        /usr/libexec/apache2; do
        if [ -f "$modules/mod_dav_fs.so" ]; then return 0; fi
    done
    return 1
}

for found in "${METASYNC_APACHE:-}" "$(command -v apache2 || true)" "$(command -v httpd || true)" \
    /usr/sbin/apache2 /usr/sbin/httpd "$root/usr/sbin/apache2"; do
    if [ -x "$found" ] && has_dav "$found"; then
        echo "$found"
        exit 0
    fi
done
if ! command -v apt-get >/dev/null 2>&1 || ! command -v dpkg-deb >/dev/null 2>&1; then
    echo "Apache 2.4 with mod_dav_fs is not installed, and there is no apt-get to fetch it with." >&2
    echo "Install it (package apache2 or httpd), or set METASYNC_APACHE to its binary." >&2
    exit 1
fi
echo "unpacking Apache from the system's packages into .servers/apache (once; needs no root)" >&2
packages=$root-packages
rm -rf "$root" "$packages"
mkdir -p "$root" "$packages"
if ! (cd "$packages" && apt-get download apache2-bin libapr1 libaprutil1 libaprutil1-dbd-sqlite3 >&2); then
    echo "Apache could not be fetched: apt-get download needs package lists (apt-get update) and the network." >&2
    exit 1
fi
for package in "$packages"/*.deb; do
    dpkg-deb -x "$package" "$root"
done
rm -rf "$packages"
echo "$root/usr/sbin/apache2"
