"""Steps and resets: terminal observations, partial resets, time limits (0011-C3 to C10)."""

import copy
import pickle

import pytest
import torch
from envs.tables import ON_TWINS, act, drive, go2, physics_state, twins
from tensordict import TensorDict

from unilab.envs import (
    ObservationGroupCfg,
    ObservationTermCfg,
    mdp,
)
from unilab.errors import ConfigError, EnvFaultedError, NonFiniteError

HEIGHT = 3.0  # scale of the height in Go2's critic observation, its last column


def fallen(env, row=2, height=0.12):
    """Put one robot too low before the next step."""
    env.backend.get_state_views()["qpos"][row, 2] = height


def test_c8_next_of_a_done_row_is_terminal_and_the_root_is_post_reset():
    env = go2()
    root = act(env, env.reset())
    fallen(env)
    data, root = env.step_and_maybe_reset(root)
    assert data["next", "done"][:, 0].tolist() == [False, False, True, False]
    assert data["next", "critic"][2, -1] < 0.15 * HEIGHT
    assert root["critic"][2, -1] == pytest.approx(0.32 * HEIGHT)
    assert not torch.equal(data["next", "obs"][2], root["obs"][2])
    for row in (0, 1, 3):
        for key in ("obs", "critic"):
            assert torch.equal(data["next", key][row], root[key][row])


def test_c3_returned_tensors_are_never_overwritten():
    env = go2(4, episode_length_s=0.06)  # every third step ends all episodes
    draw = torch.Generator().manual_seed(0)
    root = env.reset()
    kept, copies = [], []
    for step in range(10):
        root.set("action", torch.rand(env.action_spec.shape, generator=draw) * 2 - 1)
        if step % 4 == 1:
            fallen(env, row=1)
        data, root = env.step_and_maybe_reset(root)
        for td in (data, root):
            kept.append(td.copy())  # the same tensors
            copies.append(td.clone())
    env.reset()
    for td, then in zip(kept, copies, strict=True):
        for key in then.keys(True, True):
            assert torch.equal(td[key], then[key]), key


def test_c9_a_partial_reset_leaves_other_rows_bitwise_unchanged():
    env = go2()
    root = drive(env, 6)[:, -1]["next"].exclude("reward")
    before, physics = root.clone(), physics_state(env)
    command = env.command_manager.get_command("base_velocity").clone()
    lengths, sums = env.episode_length.clone(), env.reward_manager.episode_sums.clone()
    mask = torch.tensor([[False], [True], [False], [True]])
    root = env.reset(root.set("_reset", mask))
    kept, reset = [0, 2], [1, 3]
    for key in ("obs", "critic", "done", "terminated", "truncated"):
        assert torch.equal(root[key][kept], before[key][kept]), key
    assert torch.equal(physics_state(env)[kept], physics[kept])
    assert torch.equal(env.command_manager.get_command("base_velocity")[kept], command[kept])
    assert torch.equal(env.episode_length[kept], lengths[kept])
    assert torch.equal(env.reward_manager.episode_sums[:, kept], sums[:, kept])
    assert not torch.equal(root["obs"][reset], before["obs"][reset])
    assert env.episode_length[reset].tolist() == [0, 0]
    assert not env.reward_manager.episode_sums[:, reset].any()
    assert not env.action_manager.action[reset].any()


def test_a_reset_of_no_row_changes_nothing(tmp_path):
    env = twins(tmp_path)
    root = env.reset()
    physics, generator = physics_state(env), env.generator.get_state()
    again = env.reset(root.clone().set("_reset", torch.zeros(4, 1, dtype=torch.bool)))
    assert torch.equal(again["obs"], root["obs"])
    assert torch.equal(physics_state(env), physics)
    assert torch.equal(env.generator.get_state(), generator)


@pytest.mark.parametrize("mask", [torch.tensor([0, 1, 0, 0]), torch.zeros(4, 2) > 0])
def test_bad_reset_mask_is_refused(tmp_path, mask):
    env = twins(tmp_path)
    with pytest.raises(ConfigError, match="_reset"):
        env.reset(env.reset().set("_reset", mask))


