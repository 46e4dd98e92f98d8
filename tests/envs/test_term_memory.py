"""A term's memory of each environment, in whatever it keeps it, and what it returns every time."""

from __future__ import annotations

import pytest
import torch
from envs.tables import TWINS, act, drive, twins
from tensordict import TensorDict

from unilab.envs import (
    ManagerTermBase,
    MetricsTermCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RewardTermCfg,
    SceneEntityCfg,
    TerminationTermCfg,
    mdp,
    reads,
)
from unilab.errors import ConfigError, EnvFaultedError


def observed(func, **params):
    term = ObservationTermCfg(func=func, params=params)
    return {"observations": {"obs": ObservationGroupCfg(terms={"n": term})}}


class Plain(ManagerTermBase):
    """Counts its calls in each episode."""

    def __init__(self, cfg, env):
        super().__init__(cfg, env)
        self.kept = self.make(torch.zeros(env.num_envs, 1))
        self.calls = 0

    def make(self, n):
        return n

    def of(self):
        return self.kept

    def __call__(self, env):
        self.calls += 1
        self.of().add_(1.0)
        return torch.cat((self.of(), torch.full_like(self.of(), self.calls)), 1)

    def reset(self, env_ids):
        self.of()[env_ids] = 0.0


class InList(Plain):
    def make(self, n):
        return [n, torch.zeros(3)]

    def of(self):
        return self.kept[0]


class InDict(Plain):
    def make(self, n):
        return {"n": (n,)}

    def of(self):
        return self.kept["n"][0]


class InTensorDict(Plain):
    def make(self, n):
        return TensorDict({"n": n}, [len(n)])

    def of(self):
        return self.kept["n"]


class Later(Plain):
    """Makes its memory when it is called first."""

    def make(self, n):
        return None

    def of(self):
        if self.kept is None:
            self.kept = torch.zeros(self._env.num_envs, 1)
        return self.kept


@pytest.mark.parametrize("kind", [Plain, InList, InDict, InTensorDict, Later])
def test_a_reset_goes_unnoticed_in_other_rows_wherever_a_term_keeps_them(tmp_path, kind):
    env = twins(tmp_path, num_envs=2, episode_length_s=9.0, **observed(kind))
    assert env.reset()["obs"][:, 0].tolist() == [1.0, 1.0]
    root = env.step(act(env, env.reset()))["next"]
    begun = env.reset(env_ids=torch.tensor([0]))
    assert begun["obs"][:, 0].tolist() == [1.0, 2.0]
    after = env.step(act(env, begun))["next"]["obs"]
    assert after[:, 0].tolist() == [2.0, 3.0]
    assert (after[:, 1] - root["obs"][:, 1]).tolist() == [1.0, 1.0]  # plain numbers as well


class Across(Plain):
    def make(self, n):
        return n.T.contiguous()

    def of(self):
        return self.kept.T


def test_a_memory_that_does_not_begin_with_the_environments_is_refused(tmp_path):
    with pytest.raises(ConfigError) as caught:
        twins(tmp_path, **observed(Across))
    assert str(caught.value) == (
        "observation (obs) term 'n': it keeps 'kept', torch.float32 of shape (1, 4), and changes "
        "it in a call: let a memory begin with the environments, [num_envs, ...], as it is called "
        "when some of them begin an episode, too"
    )


def test_what_never_changes_may_have_any_shape(tmp_path):
    class Weighted(Plain):
        def __init__(self, cfg, env):
            super().__init__(cfg, env)
            self.weights = torch.eye(3)

    env = twins(tmp_path, **observed(Weighted))
    drive(env, 7)


# What a term returns ---------------------------------------------------------------------------


def turning(value, other, kind):
    """A term that returns something else from the second step on."""

    def term(env):
        return other if env.common_step_counter > 1 else value

    return {
        "observation (obs)": lambda: observed(term),
        "reward": lambda: {"rewards": {"n": RewardTermCfg(func=term, weight=1.0)}},
        "metrics": lambda: {"metrics": {"n": MetricsTermCfg(func=term)}},
        "termination": lambda: {"terminations": {"n": TerminationTermCfg(func=term)}},
    }[kind]()


FOUR, COLUMNS, NO = torch.ones(4), torch.ones(4, 2), torch.zeros(4, dtype=torch.bool)


@pytest.mark.parametrize(
    ("kind", "value", "other", "said"),
    [
        ("observation (obs)", COLUMNS, torch.ones(4, 3), r"torch.float32 of shape \(4, 3\)"),
        ("observation (obs)", COLUMNS, COLUMNS.double(), r"torch.float64 of shape \(4, 2\)"),
        ("reward", FOUR, torch.ones(1), r"torch.float32 of shape \(1,\)"),
        ("reward", FOUR, 1.0, "a float"),
        ("metrics", FOUR, FOUR.double(), r"torch.float64 of shape \(4,\)"),
        ("termination", NO, NO[:1], r"torch.bool of shape \(1,\)"),
        ("termination", NO, None, "a NoneType"),
    ],
)
def test_a_term_that_returns_something_else_later_is_named(tmp_path, kind, value, other, said):
    env = twins(tmp_path, **turning(value, other, kind))
    root = env.reset()
    root = env.step(act(env, root))["next"].exclude("reward")
    first = rf"torch.\w+ of shape {str(tuple(value.shape)).replace('(', '[(]').replace(')', '[)]')}"
    with pytest.raises(
        ConfigError,
        match=rf"term 'n' returned {said}, and {first} at construction: let it return the same",
    ):
        env.step(act(env, root))
    with pytest.raises(EnvFaultedError):
        env.step(act(env, root))


# Entities in a term's parameters -----------------------------------------------------------------


@reads("joint_pos")
def first_of(env, cfgs):
    entity = cfgs[0] if isinstance(cfgs, tuple) else cfgs["of"]
    return env.scene[entity.name].data.joint_pos[:, entity.joint_ids]


@pytest.mark.parametrize("wrap", [lambda e: (e,), lambda e: {"of": e}])
def test_entities_within_a_parameter_are_resolved_too(tmp_path, wrap):
    entity = SceneEntityCfg("twins", joint_names=("first",))
    env = twins(tmp_path, **observed(first_of, cfgs=wrap(entity)))
    assert env.obs_groups_spec == {"obs": 1}
    wrong = SceneEntityCfg("twins", joint_names=("frist",))
    with pytest.raises(ConfigError, match=r"pattern 'frist' matches no joint of 'twins'"):
        twins(tmp_path, **observed(first_of, cfgs=wrap(wrong)))


def test_a_task_whose_terms_read_nothing_may_lose_rows(tmp_path):
    env = twins(
        tmp_path,
        **observed(mdp.last_action),
        rewards={"one": RewardTermCfg(func=lambda env: torch.ones(env.num_envs), weight=1.0)},
        terminations={"lost": TerminationTermCfg(func=mdp.nan_detection)},
    )
    assert not drive(env, 3)["next", "done"].any()
    assert TWINS.joint_names == (".*",)
