#!/bin/sh
# Prints the path of the S3 server for tests and benchmarks; builds it first where it is not there yet.
set -eu
cd "$(dirname "$0")/../.."
version=v1.8.0
bin=$PWD/.servers/bin

if [ -z "${METASYNC_S3_SERVER:-}" ]; then
    METASYNC_S3_SERVER=$bin/versitygw
    # The version is part of what "there already" means: a new one in this file fetches anew.
    if [ ! -x "$METASYNC_S3_SERVER" ] || [ "$(cat "$bin/versitygw.version" 2>/dev/null)" != "$version" ]; then
        if ! command -v go >/dev/null 2>&1; then
            echo "versitygw needs Go 1.25 or newer to be built, and there is no \`go\` on the PATH." >&2
            echo "Install Go (https://go.dev/dl), or set METASYNC_S3_SERVER to a versitygw binary." >&2
            exit 1
        fi
        echo "building versitygw $version (once; about two minutes)" >&2
        mkdir -p "$bin"
        if ! GOBIN=$bin go install "github.com/versity/versitygw/cmd/versitygw@$version"; then
            echo "versitygw $version could not be built with $(go version); it needs Go 1.25 or newer and the Go module proxy." >&2
            exit 1
        fi
        echo "$version" >"$bin/versitygw.version"
    fi
fi
echo "$METASYNC_S3_SERVER"
