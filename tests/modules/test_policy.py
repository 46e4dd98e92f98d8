"""The rollout policy over an actor."""

from __future__ import annotations

import pytest
import torch
from reference.tiny import ACTION, OBS, tiny_actor
from tensordict import TensorDict
from torch import Tensor
from torchrl.envs import (
    EnvBase,
    InitTracker,
    PendulumEnv,
    SerialEnv,
    StepCounter,
    TransformedEnv,
    UnsqueezeTransform,
)
from torchrl.envs.utils import ExplorationType, set_exploration_type, step_mdp

import unilab
from unilab.errors import ConfigError
from unilab.modules import FlashSACActor, FlashSACPolicy

KINDS = [
    ExplorationType.RANDOM,
    ExplorationType.DETERMINISTIC,
    ExplorationType.MODE,
    ExplorationType.MEAN,
]


def held(actor: FlashSACActor, rows: int) -> FlashSACActor:
    """An actor that would hold its present noise."""
    actor.explore(torch.zeros(rows, OBS))
    actor._noise_steps.fill_(10)
    return actor


@pytest.mark.parametrize("kind", KINDS[1:])
def test_any_other_exploration_type_acts_with_the_transformed_mean(kind):
    actor = held(tiny_actor(), 5)
    noise = actor._noise.clone()
    data = TensorDict({"obs": torch.randn(5, OBS)}, [5])
    with set_exploration_type(kind):
        action = FlashSACPolicy(actor)(data)["action"]
    torch.testing.assert_close(action, torch.tanh(actor.get_mean_and_std(data["obs"])[0]))
    assert torch.equal(actor._noise, noise)


@pytest.mark.parametrize("keys", [("is_init",), ("done",), ("is_init", "done")])
def test_noise_is_redrawn_where_the_first_of_is_init_and_done_says_so(keys):
    actor = held(tiny_actor(), 6)
    before = actor._noise.clone()
    reset = torch.tensor([[True], [False]] * 3)
    flags = dict(zip(keys, (reset, ~reset), strict=False))
    with set_exploration_type(ExplorationType.RANDOM):
        FlashSACPolicy(actor)(TensorDict({"obs": torch.zeros(6, OBS), **flags}, [6]))
    assert torch.equal((actor._noise == before).all(-1), ~reset.squeeze(-1))


class Recording(FlashSACActor):
    """Notes which rows it is told were reset."""

    def explore(self, obs: Tensor, dones: Tensor | None = None, deterministic: bool = False):
        assert dones is not None
        self.__dict__.setdefault("told", []).append(dones.tolist())
        return super().explore(obs, dones, deterministic)


def pendulum(episode: int) -> EnvBase:
    env = TransformedEnv(PendulumEnv(), StepCounter(episode))
    return env.append_transform(UnsqueezeTransform(-1, in_keys=["th"], out_keys=["obs"]))


def rolled_out(env: EnvBase, policy: FlashSACPolicy) -> list[Tensor]:
    data = [env.rollout(steps, policy, break_when_any_done=False) for steps in (7, 2)]
    return [done for each in data for done in each["next", "done"].unbind(-2)]


def stepped(env: EnvBase, policy: FlashSACPolicy) -> list[Tensor]:
    done, data = [], None
    for steps in (7, 2):  # the second reset gets the data of the first rollout
        data = env.reset(data, set_state=False)
        for _ in range(steps):
            data = env.step(policy(data))
            done.append(data["next", "done"])
            data = env.maybe_reset(step_mdp(data))
    return done


@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("kind", KINDS[:2])
@pytest.mark.parametrize("run", [rolled_out, stepped])
@pytest.mark.parametrize(
    "make",
    [
        lambda: pendulum(3),
        lambda: SerialEnv(2, [lambda: pendulum(3), lambda: pendulum(4)]),
        lambda: unilab.make("pendulum_swingup", num_envs=2, overrides={"episode_length_s": 0.06}),
    ],
)
def test_the_actor_is_told_of_every_reset_with_and_without_init_tracker(make, run, kind, tracked):
    env = make()
    width = env.observation_spec["obs"].shape[-1]
    actor = Recording(width, 1, hidden_dim=4, num_blocks=1)
    if tracked:
        env = TransformedEnv(env, InitTracker())
    with set_exploration_type(kind):
        done = torch.stack(run(env, FlashSACPolicy(actor))).reshape(9, -1)
    want = done.roll(1, 0)
    want[[0, 7]] = True  # rollouts begin
    assert done[:7].any()
    assert torch.equal(torch.tensor(actor.told), want)


@pytest.mark.parametrize("kind", KINDS[:2])
def test_environments_that_share_a_policy_do_not_tell_each_others_resets(kind):
    envs = [pendulum(3), pendulum(4), pendulum(3)]
    actor = Recording(1, 1, hidden_dim=4, num_blocks=1)
    policy = FlashSACPolicy(actor)
    with set_exploration_type(kind):
        data, want = [env.reset() for env in envs], [[True]] * 3
        for _ in range(9):
            for i, env in enumerate(envs):
                step, data[i] = env.step_and_maybe_reset(policy(data[i]))
                want.append(step["next", "done"].tolist())
    assert actor.told == want[:-3]
    assert len(policy._calls) == 3


def test_exploring_on_copies_of_an_environments_data_needs_init_tracker():
    env, policy = pendulum(5), FlashSACPolicy(FlashSACActor(1, 1, hidden_dim=4))
    with set_exploration_type(ExplorationType.RANDOM):
        data = env.step(policy(env.reset()).clone())
        with pytest.raises(ConfigError, match="InitTracker"):
            policy(step_mdp(data))


@pytest.mark.parametrize("batch_size", [[], [4], [2, 3]])
def test_any_batch_shape_goes_through(batch_size):
    data = TensorDict({"obs": torch.randn(*batch_size, OBS)}, batch_size)
    assert FlashSACPolicy(tiny_actor())(data)["action"].shape == (*batch_size, ACTION)


def test_keys_are_those_it_was_given():
    policy = FlashSACPolicy(tiny_actor(), obs_key=("agent", "state"), action_key=("agent", "u"))
    assert policy.in_keys == [("agent", "state")]
    assert policy.out_keys == [("agent", "u")]
    out = policy(TensorDict({"agent": {"state": torch.zeros(4, OBS)}}, [4]))
    assert out["agent", "u"].shape == (4, ACTION)
