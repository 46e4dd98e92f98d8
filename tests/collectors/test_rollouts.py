"""RolloutCollector: which policy collects which rollout, how far ahead, faults and devices."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from reference.accelerator import DEVICE, MadeOnDevice
from reference.collecting import assert_same, sync
from reference.counting import Counting, ReportingEnv, making
from reference.processes import running, wait_until
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torch import nn

import unilab
from unilab.collectors import EnvProcess, RolloutCollector, resolve_collector_tensor_placement
from unilab.collectors.worker import Phase
from unilab.errors import CollectorError, ConfigError
from unilab.modules import GaussianActor, GaussianPolicy

pytestmark = pytest.mark.usefixtures("warm_start")
N, T, ROLLOUTS = 3, 4, 7


@pytest.fixture
def rollouts() -> Iterator[Any]:
    made: list[RolloutCollector] = []

    def make(make_env: Any = None, policy: Any = None, **settings: Any) -> RolloutCollector:
        frames = {"frames_per_batch": N * T, "total_frames": N * T * ROLLOUTS}
        made.append(
            RolloutCollector(make_env or Counting(), policy or linear(), **frames | settings)
        )
        return made[-1]

    yield make
    while made:
        made.pop().shutdown()


def linear() -> TensorDictModule:
    torch.manual_seed(0)
    return TensorDictModule(nn.Linear(2, 1), in_keys=["obs"], out_keys=["action"])


def gaussian() -> GaussianPolicy:
    torch.manual_seed(0)
    return GaussianPolicy(GaussianActor(2, 1, [8]))


def learn(policy: nn.Module, batch: TensorDictBase) -> None:
    with torch.no_grad():
        for weight in policy.parameters():
            weight.add_(0.1 + 0.01 * batch["next", "reward"].contiguous().mean())


@pytest.mark.parametrize("staleness", [1, 3])
def test_c37_data_are_those_of_a_synchronous_collector_with_the_policy_of_some_rollouts_ago(
    rollouts, staleness
):
    """So no rollout is from an older policy than the bound allows, nor from two policies."""
    policy, history = linear(), []
    acting, theirs = linear(), []
    for i, batch in enumerate(sync(Counting(), acting, frames_per_batch=N * T, total_frames=84)):
        theirs.append(batch.exclude("collector").clone())
        learn(policy, batch)
        history.append({key: value.clone() for key, value in policy.state_dict().items()})
        if i + 1 > staleness:
            acting.load_state_dict(history[i - staleness])
    policy, ours = linear(), []
    collector = rollouts(policy=policy, max_staleness=staleness)
    for i, batch in enumerate(collector):
        ours.append(batch)
        assert collector.staleness == min(i, staleness)
        learn(policy, batch)
    assert_same(ours, theirs)
    assert len(ours) == ROLLOUTS
    assert collector.state_dict()["frames"] == N * T * ROLLOUTS


def test_c38_environment_steps_while_the_caller_learns_and_no_further_than_the_bound(rollouts):
    staleness = 2
    collector = rollouts(max_staleness=staleness)
    for i, _ in enumerate(collector):
        ready = min(i + 1 + staleness, ROLLOUTS) * T
        wait_until(lambda last=ready - 1: collector.env.tick == last)
        wait_until(lambda: collector.env.phase == Phase.WAIT)
        time.sleep(0.02)
        assert collector.env.tick == ready - 1


def test_c37_data_follow_from_the_seed_whichever_process_is_faster(rollouts):
    def run(pause: float, **faults: Any) -> list[TensorDictBase]:
        policy, found = gaussian(), []
        for batch in rollouts(making(ReportingEnv, **faults), policy, max_staleness=2):
            found.append(batch)
            learn(policy, batch)
            time.sleep(pause)
        return found

    assert_same(run(0.0, slow_step=0.01), run(0.05))


def test_batches_in_place_are_overwritten_only_when_the_next_is_asked_for(rollouts):
    kept = list(rollouts())
    for copied, batch in zip(kept, rollouts(return_same_td=True), strict=True):
        time.sleep(0.05)  # the environment steps meanwhile
        assert_same([batch], [copied])


def test_metrics_and_training_state_of_the_environment_are_those_after_a_rollout(rollouts):
    collector = rollouts(making(ReportingEnv, reports=True))
    steps = 0.0
    for i, _ in enumerate(collector):
        steps += collector.env.drain_metrics()["Metrics/steps"]
        assert steps == min(i + 2, ROLLOUTS) * T


def test_an_interrupted_iteration_is_continued_without_a_gap(rollouts):
    class Stopping:
        stops = False

        def collection_stopped(self) -> bool:
            return self.stops

    policy = linear()
    whole = list(rollouts(policy=policy))
    collector = rollouts(making(ReportingEnv, slow_step=0.1), policy, interruptor=Stopping())
    found = [next(iter(collector))]
    collector.env.interruptor.stops = True
    assert list(collector) == []
    collector.env.interruptor.stops = False
    assert_same([*found, *collector], whole)


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        (
            {"raise": 6},
            r"in a step \(tick 5\): ArithmeticError.*\n(.*\n)*.*raise ArithmeticError\(",
        ),
        ({"kill": 6}, r"died in a step \(tick 5\) \(signal SIGKILL\)"),
        ({"raise_reset": 1}, "first reset .*broken on purpose"),
    ],
)
def test_c14_error_of_the_environment_reaches_the_learner(nothing_left, rollouts, faults, message):
    with pytest.raises(CollectorError, match=message):
        list(rollouts(Counting(faults=faults)))


def test_c14_error_of_the_policy_reaches_the_learner_with_its_traceback(nothing_left, rollouts):
    def act(obs: torch.Tensor) -> torch.Tensor:
        if obs[0, 1] == 3:
            raise ArithmeticError("an actor of one's own")
        return obs[:, :1]

    policy = TensorDictModule(act, in_keys=["obs"], out_keys=["action"])
    with pytest.raises(CollectorError, match=r"ArithmeticError: an actor(.*\n)*.*in act"):
        list(rollouts(policy=policy))


def test_c31_a_step_may_hang_as_long_as_the_limit_and_a_rollout_longer(nothing_left, rollouts):
    slow = EnvProcess(Counting(faults={"slow_step": 0.4}), step_timeout_s=1.0)
    assert next(iter(rollouts(slow))).numel() == N * T  # 1.6 s
    with pytest.raises(CollectorError, match=r"hung in a step \(tick 0\)"):
        list(rollouts(EnvProcess(Counting(faults={"slow_step": 600.0}), step_timeout_s=0.5)))


def test_c15_collector_ends_its_process_once(nothing_left, rollouts):
    collector = rollouts()
    next(iter(collector))
    collector.shutdown()
    collector.shutdown()
    assert not running(collector.env.pid)
    with pytest.raises(CollectorError, match="closed"):
        next(iter(collector))


@pytest.mark.parametrize(
    ("settings", "error", "name"),
    [
        ({"max_staleness": 0}, ConfigError, "max_staleness"),
        ({"frames_per_batch": 0}, ConfigError, "frames_per_batch"),
        ({"policy": lambda td: td}, ConfigError, "policy"),
    ],
)
def test_a_setting_that_cannot_collect_is_refused(rollouts, settings, error, name):
    with pytest.raises(error, match=name):
        rollouts(**settings)


@pytest.mark.parametrize("setting", ["cpu", "auto"])
def test_rollouts_for_an_accelerator_are_the_cpus_and_on_its_device(rollouts, accelerator, setting):
    found = []
    for device in ("cpu", DEVICE):
        placement = resolve_collector_tensor_placement(setting, device)
        torch.manual_seed(0)
        policy = GaussianPolicy(GaussianActor(3, 1, [8], init_std=1e-6).to(device))
        make_env: Any = unilab.registry.factory(
            "pendulum_swingup", num_envs=N, seed=0, device=str(placement.env_device)
        )
        make_env = make_env if placement.env_device.type == "cpu" else MadeOnDevice(make_env)
        found.append([])
        for batch in rollouts(make_env, policy, placement=placement, total_frames=36):
            assert batch["obs"].device == torch.device(device)
            found[-1].append(batch.cpu())
            learn(policy, batch)
    assert_same(*found)
