#!/bin/sh
# Prints the path of a program that runs RabbitMQ, a broker that speaks AMQP: what METASYNC_RABBITMQ names, or Debian's
# packages of it and of Erlang, unpacked where they need no root and run from there. (34 MB; the system's own would take
# its own places for what it keeps.)
set -eu
cd "$(dirname "$0")/../.."
root=$PWD/.servers/rabbitmq
wrapper=$root/bin/rabbitmq-server

for found in "${METASYNC_RABBITMQ:-}" "$wrapper"; do
    if [ -n "$found" ] && [ -x "$found" ]; then
        echo "$found"
        exit 0
    fi
done
if ! command -v apt-get >/dev/null 2>&1 || ! command -v dpkg >/dev/null 2>&1; then
    echo "There is no apt-get to fetch RabbitMQ with: set METASYNC_RABBITMQ to its rabbitmq-server." >&2
    exit 1
fi
echo "fetching RabbitMQ and Erlang (once; they are unpacked, not installed)" >&2
rm -rf "$root"
mkdir -p "$root/bin"
erlang="asn1 base crypto eldap ftp inets mnesia os-mon parsetools public-key runtime-tools snmp ssl syntax-tools tftp tools xmerl"
# shellcheck disable=SC2086
if ! (cd "$root" && apt-get download rabbitmq-server libsctp1 $(printf 'erlang-%s ' $erlang) >&2); then
    echo "RabbitMQ could not be fetched: apt-get download needs package lists (apt-get update) and the network." >&2
    exit 1
fi
for package in "$root"/*.deb; do
    dpkg -x "$package" "$root/unpacked"
    rm "$package"
done
home=$root/unpacked/usr/lib/erlang
sed -i "s|=/usr/lib/erlang|=$home|" "$home/bin/erl"
programs=$(dirname "$home"/erts-*/bin/epmd)
server=$(echo "$root"/unpacked/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server)
libraries=$(find "$root/unpacked" -name 'lib*.so*' -exec dirname {} + | sort -u | tr '\n' ':')
cat >"$wrapper.new" <<END
#!/bin/sh
# Erlang's name server ends with this script: nothing is left behind.
PATH=$home/bin:$programs:\$PATH
export PATH LD_LIBRARY_PATH=$libraries
epmd &
names=\$!
trap 'kill \$server 2>/dev/null; wait \$server; kill \$names 2>/dev/null' EXIT
trap 'exit 0' TERM INT
$server "\$@" &
server=\$!
wait \$server
END
chmod +x "$wrapper.new"
mv "$wrapper.new" "$wrapper"
echo "$wrapper"
