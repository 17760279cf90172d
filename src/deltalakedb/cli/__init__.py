"""The command line: `deltalakedb COMMAND`, and its exit codes.

0 done; 1 refused or failed; 2 wrong usage; 3 done, but something is not as it should be (drift was
detected, or versions could not be published); 130 interrupted.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line; errors are one readable paragraph, unless `--debug` asks for more."""
    try:
        import packaging  # noqa: F401
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError:
        sys.stderr.write(
            "Error: The command line needs packaging, rich and typer; one is not installed. "
            "Run: pip install 'deltalakedb[cli]'.\n"
        )
        sys.exit(1)
    from deltalakedb.cli.app import run

    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the output has closed it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)
