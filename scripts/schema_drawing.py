"""Draw the relations of a catalog: docs/images/schema.svg, which docs/schema.md shows.

An SVG, so that the page needs no script to show it. Boxes stand in columns; a tree of lines goes
from a relation to those that belong to it. `python scripts/schema_drawing.py` writes the file; a
test compares it, and the keys in it, with the schema.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "schema.svg"

WIDE, LINE, TITLE, GAP, MARGIN = 172, 15, 22, 14, 16
COLUMNS = (MARGIN, 318, 630, 938)
COLOURS = {"registry": "#d9e8fb", "ledger": "#e3f1dc", "derived": "#fdf0d2", "mirror": "#f2e1f3"}
LEGEND = {
    "registry": "the registry, and what comes and goes",
    "ledger": "the ledger, append-only",
    "derived": "derived from the ledger",
    "mirror": "publishing to _delta_log",
}


@dataclass(frozen=True, slots=True)
class Box:
    """A relation: its group, its primary key, and columns that explain what it is for."""

    name: str
    group: str
    key: tuple[str, ...]
    more: tuple[str, ...] = ()

    @property
    def high(self) -> int:
        return TITLE + LINE * (len(self.key) + len(self.more)) + 8


# Column by column, from top to bottom.
BOXES = (
    (
        Box("dl_tables", "registry", ("table_id",), ("name (unique)", "location (unique)")),
        Box("dl_settings", "registry", ("key",), ("value",)),
    ),
    (
        Box("dl_table_heads", "registry", ("table_id",), ("current_version",)),
        Box(
            "dl_table_versions",
            "ledger",
            ("table_id", "version"),
            ("committed_at", "commit_uuid", "transaction_id"),
        ),
        Box("dl_mirror_tables", "mirror", ("table_id",), ("owner, generation",)),
        Box("dl_paged_tables", "derived", ("table_id",), ("version",)),
        Box("dl_file_pages", "derived", ("table_id", "page_id"), ("valid_from, valid_to", "files")),
        Box("dl_page_columns", "derived", ("table_id", "column_key", "page_id"), ("bounds",)),
        Box("dl_page_texts", "derived", ("table_id", "group_id"), ("paths, stats",)),
        Box("dl_import_stages", "registry", ("table_id", "stage"), ("location", "next_version")),
        Box("dl_exported_tables", "registry", ("table_id",), ("location", "version")),
    ),
    (
        Box("dl_add_files", "ledger", ("table_id", "version", "path", "dv_id")),
        Box("dl_remove_files", "ledger", ("table_id", "version", "path", "dv_id")),
        Box("dl_cdc_files", "ledger", ("table_id", "version", "path")),
        Box("dl_metadata_updates", "ledger", ("table_id", "version")),
        Box("dl_protocol_updates", "ledger", ("table_id", "version")),
        Box("dl_txn_actions", "ledger", ("table_id", "version", "app_id")),
        Box("dl_domain_metadata", "ledger", ("table_id", "version", "domain")),
        Box("dl_other_actions", "ledger", ("table_id", "version", "ordinal")),
        Box("dl_mirror_status", "mirror", ("table_id", "version"), ("status", "payload")),
    ),
    (
        Box(
            "dl_active_files",
            "derived",
            ("table_id", "path", "dv_id", "removed_version"),
            ("added_version",),
        ),
    ),
)
# From one relation to another: what it is, and how many there are of it.
LINKS = (
    ("dl_tables", "dl_table_heads", "newest version: 1"),
    ("dl_tables", "dl_table_versions", "commits: n"),
    ("dl_tables", "dl_mirror_tables", "published by: 0 or 1"),
    ("dl_tables", "dl_paged_tables", "paged up to: 0 or 1"),
    ("dl_tables", "dl_file_pages", "listings: n"),
    ("dl_tables", "dl_page_columns", "bounds: n"),
    ("dl_tables", "dl_page_texts", "texts: n"),
    ("dl_tables", "dl_import_stages", "imported by: n"),
    ("dl_tables", "dl_exported_tables", "left: 0 or 1"),
    ("dl_table_versions", "dl_add_files", "adds: n"),
    ("dl_table_versions", "dl_remove_files", "removes: n"),
    ("dl_table_versions", "dl_cdc_files", "change data: n"),
    ("dl_table_versions", "dl_metadata_updates", "metaData: 0 or 1"),
    ("dl_table_versions", "dl_protocol_updates", "protocol: 0 or 1"),
    ("dl_table_versions", "dl_txn_actions", "txn: n"),
    ("dl_table_versions", "dl_domain_metadata", "domainMetadata: n"),
    ("dl_table_versions", "dl_other_actions", "unknown actions: n"),
    ("dl_table_versions", "dl_mirror_status", "to publish: 1"),
    ("dl_add_files", "dl_active_files", "opens: 1"),
    ("dl_remove_files", "dl_active_files", "closes: 0 or 1"),
)


def draw() -> str:
    """The picture, as SVG."""
    places = {box.name: (box, x, y) for box, x, y in _placed()}
    width = COLUMNS[-1] + WIDE + MARGIN
    bottom = max(y + box.high for box, _, y in places.values())
    height = bottom + 2 * GAP + LINE
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            'font-family="sans-serif" font-size="12" role="img">'
        ),
        "<title>The relations of a catalog, and how they belong together</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        *(line for link in LINKS for line in _link(places, *link)),
        *(line for box, x, y in places.values() for line in _box(box, x, y)),
        *_legend(bottom + GAP),
        "</svg>",
    ]
    return "\n".join([*parts, ""])


def _placed() -> Iterator[tuple[Box, int, int]]:
    """Every box with its upper left corner; columns are centred on the highest one."""
    heights = [sum(box.high + GAP for box in column) - GAP for column in BOXES]
    for x, column, high in zip(COLUMNS, BOXES, heights, strict=True):
        y = MARGIN + (max(heights) - high) // 2
        # What is derived from files stands beside them, at the top.
        if column is BOXES[-1]:
            y = MARGIN + BOXES[2][0].high // 2
        for box in column:
            yield box, x, y
            y += box.high + GAP


def _link(
    places: dict[str, tuple[Box, int, int]], parent: str, child: str, label: str
) -> Iterator[str]:
    above, x1, y1 = places[parent]
    below, x2, y2 = places[child]
    start, end = y1 + above.high // 2, y2 + below.high // 2
    trunk = x1 + WIDE + 12
    if child == "dl_active_files":  # two lines, which shall not lie on each other
        end = y2 + TITLE + (0 if parent == "dl_add_files" else 3 * LINE)
    yield (
        f'<path d="M{x1 + WIDE} {start}H{trunk}V{end}H{x2}" fill="none" stroke="#8a8a8a" '
        'stroke-width="1.2"/>'
    )
    yield (
        f'<text x="{x2 - 6}" y="{end - 4}" text-anchor="end" font-size="10" fill="#555555">'
        f"{escape(label)}</text>"
    )


def _box(box: Box, x: int, y: int) -> Iterator[str]:
    yield (
        f'<rect x="{x}" y="{y}" width="{WIDE}" height="{box.high}" rx="4" '
        f'fill="{COLOURS[box.group]}" stroke="#777777"/>'
    )
    yield (
        f'<text x="{x + 8}" y="{y + 16}" font-weight="bold" fill="#111111">'
        f"{escape(box.name)}</text>"
    )
    for number, column in enumerate((*box.key, *box.more)):
        style = ' text-decoration="underline"' if number < len(box.key) else ""
        yield (
            f'<text x="{x + 8}" y="{y + TITLE + LINE * number + 11}" font-size="11" '
            f'fill="#333333"{style}>{escape(column)}</text>'
        )


def _legend(y: int) -> Iterator[str]:
    x = MARGIN
    for group, words in LEGEND.items():
        yield (
            f'<rect x="{x}" y="{y}" width="14" height="14" fill="{COLOURS[group]}" '
            'stroke="#777777"/>'
        )
        yield f'<text x="{x + 20}" y="{y + 11}" font-size="11" fill="#333333">{words}</text>'
        x += 44 + 6 * len(words)
    yield (
        f'<text x="{x}" y="{y + 11}" font-size="11" fill="#333333" '
        'text-decoration="underline">primary key</text>'
    )


if __name__ == "__main__":
    PICTURE.write_text(draw(), "utf-8")
    sys.stdout.write(f"{PICTURE}\n")
