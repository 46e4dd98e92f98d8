"""The training script with its learner on the emulated accelerator."""

from __future__ import annotations

import json

import pytest
import torch
from reference.accelerator import DEVICE, MadeOnDevice
from reference.runs import differing, rows, saved, tiny_run

from unilab.collectors import EnvProcess
from unilab.conf import compose, envs
from unilab.examples import train_flashsac
from unilab.settings import TrainingCfg

TASK = "pendulum_swingup"
OPTIONS = ["algo.n_step=3", "training.eval_interval=80", "training.save_replay=true"]
OPTIONS += ["env.episode_length_s=0.2", "training.eval_num_envs=2"]


@pytest.fixture
def device(accelerator, warm_start, monkeypatch):
    """Make the accelerator the learner's device; settings name CUDA only. Undo it for the CPU."""
    monkeypatch.setattr(TrainingCfg, "resolve_device", lambda self: DEVICE)
    monkeypatch.setattr(envs, "EnvProcess", lambda make_env: EnvProcess(MadeOnDevice(make_env)))
    return monkeypatch


def learned(run, frames):
    """Weights, moments, replay contents and reward statistics of a checkpoint, by path."""
    (path,) = run.glob(f"checkpoints/*{frames}")
    parts = ("learner.", "replay.", "rewards.")
    return {
        name: value
        for name, value in saved(path).items()
        if name.startswith(parts) and isinstance(value, torch.Tensor)
    }


def evaluations(run):
    return [row["Eval/return"] for row in rows(run) if row["Eval/return"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("collector", "tensors"), [("pipelined", "auto"), ("pipelined", "cpu"), ("sync", "auto")]
)
def test_a_run_learns_what_it_learns_on_the_cpu_bit_for_bit(tmp_path, device, collector, tensors):
    options = [*OPTIONS, f"training.collector={collector}"]
    there, here = tmp_path / "device", tmp_path / "cpu"
    tiny_run(there, TASK, *options, f"training.collector_tensor_device={tensors}")
    device.undo()
    tiny_run(here, TASK, *options)
    assert differing(learned(there, 160), learned(here, 160)) == []
    assert evaluations(there) == evaluations(here)
    devices = json.loads((there / "run_config.json").read_text())["device_resolution"]
    assert devices["learner"] == str(DEVICE)
    assert (
        devices["env"] == devices["collector_tensor"] == {"auto": str(DEVICE)}.get(tensors, "cpu")
    )


@pytest.mark.slow
def test_a_run_continues_on_the_cpu_and_back_on_the_device(tmp_path, device):
    run = tiny_run(tmp_path / "run", TASK, *OPTIONS, "training.collector=pipelined")
    resume = [f"training.resume={run}", "training.num_threads=1"]
    with device.context() as on_cpu:
        on_cpu.setattr(TrainingCfg, "resolve_device", lambda self: torch.device("cpu"))
        assert train_flashsac.train(compose([*resume, "algo.total_frames=240"])) == 0
    assert train_flashsac.train(compose([*resume, "algo.total_frames=320"])) == 0
    assert learned(run, 320)["learner.loss.log_alpha"].isfinite()
    assert len(evaluations(run)) == 4
