"""TorchRL's ``_step`` mask: environments that have ended may stand while the others go on."""

from __future__ import annotations

import pytest
import torch
from envs.tables import act, physics_state, twins
from tensordict import TensorDict
from torchrl.envs import ConditionalSkip, MultiAction, TransformedEnv

from unilab.envs import MetricsTermCfg, RecorderTermCfg, RecordingCfg, TerminationTermCfg, mdp
from unilab.errors import ConfigError

FLAGS = ("done", "terminated", "truncated")


def first_ends(at: int):
    """A termination of the first environment at one step."""

    def ends(env):
        first = torch.arange(env.num_envs) == 0
        return first & (env.episode_length == at)

    return {"ends": TerminationTermCfg(func=ends)}


def short(folder, **changes):
    return twins(folder, num_envs=2, **{"episode_length_s": 9.0, **changes})


def test_an_ended_environment_stands_while_the_others_go_on(tmp_path):
    metrics = {"step": MetricsTermCfg(func=lambda env: env.episode_length.float())}
    recorders = {"obs": RecorderTermCfg(func=mdp.policy_observation, mode="post_step")}
    changes = {
        "metrics": metrics,
        "recorders": recorders,
        "recording": RecordingCfg(num_envs=2),
        "terminations": first_ends(2),
    }
    env, free = short(tmp_path, **changes), short(tmp_path, **changes)
    for each in (env, free):
        root = each.reset()
        for _ in range(2):
            ended = each.step(act(each, root, 0.5))["next"]
            root = ended.exclude("reward")
    assert ended["terminated"].flatten().tolist() == [True, False]
    mask = torch.tensor([False, True])
    for _ in range(3):
        after = env.step(act(env, root, 0.5).set("_step", mask))["next"]
        beside = free.step(act(free, root, 0.5))["next"]
        for key in ("obs", *FLAGS):
            assert torch.equal(after[key][0], ended[key][0]), key
            assert torch.equal(after[key][1], beside[key][1]), key
        assert after["reward"][0] == 0.0
        assert torch.equal(after["reward"][1], beside["reward"][1])
        assert torch.equal(env.obs_buf["obs"], after["obs"])
    assert env.episode_length.tolist() == [2, 5]
    env.reset()
    # Two steps of the one and five of the other, and one that was ended.
    drained = env.drain_metrics()
    assert drained["Metrics/step"] == pytest.approx((1 + 2 + 1 + 2 + 3 + 4 + 5) / 7)
    assert drained["Episode_Termination/ends"] == 0.5
    assert [len(e["steps", "obs"]) for e in env.recorder_manager.drain()] == [2, 5]


def test_a_chunk_of_actions_ends_where_its_episode_does(tmp_path):
    base = short(tmp_path, terminations=first_ends(2))
    chunks = MultiAction(dim=1, stack_rewards=True, stack_observations=False)
    env = TransformedEnv(base, chunks)
    after = env.step(env.reset().set("action", torch.zeros(2, 4, 2)))["next"]
    assert after["terminated"].flatten().tolist() == [True, False]
    assert base.episode_length.tolist() == [2, 4]
    assert (after["reward"][0, :, 2:] == 0.0).all()


def test_a_rollout_until_all_are_done_keeps_each_end(tmp_path):
    env = short(tmp_path, episode_length_s=0.1, terminations={
        **first_ends(2), "time_out": TerminationTermCfg(func=mdp.time_out, time_out=True)
    })  # fmt: skip
    data = env.rollout(20, break_when_all_done=True, break_when_any_done=False)
    assert data.shape == (2, 5)
    assert data["next", "terminated"][0, :, 0].tolist() == [False, True, True, True, True]
    assert data["next", "truncated"][1, :, 0].tolist() == [False] * 4 + [True]


def test_a_mask_of_all_is_none(tmp_path):
    env = short(tmp_path)
    after = env.step(act(env, env.reset()).set("_step", torch.ones(2, dtype=torch.bool)))["next"]
    assert after["reward"].all()
    assert env.episode_length.tolist() == [1, 1]


def test_an_environment_whose_episode_goes_on_cannot_be_left_out(tmp_path):
    env = short(tmp_path)
    root, before = env.reset(), physics_state(env)
    said = r"_step leaves out environments \[1\], whose episodes go on: physics advances all tog"
    with pytest.raises(ConfigError, match=said):
        env.step(act(env, root.clone()).set("_step", torch.tensor([True, False])))
    skipping = TransformedEnv(env, ConditionalSkip(cond=lambda td: torch.tensor([False, True])))
    with pytest.raises(ConfigError, match=said):
        skipping.step(TensorDict({"action": torch.zeros(2, 2)}, [2]))
    assert torch.equal(physics_state(env), before)
    env.step(act(env, root))


def test_a_mask_of_another_kind_is_refused(tmp_path):
    env = short(tmp_path)
    root = act(env, env.reset()).set("_step", torch.ones(2))
    with pytest.raises(ConfigError, match=r"_step is tensor.*expected a torch.bool mask of shape"):
        env.step(root)
