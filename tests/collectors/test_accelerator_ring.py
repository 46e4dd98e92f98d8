"""Collecting for a learner on the emulated accelerator: the CPU's data, and a tick's copies."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from reference.accelerator import DEVICE, MadeOnDevice
from reference.collecting import assert_same
from reference.counting import Counting
from tensordict import TensorDictBase

from unilab import registry
from unilab.collectors import make_collector, pipelined, resolve_collector_tensor_placement
from unilab.modules import FlashSACActor, FlashSACPolicy

N, TICKS = 4, 12
SETTINGS = ["cpu", "auto"]
"""With the learner on the accelerator: a host ring, and one in the accelerator's memory."""


class Carrying(FlashSACPolicy):
    """Counts the steps of each episode in an entry of its own."""

    def __init__(self, actor: FlashSACActor) -> None:
        super().__init__(actor)
        self.out_keys = [*self.out_keys, "count"]  # the only ones that TorchRL moves to the CPU

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        tensordict = super().forward(tensordict)
        before = tensordict.get("count", torch.zeros_like(tensordict["obs"][:, :1]))
        return tensordict.set("count", before + 1)


@pytest.fixture
def collect(accelerator, warm_start) -> Any:
    """Makes a collector whose learner is on a device."""
    made = []

    def make(learner: Any, setting: str = "auto", **settings: Any) -> Any:
        placement = resolve_collector_tensor_placement(setting, learner)
        torch.manual_seed(0)
        policy = Carrying(FlashSACActor(3, 1, hidden_dim=8).to(learner))
        make_env: Callable[[], Any] = registry.factory(
            "pendulum_swingup",
            num_envs=N,
            seed=0,
            device=str(placement.env_device),
            overrides={"episode_length_s": 0.1, "num_threads": 1},
        )
        if settings.get("pipelined", True) and placement.env_device == DEVICE:
            make_env = MadeOnDevice(make_env)
        settings = {"pipelined": True, "frames_per_batch": N, "total_frames": TICKS * N} | settings
        made.append(make_collector(make_env, policy, placement=placement, **settings))
        return made[-1]

    yield make
    for collector in made:
        collector.shutdown()


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", [True, False], ids=["pipelined", "sync"])
def test_data_is_the_cpus_bit_for_bit_and_on_the_learners_device(collect, setting, kind):
    settings = {"pipelined": kind, "track_traj_ids": True, "init_random_frames": 2 * N}
    here, there = (
        [batch.clone() for batch in collect(*where, **settings)]
        for where in (("cpu",), (DEVICE, setting))
    )
    assert all(value.device == DEVICE for batch in there for value in batch.values(True, True))
    assert_same([batch.cpu() for batch in there], here)
    assert len(here[-1]["collector", "traj_ids"].unique()) > 1


def test_a_tick_with_a_host_ring_is_one_packet_up_and_one_action_down(collect, accelerator):
    collector = iter(collect(DEVICE, "cpu"))
    for _ in range(3):
        next(collector)
    wrapped = 0
    for _ in range(6):
        accelerator.clear()
        batch = next(collector)
        assert [event.bytes for event in accelerator.down] == [batch["action"].nbytes]
        assert accelerator.waits == []
        wrapped += len(accelerator.up) == 2
        assert len(accelerator.up) <= 2
    assert wrapped == 2  # the ring of three slots ended twice


def test_a_tick_with_a_ring_on_the_device_copies_nothing_and_waits_once(collect, accelerator):
    collector = iter(collect(DEVICE))
    next(collector)
    for _ in range(6):
        accelerator.clear()
        next(collector)
        assert (accelerator.up, accelerator.down) == ([], [])
        assert ["flush" in event.where for event in accelerator.waits] == [True]


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_synchronous_tick_waits_for_values_and_never_for_the_whole_device(
    collect, accelerator, setting
):
    collector = iter(collect(DEVICE, setting, pipelined=False))
    next(collector)
    accelerator.clear()
    next(collector)
    assert not any(event.what == "synchronize" for event in accelerator.waits)


@pytest.mark.parametrize("shut_down", [True, False])
def test_pinned_memory_is_released_once_before_it_is_unmapped(
    accelerator, warm_start, monkeypatch, shut_down
):
    locked = []

    def pin(memory: torch.Tensor) -> Callable[[], None]:
        locked.append(memory.data_ptr())
        return lambda: locked.remove(memory.data_ptr())

    monkeypatch.setattr(pipelined, "pin", pin)
    placement = resolve_collector_tensor_placement("cpu", DEVICE)
    collector = pipelined.PipelinedCollector(Counting(), frames_per_batch=3, placement=placement)
    assert len(locked) == 1
    if shut_down:
        collector.shutdown()
        collector.shutdown()
    else:
        del collector
        gc.collect()
    assert locked == []
