"""ADR-0001, what holds for the whole package: each test is named after its clauses."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tensordict import TensorDict

import unilab
from unilab import registry

PACKAGE = Path(unilab.__file__).parent


def test_c1_c2_c3_imports_between_rooms_go_one_way():
    """The contracts in pyproject.toml, through other rooms as well."""
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    for contract in (
        "algorithm rooms speak EnvBase and TensorDict only",
        "physics rooms know no algorithm",
        "physics side: ",
        "algorithm side: ",
    ):
        assert re.search(rf"^{contract}.*KEPT$", done.stdout, flags=re.MULTILINE), contract


def test_c6_nothing_outside_backends_uses_a_backends_private_attributes():
    private = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.is_relative_to(PACKAGE / "backends"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and re.match(r"_(?!_)", node.attr):
                owner = ast.unparse(node.value).rpartition(".")[2]
                if "backend" in owner:
                    private.append(f"{path.name}:{node.lineno} {ast.unparse(node)}")
    assert private == []


@pytest.mark.parametrize("task", registry.names())
def test_c9_the_carrier_is_a_tensordict_and_nothing_beside_it(task):
    env = unilab.make(task, num_envs=2, seed=0, overrides={"num_threads": 1})
    carriers = [env.reset()]
    carriers.append(env.step(env.rand_action(carriers[0].clone())))
    carriers += env.step_and_maybe_reset(env.rand_action(carriers[0].clone()))
    env.close()
    assert {type(carrier) for carrier in carriers} == {TensorDict}
    assert {carrier.batch_size for carrier in carriers} == {env.batch_size}
