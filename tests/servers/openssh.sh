#!/bin/sh
# Prints the path of the SSH server for tests; unpacks it into .servers first where this system has none (Debian, Ubuntu).
set -eu
cd "$(dirname "$0")/../.."
root=$PWD/.servers/openssh
wrapper=$PWD/.servers/bin/sshd

if [ -n "${METASYNC_SSH_SERVER:-}" ]; then
    echo "$METASYNC_SSH_SERVER"
    exit
fi
for found in $(command -v sshd || true) /usr/sbin/sshd /usr/local/sbin/sshd /usr/lib/ssh/sshd; do
    if [ -x "$found" ]; then
        echo "$found"
        exit
    fi
done
server=$root/unpacked/usr/sbin/sshd
if [ ! -x "$server" ]; then
    if ! command -v apt-get >/dev/null 2>&1 || ! command -v dpkg >/dev/null 2>&1; then
        echo "There is no sshd on the PATH nor in /usr/sbin, and no apt-get to fetch it with." >&2
        echo "Install OpenSSH's server, or set METASYNC_SSH_SERVER to its sshd." >&2
        exit 1
    fi
    echo "fetching OpenSSH's server (once; it is unpacked, not installed)" >&2
    rm -rf "$root"
    mkdir -p "$root" "$(dirname "$wrapper")"
    if ! (cd "$root" && apt-get download openssh-server openssh-sftp-server libwrap0 libnsl2 >&2); then
        echo "openssh-server could not be fetched with apt-get: see above. Install it, or set METASYNC_SSH_SERVER." >&2
        exit 1
    fi
    for package in "$root"/*.deb; do
        dpkg -x "$package" "$root/unpacked"
        rm "$package"
    done
fi
mkdir -p "$(dirname "$wrapper")"
# Anew each time: it names the folder it lies in, which may have been moved.
libraries=$(find "$root/unpacked" -name 'lib*.so*' -exec dirname {} + | sort -u | tr '\n' ':')
printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$@"\n' "$libraries" "$server" >"$wrapper.new"
chmod +x "$wrapper.new"
mv "$wrapper.new" "$wrapper"
echo "$wrapper"