def test_c14_env_ids_equal_their_mask_in_any_order(tmp_path):
    by_rows, by_mask = twins(tmp_path), twins(tmp_path)
    for env in (by_rows, by_mask):
        drive(env, 3)
    mask = torch.tensor([True, False, True, True]).unsqueeze(1)
    begun = by_rows.reset(env_ids=torch.tensor([3, 0, 2]))
    no = torch.zeros(4, 1, dtype=torch.bool)
    flags = dict.fromkeys(("done", "terminated", "truncated"), no)
    other = by_mask.reset(TensorDict({"_reset": mask, **flags, **by_mask.obs_buf}, [4]))
    assert set(begun.keys()) == set(other.keys())
    assert (begun == other).all()
    assert by_rows.episode_length.tolist() == [0, 3, 0, 0]
    assert torch.equal(physics_state(by_rows), physics_state(by_mask))
    every = by_rows.reset(env_ids=torch.tensor([1, 3, 2, 0]))
    assert torch.equal(every["obs"], by_rows.obs_buf["obs"])
    pos = by_rows.backend.get_state_views()["qpos"] - by_rows.backend.default_qpos
    torch.testing.assert_close(every["obs"][:, :2], pos.float(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("how", [copy.deepcopy, pickle.dumps])
def test_an_environment_cannot_be_copied_or_pickled(tmp_path, how):
    with pytest.raises(TypeError, match="ManagerBasedRlEnv"):
        how(twins(tmp_path))


@pytest.mark.parametrize(
    "rows",
    [
        torch.tensor([1, 1]),
        torch.tensor([0, -1]),
        torch.tensor([4]),
        torch.tensor([[1, 2]]),
        torch.tensor([1.0]),
        torch.tensor([True] * 4),
        [1, 2],
    ],
)
def test_c14_bad_rows_are_refused_and_nothing_changes(tmp_path, rows):
    env = twins(tmp_path)
    drive(env, 3)
    physics, lengths = physics_state(env), env.episode_length.clone()
    with pytest.raises(ConfigError, match="env_ids"):
        env.reset(env_ids=rows)
    assert torch.equal(physics_state(env), physics)
    assert torch.equal(env.episode_length, lengths)


def test_c10_a_time_limit_truncates_at_its_last_step(tmp_path):
    env = twins(tmp_path)
    assert env.max_episode_length == 5
    data = drive(env, 11)["next"]
    assert data["truncated"][:, :, 0].nonzero()[:, 1].tolist() == [4, 9] * 4
    assert not data["terminated"].any()
    assert torch.equal(data["done"], data["truncated"])


def test_c4_a_failure_at_the_time_limit_is_both():
    env = go2(episode_length_s=0.04)  # 2 steps
    data, root = env.step_and_maybe_reset(act(env, env.reset()))
    assert not data["next", "done"].any()
    fallen(env)
    data = env.step(act(env, root))["next"]
    assert data["truncated"][:, 0].tolist() == [True] * 4
    assert data["terminated"][:, 0].tolist() == [False, False, True, False]
    assert data["done"].all()


def test_drained_metrics_have_the_milliseconds_of_a_control_step(tmp_path):
    env = twins(tmp_path)
    env.reset()
    assert env.drain_metrics() == {}
    drive(env, 6)
    tags = {f"Perf/{part}_ms" for part in ("physics", "managers", "reset")}
    metrics = env.drain_metrics()
    assert tags <= set(metrics)
    assert all(metrics[tag] > 0.0 for tag in tags)
    assert env.drain_metrics() == {}


NAN, INF = torch.nan, torch.inf
BAD_ACTIONS = {
    "width": (torch.zeros(4, 3), ConfigError),
    "dtype": (torch.zeros(4, 2, dtype=torch.float64), ConfigError),
    "device": (torch.zeros(4, 2, device="meta"), ConfigError),
    "nan": (torch.tensor([[0.0, NAN], [0.0, 0.0], [INF, 0.0], [0.0, 0.0]]), NonFiniteError),
    "large": (torch.tensor([[0.0, 2e10], *[[0.0, 0.0]] * 2, [-1e30, 0.0]]), NonFiniteError),
    "both infinities": (torch.tensor([[INF, -INF], *[[0.0, 0.0]] * 3]), NonFiniteError),
}


@pytest.mark.parametrize("kind", BAD_ACTIONS)
def test_c6_bad_action_is_refused_before_physics_moves(tmp_path, kind):
    action, error = BAD_ACTIONS[kind]
    env = twins(tmp_path)
    root = env.reset()
    physics, generator = physics_state(env), env.generator.get_state()
    with pytest.raises(error, match="action") as caught:
        env._step(TensorDict({"action": action}, [4]))
    if error is NonFiniteError:
        assert caught.value.rows == {"nan": [0, 2], "large": [0, 3]}.get(kind, [0])
    assert torch.equal(physics_state(env), physics)
    assert torch.equal(env.generator.get_state(), generator)
    assert env.export_training_state()["control_steps"] == 0
    assert not env.action_manager.action.any()
    assert env.step(act(env, root))["next", "obs"].isfinite().all()


def test_c6_an_action_whose_control_physics_would_take_as_zero_is_refused(tmp_path):
    """MuJoCo takes controls beyond 1e10 as 0."""
    env = twins(tmp_path, actions={"effort": mdp.JointEffortActionCfg(scale=9e9)})
    root = act(env, env.reset(), 1.1)
    env.step(root)
    root["action"][3, 1] = -1.2
    physics = physics_state(env)
    with pytest.raises(NonFiniteError, match="action") as caught:
        env.step(root)
    assert caught.value.rows == [3]
    assert torch.equal(physics_state(env), physics)
    env.step(act(env, root, 1.1))
    with pytest.raises(ConfigError, match="scale"):
        twins(tmp_path, actions={"effort": mdp.JointEffortActionCfg(scale=2e10)})


@pytest.mark.parametrize(
    ("state", "name"),
    [
        ({"version": 2, "control_steps": 1}, "version"),
        ({"version": True, "control_steps": 1}, "version"),
        ({"version": 1, "control_steps": True}, "control_steps"),
        ({"control_steps": 1}, "version"),
        ({"version": 1, "control_steps": -1}, "control_steps"),
        ({"version": 1, "control_steps": 1.5}, "control_steps"),
        ({"version": 1}, "control_steps"),
    ],
)
def test_c25_bad_training_state_is_refused_whole(tmp_path, state, name):
    env = twins(tmp_path)
    drive(env, 3)
    with pytest.raises(ConfigError, match=name):
        env.import_training_state(state)
    assert env.export_training_state() == {"version": 1, "control_steps": 3}
    env.import_training_state({"version": 1, "control_steps": 7})
    drive(env, 2)
    assert env.export_training_state() == {"version": 1, "control_steps": 9}


def test_c26_close_twice_and_a_closed_environment_is_refused(tmp_path):
    env = twins(tmp_path)
    root = act(env, env.reset())
    env.close()
    env.close()
    with pytest.raises(EnvFaultedError, match="closed"):
        env.step(root)
    with pytest.raises(EnvFaultedError, match="closed"):
        env.reset()


def test_c7_order_of_a_step(tmp_path):
    env = twins(tmp_path, events={})
    views = env.backend.get_state_views()
    root = act(env, env.reset(), 0.4)
    views["qpos"][1] = torch.tensor([2.6, 2.6])
    data = env.step(root)["next"]
    pos = views["qpos"].float()
    assert data["terminated"][:, 0].tolist() == (pos.abs() > 2.5).any(1).tolist()
    torch.testing.assert_close(data["obs"][:, :2], pos - torch.tensor([0.3, 0.2]))
    rate = -views["qvel"].float().square().sum(1) - 0.5 * 2 * 0.4**2
    torch.testing.assert_close(data["reward"][:, 0], rate * env.step_dt)


@pytest.mark.parametrize("how", ["step", "step_and_maybe_reset", "reset", "obs_buf"])
def test_writing_into_returned_tensors_changes_nothing(tmp_path, how):
    env, spared = twins(tmp_path), twins(tmp_path)
    partial = []
    for each in (env, spared):
        returned = each.reset()
        if how == "step":
            returned = each.step(act(each, returned))
        elif how == "step_and_maybe_reset":
            _, returned = each.step_and_maybe_reset(act(each, returned))
        elif how == "obs_buf":
            returned = TensorDict(each.obs_buf)
        if each is env:
            returned.apply_(torch.Tensor.zero_)
        partial.append(each.reset(env_ids=torch.tensor([1]))["obs"])
        assert torch.equal(partial[-1], each.obs_buf["obs"])
    assert torch.equal(*partial)


REMEMBERING = {"delay_min_lag": 1, "delay_max_lag": 2, "delay_update_period": 1}


@pytest.mark.parametrize("inside", ["make", "reset", "step", "loop"])
def test_inference_mode_of_the_caller_does_not_matter(tmp_path, inside):
    position = ObservationTermCfg(
        func=mdp.joint_pos_rel, params=ON_TWINS, history_length=3, **REMEMBERING
    )
    tables = {
        "observations": {"obs": ObservationGroupCfg(terms={"pos": position})},
        "actions": {"effort": mdp.JointEffortActionCfg(scale=0.5, **REMEMBERING)},
    }
    rollouts = []
    for at in (inside, None):
        with torch.inference_mode(at == "make"):
            env = twins(tmp_path, **tables)
        with torch.inference_mode(at == "reset"):
            root, shown = env.reset(), []
        for i in range(14):
            with torch.inference_mode(at == "step"):
                step = env.step(act(env, root.clone(), 0.5))["next"]
            with torch.inference_mode(at == "loop"):
                _, root = env.step_and_maybe_reset(act(env, step.clone(), 0.5))
            with torch.inference_mode(at == "reset"):
                shown.append(env.reset(env_ids=torch.tensor([i % 4]))["obs"].clone())
        rollouts.append(torch.stack(shown))
    assert torch.equal(*rollouts)


@pytest.mark.parametrize(("seconds", "steps"), [(0.1, 5), (0.101, 6), (0.014, 1), (1.1, 55)])
def test_episode_length_is_rounded_up_to_whole_steps(tmp_path, seconds, steps):
    assert twins(tmp_path, episode_length_s=seconds).max_episode_length == steps
