"""The pipelined collector gives what TorchRL's synchronous one gives, while the caller works.

Clauses are those of ADR-0001.
"""

from __future__ import annotations

import os
import threading
from itertools import islice
from typing import Any

import pytest
import torch
from reference.collecting import assert_same, sync
from reference.counting import Counting
from reference.pendulum import pendulum
from reference.processes import wait_until
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.data import LazyTensorStorage, ListStorage, ReplayBuffer
from torchrl.envs import Compose, InitTracker, StepCounter, TransformedEnv, VecNormV2
from torchrl.envs.utils import ExplorationType

import unilab
from unilab.collectors import PipelinedCollector, process
from unilab.collectors.placement import Placement
from unilab.collectors.process import EnvProcess
from unilab.collectors.worker import Phase
from unilab.data import make_replay_buffer
from unilab.errors import CollectorError, ConfigError, PlacementError
from unilab.modules import FlashSACActor, FlashSACPolicy

pytestmark = pytest.mark.usefixtures("warm_start")
N = 3
make_pendulum = unilab.registry.factory(
    "pendulum_swingup", num_envs=N, seed=0, overrides={"episode_length_s": 0.3, "num_threads": 1}
)


def explorer() -> FlashSACPolicy:
    """The same weights and noise at every call, and the global generator where it was."""
    torch.manual_seed(0)
    return FlashSACPolicy(FlashSACActor(3, 1, hidden_dim=8, num_blocks=1))


@pytest.mark.parametrize("ticks", [1, 3])
def test_c13_the_data_are_those_of_the_synchronous_collector(pipelined, ticks):
    """Resets, random warm-up, exploration noise and episode numbers included."""
    kwargs = {
        "frames_per_batch": N * ticks,
        "total_frames": N * 48,
        "init_random_frames": N * ticks * 4,
    }
    theirs = list(sync(make_pendulum, explorer(), **kwargs))
    collector = pipelined(make_pendulum, explorer(), **kwargs)
    ours = list(collector)
    assert_same(ours, theirs)
    assert len(ours) == len(collector) == 48 // ticks
    ends = torch.cat([batch["next", "truncated"].flatten() for batch in ours])
    assert ends.sum() >= 2 * N
    assert collector.stats()["completed"]


@pytest.mark.parametrize("ticks", [1, 4])
def test_c13_a_learner_in_the_loop_is_one_action_late_and_otherwise_the_synchronous_one(
    pipelined, ticks
):
    """The loop body changes the policy and draws random numbers.

    The schedule is rendered with batches of one tick: the body of a batch of several comes after
    the first tick of the next, and the other ticks of that one have what it changed.
    """

    def body(policy: FlashSACPolicy, batch: TensorDictBase) -> None:
        # Strides differ, and with them the order in which a mean adds up.
        reward = batch["next", "reward"].contiguous().mean()
        with torch.no_grad():
            for weight in policy.parameters():
                weight.add_(0.05 * reward * torch.randn_like(weight))

    policy, theirs = explorer(), []
    pending: list[TensorDictBase] = []
    for tick in sync(make_pendulum, policy, frames_per_batch=N, total_frames=N * 40):
        if len(pending) == ticks:
            theirs.append(torch.cat(pending, 1))
            body(policy, theirs[-1])
            pending = []
        pending.append(tick)
    theirs.append(torch.cat(pending, 1))
    body(policy, theirs[-1])
    weights = list(policy.parameters())

    policy, ours = explorer(), []
    for batch in pipelined(make_pendulum, policy, frames_per_batch=N * ticks, total_frames=N * 40):
        ours.append(batch)
        body(policy, batch)
    assert_same(ours, theirs)
    assert all(torch.equal(a, b) for a, b in zip(policy.parameters(), weights, strict=True))


def test_c13_the_environment_steps_while_the_loop_body_runs(pipelined):
    collector = pipelined(Counting(), frames_per_batch=N, total_frames=5 * N)
    env = collector.env
    for tick, _ in enumerate(collector):
        if tick == 4:
            break
        # The collector is not asked for anything here, and yet the next step is done.
        wait_until(lambda tick=tick: (env.tick, env.phase) == (tick + 1, Phase.WAIT))


def test_c11_the_environment_is_in_the_other_process_and_the_policy_only_in_this_one(pipelined):
    here, lock = [], threading.Lock()

    def policy(td: TensorDictBase) -> TensorDictBase:
        with lock:  # which could not be sent
            here.append(os.getpid())
        return td.set("action", torch.zeros(N, 1))

    collector = pipelined(
        Counting(faults={"reports": True}), policy, frames_per_batch=N, total_frames=3 * N
    )
    list(collector)
    assert here == [os.getpid()] * 3
    there = collector.env.drain_metrics()["Metrics/process"]
    assert there == collector.env.pid != os.getpid()


