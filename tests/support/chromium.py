"""A real Chromium for tests and pictures of the operations page, driven by playwright.

It is the system's: DELTALAKEDB_CHROMIUM names one, else it is looked for on the PATH. Nothing is
downloaded, and it asks nobody but the page for anything.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = (
    "there is no Chromium: `make peers` brings it as root on Debian and Ubuntu, else install it "
    "(apt install chromium) or name one with DELTALAKEDB_CHROMIUM"
)
# Containers give no user namespaces for its sandbox; it only ever sees pages of our own.
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def chromium() -> str | None:
    """The program, or None."""
    named = os.environ.get("DELTALAKEDB_CHROMIUM")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def browser(program: str, *flags: str) -> Iterator["Browser"]:
    """One headless Chromium for as long as the block lasts."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=[*FLAGS, *flags])
        try:
            yield started
        finally:
            started.close()
