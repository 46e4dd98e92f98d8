"""`unilab export`."""

from __future__ import annotations

import json
import shutil

import onnx
import pytest

from unilab import cli, registry


def metadata(path):
    return {p.key: json.loads(p.value) for p in onnx.load(path).metadata_props}


def test_file_lies_in_the_run_and_its_error_and_how_to_play_it_are_printed(go2, tmp_path, capsys):
    run = shutil.copytree(go2, tmp_path / "my run")
    assert cli.main(["export", str(run)]) == 0
    out = capsys.readouterr().out
    assert f"{run}/policy.onnx: obs [batch, 45] -> action [batch, 12], opset 18" in out
    assert float(out.split("the checkpoint: ")[1].split()[0]) <= 1e-5
    assert out.endswith(f"unilab play '{run}' --policy '{run}/policy.onnx'\n")


def test_file_holds_what_a_robot_needs(go2, tmp_path):
    assert cli.main(["export", str(go2), "--out", str(tmp_path / "go2.onnx")]) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["go2.onnx"]
    read = metadata(tmp_path / "go2.onnx")
    env = registry.make("go2_velocity_flat", num_envs=1, overrides={"num_threads": 1})
    described = env.deployment_metadata()
    env.close()
    assert {key: read[key] for key in described} == described
    assert (read["task"], read["run"]) == ("go2_velocity_flat", go2.name)
    assert read["action_transform"] == "tanh"
    assert {"unilab-torchrl", "torch", "mujoco"} <= set(read["versions"])
    assert set(read) == {*described, "task", "run", "action_transform", "versions"}


@pytest.mark.slow
def test_checkpoint_is_exported_beside_its_run_with_the_runs_overrides(pendulum, tmp_path):
    run = shutil.copytree(pendulum, tmp_path / "run")
    content = json.loads((run / "run_config.json").read_text())
    content["config"]["env"]["decimation"] = 5
    (run / "run_config.json").write_text(json.dumps(content))
    (checkpoint,) = (run / "checkpoints").iterdir()
    assert cli.main(["export", str(checkpoint)]) == 0
    read = metadata(run / "policy.onnx")
    assert read["run"] == "run"
    assert read["control_period"] == pytest.approx(0.05)
