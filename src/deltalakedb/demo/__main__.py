"""`python -m deltalakedb.demo [--folder FOLDER] [--keep]`."""

import argparse
import sys
from pathlib import Path

from deltalakedb.demo.begin import main
from deltalakedb.errors import DeltaLakeDbError


def _run() -> int:
    parser = argparse.ArgumentParser(prog="deltalakedb.demo", description=main.__doc__)
    parser.add_argument("--folder", type=Path, help="a new or empty folder for its data")
    parser.add_argument(
        "--keep", action="store_true", help="keep serving the operations page until Ctrl-C"
    )
    options = parser.parse_args()
    try:
        return main(folder=options.folder, keep=options.keep)
    except DeltaLakeDbError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(_run())
