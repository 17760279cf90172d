"""Make the pictures of the operations page in docs/images: `python scripts/screenshots.py`.

They show a small lake that is made for it: a week of commits by a few people, a table whose mirror
fails and one that somebody else has written into. A headless Chromium takes them.
"""

import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import deltalakedb
from deltalakedb.clock import ManualClock
from deltalakedb.lake import Lake
from deltalakedb.service import OperationsPage

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from support.chromium import MISSING, browser, chromium  # noqa: E402
from support.lake import SCHEMA, add, remove  # noqa: E402

# What is shown, and how much of it.
PICTURES = {
    "page-overview": ("/", 800),
    "page-table": ("/table?name=sales.orders", 1340),
    "page-files": ("/files?name=sales.orders", 640),
    "page-mirror": ("/mirror", 530),
}
MONDAY = 1_793_577_600_000  # 2026-11-02
PEOPLE = ("ann@example.org", "etl", "bob@example.org")
OPERATIONS = ("WRITE", "WRITE", "WRITE", "MERGE", "UPDATE")
HOSTILE = "<script>alert('no')</script>"


def main() -> int:
    """Make them all."""
    program = chromium()
    if program is None:
        print(f"screenshots: {MISSING}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="lake-") as folder, browser(program) as started:
        clock = ManualClock(MONDAY)
        url = f"sqlite:///{folder}/lake.db"
        with deltalakedb.connect(url, clock=clock, mirror="worker") as lake:
            fill(lake, url, clock, Path(folder))
            with OperationsPage(lake, token="the token of the pictures") as page:  # noqa: S106
                shown = started.new_context(color_scheme="light").new_page()
                for name, (path, height) in PICTURES.items():
                    shown.set_viewport_size({"width": 1100, "height": height})
                    shown.goto(page.address + path)
                    picture = ROOT / "docs" / "images" / f"{name}.png"
                    shown.screenshot(path=picture)
                    print(f"{picture.relative_to(ROOT)}: {picture.stat().st_size:,} bytes")
    return 0


def fill(lake: Lake, url: str, clock: ManualClock, folder: Path) -> None:
    """A week in the life of a lake."""
    chance = random.Random(7)  # noqa: S311 - the same pictures every time
    names = ("sales.orders", "sales.daily", "web.events", "stock.levels", HOSTILE)
    for number, name in enumerate(names):
        lake.create_table(name, location=str(folder / f"t{number}"), schema=SCHEMA)
    lakes = [deltalakedb.connect(url, clock=clock, mirror="worker", committer=p) for p in PEOPLE]
    live: dict[str, list[str]] = {name: [] for name in names}
    for number in range(240):
        clock.advance(chance.randrange(1_200_000, 3_600_000))
        name = chance.choices(names, weights=(10, 2, 4, 2, 1))[0]
        table = chance.choice(lakes).table(name)
        if name == "sales.orders" and len(live[name]) > 60:
            gone, live[name] = live[name][:50], live[name][50:]
            actions = [*map(remove, gone), _added(f"big-{number}.parquet", 200_000_000, clock)]
            table.commit(actions, operation="OPTIMIZE", operation_parameters={"predicate": "[]"})
            continue
        paths = [f"part-{number:05}-{n}.parquet" for n in range(chance.randrange(1, 5))]
        live[name] += paths
        sizes = [int(10 ** chance.gauss(6.3, 0.8)) for _ in paths]
        table.commit(
            [_added(path, size, clock) for path, size in zip(paths, sizes, strict=True)],
            operation=chance.choice(OPERATIONS),
            operation_parameters={"mode": "Append"},
        )
        if number == 200:
            lake.mirror.run_once()
            following = lake.table("web.events").snapshot().version + 1
            foreign = folder / "t2" / "_delta_log" / f"{following:020d}.json"
            foreign.write_text('{"commitInfo": {"operation": "WRITE"}}\n')
            log = folder / "t3" / "_delta_log"
            for file in log.iterdir():
                file.unlink()
            log.rmdir()
            log.write_text("a file, where a folder should be")
    clock.advance(60_000)
    for one in ("sales.daily", "web.events", "stock.levels", HOSTILE):
        lake.mirror.retry(one)
    for opened in lakes:
        opened.close()


def _added(path: str, size: int, clock: ManualClock) -> dict[str, Any]:
    action = add(path, size=size)
    action["add"]["modificationTime"] = clock.now_ms()
    return action


if __name__ == "__main__":
    sys.exit(main())
