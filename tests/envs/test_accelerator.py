"""Environments on the emulated accelerator: the CPU's results, few copies (0011-C18, C24, C27)."""

from __future__ import annotations

import pytest
import torch
from envs.tables import assert_bitwise_equal, drive
from reference.accelerator import DEVICE

import unilab
from unilab.tasks import SUITE_TASKS, TASKS

N = 4
every_task = pytest.mark.parametrize("task", sorted(TASKS | SUITE_TASKS))


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


def ticks(env, traffic, steps):
    """``done`` rows, and the copies up and down and the waits, of every step of a rollout."""
    root = env.reset()
    for _ in range(steps):
        root.set("action", env.rand_action()["action"])
        traffic.clear()
        data, root = env.step_and_maybe_reset(root)
        copies = list(traffic.up), list(traffic.down), list(traffic.waits)
        yield int(data["next", "done"].sum()), *copies


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
