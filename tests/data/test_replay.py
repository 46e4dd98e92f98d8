"""Replay buffers: what is kept, what it takes, and how steps are joined."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import ReplayBuffer

from unilab.data import make_replay_buffer
from unilab.data.replay import LEARNING_KEYS
from unilab.errors import ConfigError

GAMMA = 0.9


def ticks(
    num_envs: int,
    num_ticks: int,
    *,
    terminated: list[tuple[int, int]] = (),
    truncated: list[tuple[int, int]] = (),
) -> TensorDict:
    """``[N, T]`` data in which environment ``n`` at tick ``t`` observes ``100 n + t``.

    ``(n, t)`` pairs say whose transition ``t -> t + 1`` ends the episode. The reward of a
    transition is ``10 ** -n * (t + 1)``; everything a collector adds is there as well.
    """
    n = torch.arange(num_envs).view(-1, 1, 1)
    t = torch.arange(num_ticks).view(1, -1, 1)
    flags = {
        name: torch.zeros(num_envs, num_ticks, 1, dtype=torch.bool)
        for name in ("terminated", "truncated")
    }
    for name, pairs in (("terminated", terminated), ("truncated", truncated)):
        for pair in pairs:
            flags[name][pair] = True
    obs = (100.0 * n + t).float()
    return TensorDict(
        {
            "obs": obs,
            "critic": obs.repeat(1, 1, 2),
            "action": -obs,
            "is_init": t.expand(num_envs, -1, -1) == 0,
            "collector": {"traj_ids": n.squeeze(-1).expand(-1, num_ticks)},
            "next": {
                "obs": obs + 1,
                "critic": obs.repeat(1, 1, 2) + 1,
                "reward": (10.0**-n * (t + 1)).float(),
                "done": flags["terminated"] | flags["truncated"],
                **flags,
            },
        },
        [num_envs, num_ticks],
    )


def stored(buffer: ReplayBuffer) -> TensorDict:
    """All that is stored, by environment and time."""
    data = buffer[:]
    return data[data["obs"].squeeze(-1).argsort()]


def test_a_sample_has_the_entries_that_learning_reads_and_its_index():
    buffer = make_replay_buffer(100, batch_size=4)
    buffer.extend(ticks(2, 3).reshape(-1))
    sample = buffer.sample()
    leaves = set(sample.keys(include_nested=True, leaves_only=True))
    assert leaves == {*LEARNING_KEYS, "index"}
    assert sample.batch_size == torch.Size([4])
    assert torch.equal(sample["next", "obs"], sample["obs"] + 1)


def test_absent_optional_entries_stay_absent():
    buffer = make_replay_buffer(100, batch_size=4)
    buffer.extend(ticks(2, 3).exclude("critic", ("next", "critic")).reshape(-1))
    assert "critic" not in buffer.sample()


def test_other_entries_are_kept_when_asked_for():
    buffer = make_replay_buffer(100, batch_size=4, keys=[*LEARNING_KEYS, "is_init"])
    buffer.extend(ticks(2, 3).reshape(-1))
    assert "is_init" in buffer.sample()


def test_data_in_time_order_is_flattened_to_single_rows():
    flat, shaped = (make_replay_buffer(100, batch_size=4) for _ in range(2))
    flat.extend(ticks(2, 3).reshape(-1))
    shaped.extend(ticks(2, 3))
    assert len(flat) == len(shaped) == 6
    assert torch.equal(flat[:]["obs"], shaped[:]["obs"])


def test_the_oldest_rows_are_overwritten():
    buffer = make_replay_buffer(4, batch_size=4)
    buffer.extend(ticks(1, 3).reshape(-1))
    buffer.extend(ticks(2, 3)[1])
    assert stored(buffer)["obs"].squeeze(-1).tolist() == [2.0, 100.0, 101.0, 102.0]


def test_what_was_stored_does_not_follow_the_callers_memory():
    data = ticks(2, 1)
    for buffer in (
        make_replay_buffer(100, batch_size=4),
        make_replay_buffer(100, batch_size=4, n_step=2, gamma=GAMMA),
    ):
        memory = data.clone()
        for tick in range(4):
            memory.update_(data.apply(lambda x, t=tick: x + t if x.is_floating_point() else x))
            buffer.extend(memory)
        memory.apply_(lambda x: x * 0)
        obs = stored(buffer)["obs"].squeeze(-1)
        assert obs.tolist() == sorted({*range(len(obs) // 2), *range(100, 100 + len(obs) // 2)})


def test_sampling_is_the_same_for_the_same_seed_and_apart_from_the_global_one():
    draws = []
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        buffer = make_replay_buffer(100, batch_size=8, seed=7)
        buffer.extend(ticks(4, 25).reshape(-1))
        draws.append(buffer.sample()["obs"])
    assert torch.equal(*draws)
    other = make_replay_buffer(100, batch_size=8, seed=8)
    other.extend(ticks(4, 25).reshape(-1))
    assert not torch.equal(other.sample()["obs"], draws[0])


def test_sampling_follows_the_global_generator_without_a_seed():
    buffer = make_replay_buffer(100, batch_size=8)
    buffer.extend(ticks(4, 25).reshape(-1))
    draws = []
    for _ in range(2):
        torch.manual_seed(3)
        draws.append(buffer.sample()["obs"])
    assert torch.equal(*draws)


@pytest.mark.parametrize("chunk", [1, 2, 3, 9])
def test_n_step_rows_look_ahead_and_end_with_their_episode(chunk):
    """Nine ticks; environment 0 terminates on tick 3, environment 1 is truncated on tick 4."""
    data = ticks(2, 9, terminated=[(0, 3)], truncated=[(1, 4)])
    buffer = make_replay_buffer(100, batch_size=4, n_step=3, gamma=GAMMA)
    for start in range(0, 9, chunk):
        buffer.extend(data[:, start : start + chunk])
    rows = stored(buffer)
    assert len(rows) == 12  # the last three ticks of each wait for their successors
    for env, end in ((0, 3), (1, 4)):
        for tick in range(6):
            row = rows[env * 6 + tick]
            assert row["obs"].item() == 100 * env + tick
            last = min(tick + 2, end) if tick <= end else tick + 2
            steps = last - tick + 1
            assert row["steps_to_next_obs"].item() == steps
            assert row["next", "obs"].item() == 100 * env + last + 1
            assert row["next", "critic"].tolist() == [100 * env + last + 1] * 2
            reward = sum(GAMMA**k * 10.0**-env * (tick + k + 1) for k in range(steps))
            assert row["next", "reward"].item() == pytest.approx(reward, rel=1e-6)
            assert row["next", "terminated"].item() == (env == 0 and last == end)
            assert row["next", "truncated"].item() == (env == 1 and last == end)
            assert row["next", "done"].item() == (last == end)


def test_n_step_samples_give_the_loss_the_discount_of_their_length():
    buffer = make_replay_buffer(100, batch_size=64, n_step=3, gamma=GAMMA)
    buffer.extend(ticks(2, 9, terminated=[(0, 3)]))
    sample = buffer.sample()
    assert sample["steps_to_next_obs"].shape == (64, 1)
    assert set(sample["steps_to_next_obs"].flatten().tolist()) <= {1, 2, 3}


def test_storage_takes_little_more_than_its_tensors():
    """A million Go2-sized transitions, by the bytes of the storage's own tensors."""
    capacity, obs, critic, action = 1_000_000, 45, 49, 12
    rows = TensorDict(
        {
            "obs": torch.zeros(8, obs),
            "critic": torch.zeros(8, critic),
            "action": torch.zeros(8, action),
            "is_init": torch.zeros(8, 1, dtype=torch.bool),
            "step_count": torch.zeros(8, 1, dtype=torch.long),
            "next": {
                "obs": torch.zeros(8, obs),
                "critic": torch.zeros(8, critic),
                "reward": torch.zeros(8, 1),
                "done": torch.zeros(8, 1, dtype=torch.bool),
                "terminated": torch.zeros(8, 1, dtype=torch.bool),
                "truncated": torch.zeros(8, 1, dtype=torch.bool),
                "episode_reward": torch.zeros(8, 1),
            },
        },
        [8],
    )
    buffer = make_replay_buffer(capacity, batch_size=512)
    buffer.extend(rows)  # allocates the whole, of which the system backs only what is written
    held = sum(
        leaf.untyped_storage().nbytes()
        for leaf in buffer.storage._storage.values(include_nested=True, leaves_only=True)
    )
    needed = capacity * (4 * (2 * obs + 2 * critic + action + 1) + 3)
    assert needed <= held <= 1.15 * needed


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"capacity": 0}, "capacity"),
        ({"batch_size": 0}, "batch_size"),
        ({"n_step": 0}, "n_step"),
        ({"n_step": 3}, "gamma"),
        ({"n_step": 3, "gamma": 1.5}, "gamma"),
    ],
)
def test_a_setting_out_of_range_is_refused(kwargs, message):
    with pytest.raises(ConfigError, match=message):
        make_replay_buffer(**{"capacity": 10, "batch_size": 2, **kwargs})


