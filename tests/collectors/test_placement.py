"""ADR-0018: one setting places collected tensors."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from reference.counting import Counting

from unilab.collectors import PipelinedCollector, resolve_collector_tensor_placement
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
        ("cpu", "cuda", "cpu", "pinned"),  # C3
        ("cuda", "cuda", "cuda", "none"),
    ],
)
def test_c1_c2_c3_c6_c7_everything_follows_from_setting_and_learner(
    setting, learner, device, staging
):
    placement = resolve_collector_tensor_placement(setting, learner)
    assert placement.learner_device == torch.device(learner)
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


def test_c12_device_resolution_records_learner_and_collector_tensor():
    record = resolve_collector_tensor_placement("cpu", "cuda:0").device_resolution()
    assert json.loads(json.dumps(record)) == {"learner": "cuda:0", "collector_tensor": "cpu"}


def test_c13_environment_on_another_device_is_refused_with_both_devices(warm_start):
    placement = resolve_collector_tensor_placement("cuda", "cuda")
    with pytest.raises(PlacementError, match=r"cuda.* cpu"):
        PipelinedCollector(Counting(), frames_per_batch=3, placement=placement)
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


def test_c16_no_other_key_moves_collected_tensors():
    cfg = dataclasses.asdict(FlashSACCfg(task="pendulum_swingup"))
    keys = {key for key in cfg["training"] if "device" in key or "transport" in key}
    assert keys == {"device", "collector_tensor_device"}
