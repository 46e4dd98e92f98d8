"""What the page on the runtime says of names and arguments is true of both collectors."""

from __future__ import annotations

import inspect
import re

import torch
from docs.pages import DOCS
from reference.counting import Counting
from torchrl.collectors import Collector
from torchrl.collectors.utils import split_trajectories

import unilab
from unilab.collectors import PipelinedCollector

THEIRS = set(inspect.signature(Collector).parameters)
OURS = set(inspect.signature(PipelinedCollector).parameters)


def differences() -> list[tuple[list[str], list[str]]]:
    """Names in the cells of the table, without what a name is called with."""
    page = (DOCS / "guide/runtime.md").read_text()
    table = page.partition("| of `Collector` | here |\n|---|---|\n")[2].partition("\n\n")[0]
    rows = [line.strip("|").split(" | ") for line in table.splitlines()]
    return [(re.findall(r"`([^`]+)`", a), re.findall(r"`([^`]+)`", b)) for a, b in rows]


def test_the_table_of_differences_names_what_only_one_of_the_collectors_has() -> None:
    named = [name for names, _ in differences() for name in names]
    arguments = {name for name in named if not name.endswith("()")}
    methods = {name.removesuffix("()") for name in named} - arguments
    *_, (none, only_here) = differences()

    assert len(named) == len(set(named)) > 20
    assert arguments <= THEIRS - OURS
    assert methods <= set(vars(Collector)) - set(vars(PipelinedCollector))
    assert none == []
    assert set(only_here) == OURS - THEIRS


def test_the_table_offers_what_there_is() -> None:
    offered = {name for _, names in differences() for name in names}
    assert {"update_policy_weights_()", "next()", "return_same_td", "placement"} <= offered
    for name in ("update_policy_weights_", "next"):
        assert callable(getattr(PipelinedCollector, name))
    assert "postproc=split_trajectories" in offered
    collector = PipelinedCollector(
        Counting(), None, frames_per_batch=30, total_frames=30, postproc=split_trajectories
    )
    (split,) = list(collector)
    collector.shutdown()
    assert split["collector", "mask"].sum(-1).tolist() == [4, 4, 2, 5, 5, 6, 4]


def test_a_factory_with_a_seed_makes_the_same_robots_and_without_one_others() -> None:
    def first(seed: int | None) -> torch.Tensor:
        env = unilab.registry.factory("pendulum_swingup", num_envs=2, seed=seed)()
        obs = env.reset()["obs"]
        env.close()
        return obs

    assert torch.equal(first(0), first(0))
    assert not torch.equal(first(None), first(None))