def test_terminal_observations_are_kept_and_the_policy_sees_the_first_of_the_next_episode(
    pipelined,
):
    seen = []

    def policy(td: TensorDictBase) -> TensorDictBase:
        seen.append(td["obs"][0, 1].item())
        return td.set("action", torch.zeros(N, 1))

    data = torch.cat(list(pipelined(Counting(), policy, frames_per_batch=N, total_frames=9 * N)), 1)
    assert seen == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert data["obs"][0, :, 1].tolist() == seen
    assert data["next", "obs"][0, :, 1].tolist() == [1, 2, 3, 4, 1, 2, 3, 4, 1]
    assert data["next", "terminated"][0, :, 0].nonzero().flatten().tolist() == [3, 7]
    assert data["is_init"][0, :, 0].nonzero().flatten().tolist() == [0, 4, 8]


def test_what_the_policy_says_beside_the_action_is_in_the_data(pipelined):
    policy = TensorDictModule(
        lambda obs: (obs[:, :1] * 0, obs.sum(-1)), in_keys=["obs"], out_keys=["action", ("m", "s")]
    )
    kwargs = {"frames_per_batch": 2 * N, "total_frames": 4 * N}
    ours = list(pipelined(Counting(), policy, **kwargs))
    assert_same(ours, list(sync(Counting(), policy, **kwargs)))
    assert torch.equal(ours[1]["m", "s"], ours[1]["obs"].sum(-1))


def test_c4_an_environment_of_torchrl_works_as_well(pipelined):
    kwargs = {"frames_per_batch": 2 * N, "total_frames": 30 * N}

    def policy(td: TensorDictBase) -> TensorDictBase:
        return td.set("action", -td["obs"][:, 1:].clamp(-1, 1))

    collector = pipelined(lambda: pendulum(N, 5), policy, **kwargs)
    collector.set_seed(3)
    reference = sync(lambda: pendulum(N, 5), policy, **kwargs)
    reference.set_seed(3)
    # The first episodes began before the seed was set; they are over after five ticks.
    assert_same(list(collector)[3:], list(reference)[3:])


def test_set_seed_seeds_the_environment_as_the_synchronous_collector_does(pipelined):
    kwargs = {"frames_per_batch": N, "total_frames": 4 * N}

    def still(td: TensorDictBase) -> TensorDictBase:
        return td.set("action", torch.zeros(N, 1))

    ours, theirs = pipelined(Counting(), still, **kwargs), sync(Counting(), still, **kwargs)
    assert ours.set_seed(5) == theirs.set_seed(5)
    assert_same(list(ours), list(theirs))


def test_c12_batches_are_copies_and_with_return_same_td_the_shared_memory_itself(pipelined):
    for in_place in (False, True):
        collector = pipelined(
            Counting(), frames_per_batch=N, total_frames=8 * N, return_same_td=in_place
        )
        batches = list(collector)
        places = {batch["obs"].data_ptr() for batch in batches}
        assert len(places) == (3 if in_place else 8)
        # The last two are still there, in place or not.
        assert batches[-1]["next", "obs"][0, 0, 1] == 4


def test_a_ring_beside_the_shared_one_gives_the_same_data(pipelined):
    """What a CUDA learner with a host ring does, with the CPU as its device."""
    cpu = torch.device("cpu")
    kwargs = {"frames_per_batch": 2 * N, "total_frames": 24 * N}
    place = Placement(cpu, cpu, cpu, "host", "pinned")
    ours = list(pipelined(make_pendulum, explorer(), placement=place, **kwargs))
    assert_same(ours, list(sync(make_pendulum, explorer(), **kwargs)))


def test_an_environment_elsewhere_than_placed_is_refused(pipelined):
    """ADR-0018 C13."""
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    place = Placement(cuda, cuda, cpu, "cuda", "none")
    with pytest.raises(PlacementError, match="tensors are on cpu, the placement says cuda"):
        pipelined(Counting(), frames_per_batch=N, placement=place)


def test_a_replay_buffer_is_extended_in_place_of_yielding(pipelined):
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=4)
    collector = pipelined(
        make_pendulum,
        explorer(),
        frames_per_batch=N,
        total_frames=8 * N,
        replay_buffer=buffer,
        postproc=lambda batch: batch.reshape(-1),
    )
    assert list(collector) == [None] * 8
    assert len(buffer) == 8 * N
    theirs = list(sync(make_pendulum, explorer(), frames_per_batch=N, total_frames=8 * N))
    assert torch.equal(buffer[:]["obs"], torch.cat([b.reshape(-1)["obs"] for b in theirs]))


