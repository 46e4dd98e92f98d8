"""What the documentation says of names, settings and files is true of the code."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
from pathlib import Path

import pytest
from docs.pages import DOCS, REPOSITORY, blocks, rows

import unilab
from unilab.conf import compose
from unilab.trainers.config import AlgoCfg, AlgoParamsCfg

PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    path = DOCS / page
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text()):
        if target.startswith("http"):
            continue
        file, _, anchor = target.partition("#")
        linked = (path.parent / file) if file else path
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(), flags=re.MULTILINE)
            assert anchor in [h.lower().replace(" ", "-") for h in headings], target


@pytest.mark.parametrize("page", [p for p in PAGES if not p.startswith("adr/")])
def test_names_in_backticks_exist(page: str) -> None:
    """Dotted names of ours and paths of the repository; records may name what is to come."""
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


@pytest.mark.parametrize("cfg", [AlgoCfg, AlgoParamsCfg])
def test_the_settings_tables_have_every_key_with_its_default(cfg: type) -> None:
    defaults = {
        f.name: json.dumps(f.default).strip('"')
        for f in dataclasses.fields(cfg)
        if f.default is not dataclasses.MISSING
    }
    others = {f.name for c in (AlgoCfg, AlgoParamsCfg) for f in dataclasses.fields(c)}
    table = {row[0]: row[1] for row in rows("guide/algorithm.md") if len(row) == 3}
    settings = {key: value for key, value in table.items() if key in others}

    assert set(table) - {"key", "metric"} - _metrics() <= others
    assert {k: _plain(v) for k, v in settings.items() if k in defaults} == {
        k: _plain(v) for k, v in defaults.items()
    }


def _plain(value: str) -> str | float:
    try:
        return float(value)
    except ValueError:
        return value


def _metrics() -> set[str]:
    from unilab.record.schema import FAMILIES, METRICS

    return {*METRICS, *FAMILIES}


def test_the_table_of_tasks_has_each_with_its_widths_and_length() -> None:
    table = {row[0]: row[1:] for row in rows("guide/tasks.md") if row[0] != "task"}

    for name in unilab.tasks.TASKS:
        dims = unilab.registry.dims(name)
        env = unilab.make(name)
        seconds = f"{env.max_episode_length * env.step_dt:g} s"
        causes = set(env.termination_manager.term_names) - {"time_out"}
        env.close()
        assert table[name][:4] == [str(dims.obs), str(dims.critic), str(dims.action), seconds]
        assert (table[name][4] == "never") == (not causes)
    assert set(table) == set(unilab.tasks.TASKS)


def test_every_training_command_composes() -> None:
    commands = [
        line
        for page in PAGES
        for block in blocks(page, "bash")
        for line in block.splitlines()
        if line.startswith("unilab train")
    ]

    assert len(commands) > 3
    for command in commands:
        assert compose(command.split()[2:]).task in unilab.tasks.TASKS


def test_notice_credits_both_robots_as_their_figures_state_their_source() -> None:
    notice = " ".join((REPOSITORY / "NOTICE").read_text().split())

    for robot in ("go2", "g1"):
        file = Path("tests/tasks/robots") / f"{robot}.json"
        assert json.loads((REPOSITORY / file).read_text())["source"] in notice
        assert str(file) in notice


def test_the_room_table_names_every_room_there_is() -> None:
    package = Path(unilab.__file__).parent
    rooms = {p.name for p in package.iterdir() if (p / "__init__.py").exists()}
    listed = {row[0].removeprefix("unilab.") for row in rows("README.md")}

    assert rooms <= listed
