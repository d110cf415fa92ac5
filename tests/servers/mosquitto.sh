#!/bin/sh
# Prints the path of a program that runs Mosquitto, a broker that speaks MQTT: the system's own, or Debian's, unpacked.
set -eu
cd "$(dirname "$0")/../.."
root=$PWD/.servers/mosquitto
wrapper=$root/bin/mosquitto

for found in "${METASYNC_MOSQUITTO:-}" "$(command -v mosquitto || true)" /usr/sbin/mosquitto "$wrapper"; do
    if [ -n "$found" ] && [ -x "$found" ]; then
        echo "$found"
        exit 0
    fi
done
if ! command -v apt-get >/dev/null 2>&1 || ! command -v dpkg >/dev/null 2>&1; then
    echo "There is no Mosquitto, and no apt-get to fetch it with: install it, or set METASYNC_MOSQUITTO." >&2
    exit 1
fi
echo "fetching Mosquitto (once; it is unpacked, not installed)" >&2
rm -rf "$root"
mkdir -p "$root/bin"
if ! (cd "$root" && apt-get download mosquitto libcjson1 libmosquitto1 libdlt2 libwrap0 libnsl2 libev4 libuv1 >&2); then
    echo "Mosquitto could not be fetched: apt-get download needs package lists (apt-get update) and the network." >&2
    exit 1
fi
for package in "$root"/*.deb; do
    dpkg -x "$package" "$root/unpacked"
    rm "$package"
done
libraries=$(find "$root/unpacked" -name 'lib*.so*' -exec dirname {} + | sort -u | tr '\n' ':')
printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$@"\n' "$libraries" "$root/unpacked/usr/sbin/mosquitto" >"$wrapper.new"
chmod +x "$wrapper.new"
mv "$wrapper.new" "$wrapper"
echo "$wrapper"