def test_a_buffer_that_keeps_what_it_is_given_gets_copies(pipelined):
    buffer = ReplayBuffer(storage=ListStorage(100), batch_size=4)
    kwargs = {"frames_per_batch": N, "total_frames": 8 * N, "postproc": lambda b: b.reshape(-1)}
    assert list(pipelined(Counting(), replay_buffer=buffer, **kwargs)) == [None] * 8
    steps = [row["next", "obs"][1].item() for row in buffer[:]]
    assert steps == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 1, 5, 5, 2, 1, 6, 3, 2, 1, 4, 3, 2]


def test_multi_step_returns_join_the_batches_over_resets(pipelined):
    def never(td: TensorDictBase) -> TensorDictBase:
        return td.set("action", torch.zeros(N, 1))

    buffer = make_replay_buffer(100, batch_size=4, n_step=3, gamma=0.5)
    kwargs = {"frames_per_batch": N, "total_frames": 12 * N}
    for batch in pipelined(Counting(), never, return_same_td=True, **kwargs):
        buffer.extend(batch)
    rows = buffer[:]
    first = rows[rows["obs"][:, 0] == 0]
    assert first["obs"][:, 1].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert first["next", "obs"][:, 1].tolist() == [3, 4, 4, 4, 3, 4, 4, 4, 3]
    assert first["steps_to_next_obs"].flatten().tolist() == [3, 3, 2, 1, 3, 3, 2, 1, 3]


def test_the_exploration_type_reaches_the_policy(pipelined):
    kwargs = {
        "frames_per_batch": N,
        "total_frames": 4 * N,
        "exploration_type": ExplorationType.DETERMINISTIC,
    }
    ours = list(pipelined(make_pendulum, explorer(), **kwargs))
    assert_same(ours, list(sync(make_pendulum, explorer(), **kwargs)))


def test_iteration_goes_on_where_it_was_left_and_counts_in_its_state(pipelined):
    kwargs = {"frames_per_batch": N, "total_frames": 12 * N}
    collector = pipelined(make_pendulum, explorer(), **kwargs)
    ours = [next(iter(collector)) for _ in range(5)]
    state = collector.state_dict()
    assert state["frames"] == 5 * N
    # The environment is a step ahead; the state is that of the steps handed out.
    assert state["env_training_state"]["control_steps"] == 5
    ours += list(collector)
    assert_same(ours, list(sync(make_pendulum, explorer(), **kwargs)))
    state["env_training_state"]["control_steps"] = 77
    collector.load_state_dict(state)
    assert collector.env.call("export_training_state")["control_steps"] == 77
    assert len(list(collector)) == 7


def test_the_state_has_that_of_the_transforms_and_goes_on_numbering_episodes(pipelined):
    def normalised() -> TransformedEnv:
        return TransformedEnv(
            Counting()(), Compose(InitTracker(), VecNormV2(["obs"], decay=0.9), StepCounter())
        )

    kwargs = {"frames_per_batch": N, "total_frames": 12 * N}
    collector = pipelined(normalised, **kwargs)
    batches = [batch for _, batch in zip(range(6), collector, strict=False)]
    state = collector.state_dict()
    again = pipelined(normalised, **kwargs)
    again.load_state_dict(state)
    theirs, moments = again.env.call("state_dict"), "transforms.1._extra_state"
    assert set(theirs) == set(state["env_state_dict"])
    assert torch.equal(
        theirs[moments]["loc.-|-.obs"], state["env_state_dict"][moments]["loc.-|-.obs"]
    )
    assert theirs[moments]["loc.-|-.obs"].any()
    used = {int(i) for batch in batches for i in batch["collector", "traj_ids"].flatten()}
    assert not used & set(next(iter(again))["collector", "traj_ids"].flatten().tolist())


def test_a_state_of_another_collector_is_refused_and_nothing_of_it_loaded(pipelined):
    collector = pipelined(Counting(), frames_per_batch=N, total_frames=3 * N)
    state = sync(Counting(), None, frames_per_batch=N).state_dict() | {"frames": 3 * N}
    with pytest.raises(ConfigError, match="env_training_state"):
        collector.load_state_dict(state)
    with pytest.raises(ConfigError, match="frames, iter"):
        collector.load_state_dict({})
    assert len(list(collector)) == 3


def test_what_the_policy_raises_ends_the_collector_as_torchrls(pipelined):
    def broken(td: TensorDictBase) -> TensorDictBase:
        if td["obs"][2, 1] == 2:
            raise ValueError("no idea")
        return td.set("action", torch.zeros(N, 1))

    kwargs = {"frames_per_batch": N, "total_frames": 9 * N}
    ours, theirs = pipelined(Counting(), broken, **kwargs), sync(Counting(), broken, **kwargs)
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
        return td.set("action", torch.zeros(N, 1))

    collector = pipelined(Counting(), policy, frames_per_batch=N * ticks, total_frames=12 * N)
    ours: list[TensorDictBase] = []
    interruptions = 0
    while len(ours) < 12 // ticks:
        try:
            ours += [next(iter(collector))]
        except KeyboardInterrupt:
            interruptions += 1
    assert interruptions == 3
    steps = torch.cat([batch["next", "obs"][2, :, 1] for batch in ours])
    assert steps.tolist() == [1, 2, 3, 4, 5, 6] * 2


