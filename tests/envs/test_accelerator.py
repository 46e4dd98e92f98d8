"""Environments on the emulated accelerator: the CPU's results, few copies (0011-C18)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from envs.tables import act, assert_bitwise_equal, drive
from reference.accelerator import DEVICE
from reference.everything import FRICTION, go2_with_everything

import unilab
from unilab.envs import EventTermCfg, ManagerBasedRlEnv, NanGuardCfg, checked_mirror, mdp
from unilab.envs.nan_guard import replay_dump
from unilab.errors import NonFiniteError
from unilab.tasks import SUITE_TASKS, TASKS
from unilab.tasks.velocity.go2 import go2_velocity_flat

N = 4
QUICK = {*TASKS, "gym/Ant-v5", "dmc/walker-run"}
every_task = pytest.mark.parametrize(
    "task",
    [
        task if task in QUICK else pytest.param(task, marks=pytest.mark.slow)
        for task in sorted(TASKS | SUITE_TASKS)
    ],
)


def make(task, device, **overrides):
    if unilab.registry.missing_extra(task):
        pytest.skip("its suite is not installed")
    overrides = {"num_threads": 1, **overrides}
    return unilab.make(task, num_envs=N, seed=0, device=device, overrides=overrides)


@every_task
def test_a_task_computes_what_it_computes_on_the_cpu_bit_for_bit(task, accelerator):
    ends = []
    for device in (DEVICE, "cpu"):
        env = make(task, device, episode_length_s=0.3)
        data = drive(env, 25)
        env.reset(env_ids=torch.tensor([2, 0], device=device))
        ends.append(torch.cat((data, drive(env, 3)), 1).cpu())
        env.close()
    assert_bitwise_equal(*ends)


def test_mirror_of_a_task_with_everything_is_checked_on_the_device(accelerator):
    there, here = (
        checked_mirror(ManagerBasedRlEnv(go2_with_everything(), num_envs=N, device=device))
        for device in (DEVICE, "cpu")
    )
    assert all(
        torch.equal(*pair)
        for key, value in here.items()
        for pair in zip(there[key], value, strict=True)
    )


def ticks(env, traffic, steps):
    """Rows that are done, copies up and down, and waits, of every step of a rollout."""
    root = env.reset()
    for _ in range(steps):
        root.set("action", env.rand_action()["action"])
        traffic.clear()
        data, root = env.step_and_maybe_reset(root)
        seen = list(traffic.up), list(traffic.down), list(traffic.waits)
        yield int(data["next", "done"].sum()), *seen


@every_task
def test_c18_a_step_is_one_packet_up_and_one_action_down_and_a_reset_one_more_each_way(
    task, accelerator
):
    env = make(task, DEVICE, episode_length_s=0.3, init_at_random_ep_len=True)
    packet = 4 * N * env.scene.plan.packet.shape[1] if task in TASKS else None
    ctrl, seen = 4 * N * len(env.backend.actuators), set()
    for done, up, down, _ in ticks(env, accelerator, 25):
        assert len(up) == len(down) == 1 + (done > 0), (done, up, down)
        assert down[0].bytes == ctrl
        assert packet in (None, up[0].bytes)
        seen.add(done)
    assert {0} < seen, "some ticks with a reset, some without"


def test_a_step_waits_only_for_its_checks_and_for_episodes_that_end(accelerator):
    """As docs/guide/backends.md says."""
    env = make("go2_velocity_flat", DEVICE, episode_length_s=0.3)
    step = {
        "is_within": 1,  # the action
        "is_finite": 5,  # packet, rewards, metrics of the command, two groups of observations
        "_step_and_maybe_reset": 1,  # whether an episode ended
    }
    reset = {"_step_and_maybe_reset": 1, "restart": 2, "is_finite": 2}  # which; command, push; obs
    for done, _, _, waits in ticks(env, accelerator, 25):
        found = Counter(wait.where.split()[-1] for wait in waits)
        assert found == Counter(step) + Counter(reset if done else {})


def everything(tmp_path):
    """Every manager, with a push every 5 steps, new ground every 7 and a force every 4."""
    cfg = go2_with_everything()
    ground = EventTermCfg(
        func=mdp.randomize_geom_friction,
        mode="interval",
        interval_range_s=(0.14, 0.14),
        params=FRICTION,
    )
    push = replace(cfg.events["push"], interval_range_s=(0.1, 0.1))
    shove = replace(cfg.events["wrench"], mode="interval", interval_range_s=(0.08, 0.08))
    return replace(
        cfg,
        init_at_random_ep_len=False,
        events={**cfg.events, "push": push, "ground": ground, "shove": shove},
        nan_guard=NanGuardCfg(output_dir=tmp_path),
    )


def test_events_commands_delays_recorders_and_curriculum_do_what_they_do_on_the_cpu(
    tmp_path, accelerator
):
    ends = []
    for device in (DEVICE, "cpu"):
        env = ManagerBasedRlEnv(everything(tmp_path), num_envs=N, device=device, seed=0)
        data, metrics = drive(env, 24).cpu(), env.drain_metrics()
        episodes = env.recorder_manager.drain()
        ends.append((data, episodes, {k: v for k, v in metrics.items() if "Perf/" not in k}))
    (data, episodes, metrics), (data_here, episodes_here, metrics_here) = ends
    assert_bitwise_equal(data, data_here)
    assert len(episodes) == len(episodes_here) == 2  # of the recorded environments
    for there, here in zip(episodes, episodes_here, strict=True):
        assert_bitwise_equal(there, here)
    assert metrics == metrics_here


def test_c18_events_cost_one_copy_each_way_whatever_they_write(tmp_path, accelerator):
    """One more each way for an event that starts from the current state; one for recorders. A force
    on bodies is a copy to the CPU and none back."""
    env = ManagerBasedRlEnv(everything(tmp_path), num_envs=N, device=DEVICE, seed=0)
    for step, (done, up, down, _) in enumerate(ticks(env, accelerator, 12), start=1):
        events = 2 * (step % 5 == 0) + (step % 7 == 0)
        forces = step % 4 == 0
        assert (done, len(up), len(down)) == (0, 1 + events, 1 + events + forces), step
    drained = env.recorder_manager.drain()
    accelerator.clear()
    env.reset()
    assert drained == []
    assert [event.where.split()[-1] for event in accelerator.down] == ["_on_host", "pre_reset"]
    assert [event.where.split()[-1] for event in accelerator.up] == ["set_ranges", "_sent"]


def test_a_dump_of_the_nan_guard_is_the_cpus(tmp_path, accelerator):
    reports = []
    for device in (DEVICE, "cpu"):
        folder = tmp_path / str(device)[:3]
        cfg = everything(folder)
        cfg = replace(cfg, terminations=go2_velocity_flat().terminations)
        env = ManagerBasedRlEnv(cfg, num_envs=N, device=device, seed=0)
        root = act(env, env.reset())
        _, root = env.step_and_maybe_reset(root)
        env.backend.get_state_views()["qvel"][2, 7] = torch.nan
        with pytest.raises(NonFiniteError, match=r"\[2\]"):
            env.step(act(env, root))
        (path,) = folder.iterdir()
        replayed = replay_dump(path)
        assert replayed.same
        reports.append(replayed.report)
    assert reports[0] == reports[1]
