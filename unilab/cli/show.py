"""Tables of a task: ``unilab show``."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from unilab import registry

_WORD = re.compile(r"[\w-]+")


def show_task(task: str, all_keys: bool = False) -> None:
    """Print a task's times, its managers' tables, and the ``env.`` keys with values and meanings.

    Of terms, only what they change, except with ``all_keys``.
    """
    make_env = registry.factory(task, num_envs=1)
    env = make_env()
    print(f"{task}: {registry.describe(task)}")
    print(f"control step {env.step_dt:g} s, episodes of {env.max_episode_length * env.step_dt:g} s")
    print(env.describe())
    env.close()
    print("keys" if all_keys else "keys (--all: also those that terms leave at their defaults)")
    rows = list(_settings(make_env.cfg, "env", all_keys=all_keys))
    width = max(len(assignment) for assignment, _ in rows if len(assignment) < 60)
    told: set[str] = set()
    for assignment, meaning in rows:
        new = meaning and meaning not in told
        told.add(meaning)
        print(f"  {assignment:{width}}  # {meaning}" if new else f"  {assignment}")


def field_docs(cls: type) -> dict[str, str]:
    """The docstring under each field of a dataclass and of its bases."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
            assert isinstance(definition, ast.ClassDef)
            for field, doc in pairwise(definition.body):
                if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr):
                    assert isinstance(field.target, ast.Name)
                    assert isinstance(doc.value, ast.Constant)
                    docs[field.target.id] = " ".join(str(doc.value.value).split())
    return docs


def _settings(
    value: Any, key: str, meaning: str = "", *, all_keys: bool, in_term: bool = False
) -> Iterator[tuple[str, str]]:
    """``key=value`` as Hydra reads it, and what the key means."""
    if dataclasses.is_dataclass(value):
        docs = field_docs(type(value))
        for field in dataclasses.fields(value):
            each = getattr(value, field.name)
            if field.init and (all_keys or not in_term or each != _default(field)):
                path, doc = f"{key}.{field.name}", docs.get(field.name, "")
                yield from _settings(each, path, doc, all_keys=all_keys, in_term=in_term)
    elif isinstance(value, Mapping) and any(not _WORD.fullmatch(str(name)) for name in value):
        yield f"# {key}={value}", "patterns: in Python only, by overrides="
    elif isinstance(value, Mapping) and value:
        for name, each in value.items():
            yield from _settings(each, f"{key}.{name}", meaning, all_keys=all_keys, in_term=True)
    elif (text := _text(value)) is not None:
        yield f"{key}={text}", meaning.replace("``", "").partition(". ")[0].rstrip(".")


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _text(value: Any) -> str | None:
    """A value as the command line takes it; None for functions and what has no such text."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, tuple | list):
        items = [_text(item) for item in value]
        return None if None in items else f"[{','.join(map(str, items))}]"
    if isinstance(value, int | float | str | Path):
        return str(value)
    return "{}" if isinstance(value, Mapping) else None
