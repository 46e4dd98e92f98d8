"""The ``unilab`` command."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from unilab import cli, registry
from unilab.conf import compose
from unilab.record import ProgressCsv, RunFolder


def test_list_shows_every_task_with_its_description(capsys):
    assert cli.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, line in zip(registry.names(), lines, strict=True):
        assert line.split()[0] == name
        assert registry.describe(name) in line


def test_plot_writes_the_picture_and_prints_its_path(tmp_path, capsys):
    run = RunFolder.create("t", 0, path=tmp_path / "run")
    run.write_config({"task": "t"})
    ProgressCsv(run.progress_file).write(1, 1.0, {"Train/return": 1.0})
    assert cli.main(["plot", str(run.path), "--out", str(tmp_path / "out.png")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "out.png")
    assert (tmp_path / "out.png").stat().st_size > 0


def test_a_quoted_tilde_is_the_home_directory(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    run = RunFolder.create("t", 0, path=tmp_path / "run")
    run.write_config({"task": "t"})
    ProgressCsv(run.progress_file).write(1, 1.0, {"Train/return": 1.0})
    assert cli.main(["plot", "~/run", "--out", "~/out.png"]) == 0
    assert (tmp_path / "out.png").exists()
    for command in ("play", "export", "plot", "replay-dump"):
        assert cli.main([command, "~/nowhere"]) == 2
        assert f"{tmp_path}/nowhere" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [[], ["trian"], ["plot"], ["play", "run", "--size", "640"]])
def test_wrong_command_shows_the_usage(argv, capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main(argv)
    assert exit_.value.code == 2
    assert "usage: unilab" in capsys.readouterr().err


_ANSWER = """
import sys
from unilab.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as exit_:
    code = exit_.code
print("torch" in sys.modules, code)
"""


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("list", 0, "go2_velocity_flat"),
        ("play nowhere", 2, "error: nowhere"),
        ("train task=go2_velocity", 2, "did you mean 'go2_velocity_flat'"),
        ("train tsak=go2_velocity_flat", 2, "did you mean 'task'"),
        ("train task=go2_velocity_flt", 2, "did you mean 'go2_velocity_flat'"),
        ("train flashsack", 2, "did you mean 'flashsac'"),
        ("train algo.name=ddpg", 2, "'ddpg'"),
        ("train training.resume=nowhere", 2, "error: nowhere"),
    ],
)
def test_command_that_only_answers_imports_no_torch(tmp_path, command, code, said):
    done = subprocess.run(
        [sys.executable, "-c", _ANSWER, *command.split()],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.stdout.splitlines()[-1] == f"False {code}", done.stderr
    assert said in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("argument", "reader", "code"),
    [("list", "gone", 141), ("list", "full disk", 2), ("--help", "gone", 0)],
)
def test_output_that_cannot_be_written_ends_a_command_without_a_traceback(argument, reader, code):
    ours, theirs = os.pipe()
    os.close(ours)
    stdout = theirs if reader == "gone" else os.open("/dev/full", os.O_WRONLY)
    command = [sys.executable, "-m", "unilab.cli", argument]
    done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (code, code == 2)
    os.close(theirs)


@pytest.mark.parametrize("task", ["go2_velocity_flat", "cartpole_swingup", "g1_motion_tracking"])
def test_show_prints_keys_that_the_command_line_takes_back(task, capsys):
    assert cli.main(["show", task, "--all"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{task}: {registry.describe(task)}")
    keys = [line.partition("  # ")[0].strip() for line in out.splitlines() if line[:6] == "  env."]
    assert "env.decimation=" in out
    cfg = compose([f"task={task}", *keys])
    assert registry.config(task, cfg.env) == registry.config(task)
    assert cli.main(["show", task]) == 0
    assert capsys.readouterr().out.count(" env.") < len(keys)
