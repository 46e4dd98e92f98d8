"""The state of class terms: kept for rows that continue, undone by a refused reset, saved."""

from __future__ import annotations

import itertools
import logging
import random
from collections import Counter, defaultdict, deque
from copy import deepcopy
from dataclasses import dataclass
from enum import Enum

import numpy as np
import pytest
import torch
from envs.tables import act, drive, twins, twins_cfg
from tensordict import TensorDict
from torch import nn

from unilab.envs import (
    CurriculumTermCfg,
    EventTermCfg,
    ManagerTermBase,
    ObservationGroupCfg,
    ObservationTermCfg,
    RecorderTermCfg,
)
from unilab.envs.managers.saved_state import load_state, save_state
from unilab.errors import ConfigError


def observed(func, **params):
    term = ObservationTermCfg(func=func, params=params)
    return {"observations": {"obs": ObservationGroupCfg(terms={"count": term})}}


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


class InTensorDict(Plain):
    def make(self, n):
        return {"n": (TensorDict({"n": n}, [len(n)]),)}

    def of(self):
        return self.kept["n"][0]["n"]


class Later(Plain):
    """Makes its state in its first call."""

    def make(self, n):
        return None

    def of(self):
        if self.kept is None:
            self.kept = torch.zeros(self._env.num_envs, 1)
        return self.kept


@dataclass(slots=True)
class Filter:
    n: torch.Tensor


class InHelper(Plain):
    """In an object that knows its owner, as users write them."""

    class Helper:
        def __init__(self, n, owner):
            self.filters, self.owner, self.log = [Filter(n)], owner, logging.getLogger("test")

    def make(self, n):
        return self.Helper(n, self)

    def of(self):
        return self.kept.filters[0].n

    def count(self):
        self.kept.filters[0].n = self.of() + 1.0


