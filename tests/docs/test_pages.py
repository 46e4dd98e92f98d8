"""Names, links, commands and tables of the documentation agree with the code."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from pathlib import Path

import pytest
from docs.pages import DOCS, REPOSITORY, blocks
from torchrl.collectors import Collector

import unilab
from unilab.collectors import PipelinedCollector
from unilab.conf import compose

pytestmark = pytest.mark.docs

PAGES = ["../README.md", *sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES)
def test_links_have_targets(page: str) -> None:
    path = DOCS / page
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text()):
        if target.startswith("http"):
            continue
        file, _, anchor = target.partition("#")
        linked = (path.parent / file) if file else path
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(), flags=re.MULTILINE)
            anchors = [re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings]
            assert anchor in anchors, target


@pytest.mark.parametrize("page", PAGES)
def test_names_in_backticks_exist(page: str) -> None:
    """Dotted names of unilab and paths of the repository."""
    text = (DOCS / page).read_text()
    for name in re.findall(r"`(unilab(?:\.\w+)+)(?:\([^`]*\))?`", text):
        _resolve(name)
    for path in re.findall(r"`((?:unilab|examples|tests|docs)/[\w./-]+)`", text):
        assert (REPOSITORY / path).exists(), path


def _resolve(name: str) -> object:
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            value: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            value = getattr(value, part)
        return value
    raise AssertionError(name)


def test_settings_tables_are_generated() -> None:
    spec = importlib.util.spec_from_file_location("settings_tables", DOCS / "settings_tables.py")
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    for page in map(Path.read_text, tables.PAGES):
        assert tables.with_tables(page) == page, "run `make docs-tables`"


def test_training_commands_compose() -> None:
    lines = [line for page in PAGES for block in blocks(page, "bash") for line in block.split("\n")]
    commands = [line for line in lines if line.startswith("unilab train")]

    assert len(commands) > 3
    for command in commands:
        named, *rest = command.split()[2:]
        overrides = [f"algo.name={named}", *rest] if named.isidentifier() else [named, *rest]
        assert compose(overrides).task in unilab.tasks.TASKS


def test_readme_lists_every_package() -> None:
    package = Path(unilab.__file__).parent
    rooms = {p.name for p in package.iterdir() if (p / "__init__.py").exists()}
    listed = re.findall(r"`unilab\.(\w+)`", (REPOSITORY / "README.md").read_text())

    assert rooms <= set(listed)


def test_differences_from_torchrls_collector_are_true() -> None:
    text = (DOCS / "adr/0001-runtime-model-and-layers.md").read_text()
    table = text.partition("| `Collector` | `PipelinedCollector` |\n|---|---|\n")[2]
    lines = [line.strip("|").split(" | ") for line in table.partition("\n\n")[0].splitlines()]
    theirs, ours = (set(inspect.signature(c).parameters) for c in (Collector, PipelinedCollector))
    named = {name for line in lines for name in re.findall(r"`([^`]+)`", line[0])}
    methods = {name.removesuffix("()") for name in named if name.endswith("()")}

    assert {name for name in named if not name.endswith("()")} <= theirs - ours
    assert methods <= set(vars(Collector)) - set(vars(PipelinedCollector))
    assert set(re.findall(r"`([^`]+)`", lines[-1][1])) == ours - theirs
