"""The code of the guide runs as it stands."""

from __future__ import annotations

import importlib.util
import json
import math
import pickle
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from docs.pages import REPOSITORY, blocks, rows
from reference.opengl import needs_opengl
from reference.runs import tiny_run
from tensordict import TensorDict
from torchrl.data import Bounded
from torchrl.envs import check_env_specs

import unilab
from unilab import cli, registry
from unilab.backends.conformance import CLAUSES
from unilab.conf import compose
from unilab.errors import ConfigError
from unilab.export import OnnxPolicy
from unilab.modules import FlashSACActorSpec
from unilab.trainers import Checkpointer, Counters, Interface, algorithms, run_identity

TINY = [
    "algo.num_envs=8",
    "algo.batch_size=32",
    "algo.learning_starts=64",
    "algo.total_frames=160",
    "algo.algo_params.actor_hidden_dim=16",
    "algo.algo_params.critic_hidden_dim=16",
    "algo.algo_params.compile=false",
    "training.eval_num_envs=2",
    "training.eval_interval=null",
    "training.num_threads=1",
    "env.episode_length_s=0.5",
]


def test_compose_page_runs_from_top_to_bottom() -> None:
    names: dict = {}
    for block in blocks("guide/compose.md", "python"):
        exec(compile(block, "docs/guide/compose.md", "exec"), names)

    assert names["learner"].update_count == 16  # four steps for each of the four batches
    assert all(bool(v.isfinite()) for v in names["metrics"].values())
    assert len(names["buffer"]) == 1280
    assert all(bool(v.isfinite().all()) for v in names["losses"].values())


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

    interface = Interface(
        obs_groups={"obs": 3},
        critic_obs="obs",
        action_spec=Bounded(-1.0, 1.0, (8, 1)),
        device=torch.device("cpu"),
    )
    identity = run_identity("my_task", interface, names["actor"])
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
    overrides = shlex.split(command.replace("\\\n", ""))[3:]
    cfg = compose(overrides)
    assert cfg.algo.algo_params.actor_config == FlashSACActorSpec(
        builder="my_actor:MyActor", kwargs={"low": -0.8, "high": [0.8]}
    )
    assert cfg.algo.random_warmup is False
    assert cfg.algo.algo_params.use_whole_cycle_cuda_graph is False


def test_runtime_page_runs_with_smaller_numbers() -> None:
    names: dict = {}
    smaller = {"5_000_000": "2_048", "20_000": "1_024", "num_envs=256": "num_envs=64"}
    smaller |= {"frames_per_batch=256": "frames_per_batch=64"}
    for block in blocks("guide/runtime.md", "python"):
        for text, less in smaller.items():
            block = block.replace(text, less)
        exec(compile(block, "docs/guide/runtime.md", "exec"), names)

    assert names["learner"].update_count == (2048 - 1024) // 64 + 1
    assert names["running"].stop.exit_code == 0
    assert names["collector"].env.closed


def test_tasks_page_override_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    block, *_ = blocks("guide/tasks.md", "python")
    names: dict = {}
    exec(compile(block, "docs/guide/tasks.md", "exec"), names)

    assert "-0.02" in capsys.readouterr().out
    assert names["env"].max_episode_length == 500


def test_tasks_page_hardened_task_runs_and_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    *_, block, recorded = blocks("guide/tasks.md", "python")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(compile(block, "docs/guide/tasks.md", "exec"), names)

    assert names["data"]["next", "obs"].shape == (8, 20, 3 * 45)
    assert names["data"]["next", "critic"].shape == (8, 20, 49)

    exec(compile(recorded, "docs/guide/tasks.md", "exec"), names)
    assert {int(episode["env_id"]) for episode in names["episodes"]} == {0, 1}
    assert names["episodes"][0]["steps", "obs"].shape[1] == 3 * 45
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]


def test_backends_page_runs_and_lists_every_clause() -> None:
    names: dict = {}
    for block in blocks("guide/backends.md", "python"):
        exec(compile(block, "docs/guide/backends.md", "exec"), names)
    names["test_my_physics_conforms"]()

    *_, last = (i for i, row in enumerate(rows("guide/backends.md")) if row == ["clause"])
    assert [row[0] for row in rows("guide/backends.md")[last + 1 :]] == list(CLAUSES)


@pytest.fixture
def crane_files(tmp_path: Path) -> Path:
    """The page's model, task and settings, saved as it says."""
    _, source, *_ = blocks("guide/tasks.md", "python")
    (model,) = blocks("guide/tasks.md", "xml")
    (settings,) = blocks("guide/tasks.md", "yaml")
    (tmp_path / "crane.py").write_text(source)
    (tmp_path / "crane.xml").write_text(model)
    (tmp_path / "conf" / "task").mkdir(parents=True)
    (tmp_path / "conf" / "task" / "crane.yaml").write_text(settings)
    return tmp_path


