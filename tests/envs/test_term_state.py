"""The state of class terms: kept for rows that continue, undone by a refused reset, saved."""

from __future__ import annotations

import itertools
import logging
import random
from collections import deque
from copy import deepcopy
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from envs.tables import act, drive, twins, twins_cfg
from tensordict import TensorDict
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from unilab.envs import (
    CurriculumTermCfg,
    EventTermCfg,
    ManagerTermBase,
    ObservationGroupCfg,
    ObservationTermCfg,
    RecorderTermCfg,
)
from unilab.envs.managers.term_state import load_state, save_state
from unilab.errors import ConfigError


def observed(func, **params):
    term = ObservationTermCfg(func=func, params=params)
    return {"observations": {"obs": ObservationGroupCfg(terms={"count": term})}}


def observer(env):
    return env.observation_manager.get_term("obs", "count").func


class Plain(ManagerTermBase):
    """Counts its calls: by environment and episode, and in all."""

    def __init__(self, cfg, env):
        super().__init__(cfg, env)
        self.kept = self.make(torch.zeros(env.num_envs, 1))
        self.calls = 0

    def make(self, n):
        return n

    def of(self):
        return self.kept

    def count(self):
        self.of().add_(1.0)

    def __call__(self, env, **params):
        self.calls += 1
        self.count()
        return torch.cat((self.of(), torch.full_like(self.of(), self.calls)), 1)

    def reset(self, env_ids):
        self.of()[env_ids] = 0.0


@dataclass
class Filter:
    n: Any


class Helper:
    """Knows its owner, as users write them."""

    def __init__(self, n, owner=None):
        self.filters, self.owner, self.log = [Filter(n)], owner, logging.getLogger("test")


class Net(nn.Module):
    """Counts in a buffer that it replaces."""

    def __init__(self, n):
        super().__init__()
        self.register_buffer("n", n)
        self.layer = nn.Linear(1, 1)

    def forward(self, env=None):
        self.n = self.n + 1.0
        return self.n.clone()


class Later(Plain):
    """Makes its state in its first call."""

    def make(self, n):
        return None

    def of(self):
        if self.kept is None:
            self.kept = torch.zeros(self._env.num_envs, 1)
        return self.kept


class InHelper(Plain):
    def make(self, n):
        return Helper(n, self)

    def of(self):
        return self.kept.filters[0].n

    def count(self):
        self.kept.filters[0].n = self.of() + 1.0


class Swapped(Plain):
    """Two tensors that change places in each call."""

    def make(self, n):
        return {"now": n, "last": n.clone()}

    def of(self):
        return self.kept["now"]

    def count(self):
        last = self.kept
        self.kept = {"now": last["last"], "last": last["now"]}
        self.of().copy_(last["now"] + 1.0)


class Aliased(Plain):
    """Two names of one tensor, and of one list, until the first call after a reset."""

    def count(self):
        self.last, self.kept = self.kept, self.kept + 1.0
        self.one, self.two = [self.calls], [self.calls + 1]

    def reset(self, env_ids):
        self.kept[env_ids] = 0.0
        self.last = self.kept
        self.one = self.two = []


def kind(make, of, count=lambda term: term.of().add_(1.0)):
    held = {"make": lambda term, n: make(n), "of": lambda term: of(term.kept), "count": count}
    return type("Kind", (Plain,), held | {"__module__": __name__})


KINDS = {
    "tensor": Plain,
    "later": Later,
    "helper": InHelper,
    "swapped": Swapped,
    "aliased": Aliased,
    "array": kind(lambda n: n.numpy().copy(), torch.from_numpy),
    "module": kind(Net, lambda net: net.n, lambda term: term.kept()),
    "tensordict": kind(lambda n: {"n": (TensorDict({"n": n}),)}, lambda kept: kept["n"][0]["n"]),
    "deque": kind(  # the oldest is dropped
        lambda n: deque([n, n.clone()], maxlen=2),
        lambda kept: kept[-1],
        lambda term: term.kept.append(term.kept[-1] + 1.0),
    ),
    "view": kind(
        lambda n: Filter((both := n.repeat(1, 2), both[:, :1])),
        lambda kept: kept.n[1],
        lambda term: term.kept.n[0].add_(1.0),
    ),
}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@kinds
def test_c09_reset_of_some_rows_restores_the_state_of_the_others(tmp_path, kind):
    """0011-C9."""
    env = twins(tmp_path, num_envs=2, episode_length_s=9.0, **observed(kind))
    assert env.reset()["obs"][:, 0].tolist() == [1.0, 1.0]
    root = env.step(act(env, env.reset()))["next"]
    begun = env.reset(env_ids=torch.tensor([0]))
    assert begun["obs"][:, 0].tolist() == [1.0, 2.0]
    after = env.step(act(env, begun))["next"]["obs"]
    assert after[:, 0].tolist() == [2.0, 3.0]
    assert (after[:, 1] - root["obs"][:, 1]).tolist() == [1.0, 1.0]  # plain numbers as well


