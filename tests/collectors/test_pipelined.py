"""PipelinedCollector beside its data: overlap, batches, state, interrupts (ADR-0001)."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
import torch
from reference.collecting import assert_same, sync
from reference.counting import Counting, Guided, making
from reference.processes import wait_until
from tensordict import TensorDict, TensorDictBase
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import Compose, InitTracker, StepCounter, TransformedEnv, VecNormV2

import unilab
from unilab.collectors import (
    EnvProcess,
    PipelinedCollector,
    make_collector,
    process,
    resolve_collector_tensor_placement,
)
from unilab.collectors.worker import Phase
from unilab.data import make_replay_buffer
from unilab.errors import CollectorError, ConfigError
from unilab.modules import FlashSACActor, FlashSACPolicy

pytestmark = pytest.mark.usefixtures("warm_start")
N = 3
make_pendulum = unilab.registry.factory(
    "pendulum_swingup", num_envs=N, seed=0, overrides={"episode_length_s": 0.1, "num_threads": 1}
)


def explorer() -> FlashSACPolicy:
    torch.manual_seed(0)
    return FlashSACPolicy(FlashSACActor(3, 1, hidden_dim=8, num_blocks=1))


def zero(td: TensorDictBase) -> TensorDictBase:
    return td.set("action", torch.zeros(N, 1))


def frames(ticks: int) -> dict[str, int]:
    return {"frames_per_batch": N, "total_frames": ticks * N}


def test_c13_environment_steps_while_the_loop_body_runs(pipelined):
    collector = pipelined(Counting(), **frames(5))
    env = collector.env
    for tick, _ in enumerate(collector):
        if tick == 4:
            break
        # The collector is not asked for anything here, and yet the next step is done.
        wait_until(lambda tick=tick: (env.tick, env.phase) == (tick + 1, Phase.WAIT))


def test_c11_environment_is_in_the_other_process_and_the_policy_in_this_one(pipelined):
    here, lock = [], threading.Lock()

    def policy(td: TensorDictBase) -> TensorDictBase:
        with lock:  # which cannot be pickled
            here.append(os.getpid())
        return zero(td)

    collector = pipelined(Counting(faults={"reports": True}), policy, **frames(3))
    list(collector)
    assert here == [os.getpid()] * 3
    there = collector.env.drain_metrics()["Metrics/process"]
    assert there == collector.env.pid != os.getpid()


@pytest.mark.parametrize("in_place", [False, True])
def test_c12_batch_is_a_copy_or_the_shared_memory_itself(pipelined, in_place):
    batches = list(pipelined(Counting(), return_same_td=in_place, **frames(8)))
    assert len({batch["obs"].data_ptr() for batch in batches}) == (3 if in_place else 8)
    assert batches[-1]["next", "obs"][0, 0, 1] == 4


def test_replay_buffer_is_extended_after_postproc(pipelined):
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=4)
    collector = pipelined(
        make_pendulum,
        explorer(),
        replay_buffer=buffer,
        postproc=lambda batch: batch.reshape(-1),
        **frames(8),
    )
    assert list(collector) == [None] * 8
    theirs = list(sync(make_pendulum, explorer(), **frames(8)))
    assert torch.equal(buffer[:]["obs"], torch.cat([b.reshape(-1)["obs"] for b in theirs]))


def test_multi_step_returns_join_the_batches_over_resets(pipelined):
    buffer = make_replay_buffer(100, batch_size=4, n_step=3, gamma=0.5)
    for batch in pipelined(Counting(), zero, return_same_td=True, **frames(12)):
        buffer.extend(batch)
    rows = buffer[:]
    first = rows[rows["obs"][:, 0] == 0]
    assert first["obs"][:, 1].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert first["next", "obs"][:, 1].tolist() == [3, 4, 4, 4, 3, 4, 4, 4, 3]
    assert first["steps_to_next_obs"].flatten().tolist() == [3, 3, 2, 1, 3, 3, 2, 1, 3]


def test_c28_iteration_continues_where_it_stopped_and_counts_in_its_state(pipelined):
    collector = pipelined(make_pendulum, explorer(), **frames(12))
    ours = [next(iter(collector)) for _ in range(5)]
    state = collector.state_dict()
    assert state["frames"] == 5 * N
    # The environment is a step ahead; the state is that of the steps yielded.
    assert state["env_training_state"]["control_steps"] == 5
    ours += list(collector)
    assert_same(ours, list(sync(make_pendulum, explorer(), **frames(12))))
    state["env_training_state"]["control_steps"] = 77
    collector.load_state_dict(state)
    assert collector.env.call("export_training_state")["control_steps"] == 77
    assert len(list(collector)) == 7


def test_c28_state_has_the_transforms_and_continues_numbering_episodes(pipelined):
    def normalised() -> TransformedEnv:
        return TransformedEnv(
            Counting()(), Compose(InitTracker(), VecNormV2(["obs"], decay=0.9), StepCounter())
        )

    collector = pipelined(normalised, **frames(12))
    batches = [batch for _, batch in zip(range(6), collector, strict=False)]
    state = collector.state_dict()
    again = pipelined(normalised, **frames(12))
    again.load_state_dict(state)
    moments = "transforms.1._extra_state"
    loaded, saved = again.env.call("state_dict")[moments], state["env_state_dict"][moments]
    assert torch.equal(loaded["loc.-|-.obs"], saved["loc.-|-.obs"])
    assert loaded["loc.-|-.obs"].any()
    used = {int(i) for batch in batches for i in batch["collector", "traj_ids"].flatten()}
    assert not used & set(next(iter(again))["collector", "traj_ids"].flatten().tolist())


def test_c28_state_of_another_collector_is_refused_and_nothing_of_it_loaded(pipelined):
    collector = pipelined(Counting(), **frames(3))
    state = sync(Counting(), None, frames_per_batch=N).state_dict() | {"frames": 3 * N}
    with pytest.raises(KeyError, match="next_traj_id"):
        collector.load_state_dict(state)
    assert len(list(collector)) == 3


def test_error_of_the_policy_ends_the_collector_as_torchrls(pipelined):
    def broken(td: TensorDictBase) -> TensorDictBase:
        if td["obs"][2, 1] == 2:  # not when a Collector tries it
            raise ValueError("no idea")
        return zero(td)

    ours, theirs = (kind(Counting(), broken, **frames(9)) for kind in (pipelined, sync))
    for collector in (ours, theirs):
        with pytest.raises(ValueError, match="no idea"):
            list(collector)
    assert ours.env.closed
    assert theirs.closed


@pytest.mark.parametrize("ticks", [1, 3])
def test_ctrl_c_in_the_policy_loses_no_batch(pipelined, ticks):
    calls = 0

    def policy(td: TensorDictBase) -> TensorDictBase:
        nonlocal calls
        calls += 1
        if calls in (4, 5, 9):
            raise KeyboardInterrupt
        return zero(td)

    collector = pipelined(Counting(), policy, frames_per_batch=N * ticks, total_frames=12 * N)
    ours: list[TensorDictBase] = []
    interrupts = 0
    while len(ours) < 12 // ticks:
        try:
            ours += [next(iter(collector))]
        except KeyboardInterrupt:
            interrupts += 1
    assert interrupts == 3
    steps = torch.cat([batch["next", "obs"][2, :, 1] for batch in ours])
    assert steps.tolist() == [1, 2, 3, 4, 5, 6] * 2


def test_ctrl_c_after_a_step_was_sent_does_not_step_twice(pipelined):
    collector = pipelined(Counting(), **frames(12))
    send, sent = collector.env.send, []

    def interrupted(*message: Any) -> int:
        number = send(*message)
        sent.append(message[0])
        if sent.count("step") in (4, 5):
            raise KeyboardInterrupt
        return number

    collector.env.send = interrupted
    ours: list[float] = []
    while len(ours) < 12:
        try:
            ours += [next(iter(collector))["next", "obs"][2, 0, 1].item()]
        except KeyboardInterrupt:
            continue
    assert ours == [1, 2, 3, 4, 5, 6] * 2
    assert sent.count("step") == 14


def test_env_process_has_one_collector(pipelined):
    env = EnvProcess(Counting())
    collector = pipelined(env, **frames(3))
    with pytest.raises(CollectorError, match="EnvProcess"):
        PipelinedCollector(env, frames_per_batch=N)
    assert len(list(collector)) == 3


def test_metrics_of_the_environment_reach_the_learner_if_it_has_any(pipelined):
    collector = pipelined(make_pendulum, explorer(), **frames(20))
    for tick, _ in enumerate(collector):
        if tick == 10:
            assert collector.env.drain_metrics()["Episode_Termination/time_out"] == 1.0
    collector.shutdown()
    assert collector.env.drain_metrics() == {}
    without = pipelined(Counting(), frames_per_batch=N).env
    assert (without.drain_metrics(), without.mirror) == ({}, None)


class Interruptor:
    """Stops at the first question after ``limit`` others."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def collection_stopped(self) -> bool:
        self.limit -= 1
        return self.limit < 0


