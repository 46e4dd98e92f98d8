"""A new task as a new user writes one: the page's files, commands and package."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest
from docs.pages import TINY, blocks, run_python

from unilab import registry
from unilab.errors import ConfigError
from unilab.export import OnnxPolicy

pytestmark = pytest.mark.docs

PAGE = "guide/new_task.md"


def save(folder: Path) -> None:
    (model,) = blocks(PAGE, "xml")
    task, _ = blocks(PAGE, "python")
    (folder / "arm.xml").write_text(model)
    (folder / "arm.py").write_text(task)


def install(folder: Path, name: str, points: str) -> None:
    """Metadata of an installed package with entry points."""
    info = folder / f"{name}-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Name: {name}\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(points)


def test_one_file_is_listed_trained_played_and_exported(tmp_path: Path) -> None:
    save(tmp_path)
    show, train, after, *_ = blocks(PAGE, "bash")
    listing = run_python(tmp_path, *show.split()[1:])
    assert re.search(r"^arm +A planar arm", listing, re.M)

    for line, collector in zip(train.splitlines(), ("sync", "pipelined"), strict=True):
        folder = f"training.run_dir=runs/{collector}"
        settings = [*TINY, f"training.collector={collector}", folder]
        out = run_python(tmp_path, *line.split()[1:], *settings)
        assert "Finished: 160 steps" in out
        assert f"play runs/{collector}" in out
    more = ["training.resume=runs/sync", "algo.total_frames=240"]
    assert "Finished: 240 steps" in run_python(tmp_path, "arm.py", "train", *more)

    for line in after.replace("RUN", "runs/pipelined").splitlines():
        if "--video" not in line:
            run_python(tmp_path, *line.split()[1:])
    assert OnnxPolicy(tmp_path / "arm.onnx").metadata["task"] == "arm"


def test_file_can_be_imported_and_inspected(
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


def test_package_adds_its_tasks_to_the_command(tmp_path: Path) -> None:
    (text,) = blocks(PAGE, "toml")
    project = tomllib.loads(text)["project"]
    ((group, points),) = project["entry-points"].items()
    site = tmp_path / "site"
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    install(site, "my_robots", "\n".join(lines))
    package = site / "my_robots"
    package.mkdir()
    (package / "__init__.py").write_text("")
    save(package)

    listing, show, train = next(b for b in blocks(PAGE, "sh") if "unilab list" in b).splitlines()
    command = ["-m", "unilab.cli"]
    assert "arm  " in run_python(tmp_path, *command, *listing.split()[1:], path=site)
    shown = run_python(tmp_path, *command, *show.partition("#")[0].split()[1:], path=site)
    assert "env.decimation=" in shown
    settings = [*TINY, "training.collector=pipelined", "training.run_dir=run"]
    out = run_python(tmp_path, *command, *train.split()[1:], *settings, path=site)
    assert "Finished: 160 steps" in out
    run_python(tmp_path, *command, "play", "run", "--robots", "2", path=site)


def test_package_with_a_broken_import_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "broken_robots", "[unilab.tasks]\nbroken = broken_robots\n")
    (tmp_path / "broken_robots.py").write_text("import no_such_physics\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry.import_entry_points.cache_clear()

    assert registry.describe("cartpole_swingup")  # packaged tasks import no other package
    with pytest.raises(ConfigError, match=r"broken_robots.*no_such_physics"):
        registry.names()