def test_c09_first_reset_of_some_rows_computes_every_row_once(tmp_path):
    """0011-C9."""
    env = twins(tmp_path, num_envs=2, episode_length_s=9.0, **observed(Plain))
    observer(env).of().zero_()  # counted when the environment was built
    env.reset(env_ids=torch.tensor([0]))
    assert observer(env).of()[:, 0].tolist() == [1.0, 1.0]


class Episodes(Plain):
    """Counts the episodes of each environment."""

    def reset(self, env_ids):
        pass


@pytest.mark.parametrize("mode", ["pre_reset", "post_reset"])
def test_c09_recorder_counts_the_episodes_of_each_environment(tmp_path, mode):
    """0011-C9."""
    recorders = {"n": RecorderTermCfg(func=Episodes, mode=mode)}
    env = twins(tmp_path, num_envs=2, episode_length_s=9.0, recorders=recorders)
    root = env.reset()
    (term,) = (term.func for term in env.terms if term.name == "n")
    before = term.kept[:, 0].clone()
    env.step(act(env, root))
    env.reset(env_ids=torch.tensor([1]))
    assert (term.kept[:, 0] - before).tolist() == [0.0, 1.0]


def test_state_without_rows_does_not_see_the_reset_of_some(tmp_path):
    class Shared(Plain):
        """A counter as a tensor, a list that grows, and random numbers."""

        def make(self, n):
            self.seen, self.total, self.generator = [], torch.zeros(()), torch.Generator()
            return n

        def count(self):
            super().count()
            self.drawn = torch.rand((), generator=self.generator)
            self.total += 1.0
            self.seen.append(float(self.total))

    env = twins(tmp_path, num_envs=2, episode_length_s=9.0, **observed(Shared))
    begun = env.reset()
    before, draws = list(observer(env).seen), observer(env).generator.get_state()
    begun = env.reset(env_ids=torch.tensor([1]))
    assert observer(env).seen == before
    assert not torch.equal(observer(env).generator.get_state(), draws)  # none is drawn twice
    env.step(act(env, begun))
    assert observer(env).seen == [*before, before[-1] + 1.0]


class Drawing(ManagerTermBase):
    """An event and a curriculum with every kind of memory; makes some in its third call."""

    def __init__(self, cfg, env):
        super().__init__(cfg, env)
        self.generator = torch.Generator().manual_seed(0)
        numpy = np.random.default_rng(0), np.random.Generator(np.random.MT19937(0))
        self.others = [*numpy, random.Random(0)]
        self.drawn = self.last = torch.zeros(env.num_envs)
        self.history, self.window, self.by_row, self.best = [], None, {}, None
        self.helper = Helper(torch.zeros(env.num_envs, 1), self)
        self.mean, self.text, self.calls = np.float32(0.0), "", 0

    def memory(self):
        """What the next call shows, too."""
        names = ("history", "window", "by_row", "mean", "text", "calls", "best", "drawn", "last")
        arrays = (Tensor, np.ndarray)
        held = {n: getattr(self, n) for n in names} | {"n": self.helper.filters[0].n}
        held |= {str(i): deepcopy(other).random() for i, other in enumerate(self.others)}
        shown = {n: v.tolist() if isinstance(v, arrays) else (type(v), v) for n, v in held.items()}
        return deepcopy(shown), self.generator.get_state().tolist()

    def __call__(self, env, env_ids):
        self.calls += 1
        self.last, self.drawn = self.drawn, self.drawn * 0.5
        self.drawn[env_ids] = torch.rand(len(env_ids), generator=self.generator)
        drawn = [float(self.drawn.sum()), *(float(other.random()) for other in self.others)]
        self.history = [*self.history[-2:], drawn]
        self.mean, self.text = np.float32(np.mean(drawn)), f"{self.text}x"
        self.helper.filters[0].n += 1.0
        self.by_row = {self.calls: drawn, "last": self.text}
        if self.calls > 2:
            self.window = [*(self.window or ()), {"n": (self.calls, [drawn])}]
            self.best = np.array(drawn)


def failing(env, env_ids):
    if env.common_step_counter == 3:
        raise ZeroDivisionError


def test_c12_refused_reset_restores_the_memory_of_events_and_curricula(tmp_path):
    """0011-C12."""
    cfg = twins_cfg(tmp_path)
    events = {
        "draw": EventTermCfg(func=Drawing, mode="reset"),
        "bad": EventTermCfg(func=failing, mode="reset"),
    }
    curriculum = {"draw": CurriculumTermCfg(func=Drawing)}
    env = twins(tmp_path, events={**cfg.events, **events}, curriculum=curriculum)
    drawing = [term.func for term in env.terms if isinstance(term.func, Drawing)]
    drive(env, 3)
    before = [term.memory() for term in drawing]
    assert len(before) == 2
    with pytest.raises(ZeroDivisionError):
        env.reset()
    assert [term.memory() for term in drawing] == before


