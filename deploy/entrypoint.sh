#!/bin/sh
# The password comes as a file (a Docker or Kubernetes secret), and goes where the catalog URL looks for it.
set -eu
if [ -n "${LAKE_PASSWORD_FILE:-}" ]; then
    LAKE_PASSWORD=$(cat "$LAKE_PASSWORD_FILE")
    export LAKE_PASSWORD
fi
if [ -n "${DELTALAKEDB_TOKEN_FILE:-}" ]; then
    DELTALAKEDB_TOKEN=$(cat "$DELTALAKEDB_TOKEN_FILE")
    export DELTALAKEDB_TOKEN
fi
exec deltalakedb "$@"
