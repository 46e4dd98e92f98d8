"""The environment as RSL-RL's ``VecEnv``."""

from __future__ import annotations

import pytest
import torch
from envs.tables import ON_TWINS, go2, twins
from reference.accelerator import DEVICE
from torchrl.envs import InitTracker, TransformedEnv

import unilab
from unilab.envs import TerminationTermCfg, mdp
from unilab.errors import ConfigError, NonFiniteError

pytest.importorskip("rsl_rl", reason="needs RSL-RL: pip install 'unilab-torchrl[rsl-rl]'")

from rsl_rl.runners import OnPolicyRunner

from unilab.adapters import RslRlVecEnv


def actions(env, steps, seed=0):
    """Random actions, ``[steps, num_envs, num_actions]``, within the environment's bounds."""
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(steps, env.num_envs, env.num_actions, generator=draw) * 2 - 1


def short_go2():
    return go2(6, seed=3, episode_length_s=0.2)


def test_a_rollout_is_that_of_the_environment_itself():
    adapter, env = RslRlVecEnv(short_go2()), short_go2()
    root = env.reset()
    for action in actions(adapter, 25):
        assert torch.equal(adapter.get_observations()["policy"], root["obs"])
        data, root = env.step_and_maybe_reset(root.set("action", action))
        obs, reward, dones, extras = adapter.step(action)

        assert set(obs.keys()) == {"policy", "critic"}
        assert obs.batch_size == torch.Size([6])
        assert torch.equal(obs["policy"], root["obs"])  # of the next episode, where one ended
        assert torch.equal(obs["critic"], root["critic"])
        assert torch.equal(reward, data["next", "reward"][:, 0])
        assert torch.equal(dones, data["next", "done"][:, 0].long())
        assert torch.equal(extras["time_outs"], data["next", "truncated"][:, 0])


def test_observation_groups_of_actor_and_critic(tmp_path):
    assert RslRlVecEnv(short_go2()).obs_groups == {"actor": ["policy"], "critic": ["critic"]}
    without = RslRlVecEnv(twins(tmp_path))
    assert without.obs_groups == {"actor": ["policy"], "critic": ["policy"]}
    assert set(without.get_observations().keys()) == {"policy"}


def test_a_row_that_fails_in_its_last_step_is_no_time_out(tmp_path):
    limits = {
        "time_out": TerminationTermCfg(func=mdp.time_out, time_out=True),
        "too_far": TerminationTermCfg(
            func=mdp.joint_pos_out_of_limit, params={"limit": 2.5, **ON_TWINS}
        ),
    }
    env = RslRlVecEnv(twins(tmp_path, terminations=limits))
    zero = torch.zeros(4, 2)
    for _ in range(4):
        _, _, dones, extras = env.step(zero)
        assert not dones.any()
        assert "log" not in extras
    env.env.backend.get_state_views()["qpos"][1] = 2.7
    _, _, dones, extras = env.step(zero)

    assert dones.tolist() == [1, 1, 1, 1]
    assert extras["time_outs"].tolist() == [True, False, True, True]
    assert extras["log"]["Episode_Termination/too_far"] == 0.25
    assert env.episode_length_buf.tolist() == [0] * 4


def test_seed_and_reset_start_the_same_episode_again():
    env = RslRlVecEnv(short_go2())
    begun = []
    for _ in range(2):
        assert env.seed(5) == 5
        begun.append(env.reset()[0]["policy"])
    assert torch.equal(*begun)


def test_episode_lengths_can_be_set(tmp_path):
    env = RslRlVecEnv(twins(tmp_path))
    env.episode_length_buf = torch.tensor([0, 4, 3, 0])
    _, _, dones, _ = env.step(torch.zeros(4, 2))

    assert dones.tolist() == [0, 1, 0, 0]
    assert env.episode_length_buf.tolist() == [1, 0, 4, 1]


def test_actions_are_clipped_to_the_environments_bounds_unless_told_otherwise(tmp_path):
    for clip, taken in ((True, 1.0), (False, 3.0)):
        env = RslRlVecEnv(twins(tmp_path), clip_actions=clip)
        env.step(torch.full((4, 2), 3.0))
        assert env.env.action_manager.action.unique().tolist() == [taken]


@pytest.mark.parametrize(
    ("action", "error", "named"),
    [
        (torch.tensor([[0.0, torch.inf]]).expand(4, 2), NonFiniteError, "action"),
        (torch.zeros(2), RuntimeError, "batch"),  # not one action for all
    ],
)
def test_clipping_hides_no_bad_action(tmp_path, action, error, named):
    env = RslRlVecEnv(twins(tmp_path))
    with pytest.raises(error, match=named):
        env.step(action)


def test_an_environment_on_an_accelerator_gives_the_tensors_of_the_cpu(accelerator):
    rollouts = []
    for device in ("cpu", DEVICE):
        short = {"episode_length_s": 0.1, "num_threads": 1}
        made = unilab.make("cartpole_swingup", num_envs=4, seed=0, device=device, overrides=short)
        env, shown = RslRlVecEnv(made), []
        for action in 2.0 * actions(env, 12):
            obs, reward, dones, extras = env.step(action.to(device))
            assert obs["policy"].device.type == made.device.type
            shown += [obs["policy"].cpu(), reward.cpu(), dones.cpu(), extras["time_outs"].cpu()]
        rollouts.append(shown)
    for on_cpu, on_device in zip(*rollouts, strict=True):
        assert torch.equal(on_cpu, on_device)


def test_another_environment_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="TransformedEnv"):
        RslRlVecEnv(TransformedEnv(twins(tmp_path), InitTracker()))


def ppo(env):
    """A small PPO configuration of RSL-RL."""
    network = {"class_name": "MLPModel", "hidden_dims": [32], "activation": "elu"}
    gaussian = {"class_name": "GaussianDistribution", "init_std": 1.0, "std_type": "scalar"}
    return {
        "num_steps_per_env": 8,
        "save_interval": 100,
        "obs_groups": env.obs_groups,
        "actor": {**network, "distribution_cfg": gaussian},
        "critic": network,
        "algorithm": {
            "class_name": "PPO",
            "num_learning_epochs": 2,
            "num_mini_batches": 2,
            "learning_rate": 1e-3,
        },
    }


@pytest.mark.slow
@pytest.mark.parametrize("task", ["cartpole_swingup", "go2_velocity_flat"])
def test_rsl_rls_runner_trains_and_logs(task, tmp_path):
    torch.manual_seed(0)
    base = unilab.make(task, num_envs=16, seed=0, overrides={"episode_length_s": 0.2})
    env = RslRlVecEnv(base)
    runner = OnPolicyRunner(env, ppo(env), log_dir=str(tmp_path), device="cpu")
    before = {k: v.clone() for k, v in runner.alg.get_policy().state_dict().items()}
    runner.learn(3, init_at_random_ep_len=True)
    after = runner.alg.get_policy().state_dict()

    widths = base.obs_groups_spec
    assert runner.alg.actor.obs_dim == widths["obs"]
    assert runner.alg.critic.obs_dim == widths.get("critic", widths["obs"])
    assert all(bool(v.isfinite().all()) for v in after.values())
    assert any(not torch.equal(before[k], after[k]) for k in before)
    assert (tmp_path / "model_2.pt").exists()
    # What the environment went through in inference mode can be used outside it.
    obs, *_ = env.step(torch.zeros(16, env.num_actions))
    assert obs["policy"].isfinite().all()
