"""Every packaged task on the emulated accelerator: the CPU's results, few copies."""

from __future__ import annotations

import pytest
import torch
from envs.tables import assert_bitwise_equal, drive
from reference.accelerator import DEVICE

import unilab
from unilab.tasks import SUITE_TASKS, TASKS


@pytest.mark.parametrize("task", sorted(TASKS | SUITE_TASKS))
def test_the_rollout_of_a_task_is_that_of_the_cpu_bit_for_bit(task, accelerator):
    if unilab.registry.missing_extra(task):
        pytest.skip("its suite is not installed")

    def rollout(device):
        overrides = {"num_threads": 1, "episode_length_s": 0.3}
        env = unilab.make(task, num_envs=3, seed=0, device=device, overrides=overrides)
        data = drive(env, 30)
        env.reset(env_ids=torch.tensor([2, 0]))
        rest = drive(env, 3)
        env.close()
        return data.cpu(), rest.cpu()

    for there, here in zip(rollout(DEVICE), rollout("cpu"), strict=True):
        assert_bitwise_equal(there, here)
