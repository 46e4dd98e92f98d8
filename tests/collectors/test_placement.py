"""ADR-0018: one setting places collected tensors."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from reference.counting import Counting

from unilab import registry
from unilab.collectors import (
    PipelinedCollector,
    make_collector,
    resolve_collector_tensor_placement,
)
from unilab.conf import checked_settings, compose
from unilab.conf.flashsac import FlashSACCfg
from unilab.errors import ConfigError, PlacementError

SETTING = "training.collector_tensor_device"
REMOVED = [
    "training.sim_carrier_device",
    "training.inference_transport",
    "env.sim_carrier_device",
    "env.manager_torch_device",
]


@pytest.mark.parametrize(
    ("setting", "learner", "device", "staging"),
    [
        ("auto", "cuda:1", "cuda:1", "none"),  # C1
        ("auto", "cpu", "cpu", "none"),  # C2
        ("auto", "mps", "cpu", "pinned"),
        ("cpu", "cuda:1", "cpu", "pinned"),  # C3
        ("cuda", "cuda:1", "cuda:1", "none"),
    ],
)
def test_c1_c2_c3_c6_c7_everything_follows_from_setting_and_learner(
    setting, learner, device, staging
):
    placement = resolve_collector_tensor_placement(setting, learner)
    assert placement.learner_device.type == torch.device(learner).type
    assert placement.env_device == placement.ring_device == torch.device(device)
    assert placement.transport == {"cpu": "host", "cuda": "cuda"}[torch.device(device).type]
    assert placement.staging == staging


@pytest.mark.parametrize("learner", ["cpu", "mps"])
def test_c4_cuda_without_a_cuda_learner_is_refused(learner):
    with pytest.raises(PlacementError, match=SETTING):
        resolve_collector_tensor_placement("cuda", learner)


def test_c4_cuda_without_a_cuda_learner_is_refused_when_the_configuration_is_read():
    with pytest.raises(PlacementError, match=SETTING):
        compose(["training.device=cpu", f"{SETTING}=cuda"])


@pytest.mark.parametrize("setting", ["host", "mps", "AUTO"])
def test_c5_any_other_value_is_refused_with_the_allowed_three(setting):
    for refuse in (
        lambda: resolve_collector_tensor_placement(setting, "cpu"),
        lambda: compose([f"{SETTING}={setting}"]),
    ):
        with pytest.raises(ConfigError, match=setting):
            refuse()


@pytest.mark.parametrize("key", REMOVED)
def test_c8_to_c11_removed_key_is_refused_on_the_command_line_and_in_yaml(key):
    section, name = key.split(".")
    table = f"{section}={{{name}: cpu}}"
    for text in (f"{key}=cpu", f"+{key}=cpu", f"++{key}=cpu", table, f"+{table}", f"++{table}"):
        with pytest.raises(ConfigError, match=f"{key} was removed.*{SETTING}"):
            compose([text])
    with pytest.raises(ConfigError, match=f"{key} was removed.*{SETTING}"):
        checked_settings({"task": "pendulum_swingup", section: {name: "cpu"}}, FlashSACCfg)


@pytest.mark.parametrize("name", ["sim_carrier_device", "manager_torch_device"])
@pytest.mark.parametrize("build", [registry.make, registry.factory])
def test_c10_removed_key_is_refused_by_the_registry(name, build):
    with pytest.raises(ConfigError, match=f"env.{name} was removed.*{SETTING}"):
        build("pendulum_swingup", num_envs=1, overrides={name: "cpu"})


@pytest.mark.parametrize(
    ("setting", "tensors", "transport"), [("cpu", "cpu", "host"), ("auto", "cuda:0", "cuda")]
)
def test_c12_device_resolution_records_every_device_with_its_index(setting, tensors, transport):
    record = resolve_collector_tensor_placement(setting, "cuda").device_resolution()
    assert json.loads(json.dumps(record)) == {
        "learner": "cuda:0",
        "collector_tensor": tensors,
        "env": tensors,
        "transport": transport,
    }


@pytest.mark.parametrize("pipelined", [False, True])
def test_c13_environment_on_another_device_is_refused_with_both_devices(warm_start, pipelined):
    placement = resolve_collector_tensor_placement("cuda", "cuda")
    with pytest.raises(PlacementError, match=r"cuda:0.* cpu"):
        make_collector(
            Counting(), lambda td: td, placement=placement, pipelined=pipelined, frames_per_batch=3
        )


def test_c13_index_of_the_environments_device_counts():
    placement = resolve_collector_tensor_placement("cuda", "cuda:1")
    placement.check_env(torch.device("cuda:1"))
    with pytest.raises(PlacementError, match=r"cuda:1.* cuda:0"):
        placement.check_env(torch.device("cuda:0"))


def test_c14_environment_does_not_change_the_placement(warm_start):
    placement = resolve_collector_tensor_placement("auto", "cpu")
    collector = PipelinedCollector(Counting(), frames_per_batch=3, placement=placement)
    assert collector.placement is placement
    collector.shutdown()


def test_c15_placement_is_frozen_and_a_function_of_its_arguments():
    placement = resolve_collector_tensor_placement("auto", "cpu")
    assert placement == resolve_collector_tensor_placement("auto", "cpu")
    with pytest.raises(dataclasses.FrozenInstanceError):
        placement.env_device = torch.device("cuda")


@pytest.mark.parametrize(
    "changed",
    [
        {"env_device": "cpu"},
        {"ring_device": "cpu"},
        {"learner_device": "cuda:1"},
        {"learner_device": "mps", "env_device": "mps", "ring_device": "mps", "transport": "mps"},
        {"transport": "host"},
        {"staging": "pinned"},
    ],
)
def test_c15_placement_that_the_setting_cannot_give_is_refused(changed):
    placement = resolve_collector_tensor_placement("cuda", "cuda:0")
    changed = {k: torch.device(v) if "device" in k else v for k, v in changed.items()}
    with pytest.raises(PlacementError, match=SETTING):
        dataclasses.replace(placement, **changed)


def test_c16_no_other_key_moves_collected_tensors():
    cfg = dataclasses.asdict(FlashSACCfg(task="pendulum_swingup"))
    keys = {key for key in cfg["training"] if "device" in key or "transport" in key}
    assert keys == {"device", "devices", "collector_tensor_device"}
