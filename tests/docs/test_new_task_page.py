"""A new task as a new user writes one: the page's files, commands and package."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from docs.pages import REPOSITORY, blocks

from unilab import registry
from unilab.errors import ConfigError
from unilab.export import OnnxPolicy

PAGE = "guide/new_task.md"
TINY = [
    "algo.num_envs=8",
    "algo.batch_size=32",
    "algo.learning_starts=64",
    "algo.total_frames=160",
    "algo.algo_params.actor_hidden_dim=16",
    "algo.algo_params.critic_hidden_dim=16",
    "algo.algo_params.compile=false",
    "training.eval_num_envs=2",
    "training.eval_interval=80",
    "training.num_threads=1",
    "env.episode_length_s=0.2",
    "env.num_threads=1",
]


def save(folder: Path) -> None:
    (model,) = blocks(PAGE, "xml")
    task, _ = blocks(PAGE, "python")
    (folder / "arm.xml").write_text(model)
    (folder / "arm.py").write_text(task)


def run(folder: Path, *arguments: str, path: Path | None = None) -> str:
    """What a command prints, started in the folder as a user would."""
    paths = [str(REPOSITORY), *([str(path)] if path else [])]
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_one_file_is_listed_trained_played_and_exported(tmp_path: Path) -> None:
    save(tmp_path)
    show, train, after, *_ = blocks(PAGE, "bash")
    _, *arguments = show.split()
    assert re.search(r"^arm +A planar arm brings its hand", run(tmp_path, *arguments), re.M)

    for line, collector in zip(train.splitlines(), ("sync", "pipelined"), strict=True):
        _, *arguments = line.split()
        folder = f"training.run_dir=runs/{collector}"
        out = run(tmp_path, *arguments, *TINY, f"training.collector={collector}", folder)
        assert "Finished: 160 steps" in out
        assert f"python arm.py play runs/{collector}" in out
    more = "algo.total_frames=240"
    assert "Finished: 240 steps" in run(
        tmp_path, "arm.py", "train", "training.resume=runs/sync", more
    )

    for line in after.replace("RUN", "runs/pipelined").splitlines():
        _, *arguments = line.split()
        if "--video" not in arguments:
            run(tmp_path, *arguments)
    assert OnnxPolicy(tmp_path / "arm.onnx").metadata["task"] == "arm"


def test_the_file_can_be_imported_and_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    monkeypatch.delitem(sys.modules, "arm", raising=False)
    _, look = blocks(PAGE, "python")
    names: dict = {}
    exec(compile(look, PAGE, "exec"), names)
    sys.modules.pop("arm")

    assert "torch.Size([8, 100, 8])" in capsys.readouterr().out
    target = names["env"].command_manager.get_command("target").norm(dim=1)
    assert bool(((target >= 0.2) & (target <= 0.5)).all())
    assert registry.training_settings("arm")["algo"]["num_envs"] == 32


def test_a_package_brings_its_tasks_to_the_command(tmp_path: Path) -> None:
    """An installation is a folder on the path with the project's metadata."""
    (text,) = blocks(PAGE, "toml")
    project = tomllib.loads(text)["project"]
    ((group, points),) = project["entry-points"].items()
    info = tmp_path / "site" / "my_robots-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    package = tmp_path / "site" / "my_robots"
    package.mkdir()
    (package / "__init__.py").write_text("")
    save(package)

    listing, train = next(b for b in blocks(PAGE, "sh") if "unilab list" in b).splitlines()
    command = ["-m", "unilab.cli"]
    site = tmp_path / "site"
    assert "arm  " in run(tmp_path, *command, *listing.split()[1:], path=site)
    tiny = [*TINY, "training.collector=pipelined", "training.run_dir=run"]
    assert "Finished: 160 steps" in run(tmp_path, *command, *train.split()[1:], *tiny, path=site)
    run(tmp_path, *command, "play", "run", "--robots", "2", path=site)


def test_a_package_whose_import_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "broken_robots-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: broken-robots\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[unilab.tasks]\nbroken = broken_robots\n")
    (tmp_path / "broken_robots.py").write_text("import no_such_physics\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    registry._import_packages.cache_clear()

    assert registry.describe("cartpole_swingup")  # packaged tasks do not ask others
    message = (
        r"broken-robots has tasks in 'broken_robots', whose import failed "
        r"\(ModuleNotFoundError: No module named 'no_such_physics'\): mend it or uninstall it"
    )
    with pytest.raises(ConfigError, match=message):
        registry.names()
