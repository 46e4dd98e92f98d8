"""Recorders: episodes as TensorDicts."""

from __future__ import annotations

import pytest
import torch
from envs.tables import ON_TWINS, act, assert_bitwise_equal, drive, twins

from unilab.envs import (
    RecorderTermCfg,
    RecordingCfg,
    mdp,
)
from unilab.errors import ConfigError


def term(func, mode, **params):
    return RecorderTermCfg(func=func, mode=mode, params=params)


TRANSITIONS = {
    "obs": term(mdp.policy_observation, "pre_step"),
    "action": term(mdp.last_action, "pre_step"),
    "reward": term(mdp.step_reward, "post_step"),
    "next_obs": term(mdp.policy_observation, "post_step"),
}


def test_episodes_equal_the_rollout(tmp_path):
    env = twins(tmp_path, recorders=TRANSITIONS)
    data = drive(env, 12)
    assert_bitwise_equal(data, drive(twins(tmp_path), 12))
    episodes = env.recorder_manager.drain()
    ends = data["next", "done"][..., 0]
    assert len(episodes) == int(ends.sum()) >= 8
    begun = [0] * 4
    for episode in episodes:
        row = int(episode["env_id"])
        first, last = begun[row], begun[row] + episode["steps"].shape[0]
        part = data[row, first:last]
        begun[row] = last
        assert ends[row, first:last].tolist() == [False] * (last - first - 1) + [True]
        steps = episode["steps"]
        assert torch.equal(steps["obs"], part["obs"])
        assert torch.equal(steps["action"], part["action"])
        assert torch.equal(steps["reward"], part["next", "reward"][:, 0])
        assert torch.equal(steps["next_obs"], part["next", "obs"])
        assert episode["terminated"] == part["next", "terminated"][-1, 0]
        assert episode["truncated"] == part["next", "truncated"][-1, 0]
        assert episode["complete"]
    assert env.recorder_manager.drain() == []


def test_modes_record_at_their_moment(tmp_path):
    """Physics as it is before and after the step, when an episode has begun and before it ends."""
    modes = ("pre_step", "post_step", "post_reset", "pre_reset")
    recorders = {mode: term(mdp.joint_pos_rel, mode, **ON_TWINS) for mode in modes}
    env = twins(tmp_path, recorders=recorders)
    data = drive(env, 5)
    for episode in env.recorder_manager.drain():
        part = data[int(episode["env_id"])]
        pos, after = part["obs"][:, :2], part["next", "obs"][:, :2]
        assert torch.equal(episode["steps", "pre_step"], pos)
        assert torch.equal(episode["steps", "post_step"], after)
        assert torch.equal(episode["start", "post_reset"], pos[0])
        assert torch.equal(episode["end", "pre_reset"], after[-1])


def test_a_reset_stores_the_episodes_of_its_rows(tmp_path):
    env = twins(tmp_path, recorders=TRANSITIONS)
    root = env.reset()
    for _ in range(3):
        _, root = env.step_and_maybe_reset(act(env, root))
    mask = torch.tensor([False, True, False, True]).unsqueeze(1)
    env.reset(root.set("_reset", mask))
    broken_off = env.recorder_manager.drain()
    assert [int(e["env_id"]) for e in broken_off] == [1, 3]
    assert not any(e["terminated"] or e["truncated"] for e in broken_off)
    env.reset()
    left = env.recorder_manager.drain()
    assert [int(e["env_id"]) for e in left] == [0, 2]
    assert [e["steps"].shape[0] for e in (*broken_off, *left)] == [3, 3, 3, 3]


def test_the_first_environments_alone_can_be_recorded(tmp_path):
    env = twins(tmp_path, recorders=TRANSITIONS, recording=RecordingCfg(num_envs=2))
    drive(env, 5)
    assert [int(e["env_id"]) for e in env.recorder_manager.drain()] == [0, 1]


def test_max_steps_keeps_the_first_steps(tmp_path):
    env = twins(tmp_path, recorders=TRANSITIONS, recording=RecordingCfg(max_steps=3))
    data = drive(env, 5)
    for episode in env.recorder_manager.drain():
        assert not episode["complete"]
        assert torch.equal(episode["steps", "obs"], data[int(episode["env_id"]), :3]["obs"])


def test_max_episodes_bounds_the_memory(tmp_path):
    recording = RecordingCfg(max_episodes=5, max_steps=4)
    env = twins(tmp_path, recorders=TRANSITIONS, recording=recording, terminations={})
    root = env.reset()
    for step in range(40):
        env.step(act(env, root))
        if step % 10 == 9:
            root = env.reset()
    assert len(env.recorder_manager.drain()) == 5
    env.step(act(env, root))
    env.reset()
    assert len(env.recorder_manager.drain()) == 4


def test_an_unknown_observation_group_fails_at_construction(tmp_path):
    bad = {"obs": term(mdp.policy_observation, "pre_step", group="critc")}
    with pytest.raises(ConfigError, match="critc"):
        twins(tmp_path, recorders=bad)