@pytest.mark.parametrize("key", ["obs", "action", ("next", "obs"), ("next", "reward")])
def test_data_without_what_learning_needs_is_refused(key):
    with pytest.raises(ConfigError, match="keys="):
        make_replay_buffer(10, batch_size=2).extend(ticks(2, 3).exclude(key))


def test_an_entry_that_comes_or_goes_later_is_refused():
    """The storage would hand out what lay in its memory."""
    whole, without = ticks(2, 3), ticks(2, 3).exclude("critic", ("next", "critic"))
    for first, then, message in (
        (whole, without, "critic"),
        (without, whole, "critic"),
    ):
        buffer = make_replay_buffer(20, batch_size=2)
        buffer.extend(first)
        with pytest.raises(ConfigError, match=message):
            buffer.extend(then)
        buffer.extend(first)
        assert len(buffer) == 12


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32])
def test_steps_are_joined_by_flags_of_any_type(dtype):
    data = ticks(2, 6, terminated=[(0, 2)], truncated=[(1, 3)])
    numbers = data.clone()
    for key in ("done", "terminated", "truncated"):
        numbers["next", key] = data["next", key].to(dtype)
    buffers = []
    for given in (data, numbers):
        buffers.append(make_replay_buffer(100, batch_size=4, n_step=3, gamma=GAMMA))
        buffers[-1].extend(given)
    for key in (("next", "reward"), ("next", "obs"), "steps_to_next_obs"):
        assert torch.equal(buffers[1][:][key], buffers[0][:][key])


