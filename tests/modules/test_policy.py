"""The rollout policy over an actor."""

from __future__ import annotations

import pytest
import torch
from reference.tiny import ACTION, OBS, tiny_actor
from tensordict import TensorDict
from torch import Tensor
from torchrl.envs import (
    Compose,
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


def test_noise_is_redrawn_where_episodes_begin():
    actor = held(tiny_actor(), 6)
    before = actor._noise.clone()
    begun = torch.tensor([[True], [False]] * 3)
    data = TensorDict({"obs": torch.zeros(6, OBS), "is_init": begun, "done": ~begun}, [6])
    with set_exploration_type(ExplorationType.RANDOM):
        FlashSACPolicy(actor)(data)
    assert torch.equal((actor._noise == before).all(-1), ~begun.squeeze(-1))


class Recording(FlashSACActor):
    """Notes which rows it is told were reset."""

    def explore(self, obs: Tensor, dones: Tensor | None = None, deterministic: bool = False):
        assert dones is not None
        self.__dict__.setdefault("told", []).append(dones.tolist())
        return super().explore(obs, dones, deterministic)


def pendulum(episode: int) -> EnvBase:
    env = TransformedEnv(PendulumEnv(), Compose(StepCounter(episode), InitTracker()))
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


@pytest.mark.parametrize("kind", KINDS[:2])
@pytest.mark.parametrize("run", [rolled_out, stepped])
@pytest.mark.parametrize(
    "make",
    [
        lambda: pendulum(3),
        lambda: SerialEnv(2, [lambda: pendulum(3), lambda: pendulum(4)]),
        lambda: unilab.make("pendulum_swingup", num_envs=2, overrides={"episode_length_s": 0.06}),
        lambda: TransformedEnv(
            unilab.make("pendulum_swingup", num_envs=2, overrides={"episode_length_s": 0.06}),
            InitTracker(),
        ),
    ],
)
def test_the_actor_is_told_of_every_reset(make, run, kind):
    env = make()
    width = env.observation_spec["obs"].shape[-1]
    actor = Recording(width, 1, hidden_dim=4, num_blocks=1)
    with set_exploration_type(kind):
        done = torch.stack(run(env, FlashSACPolicy(actor))).reshape(9, -1)
    want = done.roll(1, 0)
    want[[0, 7]] = True  # rollouts begin
    assert done[:7].any()
    assert torch.equal(torch.tensor(actor.told), want)


def test_data_of_an_environment_without_is_init_are_refused():
    env, policy = PendulumEnv(), FlashSACPolicy(FlashSACActor(1, 1, hidden_dim=4), obs_key="th")
    with pytest.raises(ConfigError, match="InitTracker"):
        policy(env.reset())


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
