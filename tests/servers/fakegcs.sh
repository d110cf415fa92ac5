#!/bin/sh
# Prints the path of fake-gcs-server, for tests and benchmarks; builds it first where it is not there yet.
set -eu
cd "$(dirname "$0")/../.."
version=v1.56.1
bin=$PWD/.servers/bin
source=$PWD/tests/servers/fakegcs/main.go

if [ -z "${METASYNC_FAKE_GCS:-}" ]; then
    METASYNC_FAKE_GCS=$bin/fakegcs
    # The version and what is put before the server are part of what "there already" means.
    wanted="$version $(cksum <"$source")"
    if [ ! -x "$METASYNC_FAKE_GCS" ] || [ "$(cat "$bin/fakegcs.version" 2>/dev/null)" != "$wanted" ]; then
        if ! command -v go >/dev/null 2>&1; then
            echo "fake-gcs-server needs Go 1.26 or newer to be built, and there is no \`go\` on the PATH." >&2
            echo "Install Go (https://go.dev/dl), or set METASYNC_FAKE_GCS to what tests/servers/fakegcs builds." >&2
            exit 1
        fi
        echo "building fake-gcs-server $version (once; about two minutes)" >&2
        build=$PWD/.servers/fakegcs
        mkdir -p "$bin" "$build"
        cp "$source" "$build/main.go"
        if ! (cd "$build" && rm -f go.mod go.sum && go mod init fakegcs && go get "github.com/fsouza/fake-gcs-server@$version" &&
            go mod tidy && go build -o "$bin/fakegcs" .) >"$build/log" 2>&1; then
            tail -5 "$build/log" >&2
            echo "fake-gcs-server $version could not be built with $(go version); it needs Go 1.26 or newer and the Go module proxy." >&2
            exit 1
        fi
        echo "$wanted" >"$bin/fakegcs.version"
    fi
fi
echo "$METASYNC_FAKE_GCS"
