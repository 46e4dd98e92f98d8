"""Same seed, same rollout, bit for bit (0011-C5)."""

from dataclasses import replace

import torch
from envs.tables import assert_bitwise_equal, drive, go2, twins

from unilab.envs import EventTermCfg, mdp
from unilab.tasks.velocity.go2 import go2_velocity_flat

PUSHED = {
    **replace(go2_velocity_flat(), randomize=False).events,
    "push": EventTermCfg(
        func=mdp.push_by_setting_velocity,
        mode="interval",
        interval_range_s=(0.05, 0.2),
        params={"velocity_range": {"x": (-1.0, 1.0), "yaw": (-1.0, 1.0)}},
    ),
}


def robot(**changes):
    """Go2 with everything random in it: noise, commands, resets, pushes, short episodes."""
    return go2(6, **{"episode_length_s": 0.2, "events": PUSHED, **changes})


def test_the_same_seed_gives_the_same_rollout_at_construction_and_later():
    env = robot(seed=3, init_at_random_ep_len=True)
    first = drive(env, 25)
    env.set_seed(3)
    assert_bitwise_equal(drive(env, 25), first)
    again = robot(seed=3, init_at_random_ep_len=True, num_threads=2)
    assert_bitwise_equal(drive(again, 25), first)


def test_another_seed_gives_another_rollout():
    first, other = drive(robot(seed=3), 5), drive(robot(seed=4), 5)
    for key in ("obs", "critic"):
        assert not torch.equal(first[key][:, 0], other[key][:, 0]), key


def test_pytorchs_threads_do_not_matter():
    outside = torch.get_num_threads()
    rollouts = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            rollouts.append(drive(robot(seed=3), 25))
    finally:
        torch.set_num_threads(outside)
    assert_bitwise_equal(*rollouts)


def test_the_callers_random_numbers_neither_matter_nor_move(tmp_path):
    torch.manual_seed(0)
    first = drive(twins(tmp_path), 8)
    after = torch.rand(3)
    torch.manual_seed(0)
    assert torch.equal(after, torch.rand(3))
    torch.manual_seed(1)
    assert_bitwise_equal(drive(twins(tmp_path), 8), first)


def test_without_a_seed_rollouts_differ_and_the_callers_generator_stays(tmp_path):
    torch.manual_seed(0)
    first, other = (twins(tmp_path, seed=None).reset()["obs"] for _ in range(2))
    after = torch.rand(3)
    assert not torch.equal(first, other)
    torch.manual_seed(0)
    assert torch.equal(after, torch.rand(3))
