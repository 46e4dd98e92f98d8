"""ADR-0018: one setting places collected tensors."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from reference.counting import Counting

from unilab.collectors import (
    PipelinedCollector,
    resolve_collector_tensor_placement,
    select_collector_tensor_device,
)
from unilab.conf import checked_settings, compose
from unilab.conf.flashsac import FlashSACCfg
from unilab.errors import ConfigError, PlacementError

SCRIPT = Path(__file__).parents[2] / "examples" / "train_flashsac.py"
REMOVED = [
    "training.sim_carrier_device",
    "training.inference_transport",
    "env.sim_carrier_device",
    "env.manager_torch_device",
]


def resolve(setting: str, learner: str) -> tuple[str, str, str, str]:
    place = resolve_collector_tensor_placement(setting, learner)
    assert place.learner_device == torch.device(learner)
    return str(place.env_device), str(place.ring_device), place.transport, place.staging


def test_c1_auto_on_a_cuda_learner_is_cuda():
    assert select_collector_tensor_device("auto", "cuda:1") == "cuda"
    assert resolve("auto", "cuda:1") == ("cuda:1", "cuda:1", "cuda", "none")


@pytest.mark.parametrize("learner", ["cpu", "mps"])
def test_c2_auto_on_another_learner_is_cpu(learner):
    assert select_collector_tensor_device("auto", learner) == "cpu"
    staging = "none" if learner == "cpu" else "pinned"
    assert resolve("auto", learner) == ("cpu", "cpu", "host", staging)


def test_c3_an_explicit_device_wins_over_auto():
    assert resolve("cpu", "cuda") == ("cpu", "cpu", "host", "pinned")
    assert resolve("cuda", "cuda") == ("cuda", "cuda", "cuda", "none")


@pytest.mark.parametrize("learner", ["cpu", "mps"])
def test_c4_cuda_without_a_cuda_learner_is_refused(learner):
    with pytest.raises(PlacementError, match=f"=cuda, but the learner is on {learner}: use cpu"):
        resolve_collector_tensor_placement("cuda", learner)


def test_c4_it_is_refused_when_the_configuration_is_read():
    with pytest.raises(PlacementError, match="collector_tensor_device=cuda, but the learner"):
        compose(["training.device=cpu", "training.collector_tensor_device=cuda"])


@pytest.mark.parametrize("setting", ["host", "mps", "AUTO"])
def test_c5_any_other_value_is_refused_with_the_allowed_three(setting):
    with pytest.raises(ConfigError, match=setting):
        resolve_collector_tensor_placement(setting, "cpu")
    with pytest.raises(ConfigError, match=setting):
        compose([f"training.collector_tensor_device={setting}"])


def test_c6_c7_transport_and_environment_follow_the_device():
    for setting in ("auto", "cpu", "cuda"):
        place = resolve_collector_tensor_placement(setting, "cuda")
        assert place.transport == {"cpu": "host", "cuda": "cuda"}[place.ring_device.type]
        assert place.env_device == place.ring_device


@pytest.mark.parametrize("key", REMOVED)
def test_c8_to_c11_removed_keys_are_refused_on_the_command_line(key):
    section, name = key.split(".")
    table = f"{section}={{{name}: cpu}}"
    for text in (f"{key}=cpu", f"+{key}=cpu", f"++{key}=cpu", table, f"+{table}", f"++{table}"):
        with pytest.raises(ConfigError) as refused:
            compose([text])
        assert str(refused.value) == (
            f"{key} was removed: set training.collector_tensor_device to auto, cpu or cuda instead"
        )


@pytest.mark.parametrize("key", REMOVED)
def test_c8_to_c11_removed_keys_are_refused_in_yaml(key):
    section, name = key.split(".")
    with pytest.raises(ConfigError, match=f"{key} was removed: set training.collector_tensor_dev"):
        checked_settings({"task": "pendulum_swingup", section: {name: "cpu"}}, FlashSACCfg)


@pytest.mark.parametrize("where", ["command line", "yaml"])
def test_c11_the_command_refuses_them_in_one_line_before_anything_is_made(tmp_path, where):
    key, arguments = REMOVED[1], [f"{REMOVED[1]}=host"]
    if where == "yaml":
        mine = tmp_path / "conf" / "task" / "mine.yaml"
        mine.parent.mkdir(parents=True)
        mine.write_text(
            "# @package _global_\ntask: pendulum_swingup\ntraining:\n  inference_transport: host\n"
        )
        arguments = ["--config-dir", "conf", "task=mine"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line == (
        f"error: {key} was removed: set training.collector_tensor_device to auto, cpu or cuda "
        "instead"
    )
    assert done.stdout == ""
    assert {path.name for path in tmp_path.iterdir()} <= {"conf"}


def test_c12_device_resolution_records_learner_and_collector_tensor():
    record = resolve_collector_tensor_placement("cpu", "cuda:0").device_resolution()
    assert json.loads(json.dumps(record)) == {"learner": "cuda:0", "collector_tensor": "cpu"}


def test_c13_an_environment_that_did_not_obey_is_refused():
    place = resolve_collector_tensor_placement("cuda", "cuda")
    with pytest.raises(PlacementError) as refused:
        place.check_env(torch.device("cpu"))
    assert str(refused.value) == (
        "the environment's tensors are on cpu, the placement says cuda: make it with "
        "device='cuda', or place collected tensors there: "
        "placement=resolve_collector_tensor_placement('cpu', learner_device), "
        "and in a configuration training.collector_tensor_device=cpu"
    )
    with pytest.raises(PlacementError, match="tensors are on cpu, the placement says cuda"):
        place.check_env(None)
    place.check_env(torch.device("cuda:0"))


def test_c15_placement_is_frozen_and_a_function_of_its_arguments():
    place = resolve_collector_tensor_placement("auto", "cpu")
    assert place == resolve_collector_tensor_placement("auto", "cpu")
    with pytest.raises(dataclasses.FrozenInstanceError):
        place.env_device = torch.device("cuda")


def test_c14_what_the_environment_says_does_not_change_the_placement():
    place = resolve_collector_tensor_placement("auto", "cpu")
    collector = PipelinedCollector(Counting(), frames_per_batch=3, placement=place)
    assert collector.placement is place
    collector.shutdown()


def test_c16_no_other_key_moves_collected_tensors():
    cfg = dataclasses.asdict(FlashSACCfg(task="pendulum_swingup"))
    places = {key for key in cfg["training"] if "device" in key or "transport" in key}
    assert places == {"device", "collector_tensor_device"}
