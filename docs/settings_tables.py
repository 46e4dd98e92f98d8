"""Rewrite the settings tables of the guide from the dataclasses: `make docs-tables`.

A table lies between `<!-- settings: module:Class -->` and `<!-- end -->`.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
from pathlib import Path

from unilab.cli.show import field_docs

PAGES = [Path(__file__).parent / "guide" / name for name in ("algorithm.md", "algorithms.md")]
_TABLE = re.compile(r"(<!-- settings: ([\w.]+):(\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def with_tables(page: str) -> str:
    """The text of a page with its tables as the dataclasses have them."""
    return _TABLE.sub(lambda m: m[1] + _table(m[2], m[3]) + m[4], page)


def _table(module: str, name: str) -> str:
    cls = getattr(importlib.import_module(module), name)
    rows = ["| key | default | meaning |", "|---|---|---|"]
    docs = {key: text.replace("``", "`") for key, text in field_docs(cls).items()}
    inherited = {field.name for base in cls.__bases__ for field in _fields(base)}
    for field in _fields(cls):
        if field.name not in inherited and field.default is not dataclasses.MISSING:
            default = json.dumps(field.default).strip('"')
            rows.append(f"| `{field.name}` | {default} | {docs[field.name]} |")
    return "\n".join(rows) + "\n"


def _fields(cls: type) -> tuple[dataclasses.Field, ...]:
    return dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(with_tables(page.read_text()))
