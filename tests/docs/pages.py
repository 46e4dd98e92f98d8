"""The documentation's pages and the code in them."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"


def blocks(page: str, language: str) -> list[str]:
    """Fenced blocks of a page, in order."""
    text = (DOCS / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def rows(page: str) -> list[list[str]]:
    """Cells of every table row of a page, without headers' rules."""
    lines = [line for line in (DOCS / page).read_text().splitlines() if line.startswith("|")]
    cells = [[c.strip().strip("`") for c in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if set(row[0]) != {"-"}]
