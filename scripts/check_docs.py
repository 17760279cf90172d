"""Check that every relative link in the documentation leads to a file (`make docs`)."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def broken_links() -> Iterator[str]:
    """Name each link that leads nowhere, as `file: link`."""
    for page in (*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))):
        for target in LINK.findall(CODE.sub("", page.read_text())):
            path = unquote(target.partition("#")[0])
            if path and "://" not in target and not target.startswith("mailto:"):
                base = ROOT if path.startswith("/") else page.parent
                if not (base / path.lstrip("/")).exists():
                    yield f"{page.relative_to(ROOT)}: {target}"


def main() -> None:
    """Print the broken links and fail if there are any."""
    broken = list(broken_links())
    if broken:
        sys.exit("links that lead nowhere:\n  " + "\n  ".join(broken))
    print("docs: every relative link leads to a file")


if __name__ == "__main__":
    main()
