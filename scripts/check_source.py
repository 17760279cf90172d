"""Check rules of `src/` that no linter has (`make check`).

- No room imports another room of this package by a string: import-linter could not see it. A room
  may load its own modules by name, and the package itself its public names.
- No import hooks, no switch of the garbage collector, no subclasses of pyarrow's datasets, no HTTP
  server of the standard library.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
PACKAGE = "deltalakedb"
MODULE = re.compile(rf"{PACKAGE}(\.\w+)+")
LOADERS = {"import_module", "__import__", "find_spec", "run_module"}
FORBIDDEN = {
    "meta_path": "an import hook",
    "path_hooks": "an import hook",
    "BaseHTTPRequestHandler": "the HTTP server of the standard library",
}
PYARROW_CLASSES = {"Dataset", "FileSystemDataset", "InMemoryDataset", "Scanner", "Fragment"}


def violations(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the description of each violation in a file."""
    tree = ast.parse(path.read_text())
    loads = any(
        isinstance(node, ast.Call) and _last_name(node.func) in LOADERS for node in ast.walk(tree)
    )
    pyarrow = set(_pyarrow_names(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and loads and _is_other_room(path, node.value):
            yield node.lineno, f"imports {node.value!r} by a string: register an extension instead"
        elif isinstance(node, (ast.Attribute, ast.Name)):
            name = _last_name(node)
            if name in FORBIDDEN:
                yield node.lineno, f"uses {name}: {FORBIDDEN[name]}"
            if ast.unparse(node) == "gc.freeze":
                yield node.lineno, "uses gc.freeze: a switch of the whole process"
        elif isinstance(node, ast.ClassDef):
            for base in node.bases:
                root = ast.unparse(base).partition(".")[0]
                if root in pyarrow and _last_name(base) in PYARROW_CLASSES:
                    yield node.lineno, f"{node.name} is a subclass of pyarrow's {_last_name(base)}"


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _pyarrow_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                if one.name.partition(".")[0] == "pyarrow":
                    yield one.asname or "pyarrow"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyarrow"):
            yield from (one.asname or one.name for one in node.names)


def _is_other_room(path: Path, value: object) -> bool:
    if not isinstance(value, str) or not MODULE.fullmatch(value):
        return False
    parts = path.relative_to(SOURCE).with_suffix("").parts
    if parts == (PACKAGE, "__init__"):
        return False
    return parts[:2] != tuple(value.split(".")[:2])


def main() -> None:
    """Print the violations and fail if there are any."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line, text in violations(path)
    ]
    if found:
        sys.exit("\n".join(found))
    print("source: no import by string, no tricks on other libraries")


if __name__ == "__main__":
    main()