def test_a_step_that_was_sent_when_ctrl_c_came_is_not_taken_twice(pipelined):
    collector = pipelined(Counting(), frames_per_batch=N, total_frames=12 * N)
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
            ours += [batch["next", "obs"][2, 0, 1].item() for batch in [next(iter(collector))]]
        except KeyboardInterrupt:
            continue
    assert ours == [1, 2, 3, 4, 5, 6] * 2
    assert sent.count("step") == 14


def test_an_environment_has_one_collector(pipelined):
    env = EnvProcess(Counting())
    collector = pipelined(env, frames_per_batch=N, total_frames=3 * N)
    with pytest.raises(CollectorError, match="one EnvProcess for each collector"):
        PipelinedCollector(env, frames_per_batch=N)
    assert len(list(collector)) == 3


@pytest.mark.parametrize("given", [{"num_threads": 2}, {"step_timeout_s": 5.0}])
def test_what_a_running_process_cannot_take_is_refused_and_the_process_left_alone(pipelined, given):
    env = EnvProcess(Counting())
    with pytest.raises(ConfigError, match=next(iter(given))):
        PipelinedCollector(env, frames_per_batch=N, **given)
    assert len(list(pipelined(env, frames_per_batch=N, total_frames=3 * N))) == 3


def test_metrics_of_the_environment_reach_the_learner(pipelined):
    collector = pipelined(make_pendulum, explorer(), frames_per_batch=N, total_frames=40 * N)
    for tick, _ in enumerate(collector):
        if tick == 30:
            assert collector.env.drain_metrics()["Episode_Termination/time_out"] == 1.0
    collector.shutdown()
    assert collector.env.drain_metrics() == {}
    assert pipelined(Counting(), frames_per_batch=N).env.drain_metrics() == {}


def test_an_interruptor_ends_the_wait_and_iteration_can_be_taken_up_again(pipelined):
    class Interruptor:
        stopped = True

        def collection_stopped(self) -> bool:
            return self.stopped

    interruptor = Interruptor()
    env = EnvProcess(Counting(faults={"slow_reset": 1.0}))
    collector = pipelined(env, frames_per_batch=N, total_frames=2 * N, interruptor=None)
    collector.interruptor = interruptor
    assert list(collector) == []
    collector.set_seed(3)  # waits for the reset all the same
    interruptor.stopped = False
    assert [batch["next", "obs"][0, 0, 1].item() for batch in collector] == [1, 2]


def test_an_interruptor_is_asked_at_each_tick_however_fast_the_environment_is(pipelined):
    class Interruptor:
        asked = 0

        def collection_stopped(self) -> bool:
            self.asked += 1
            return self.asked > 4

    collector = pipelined(Counting(), None, frames_per_batch=N, interruptor=Interruptor())
    assert [batch["obs"][0, 0, 1].item() for batch in collector] == [0, 1, 2, 3]


def test_a_policy_that_gives_no_action_is_named(pipelined):
    collector = pipelined(Counting(), lambda td: td, frames_per_batch=N)
    with pytest.raises(CollectorError, match="action"):
        next(iter(collector))
    assert collector.env.closed


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("frames_per_batch", 0),
        ("policy", nn.Linear(2, 1)),
        ("policy", "actor.pt"),
        ("make_env", Counting()()),
        ("make_env", [Counting()]),
    ],
)
def test_bad_argument_is_refused_by_name_before_a_process_starts(monkeypatch, name, value):
    monkeypatch.setattr(process, "_start", lambda *_: pytest.fail("a process was started"))
    with pytest.raises(ConfigError, match=name):
        PipelinedCollector(**{"make_env": Counting(), "frames_per_batch": N} | {name: value})


def test_without_a_number_of_frames_there_is_no_end_and_no_random_beginning(pipelined):
    kwargs = {"frames_per_batch": N, "total_frames": None, "init_random_frames": None}
    theirs = list(islice(sync(make_pendulum, explorer(), **kwargs), 3))
    assert_same(islice(pipelined(make_pendulum, explorer(), **kwargs), 3), theirs)


def test_weights_need_no_sending(pipelined):
    collector = pipelined(Counting(), frames_per_batch=N, total_frames=N)
    collector.update_policy_weights_()
    assert isinstance(next(iter(collector)), TensorDict)
