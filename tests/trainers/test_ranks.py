"""Data parallel on the CPU: two processes, whatever happens to one of them."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import time
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path

import pytest
import torch
from reference import ranks as programs
from reference.runs import NETWORKS, TINY, TINY_APPO, TINY_PPO, TINY_SAC, rows

from unilab.errors import ActorContractError, ConfigError, NonFiniteError, PlacementError, RankError
from unilab.settings import TrainingCfg
from unilab.trainers import launch, launcher

CPUS = ["cpu", "cpu"]
SETTINGS = {
    "flashsac": [*TINY, *NETWORKS, "algo.algo_params.compile=false", "algo.learning_starts=16"],
    "sac": [*TINY_SAC, "algo.learning_starts=16"],
    "ppo": [*TINY_PPO, "algo.num_epochs=4"],
    "appo": [*TINY_APPO, "algo.num_epochs=4"],
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fork ranks from a process that has imported PyTorch, and let no test hang."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["reference.ranks", "unilab.collectors.worker"])
    forkserver.ensure_running()
    monkeypatch.setattr(launcher, "_START", "forkserver")
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail("the ranks hang", pytrace=False))
    signal.alarm(120)
    yield
    signal.alarm(0)


def settings(folder: Path, algorithm: str, *more: str) -> list[str]:
    where = [f"training.run_dir={folder / 'run'}", "training.devices=[cpu,cpu]"]
    kept = [text for text in SETTINGS[algorithm] if not text.startswith("training.device=")]
    return ["task=pendulum_swingup", *kept, "algo.total_frames=320", *where, *more]


@pytest.mark.parametrize("algorithm", SETTINGS)
def test_two_ranks_have_the_same_weights_bit_for_bit_after_30_updates(algorithm, tmp_path):
    arguments = settings(tmp_path, algorithm)
    assert launch(programs.train, CPUS, tmp_path, algorithm, arguments) == 0
    states = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    assert states[0]["update_count"] == states[1]["update_count"] >= 30
    mine, theirs = (state["loss"] for state in states)
    own = {key for key in mine if not torch.equal(mine[key], theirs[key])}
    statistics = {key for key in mine if "running" in key}
    assert own == statistics  # of its own observations
    for kept in ("optimizers", "optimizer"):
        if kept in states[0]:
            assert str(states[0][kept]) == str(states[1][kept])
    assert int(rows(tmp_path / "run")[-1]["frames"]) == 320


def test_rsl_rl_averages_by_itself_in_two_ranks(tmp_path):
    pytest.importorskip("rsl_rl", reason="needs RSL-RL: pip install 'unilab-torchrl[rsl-rl]'")
    arguments = settings(tmp_path, "ppo", "training.eval_interval=160")
    assert launch(programs.train_with_rsl_rl, CPUS, tmp_path, arguments) == 0
    states = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    for mine, theirs in zip(*states, strict=True):
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    assert [row["frames"] for row in rows(tmp_path / "run")] == ["160", "320"]


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        ("nan", NonFiniteError, "loss_aux_bold is nan in rank 1 of 2"),
        ("names", ActorContractError, "loss_aux_bold, loss_aux_timid .* rank 1"),
        ("bug", ZeroDivisionError, "no such luck"),
        ("exits", RankError, r"sys\.exit\('no more'\)"),
        ("killed", RankError, "killed .*in rank 1 of 2"),
        ("hangs", TimeoutError, "rank 0 waits no more"),
    ],
)
def test_a_fault_of_one_rank_ends_all_before_any_steps_with_one_error(
    fault, kind, message, tmp_path
):
    began = time.monotonic()
    with pytest.raises(kind, match=message) as raised:
        launch(programs.update, CPUS, tmp_path, fault)
    assert time.monotonic() - began < 60
    assert not multiprocessing.active_children()
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert all(text.startswith("kept") for text in written.values())
    if fault != "killed":
        assert "In rank" in raised.value.__notes__[-1]
        assert "Traceback" in str(raised.value.__cause__)
    if fault in ("nan", "names"):  # all know at once
        assert written["0.txt"] == written["1.txt"]


def test_a_signal_to_one_rank_stops_all_after_the_same_batch_and_the_run_continues(tmp_path):
    arguments = settings(tmp_path, "flashsac", "training.eval_interval=null")
    code = launch(programs.train, CPUS, tmp_path, "flashsac", arguments, True)
    assert code == 128 + signal.SIGTERM
    (stopped,) = (tmp_path / "run/checkpoints").iterdir()
    saved = torch.load(next(stopped.rglob("*learner*/state.pt")), weights_only=True)
    more = [f"training.resume={tmp_path / 'run'}", "training.devices=[cpu,cpu]"]
    for state in (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1)):
        assert state["update_count"] == saved["update_count"] == 1
    assert launch(programs.train, CPUS, tmp_path, "flashsac", more) == 0
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    assert first["update_count"] == second["update_count"] > 1
    assert int(rows(tmp_path / "run")[-1]["frames"]) == 320


@pytest.mark.parametrize(
    ("devices", "kind", "message"),
    [
        ([], ConfigError, r"training\.devices .* empty"),
        (["cpu", "cuda:0"], ConfigError, "cpu,cuda:0"),
        (["cuda:0", "cuda:0"], PlacementError, "cuda:0,cuda:0"),
        (["cuda", "cuda:1"], PlacementError, "cuda,cuda:1"),
        (["cuda:0", "cuda:1"], PlacementError, "no CUDA device"),
        (["cpu", "gpu"], ConfigError, "'gpu'"),
    ],
)
def test_devices_that_cannot_train_together_are_refused(devices, kind, message):
    with pytest.raises(kind, match=message):
        launch(print, devices)


def test_a_list_of_devices_excludes_a_device():
    with pytest.raises(ConfigError, match=r"training\.device must be auto"):
        TrainingCfg(devices=("cpu", "cpu"), device="cpu")


@pytest.mark.parametrize(
    ("environment", "devices", "message"),
    [
        ({}, None, "WORLD_SIZE=2"),
        ({"WORLD_SIZE": "3"}, CPUS, r"WORLD_SIZE=3.*\[cpu,cpu\]"),
        ({"LOCAL_WORLD_SIZE": "x"}, CPUS, "^LOCAL_WORLD_SIZE"),
        ({"LOCAL_WORLD_SIZE": "1"}, CPUS, "LOCAL_WORLD_SIZE=1"),
        ({"WORLD_SIZE": "x"}, CPUS, "^WORLD_SIZE"),
        ({"WORLD_SIZE": "-3"}, CPUS, "^WORLD_SIZE"),
        ({"WORLD_SIZE": "", "RANK": "1"}, CPUS, "^RANK .* not set"),
        ({"RANK": ""}, CPUS, "^RANK"),
        ({"LOCAL_RANK": ""}, CPUS, "^LOCAL_RANK"),
        ({"LOCAL_RANK": "5"}, CPUS, "^LOCAL_RANK .*'5'"),
        ({"MASTER_ADDR": ""}, CPUS, "^MASTER_ADDR"),
        ({"MASTER_PORT": ""}, CPUS, "^MASTER_PORT"),
    ],
)
def test_incomplete_or_wrong_variables_of_torchrun_are_refused(
    environment, devices, message, monkeypatch
):
    complete = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in {**complete, **address, **environment}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        launch(print, devices)


@pytest.mark.parametrize("text", ["é", "漢", "😀"])
def test_a_long_error_fits_in_a_pipe_that_nobody_reads(text):
    report = launcher._Report.of(ValueError(100_000 * text + "end"))
    assert len(pickle.dumps(tuple(report))) < 50_000
    assert "end" in str(report.unpacked("in rank 1"))
