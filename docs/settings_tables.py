"""Rewrite the settings tables of the guide from the dataclasses: `make docs-tables`.

A table lies between `<!-- settings: module:Class -->` and `<!-- end -->`.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import re
from itertools import pairwise
from pathlib import Path

PAGES = [Path(__file__).parent / "guide" / name for name in ("algorithm.md", "algorithms.md")]
_TABLE = re.compile(r"(<!-- settings: ([\w.]+):(\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def with_tables(page: str) -> str:
    """The text of a page with its tables as the dataclasses have them."""
    return _TABLE.sub(lambda m: m[1] + _table(m[2], m[3]) + m[4], page)


def _table(module: str, name: str) -> str:
    cls = getattr(importlib.import_module(module), name)
    rows = ["| key | default | meaning |", "|---|---|---|"]
    inherited = {field.name for base in cls.__bases__ for field in _fields(base)}
    for field in _fields(cls):
        if field.name not in inherited and field.default is not dataclasses.MISSING:
            default = json.dumps(field.default).strip('"')
            rows.append(f"| `{field.name}` | {default} | {_docs(cls)[field.name]} |")
    return "\n".join(rows) + "\n"


def _fields(cls: type) -> tuple[dataclasses.Field, ...]:
    return dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()


def _docs(cls: type) -> dict[str, str]:
    """Docstring under each field."""
    body = ast.parse(inspect.getsource(cls)).body[0].body
    return {
        field.target.id: " ".join(doc.value.value.split()).replace("``", "`")
        for field, doc in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr)
    }


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(with_tables(page.read_text()))
