"""Making a run's folder and finding it again."""

from __future__ import annotations

import json

import pytest
from reference.disk import largest_file

from unilab.errors import CheckpointError, ConfigError
from unilab.record import RunFolder


def test_a_new_run_lies_below_its_task(tmp_path):
    run = RunFolder.create("go2_velocity_flat", 3, log_root=tmp_path)
    assert run.path.parent == tmp_path / "go2_velocity_flat"
    assert run.path.name.endswith("_seed3")
    assert [p.name for p in run.path.iterdir()] == ["checkpoints"]


def test_runs_of_the_same_second_get_folders_of_their_own(tmp_path):
    paths = {RunFolder.create("t", 0, log_root=tmp_path).path for _ in range(5)}
    assert len(paths) == 5


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file.* cannot be written \(.*\): set training.run_dir"):
        RunFolder.create("t", 0, log_root=tmp_path / "file")


def test_a_name_that_no_file_system_takes_is_one_clear_error(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot be written \(File name too long\): set tr"):
        RunFolder.create("t", 0, path=tmp_path / ("x" * 300))


def test_a_folder_that_holds_checkpoints_of_whatever_run_is_not_taken(tmp_path):
    run = RunFolder.create("t", 0, path=tmp_path / "run")
    (run.checkpoints / "checkpoint-000000000004").mkdir()
    with pytest.raises(ConfigError, match=r"holds checkpoints, though no run_config.json to conti"):
        RunFolder.create("t", 0, path=tmp_path / "run")


def test_a_folder_that_holds_a_run_is_not_taken(tmp_path):
    run = RunFolder.create("t", 0, path=tmp_path / "run")
    run.write_config({"task": "t"})
    for message in (
        r"already holds a run, though no checkpoint to continue from: remove it, or choose another",
        r"already holds a run: continue it with training.resume=.*run, or choose another",
    ):
        with pytest.raises(ConfigError, match=message):
            RunFolder.create("t", 0, path=tmp_path / "run")
        (run.checkpoints / "checkpoint-000000000004").mkdir(exist_ok=True)


@pytest.mark.parametrize(
    ("name", "what"), [("nothing", "does not exist"), ("", "is no run folder")]
)
def test_a_path_that_is_no_run_is_one_clear_error(tmp_path, name, what):
    with pytest.raises(CheckpointError, match=rf"{what}: a run folder holds run_config.json"):
        RunFolder.open(tmp_path / name)


def test_the_configuration_comes_back_with_what_was_resolved(tmp_path):
    run = RunFolder.create("t", 0, path=tmp_path / "run")
    run.write_config({"task": "t"}, critic_obs="obs")
    content = RunFolder.open(run.path).read_config()
    assert content["config"] == {"task": "t"}
    assert content["critic_obs"] == "obs"
    assert {"torch", "torchrl", "mujoco", "unilab-torchrl"} <= content["versions"].keys()


def test_a_configuration_that_does_not_fit_the_disk_leaves_the_one_before(tmp_path):
    run = RunFolder.create("t", 0, path=tmp_path / "run")
    run.write_config({"task": "t"})
    before = sorted(run.path.iterdir()), run.config_file.read_bytes()
    with (
        largest_file(100),
        pytest.raises(CheckpointError, match=r"run_config.json cannot be written .*: free"),
    ):
        run.write_config({"task": "another"})
    assert (sorted(run.path.iterdir()), run.config_file.read_bytes()) == before


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, '{"config": 3}', "{}"])
def test_a_damaged_configuration_is_named(tmp_path, text):
    run = RunFolder.create("t", 0, path=tmp_path / "run")
    run.config_file.write_text(text)
    with pytest.raises(CheckpointError, match=r"run_config.json is damaged .*start a new run"):
        run.read_config()


def test_the_configuration_is_plain_json(tmp_path):
    run = RunFolder.create("t", 0, path=tmp_path / "run")
    run.write_config({"task": "t"})
    assert json.loads(run.config_file.read_text())["config"]["task"] == "t"