def test_c12_refused_reset_undoes_what_a_curriculum_changed(tmp_path):
    """0011-C12."""

    def harder(env, env_ids):
        env.reward_manager.set_weight("still", -2.0)
        return 2.0

    bad = {"bad": EventTermCfg(func=failing, mode="reset")}
    env = twins(tmp_path, events=bad, curriculum={"harder": CurriculumTermCfg(func=harder)})
    drive(env, 3)
    env.reward_manager.set_weight("still", -1.0)
    with pytest.raises(ZeroDivisionError):
        env.reset()
    assert env.reward_manager.get_weight("still") == pytest.approx(-1.0)


@kinds
def test_saved_state_continues_in_another_environment(tmp_path, kind):
    env, other = (twins(tmp_path, episode_length_s=9.0, **observed(kind)) for _ in range(2))
    drive(env, 4)
    torch.save(save_state(observer(env), env), tmp_path / "s")
    other.reset()
    with torch.inference_mode():
        observer(other).reset(torch.arange(4))
    load_state(observer(other), torch.load(tmp_path / "s", weights_only=True), other)
    states = [tree_leaves(save_state(observer(each), each)) for each in (env, other)]
    one, two = ([x.tolist() if isinstance(x, Tensor) else x for x in each] for each in states)
    assert one == two
    shown = []
    for each in (env, other):
        each.reset(env_ids=torch.tensor([1]))
        shown.append(each.step(act(each, TensorDict(batch_size=4)))["next", "obs"])
    assert shown[0][:, 0].tolist() == [6.0, 2.0, 6.0, 6.0]
    assert torch.equal(shown[0], shown[1])


def test_saved_state_holds_generators_and_what_was_made_later(tmp_path):
    cfg = {"events": {"draw": EventTermCfg(func=Drawing, mode="reset")}}
    env, other = twins(tmp_path, **cfg), twins(tmp_path, **cfg)
    (one,), (two,) = ([t.func for t in each.terms if t.name == "draw"] for each in (env, other))
    new, built = deepcopy(save_state(two, other)), two.memory()
    drive(env, 14)
    torch.save(save_state(one, env), tmp_path / "s")
    state = torch.load(tmp_path / "s", weights_only=True)
    assert one.window
    for _ in range(2):  # the saved state is not changed by what loads it
        load_state(two, state, other)
        assert two.memory() == one.memory()
        two(other, torch.arange(4))
    one(env, torch.arange(4))
    assert two.memory() == one.memory()
    load_state(two, new, other)
    assert two.memory() == built


@pytest.mark.parametrize("func", [lambda n: Net(n), lambda n: Net(n).forward])
def test_state_of_callable_objects_and_of_methods_continues(tmp_path, func):
    env, other = (twins(tmp_path, **observed(func(torch.zeros(4, 1)))) for _ in range(2))
    drive(env, 6)
    (one,), (two,) = (list(each._owners().items())[-1:] for each in (env, other))
    load_state(two[1], save_state(one[1], env), other)
    shown = [each.step(act(each, TensorDict(batch_size=4)))["next", "obs"] for each in (env, other)]
    assert torch.equal(*shown)


class Phase(Enum):
    STAND = 0
    WALK = 1


@dataclass(slots=True)
class Slots:
    n: int = 0


@pytest.mark.parametrize(
    "value",
    [
        itertools.count(),
        {1, 2},
        [Slots()],
        {Phase.WALK: 1.0},
        np.array([None]),
        partial(print, [0]),
        Helper(0).__init__,
        (lambda calls: lambda: calls)([0]),
    ],
)
def test_what_cannot_be_saved_is_named_and_no_error(tmp_path, value):
    class Opaque(Plain):
        def make(self, n):
            self.thing = value
            return n

    env = twins(tmp_path, **observed(Opaque))
    drive(env, 2)
    assert env.export_episodes() == {}
    assert "'count'.thing" in env.episodes_problem


def test_a_function_that_encloses_state_is_named_and_no_error(tmp_path):
    calls = [0]
    env = twins(tmp_path, **observed(lambda env: torch.ones(env.num_envs, len(calls))))
    assert env.export_episodes() == {}
    assert "'count'" in env.episodes_problem


@pytest.mark.parametrize("value", [Filter(0), Phase.WALK, random.Random(1)])
def test_what_is_not_there_when_a_state_is_loaded_is_refused_by_name(tmp_path, value):
    class Changed(Plain):
        def count(self):
            super().count()
            self.thing = value if self.calls > 2 else Phase.STAND

    env, other = (twins(tmp_path, **observed(Changed)) for _ in range(2))
    drive(env, 6)
    with pytest.raises(ConfigError, match=r"'count'\.thing must be "):
        other.import_episodes(env.export_episodes())


def test_an_attribute_that_a_state_lacks_is_refused_by_name(tmp_path):
    env = twins(tmp_path, **observed(Plain))
    state = env.export_episodes()
    observer(env).newer = 1.0
    with pytest.raises(ConfigError, match=r"'count'\.newer must "):
        env.import_episodes(state)
