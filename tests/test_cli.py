"""The ``unilab`` command."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import unilab
from unilab import cli, registry
from unilab.errors import CapabilityError
from unilab.record import ProgressCsv, RunFolder


def test_list_shows_every_task_with_a_line_about_it(capsys):
    assert cli.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == registry.names()
    assert all(
        registry.describe(name) in line for name, line in zip(registry.names(), lines, strict=True)
    )


def test_plot_writes_the_picture_and_says_where(tmp_path, capsys):
    run = RunFolder.create("t", 0, path=tmp_path / "run")
    run.write_config({"task": "t"})
    ProgressCsv(run.progress_file).write(1, 1.0, {"Train/return": 1.0})
    assert cli.main(["plot", str(run.path), "--out", str(tmp_path / "out.png")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "out.png")
    assert (tmp_path / "out.png").stat().st_size > 0


def test_an_expected_error_is_one_line_and_exit_code_2(tmp_path, capsys):
    assert cli.main(["plot", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("argv", [[], ["trian"], ["plot"]])
def test_a_wrong_command_shows_the_usage(argv, capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main(argv)
    assert exit_.value.code == 2
    assert "usage: unilab" in capsys.readouterr().err


def test_the_console_script_is_this_command():
    (script,) = (e for e in metadata.entry_points(group="console_scripts") if e.name == "unilab")
    assert script.load() is cli.main


def test_examples_are_found_beside_a_source_tree():
    source = Path(unilab.__file__).parents[1] / "examples"
    assert cli.example("train_flashsac.py") == source / "train_flashsac.py"


def test_examples_are_found_where_a_wheel_installs_them(monkeypatch, tmp_path):
    installed = tmp_path / "share" / "unilab" / "examples" / "train_flashsac.py"
    installed.parent.mkdir(parents=True)
    installed.write_text("")
    file = metadata.PackagePath("../../../share/unilab/examples/train_flashsac.py")
    monkeypatch.setattr(file, "locate", lambda: installed, raising=False)
    monkeypatch.setattr(metadata, "files", lambda name: [file])
    monkeypatch.setattr(unilab, "__file__", str(tmp_path / "site" / "unilab" / "__init__.py"))
    assert cli.example("train_flashsac.py") == installed


def test_an_installation_without_the_script_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(metadata, "files", lambda name: None)
    monkeypatch.setattr(unilab, "__file__", str(tmp_path / "unilab" / "__init__.py"))
    with pytest.raises(CapabilityError, match=r"lacks examples/train_flashsac.py: reinstall it"):
        cli.example("train_flashsac.py")


def test_train_refuses_a_misspelt_task_before_it_writes_anything(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "unilab.cli", "train", "task=go2_velocity"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: no task named 'go2_velocity' (did you mean 'go2_velocity_flat'")
    assert list(tmp_path.iterdir()) == []
