#!/bin/sh
# ferrotron shim: written by `ferrotron shims`, write again rather than edit.
bin=${FERROTRON_BIN:-@BIN@}
run() {
    name=$1
    shift
    if [ -x "$bin/$name" ]; then exec "$bin/$name" "$@"; fi
    found=$(command -v "$name") || {
        echo "$0: $name is neither in $bin nor on PATH; FERROTRON_BIN=FOLDER says where it is" >&2
        exit 127
    }
    exec "$found" "$@"
}
