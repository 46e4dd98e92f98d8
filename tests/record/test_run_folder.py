"""Folders of runs."""

from __future__ import annotations

import pytest
from reference.disk import largest_file

from unilab.errors import CheckpointError, ConfigError
from unilab.record import RunFolder


def test_a_new_run_is_in_the_folder_of_its_task(tmp_path):
    run = RunFolder.create("go2_velocity_flat", 3, log_root=tmp_path)
    assert run.path.parent == tmp_path / "go2_velocity_flat"
    assert run.path.name.endswith("_seed3")
    assert [p.name for p in run.path.iterdir()] == ["checkpoints"]


def test_runs_of_the_same_second_get_separate_folders(tmp_path):
    paths = {RunFolder.create("t", 0, log_root=tmp_path).path for _ in range(5)}
    assert len(paths) == 5


@pytest.mark.parametrize("folder", [{"log_root": "file"}, {"path": "x" * 300}])
def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path, monkeypatch, folder):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        RunFolder.create("t", 0, **folder)


def test_a_folder_in_the_home_directory_is_the_same_for_all_files(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    run = RunFolder.create("t", 0, path="~/run")
    run.write_config({"task": "t"})
    assert RunFolder.open("~/run").path == run.path == tmp_path / "run"
    assert RunFolder.create("t", 0, log_root="~/runs").path.parent == tmp_path / "runs" / "t"
    assert not (tmp_path / "~").exists()


@pytest.mark.parametrize("holds", ["configuration", "checkpoint"])
def test_a_folder_that_holds_a_run_is_refused(tmp_path, holds):
    run = RunFolder.create("t", 0, path=tmp_path / "run")
    if holds == "configuration":
        run.write_config({"task": "t"})
    else:
        (run.checkpoints / "checkpoint-000000000004").mkdir()
    with pytest.raises(ConfigError, match=str(run.path)):
        RunFolder.create("t", 0, path=run.path)


def test_a_path_that_is_not_a_run_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        RunFolder.open(tmp_path)


def test_the_configuration_is_read_with_what_was_resolved(tmp_path):
    run = RunFolder.create("t", 0, path=tmp_path / "run")
    run.write_config({"task": "t"}, critic_obs="obs")
    content = RunFolder.open(run.path).read_config()
    assert content["config"] == {"task": "t"}
    assert content["critic_obs"] == "obs"
    assert {"torch", "torchrl", "mujoco", "unilab-torchrl"} <= content["versions"].keys()


def test_c23_a_full_disk_keeps_the_configuration_before(tmp_path):
    run = RunFolder.create("t", 0, path=tmp_path / "run")
    run.write_config({"task": "t"})
    before = sorted(run.path.iterdir()), run.config_file.read_bytes()
    with largest_file(100), pytest.raises(CheckpointError, match=r"run_config\.json"):
        run.write_config({"task": "another"})
    assert (sorted(run.path.iterdir()), run.config_file.read_bytes()) == before


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, '{"config": 3}', "{}"])
def test_a_damaged_configuration_is_named(tmp_path, text):
    run = RunFolder.create("t", 0, path=tmp_path / "run")
    run.config_file.write_text(text)
    with pytest.raises(CheckpointError, match=r"run_config\.json"):
        run.read_config()