def test_interruptor_ends_the_wait_and_iteration_can_continue(pipelined):
    env = EnvProcess(Counting(faults={"slow_reset": 1.0}))
    collector = pipelined(env, interruptor=Interruptor(0), **frames(2))
    assert list(collector) == []
    collector.set_seed(3)  # waits for the reset all the same
    env.interruptor = None
    assert [batch["next", "obs"][0, 0, 1].item() for batch in collector] == [1, 2]


def test_interruptor_is_asked_at_each_tick(pipelined):
    collector = pipelined(Counting(), None, frames_per_batch=N, interruptor=Interruptor(4))
    assert [batch["obs"][0, 0, 1].item() for batch in collector] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("make_env", "policy", "name"),
    [
        (Counting(), lambda td: td, "action"),
        (making(Guided), zero, "goal"),
        (Counting(), lambda td: None, "policy must return"),
    ],
)
def test_missing_output_of_the_policy_is_named(pipelined, make_env, policy, name):
    collector = pipelined(make_env, policy, frames_per_batch=N)
    with pytest.raises(CollectorError, match=name):
        next(iter(collector))
    assert collector.env.closed


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("frames_per_batch", 0),
        ("make_env", Counting()()),
        ("make_env", [Counting()]),
    ],
)
def test_bad_argument_is_refused_by_name_before_a_process_starts(monkeypatch, name, value):
    monkeypatch.setattr(process, "_start", lambda *_: pytest.fail("a process was started"))
    with pytest.raises(ConfigError, match=name):
        PipelinedCollector(**{"make_env": Counting(), "frames_per_batch": N} | {name: value})


def test_weights_need_no_sending(pipelined):
    collector = pipelined(Counting(), **frames(1))
    collector.update_policy_weights_()
    assert isinstance(next(iter(collector)), TensorDict)


def test_making_a_collector_draws_nothing_and_does_not_call_the_policy(pipelined):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    pipelined(Counting(), lambda td: pytest.fail("it was called"), frames_per_batch=N)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("pipelined", [False, True])
def test_make_collector_steps_in_turns_or_at_the_same_time(pipelined):
    collector = make_collector(
        make_pendulum,
        explorer(),
        pipelined=pipelined,
        placement=resolve_collector_tensor_placement("auto", "cpu"),
        **frames(8),
    )
    assert isinstance(collector, PipelinedCollector if pipelined else Collector)
    starts = [bool(data["is_init"].all()) for data in collector]
    collector.shutdown()
    # Episodes of five steps: noise restarts at the first and at the sixth.
    assert starts == [i % 5 == 0 for i in range(8)]