class InModule(Plain):
    """In a buffer of a module, and in its attributes."""

    class Net(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.register_buffer("n", n)
            self.layer = nn.Linear(1, 1)

        def forward(self):
            self.n = self.n + 1.0

    def make(self, n):
        return self.Net(n)

    def of(self):
        return self.kept.n

    def count(self):
        self.kept()


class InDeque(Plain):
    """The last two counts, of which the oldest is dropped."""

    def make(self, n):
        return deque([n, n.clone()], maxlen=2)

    def of(self):
        return self.kept[-1]

    def count(self):
        self.kept.append(self.kept[-1] + 1.0)


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


class InNumpy(Plain):
    def make(self, n):
        return n.numpy().copy()

    def of(self):
        return torch.from_numpy(self.kept)


KINDS = [Plain, InTensorDict, Later, InHelper, InModule, InDeque, Swapped, InNumpy]


@pytest.mark.parametrize("kind", KINDS)
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
    term = env.observation_manager.get_term("obs", "count").func
    term.of().zero_()  # counted when the environment was built
    env.reset(env_ids=torch.tensor([0]))
    assert term.of()[:, 0].tolist() == [1.0, 1.0]


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
        """A counter as a tensor, and a list that grows."""

        def make(self, n):
            self.seen, self.total = [], torch.zeros(())
            return n

        def count(self):
            super().count()
            self.total += 1.0
            self.seen.append(float(self.total))

    env = twins(tmp_path, num_envs=2, episode_length_s=9.0, **observed(Shared))
    term = env.observation_manager.get_term("obs", "count").func
    begun = env.reset()
    before = list(term.seen)
    begun = env.reset(env_ids=torch.tensor([1]))
    assert term.seen == before
    env.step(act(env, begun))
    assert term.seen == [*before, before[-1] + 1.0]


class Drawing(ManagerTermBase):
    """An event and a curriculum with every kind of memory; fails when told to."""

    def __init__(self, cfg, env):
        super().__init__(cfg, env)
        self.generator = torch.Generator().manual_seed(0)
        self.drawn = torch.zeros(env.num_envs)
        self.history: list[float] = []
        self.helper = InHelper.Helper(torch.zeros(env.num_envs, 1), self)

    def memory(self):
        n = self.helper.filters[0].n
        return self.drawn.tolist(), list(self.history), n.tolist(), self.generator.get_state().sum()

    def __call__(self, env, env_ids, fail=None):
        self.drawn[env_ids] = torch.rand(len(env_ids), generator=self.generator)
        self.history.append(float(self.drawn.sum()))
        self.helper.filters[0].n += 1.0


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


@pytest.mark.parametrize("kind", KINDS)
def test_saved_state_continues_in_another_environment(tmp_path, kind):
    env, other = (twins(tmp_path, episode_length_s=9.0, **observed(kind)) for _ in range(2))
    drive(env, 4)
    torch.save(
        save_state(env.observation_manager.get_term("obs", "count").func, env), tmp_path / "s"
    )
    state = torch.load(tmp_path / "s", weights_only=True)
    other.reset()
    load_state(other.observation_manager.get_term("obs", "count").func, state, other)
    shown = []
    for each in (env, other):
        each.reset(env_ids=torch.tensor([1]))
        shown.append(each.step(act(each, TensorDict(batch_size=4)))["next", "obs"])
    assert shown[0][:, 0].tolist() == [6.0, 2.0, 6.0, 6.0]
    assert torch.equal(shown[0], shown[1])


def test_saved_state_holds_generators_and_no_settings(tmp_path):
    cfg = {"events": {"draw": EventTermCfg(func=Drawing, mode="reset")}}
    env, other = twins(tmp_path, **cfg), twins(tmp_path, **cfg)
    (one,), (two,) = ([t.func for t in each.terms if t.name == "draw"] for each in (env, other))
    drive(env, 7)
    state = save_state(one, env)
    assert {key for key, _ in state[0][1]} >= {"generator", "drawn", "history", "helper"}
    load_state(two, state, other)
    assert two.memory() == one.memory()
    rows = torch.arange(4)
    assert (one(env, rows), one.memory()) == (two(other, rows), two.memory())


class Phase(Enum):
    STAND = 0
    WALK = 1


class Assorted(ManagerTermBase):
    """State that is neither tensors nor Python's numbers; fails when told to."""

    def __init__(self, cfg, env):
        super().__init__(cfg, env)
        self.generators = [
            np.random.default_rng(0),
            np.random.Generator(np.random.MT19937(0)),
            np.random.RandomState(0),
            random.Random(0),
        ]
        self.count, self.mean, self.phase = np.int64(0), np.float32(0.0), Phase.STAND
        self.seen, self.fixed, self.code, self.root = set(), frozenset(), b"", 0j

    def __call__(self, env, env_ids=None):
        self.draws = [float(generator.random()) for generator in self.generators]
        self.count, self.mean, self.phase = self.count + 1, self.mean + self.draws[0], Phase.WALK
        self.mean = np.float32(self.mean)
        self.seen.add(self.count)
        self.fixed |= {int(self.count)}
        self.code += b"x"
        self.root += 1j
        return torch.full((env.num_envs, 1), self.draws[0] + self.draws[3])

    def state(self):
        counters = (type(self.count), self.count, type(self.mean), self.mean, self.phase)
        return (*counters, self.draws, set(self.seen), self.fixed, self.code, self.root)


def test_generators_sets_and_numbers_of_numpy_continue(tmp_path):
    env, other = (twins(tmp_path, **observed(Assorted)) for _ in range(2))
    one, two = (each.observation_manager.get_term("obs", "count").func for each in (env, other))
    drive(env, 7)
    torch.save(save_state(one, env), tmp_path / "s")
    state = torch.load(tmp_path / "s", weights_only=True)
    other.reset()
    for _ in range(2):  # the saved state is not changed by what loads it
        load_state(two, state, other)
        assert two.state() == one.state()
        two(other)
    one(env)
    assert two.state() == one.state()


def with_refused_resets(tmp_path, kind):
    """An environment after three steps whose next reset fails, and its event of the kind."""
    events = {
        "kept": EventTermCfg(func=kind, mode="reset"),
        "bad": EventTermCfg(func=failing, mode="reset"),
    }
    env = twins(tmp_path, events=events)
    (term,) = (term.func for term in env.terms if term.name == "kept")
    drive(env, 3)
    return env, term


def test_c12_refused_reset_restores_generators_sets_and_numbers_of_numpy(tmp_path):
    """0011-C12."""
    env, term = with_refused_resets(tmp_path, Assorted)
    before = term.state()
    draws = [float(generator.random()) for generator in deepcopy(term.generators)]
    with pytest.raises(ZeroDivisionError):
        env.reset()
    assert term.state() == before
    assert [float(generator.random()) for generator in term.generators] == draws


class Made(ManagerTermBase):
    """Makes most of its state in its third call; two names share one tensor until then."""

    def __init__(self, cfg, env):
        super().__init__(cfg, env)
        self.calls, self.kinds, self.by_phase = 0, Counter(), {Phase.WALK: torch.zeros(2)}
        self.groups = defaultdict(lambda: deque(maxlen=2))
        self.now = self.last = torch.zeros(env.num_envs)
        self.window, self.array = None, None

    def __call__(self, env, env_ids=None):
        self.calls += 1
        self.kinds["all"] += 1
        self.by_phase[Phase.WALK] += 1.0
        self.groups[self.calls // 2].append(float(self.calls))
        self.last, self.now = self.now, self.now * 0.5 + self.calls
        if self.calls > 2:
            self.window = self.window or deque(maxlen=3)
            self.window.append([np.mean([self.calls, 0.0])])
            self.array = np.full(2, self.calls)
        return (self.now - self.last)[:, None]

    def state(self):
        shown = (self.by_phase[Phase.WALK], self.now, self.last)
        lazy = (self.window, type(self.array), None if self.array is None else self.array.tolist())
        return self.calls, self.kinds, dict(self.groups), [t.tolist() for t in shown], lazy


def test_what_is_made_later_and_two_names_of_one_tensor_continue(tmp_path):
    env, other = (twins(tmp_path, **observed(Made)) for _ in range(2))
    one, two = (each.observation_manager.get_term("obs", "count").func for each in (env, other))
    drive(env, 6)
    torch.save(save_state(one, env), tmp_path / "s")
    load_state(two, torch.load(tmp_path / "s", weights_only=True), other)
    for _ in range(3):
        assert two.state() == one.state()
        assert two.window.maxlen == 3
        one(env), two(other)


def test_c12_refused_reset_restores_counters(tmp_path):
    """0011-C12."""
    env, term = with_refused_resets(tmp_path, Made)
    before = deepcopy(term.state())
    with pytest.raises(ZeroDivisionError):
        env.reset()
    assert term.state() == before


def in_closure():
    calls = [0]

    def count(env):
        calls[0] += 1
        return torch.full((env.num_envs, 1), float(calls[0]))

    return count


class Callable:
    def __init__(self):
        self.calls = 0

    def __call__(self, env):
        self.calls += 1
        return torch.full((env.num_envs, 1), float(self.calls))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, env):
        self.calls += 1.0
        return self.calls.expand(env.num_envs, 1).clone()


@pytest.mark.parametrize("make", [in_closure, Callable, Network, lambda: Callable().__call__])
def test_state_of_functions_and_callable_objects_continues(tmp_path, make):
    env, other = (twins(tmp_path, **observed(make())) for _ in range(2))
    drive(env, 6)
    other.reset()
    other.import_episodes(env.export_episodes())
    shown = [each.step(act(each, TensorDict(batch_size=4)))["next", "obs"] for each in (env, other)]
    assert torch.equal(*shown)


class Opaque(Plain):
    def make(self, n):
        self.numbers = itertools.count()
        return n


class Helper(Plain):
    """Makes an object of a class of its own after the environment is built."""

    def count(self):
        super().count()
        if self.calls > 2:
            self.helper = Filter(self.kept)


def test_state_that_cannot_be_saved_is_named_and_no_error(tmp_path):
    env = twins(tmp_path, **observed(Opaque))
    drive(env, 2)
    assert env.export_episodes() == {}
    assert "'count'.numbers" in env.episodes_problem


def test_object_made_after_construction_is_refused_by_name(tmp_path):
    env, other = (twins(tmp_path, **observed(Helper)) for _ in range(2))
    drive(env, 6)
    with pytest.raises(ConfigError, match=r"'count'\.helper must be .*Filter"):
        other.import_episodes(env.export_episodes())


def test_state_of_another_number_of_environments_is_refused(tmp_path):
    env, other = (twins(tmp_path, num_envs=n, **observed(InHelper)) for n in (2, 3))
    one, two = (each.observation_manager.get_term("obs", "count").func for each in (env, other))
    with pytest.raises(ConfigError, match=r"count\.kept\.filters\.0\.n must .*\(3, 1\).*\(2, 1\)"):
        load_state(two, save_state(one, env), other, "count")
