"""Replay buffers: stored entries, memory, and n-step transitions."""

from __future__ import annotations

import pytest
import torch
from reference.processes import semaphores
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


def test_a_sample_has_the_learning_keys_and_its_index():
    buffer = make_replay_buffer(100, batch_size=4)
    buffer.extend(ticks(2, 3).reshape(-1))
    sample = buffer.sample()
    leaves = set(sample.keys(include_nested=True, leaves_only=True))
    assert leaves == {*LEARNING_KEYS, "index"}
    assert sample.batch_size == torch.Size([4])
    assert torch.equal(sample["next", "obs"], sample["obs"] + 1)


def test_optional_entries_are_stored_where_the_data_has_them():
    buffer = make_replay_buffer(100, batch_size=4, keys=[*LEARNING_KEYS, "is_init"])
    buffer.extend(ticks(2, 3).exclude("critic", ("next", "critic")).reshape(-1))
    assert "critic" not in buffer.sample()
    assert "is_init" in buffer.sample()


def test_the_oldest_rows_are_overwritten():
    buffer = make_replay_buffer(4, batch_size=4)
    buffer.extend(ticks(1, 3).reshape(-1))
    buffer.extend(ticks(2, 3)[1])
    assert stored(buffer)["obs"].squeeze(-1).tolist() == [2.0, 100.0, 101.0, 102.0]


def test_stored_rows_are_copies():
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


@pytest.mark.parametrize(("seed", "same"), [(7, True), (None, False)])
def test_sampling_uses_its_seed_or_the_global_generator(seed, same):
    draws = []
    for global_seed in (1, 2, 2):
        torch.manual_seed(global_seed)
        buffer = make_replay_buffer(100, batch_size=8, seed=seed)
        buffer.extend(ticks(4, 25).reshape(-1))
        draws.append(buffer.sample()["obs"])
    assert torch.equal(draws[0], draws[1]) == same
    assert torch.equal(draws[1], draws[2])


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


def test_an_emptied_buffer_joins_nothing_to_what_came_before():
    data = ticks(2, 9)
    buffer = make_replay_buffer(100, batch_size=4, n_step=3, gamma=GAMMA)
    buffer.extend(data[:, :4])
    buffer.empty()
    buffer.extend(data[:, 4:])
    assert (stored(buffer)["obs"].squeeze(-1) % 100).tolist() == [4.0, 5.0] * 2


def test_an_emptied_buffer_gives_no_batch_that_was_sampled_before():
    data = ticks(2, 9)
    buffer = make_replay_buffer(100, batch_size=4, prefetch=2)
    buffer.extend(data[:, :4])
    buffer.sample()
    buffer.empty()
    buffer.extend(data[:, 4:])
    for _ in range(4):
        assert (buffer.sample()["obs"] % 100 >= 4).all()


def test_n_step_joins_the_ticks_of_an_unbatched_environment():
    data = ticks(1, 9)
    one, batched = (make_replay_buffer(100, batch_size=4, n_step=3, gamma=GAMMA) for _ in range(2))
    for part in (data[:, :4], data[:, 4:]):
        batched.extend(part)
        single = part[0]
        single.names = ["time"]
        one.extend(single)
    assert (stored(one) == stored(batched)).all()


def test_storage_takes_little_more_than_its_tensors():
    """A million Go2-sized transitions, by the bytes of the storage's own tensors."""
    capacity, widths = 1_000_000, {"obs": 45, "critic": 49, "action": 12}
    flag = torch.zeros(8, 1, dtype=torch.bool)
    flags = {"done": flag, "terminated": flag, "truncated": flag}
    both = {"obs": torch.zeros(8, 45), "critic": torch.zeros(8, 49)}
    rows = TensorDict(
        {
            **both,
            "action": torch.zeros(8, 12),
            "step_count": torch.zeros(8, 1, dtype=torch.long),  # not read by learning
            "next": {**both, **flags, "reward": torch.zeros(8, 1)},
        },
        [8],
    )
    buffer = make_replay_buffer(capacity, batch_size=512)
    buffer.extend(rows)  # allocates the whole, of which the system backs only what is written
    held = sum(
        leaf.untyped_storage().nbytes()
        for leaf in buffer.storage._storage.values(include_nested=True, leaves_only=True)
    )
    per_row = 4 * (2 * widths["obs"] + 2 * widths["critic"] + widths["action"] + 1) + 3
    assert capacity * per_row <= held <= 1.15 * capacity * per_row


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
def test_data_without_an_entry_that_learning_reads_is_refused(key):
    with pytest.raises(ConfigError, match="keys="):
        make_replay_buffer(10, batch_size=2).extend(ticks(2, 3).exclude(key))


@pytest.mark.parametrize("appears", [True, False])
def test_an_entry_that_appears_or_vanishes_is_refused(appears):
    first, then = ticks(2, 3), ticks(2, 3).exclude("critic", ("next", "critic"))
    if appears:
        first, then = then, first
    buffer = make_replay_buffer(20, batch_size=2)
    buffer.extend(first)
    with pytest.raises(ConfigError, match="critic"):
        buffer.extend(then)
    buffer.extend(first)
    assert len(buffer) == 12


@pytest.mark.parametrize("change", [lambda obs: obs[..., :1], torch.Tensor.double])
def test_rows_of_another_width_or_dtype_are_refused(change):
    first = ticks(2, 3).set("obs", torch.zeros(2, 3, 3))
    buffer = make_replay_buffer(20, batch_size=2)
    buffer.extend(first)
    with pytest.raises(ConfigError, match=r"obs must be torch\.float32 of shape \[3\]"):
        buffer.extend(first.clone().set("obs", change(first["obs"])))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (ticks(2, 3).exclude(("next", "done")), "done"),
        (ticks(2, 3).reshape(-1), r"\[N, T\].*\[6\]"),
        (ticks(3, 3), "2 environments.*3"),
    ],
)
def test_n_step_refuses_data_that_it_cannot_join(data, message):
    buffer = make_replay_buffer(100, batch_size=4, n_step=3, gamma=GAMMA)
    buffer.extend(ticks(2, 3))
    with pytest.raises(ConfigError, match=message):
        buffer.extend(data)


def test_a_buffer_makes_no_semaphore_which_a_killed_process_would_leave_behind():
    before = semaphores()
    buffer = make_replay_buffer(100, batch_size=4, n_step=3, gamma=GAMMA, prefetch=2)
    for _ in range(2):
        buffer.extend(ticks(2, 3))
    buffer.sample()
    assert semaphores() <= before


def test_a_capacity_that_cannot_be_allocated_is_named():
    buffer = make_replay_buffer(10**14, 8)
    with pytest.raises(ConfigError, match=r"capacity=100,000,000,000,000 .* GiB"):
        buffer.extend(ticks(4, 1))


@pytest.mark.parametrize(
    "index", [torch.tensor([5, 0, 5, 39]), torch.tensor([-1, 3]), slice(2, 9, 3), 7, [1, 2]]
)
def test_rows_are_the_same_for_every_kind_of_index(index):
    buffer = make_replay_buffer(1000, 8)
    data = ticks(4, 10, terminated=[(1, 3)]).reshape(-1)
    buffer.extend(data)
    kept = data.select(*LEARNING_KEYS, strict=False)
    picked = buffer.storage.get(index).exclude("index")
    assert (picked == kept[index]).all()
    if isinstance(index, torch.Tensor):
        picked.zero_()  # a copy
        assert (buffer.storage.get(slice(None)).exclude("index") == kept).all()