@pytest.fixture
def crane(crane_files: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The task's module, imported as a user would; the registry is left as it was."""
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    spec = importlib.util.spec_from_file_location("crane", crane_files / "crane.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "crane", module)
    spec.loader.exec_module(module)
    return module


def test_own_task_is_registered_and_passes_torchrls_spec_check(crane: ModuleType) -> None:
    env = unilab.make("crane", num_envs=8, seed=0)
    check_env_specs(env)
    env.close()

    assert "crane" in registry.names()
    assert registry.dims("crane").critic == registry.dims("crane").obs + 3
    assert registry.describe("crane").startswith("Bring a crane's load")


def test_own_task_pays_by_the_loads_distance_from_the_middle(crane: ModuleType) -> None:
    env = unilab.make("crane", num_envs=8, seed=0)
    zero = env.full_action_spec["action"].zero()
    data = env.rollout(1, lambda td: td.set("action", zero))
    manager = env.reward_manager
    paid = manager.episode_sums[manager.term_names.index("delivered")]
    hook_x = data["next", "critic"][:, 0, -3]
    env.close()

    torch.testing.assert_close(paid, env.step_dt * torch.exp(-((hook_x / 0.5) ** 2)))
    assert hook_x.std() > 0.1


def test_own_task_derails_past_the_end_of_its_rail(crane: ModuleType) -> None:
    env = unilab.make("crane", num_envs=8, seed=0)
    full = torch.ones(8, 1)
    data = env.rollout(400, lambda td: td.set("action", full), break_when_any_done=False)
    env.close()

    assert data["next", "terminated"].any(1).all()


def test_own_tasks_factory_pickles(crane: ModuleType) -> None:
    make = pickle.loads(pickle.dumps(registry.factory("crane", num_envs=2, seed=0)))
    env = make()

    assert env.batch_size == torch.Size([2])
    env.close()


def test_a_name_that_is_taken_is_refused(crane: ModuleType) -> None:
    with pytest.raises(ConfigError, match="'crane' exists already: choose another name"):
        registry.register("crane", crane.crane)


def test_own_task_trains_with_the_edited_script(crane_files: Path) -> None:
    script = (REPOSITORY / "examples" / "train_flashsac.py").read_text()
    assert script.count("\nimport unilab\n") == 1
    edited = script.replace("\nimport unilab\n", "\nimport crane\nimport unilab\n")
    (crane_files / "train_flashsac.py").write_text(edited)
    *_, command = blocks("guide/tasks.md", "bash")
    interpreter, *arguments = command.split()
    assert interpreter == "python"
    done = subprocess.run(
        [sys.executable, *arguments, *TINY, "training.run_dir=run"],
        cwd=crane_files,
        capture_output=True,
        text=True,
        timeout=240,
    )

    assert done.returncode == 0, done.stderr
    config = json.loads((crane_files / "run" / "run_config.json").read_text())
    assert config["config"]["task"] == "crane"
    assert config["critic_obs"] == "critic"
    assert list((crane_files / "run" / "checkpoints").iterdir())


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
    lines = [line.split()[1:] for block in commands for line in block.splitlines()]
    for words in lines:
        if "--viewer" not in words:
            assert cli.main([*words, *(["--seconds", "0.4"] if words[0] == "play" else [])]) == 0
    names: dict = {}
    for block in blocks("guide/deploy.md", "python"):
        exec(compile(block, "docs/guide/deploy.md", "exec"), names)

    assert (demo / "swing.mp4").stat().st_size > 0
    assert (demo / "pendulum.onnx").exists()
    assert "N m, again in 0.02 s" in capsys.readouterr().out
    policy = OnnxPolicy(demo / "runs" / "demo" / "policy.onnx")
    obs = torch.tensor([[math.sin(1.0), math.cos(1.0), 0.25 * 2.0]])
    action = policy(TensorDict({"obs": obs}, [1]))["action"]
    assert names["control"](angle=1.0, rate=2.0) == pytest.approx(action[0].numpy(), abs=1e-6)


def test_deploy_page_lists_every_key_of_the_file(demo: Path) -> None:
    assert cli.main(["export", str(demo / "runs" / "demo"), "--out", str(demo / "keys.onnx")]) == 0
    listed = {
        key.strip("` ")
        for row in rows("guide/deploy.md")
        if len(row) == 2
        and row[0] not in ("key", "what")
        and "pip" not in row[1]
        and "apt-get" not in row[1]
        for key in row[0].split(",")
    }
    assert listed == set(OnnxPolicy(demo / "keys.onnx").metadata)
