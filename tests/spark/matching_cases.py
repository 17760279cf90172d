"""Writes with `replaceUsing` and `replaceOn`: what is there, what comes, and what is there then."""

from dataclasses import dataclass, field

COLUMNS = "id long, part string, word string"
Row = tuple[int | None, str | None, str | None]


@dataclass(frozen=True)
class Case:
    """One write. Rows that come have the alias `s`."""

    name: str
    before: list[Row]
    new: list[Row]
    options: dict[str, str]
    after: list[Row]
    deleted: list[Row] = field(default_factory=list)


THREE: list[Row] = [(1, "a", "old"), (2, "a", "old"), (3, "b", "old")]
NULLS: list[Row] = [(1, "a", "old"), (None, "a", "old"), (3, None, "old"), (None, None, "old")]
CASES = [
    Case(
        "one column",
        THREE,
        [(1, "b", "new"), (4, "a", "new")],
        {"replaceUsing": "id"},
        [(1, "b", "new"), (2, "a", "old"), (3, "b", "old"), (4, "a", "new")],
        [(1, "a", "old")],
    ),
    Case(
        "two columns, by other letters and with one of them twice",
        [(1, "a", "x"), (1, "b", "y"), (2, "a", "z"), (1, "a", "w")],
        [(1, "a", "new"), (2, "b", "new")],
        {"REPLACEUSING": " ID , part,part"},
        [(1, "a", "new"), (1, "b", "y"), (2, "a", "z"), (2, "b", "new")],
        [(1, "a", "x"), (1, "a", "w")],
    ),
    Case(
        "the partition",
        THREE,
        [(9, "a", "new"), (9, "a", "new")],
        {"replaceUsing": "part"},
        [(3, "b", "old"), (9, "a", "new"), (9, "a", "new")],
        [(1, "a", "old"), (2, "a", "old")],
    ),
    Case(
        "null equals nothing",
        NULLS,
        [(None, "a", "new"), (3, None, "new"), (1, "a", "new"), (1, "a", "new")],
        {"replaceUsing": "id,part"},
        [
            *NULLS[1:],
            *[(None, "a", "new"), (3, None, "new"), (1, "a", "new"), (1, "a", "new")],
        ],
        [(1, "a", "old")],
    ),
    Case(
        "null equals null where the condition says so",
        NULLS,
        [(None, "z", "new")],
        {"replaceOn": "t.id <=> s.id", "targetAlias": "t"},
        [(1, "a", "old"), (3, None, "old"), (None, "z", "new")],
        [(None, "a", "old"), (None, None, "old")],
    ),
    Case("no rows", THREE, [], {"replaceUsing": "id"}, THREE),
    Case("an empty table", [], THREE, {"replaceUsing": "id"}, THREE),
    Case(
        "no match",
        THREE,
        [(7, "a", "new")],
        {"replaceUsing": "id"},
        [*THREE, (7, "a", "new")],
    ),
    Case(
        "all rows",
        THREE,
        [(i, "c", "new") for i in (1, 2, 3)],
        {"replaceUsing": "id", "targetAlias": "t"},
        [(i, "c", "new") for i in (1, 2, 3)],
        THREE,
    ),
    Case(
        "a condition on both",
        THREE,
        [(2, "q", "new"), (-3, "q", "new")],
        {"replaceOn": "abs(T.id) = abs(s.id) AND t.part IN ('a', 'b')", "targetAlias": "t"},
        [(1, "a", "old"), (2, "q", "new"), (-3, "q", "new")],
        THREE[1:],
    ),
    Case(
        "a condition on the table alone",
        THREE,
        [(9, "q", "new")],
        {"replaceOn": "t.id >= 2", "targetAlias": "t"},
        [(1, "a", "old"), (9, "q", "new")],
        THREE[1:],
    ),
    Case(
        "a condition on the rows alone",
        THREE,
        [(9, "q", "new"), (1, "q", "new")],
        {"replaceOn": "s.id > 5"},
        [(9, "q", "new"), (1, "q", "new")],
        THREE,
    ),
    Case(
        "an alias that needs quotes",
        THREE,
        [(3, "q", "new")],
        {"replaceOn": "`the table`.id = s.id", "targetAlias": "the table"},
        [*THREE[:2], (3, "q", "new")],
        THREE[2:],
    ),
    Case(
        "replaceWhere with the alias",
        THREE,
        [(2, "a", "new")],
        {"replaceWhere": "t.id > 1 AND T.`part` = 'a'", "targetAlias": "t"},
        [(1, "a", "old"), (2, "a", "new"), (3, "b", "old")],
        [(2, "a", "old")],
    ),
]
# Refused by both, whatever the table is like.
REFUSED = [
    ({"replaceUsing": "id", "replaceOn": "t.id = s.id", "targetAlias": "t"}, "cannot be combined"),
    ({"replaceUsing": "id", "replaceWhere": "id = 1"}, "cannot be combined"),
    ({"replaceUsing": "id", "partitionOverwriteMode": "dynamic"}, "cannot be combined"),
    ({"replaceUsing": "id", "partitionOverwriteMode": "static"}, "cannot be combined"),
    ({"replaceUsing": "id", "overwriteSchema": "true"}, "cannot be combined"),
    ({"replaceUsing": ""}, "none of them empty"),
    ({"replaceUsing": "id,"}, "none of them empty"),
    ({"replaceUsing": "nothing"}, "'nothing', which the table"),
    ({"replaceUsing": "word"}, "'word', which the rows"),
    ({"replaceUsing": "s.id"}, "'s.id', which the table"),
    ({"replaceOn": "id = 1"}, "(?i)ambiguous"),
    ({"replaceOn": "t.id = s.id"}, "(?i)t.*id"),
    ({"replaceOn": "t.id = x.id", "targetAlias": "t"}, "(?i)x.*id"),
    ({"replaceOn": "s.id = s.id", "targetAlias": "s"}, "(?i)ambiguous"),
    ({"replaceOn": "t.id = ", "targetAlias": "t"}, "(?i)syntax"),
]