def test_data_without_ends_of_episodes_is_refused_where_steps_are_joined():
    buffer = make_replay_buffer(10, batch_size=2, n_step=2, gamma=GAMMA)
    with pytest.raises(ConfigError, match="done"):
        buffer.extend(ticks(2, 3).exclude(("next", "done")))


def test_flat_data_is_refused_where_steps_are_joined():
    buffer = make_replay_buffer(100, batch_size=4, n_step=3, gamma=GAMMA)
    with pytest.raises(ConfigError, match=r"\[N, T\].*\[6\]"):
        buffer.extend(ticks(2, 3).reshape(-1))


def test_another_number_of_environments_is_refused_where_steps_are_joined():
    buffer = make_replay_buffer(100, batch_size=4, n_step=3, gamma=GAMMA)
    buffer.extend(ticks(2, 3))
    with pytest.raises(ConfigError, match=r"2 environments.*3"):
        buffer.extend(ticks(3, 3))


def test_a_capacity_that_cannot_be_allocated_says_what_it_takes():
    buffer = make_replay_buffer(10**14, 8)
    with pytest.raises(ConfigError, match=r"capacity=100,000,000,000,000 .* GiB"):
        buffer.extend(ticks(4, 1))


@pytest.mark.parametrize(
    "index", [torch.tensor([5, 0, 5, 39]), torch.tensor([-1, 3]), slice(2, 9, 3), 7, [1, 2]]
)
def test_rows_are_those_of_the_storage_however_they_are_picked(index):
    buffer = make_replay_buffer(1000, 8)
    data = ticks(4, 10, terminated=[(1, 3)]).reshape(-1)
    buffer.extend(data)
    kept = data.select(*LEARNING_KEYS, strict=False)
    picked = buffer.storage.get(index).exclude("index")
    assert (picked == kept[index]).all()
    if isinstance(index, torch.Tensor):
        picked.zero_()  # a copy
        assert (buffer.storage.get(slice(None)).exclude("index") == kept).all()


def test_rows_that_were_not_written_yet_are_not_picked():
    buffer = make_replay_buffer(1000, 8)
    buffer.extend(ticks(4, 10).reshape(-1))
    with pytest.raises(IndexError):
        buffer.storage.get(torch.tensor([40]))
