"""A program that forks in the middle of a listing; the child ends, the parent goes on.

Arguments: the URL of the catalog, and what the child does with the listing before it ends as a
program does: the interpreter frees the objects that are left. The listing is among the last of
them, because a function refers to it.
"""

import os
import sys

import deltalakedb
from deltalakedb.errors import ForkedProcessError
from deltalakedb.snapshot import matching

url, how = sys.argv[1:]
lake = deltalakedb.connect(url, mirror="worker")
# From the rows of the catalog: pages hold no connection, and a child may read on.
vars(matching)["LEAST_FILES"] = 10**9
listing = lake.table("a.t").snapshot().iter_files(10, where="id = 1")


def rest() -> int:
    return sum(batch.num_rows for batch in listing)


count = next(listing).num_rows
child = os.fork()
if not child:
    if how == "resume":
        try:
            rest()
        except ForkedProcessError:
            sys.exit(0)
        sys.exit("the listing of the parent went on in the child")
    if how == "close":
        listing.close()
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
count += rest()
lake.close()
sys.stdout.write(str(count))
