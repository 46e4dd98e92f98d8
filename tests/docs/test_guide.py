"""The programs of the guide run."""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from docs.pages import REPOSITORY, TINY, blocks, rows, run_page, run_python
from reference.opengl import needs_opengl
from reference.runs import tiny_run
from tensordict import TensorDict

from unilab import cli
from unilab.conf import algorithms, compose
from unilab.envs import terrains
from unilab.export import OnnxPolicy
from unilab.trainers import Checkpointer, Counters, run_identity

pytestmark = pytest.mark.docs


def test_compose_page_runs() -> None:
    names = run_page("guide/compose.md")

    assert names["learner"].update_count == 16  # four steps for each of four batches
    assert all(bool(v.isfinite()) for v in names["metrics"].values())
    assert all(bool(v.isfinite().all()) for v in names["losses"].values())


def test_edited_script_trains_another_task(tmp_path: Path) -> None:
    (tmp_path / "arm.xml").write_text(blocks("guide/new_task.md", "xml")[0])
    (tmp_path / "arm.py").write_text(blocks("guide/new_task.md", "python")[0])
    script = (REPOSITORY / "examples" / "train_flashsac.py").read_text()
    edited = script.replace("\nimport torch\n", "\nimport arm\nimport torch\n")
    assert edited != script
    (tmp_path / "my_script.py").write_text(edited)

    settings = [*TINY, "training.collector=sync", "training.run_dir=run"]
    assert "Finished: 160 steps" in run_python(tmp_path, "my_script.py", "task=arm", *settings)
    assert list((tmp_path / "run" / "checkpoints").iterdir())


def test_adapters_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gymnasium", reason="needs Gymnasium: pip install 'unilab-torchrl[gym]'")
    pytest.importorskip("rsl_rl", reason="needs RSL-RL: pip install 'unilab-torchrl[rsl-rl]'")
    names = run_page("guide/adapters.md")

    assert "(16, 45) (16, 49) AutoresetMode.SAME_STEP" in capsys.readouterr().out
    assert names["learner"].update_count == 11
    assert all(bool(v.isfinite()) for v in names["metrics"].values())
    assert names["runner"].current_learning_iteration == 1
    assert names["runner"].alg.critic.obs_dim == 49


def test_motion_page_runs_and_describes_the_files_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    saved = run_page("guide/motion_tracking.md")["motion"]
    arrays = [name for row in rows("guide/motion_tracking.md") for name in row[0].split("`, `")]
    assert {field.name for field in fields(saved)} <= {name.strip("`") for name in arrays}
    assert (tmp_path / "swing.npz").is_file()


def test_terrain_page_runs_and_its_kinds_have_the_ranges_that_it_names() -> None:
    names = run_page("guide/terrain.md")

    assert names["picture"].shape == (400, 880, 3)
    kinds = [row for row in rows("guide/terrain.md") if row[0].startswith("Hf")]
    assert {row[0] for row in kinds} == {n for n in dir(terrains) if n.startswith("Hf")}
    for name, _, ranges in kinds:
        known = {field.name for field in fields(getattr(terrains, name))}
        assert set(re.findall(r"\w+", ranges)) == {n for n in known if n.endswith("_range")}


def test_custom_actor_page_builds_trains_saves_and_plays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, check, compose_, play, other = blocks("guide/custom_actor.md", "python")
    (tmp_path / "my_actor.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    names: dict = {"torch": torch}
    for block in (check, compose_):
        exec(compile(block, "docs/guide/custom_actor.md", "exec"), names)
    batch = TensorDict(
        {
            "obs": torch.randn(8, 3),
            "action": torch.rand(8, 1),
            ("next", "obs"): torch.randn(8, 3),
            ("next", "reward"): torch.randn(8, 1),
            ("next", "terminated"): torch.zeros(8, 1, dtype=torch.bool),
        },
        [8],
    )
    assert names["learner"].update(batch)["loss_aux_calm"] > 0

    identity = run_identity("my_task", {"obs": 3}, "obs", names["actor"])
    folder = tmp_path / "runs" / "my_run" / "checkpoints"
    Checkpointer(folder, {"learner": names["learner"]}, identity=identity).save(Counters())
    trained = names["actor"].explore(torch.zeros(1, 3), deterministic=True)
    exec(compile(play, "docs/guide/custom_actor.md", "exec"), names)
    assert torch.equal(names["action"], trained)

    monkeypatch.setattr(algorithms, "_registered", {})
    exec(compile(other, "docs/guide/custom_actor.md", "exec"), names)
    assert list(algorithms._registered) == ["my_algorithm"]


def test_custom_actor_page_command_composes() -> None:
    command, _ = blocks("guide/custom_actor.md", "sh")
    cfg = compose(shlex.split(command.replace("\\\n", ""))[3:])

    assert cfg.algo.algo_params.actor_config == {
        "builder": "my_actor:MyActor",
        "kwargs": {"low": -0.8, "high": [0.8]},
    }
    assert cfg.algo.random_warmup is False
    assert cfg.algo.algo_params.use_whole_cycle_cuda_graph is False


def test_tasks_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_page("guide/tasks.md")

    assert "-0.02" in capsys.readouterr().out
    assert names["data"]["next", "obs"].shape == (8, 20, 3 * 45)


def test_backends_page_runs() -> None:
    run_page("guide/backends.md")["test_my_physics_conforms"]()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run that deploy.md makes, trained for a moment."""
    folder = tmp_path_factory.mktemp("deploy")
    tiny_run(folder / "runs" / "demo")
    return folder


@needs_opengl
def test_deploy_page_plays_films_exports_and_controls(
    demo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(demo)
    _, *commands = blocks("guide/deploy.md", "bash")
    for line in "".join(commands).splitlines():
        words = line.split()[1:]
        if "--viewer" not in words:
            assert cli.main([*words, *(["--seconds", "0.4"] if words[0] == "play" else [])]) == 0
    names = run_page("guide/deploy.md")

    assert (demo / "swing.mp4").stat().st_size > 0
    assert "N m, next in 0.02 s" in capsys.readouterr().out
    policy = OnnxPolicy(demo / "runs" / "demo" / "policy.onnx")
    obs = torch.tensor([[math.sin(1.0), math.cos(1.0), 0.25 * 2.0]])
    action = policy(TensorDict({"obs": obs}, [1]))["action"]
    assert names["control"](angle=1.0, rate=2.0) == pytest.approx(action[0].numpy(), abs=1e-6)

    table = rows("guide/deploy.md")
    start = table.index(["key", "value"]) + 1
    keys = {key.strip("` ") for row in table[start:] for key in row[0].split(",")}
    assert keys == set(policy.metadata)


def test_program_for_several_devices_runs_in_two_processes(tmp_path: Path) -> None:
    (program,) = blocks("guide/several_devices.md", "python")
    for text, less in SMALLER.items():
        program = program.replace(text, less)
    (tmp_path / "program.py").write_text(program)
    run_python(tmp_path, "program.py")
    state = torch.load(tmp_path / "learner.pt", weights_only=True)
    assert state["update_count"] == (1024 - 512) // 32 + 1


SMALLER = {"3_000_000": "1_024", "5_000_000": "1_024", "20_480": "512", "256": "32"}


@pytest.mark.parametrize("page", ["../README.md", "guide/runtime.md"])
def test_training_program_runs_with_smaller_numbers(page: str) -> None:
    (block,) = blocks(page, "python")
    for text, less in SMALLER.items():
        block = block.replace(text, less)
    names: dict = {}
    exec(compile(block, page, "exec"), names)

    assert names["learner"].update_count == (1024 - 512) // 32 + 1
