"""The exported file: what is in it, and that nothing else is ever written."""

from __future__ import annotations

import copy
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from export.conftest import METADATA
from reference.runs import SCRIPT
from torch import nn

from unilab.errors import ActorContractError, CapabilityError, ConfigError
from unilab.export import export_onnx
from unilab.modules import FlashSACActorSpec, build_actor


def run(path: Path, obs: torch.Tensor) -> torch.Tensor:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(["action"], {"obs": obs.numpy()})[0])


@pytest.mark.parametrize("rows", [1, 2, 7, 300])
def test_any_batch_gives_the_deterministic_action_after_the_transform(actor, exported, rows):
    obs = torch.randn(rows, 5) * 4.0
    expected = actor.explore(obs, deterministic=True)
    assert expected[:, 1].min() > 0.0  # the second joint's range is [0, 4]
    torch.testing.assert_close(run(exported.path, obs), expected, atol=1e-5, rtol=0.0)


def test_observations_are_normalised_inside_the_graph(actor, exported, tmp_path):
    moved = copy.deepcopy(actor)
    moved.embedder.norm.running_mean += 1.0
    export_onnx(moved, tmp_path / "after.onnx")
    obs = torch.randn(4, 5)
    torch.testing.assert_close(run(tmp_path / "after.onnx", obs + 1.0), run(exported.path, obs))


def test_the_result_says_what_was_written(exported):
    model = onnx.load(exported.path)
    onnx.checker.check_model(model, full_check=True)
    assert [(o.domain, o.version) for o in model.opset_import] == [("", exported.opset)]
    assert (exported.obs_dim, exported.action_dim) == (5, 2)
    assert 0.0 <= exported.max_abs_diff <= 1e-5
    (obs,), (action,) = model.graph.input, model.graph.output
    assert (obs.name, action.name) == ("obs", "action")
    for value, width in ((obs, 5), (action, 2)):
        batch, columns = value.type.tensor_type.shape.dim
        assert batch.dim_param
        assert columns.dim_value == width
        assert value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT


def test_metadata_are_json_values_with_transform_and_versions(exported):
    read = {entry.key: json.loads(entry.value) for entry in onnx.load(exported.path).metadata_props}
    assert {key: read[key] for key in METADATA} == METADATA
    assert read["action_transform"] == "tanh_affine"
    assert read["versions"]["torch"] == torch.__version__
    assert set(read) == {*METADATA, "action_transform", "versions"}


@pytest.mark.parametrize("value", [float("nan"), torch.zeros(2), {1, 2}])
def test_metadata_that_json_cannot_hold_are_refused_by_name(actor, tmp_path, value):
    with pytest.raises(ConfigError, match=r"metadata 'gain' is .*JSON cannot hold it"):
        export_onnx(actor, tmp_path / "p.onnx", metadata={"gain": value})
    assert list(tmp_path.iterdir()) == []


def test_the_file_says_nothing_of_the_machine_that_wrote_it(exported):
    content = exported.path.read_bytes()
    graph = onnx.load(exported.path).graph
    assert not any(node.metadata_props or node.doc_string for node in graph.node)
    assert b".py" not in content
    assert str(Path.home()).encode() not in content


def test_the_actor_and_the_random_generator_are_left_as_they_were(actor, tmp_path):
    actor.train()
    state = copy.deepcopy(actor.state_dict())
    rng = torch.get_rng_state()
    export_onnx(actor, tmp_path / "p.onnx")
    assert all(module.training for module in actor.modules())
    assert all(torch.equal(value, state[key]) for key, value in actor.state_dict().items())
    assert torch.equal(torch.get_rng_state(), rng)


def test_a_custom_actor_is_exported_by_its_own_module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    assert importlib.util.find_spec("custom_actor")
    spec = FlashSACActorSpec(
        builder="custom_actor:TwoEncoderActor", kwargs={"split": 2, "action_high": 3.0}
    )
    actor = build_actor(spec, obs_dim=5, action_dim=2, device="cpu")
    export_onnx(actor, tmp_path / "p.onnx")
    obs = torch.randn(9, 5)
    torch.testing.assert_close(
        run(tmp_path / "p.onnx", obs), actor.explore(obs, deterministic=True), atol=1e-5, rtol=0.0
    )


class Exporting(nn.Module):
    """As much of an actor as an export needs."""

    action_transform_id = "none"

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def as_export_module(self) -> nn.Module:
        return self.module


class Noisy(nn.Module):
    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return obs + torch.rand_like(obs)


class Double(nn.Module):
    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return obs.double() * 1.1


class Branching(nn.Module):
    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return obs if obs.sum() > 0 else -obs


class Total(nn.Module):
    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return obs.sum(0, keepdim=True)


def test_a_file_that_disagrees_is_not_written(tmp_path):
    (tmp_path / "p.onnx").write_bytes(b"the last good one")
    with pytest.raises(ActorContractError, match=r"differ by [\d.]+ .*nothing was written"):
        export_onnx(Exporting(Noisy()), tmp_path / "p.onnx", obs_dim=3)
    assert [p.name for p in tmp_path.iterdir()] == ["p.onnx"]
    assert (tmp_path / "p.onnx").read_bytes() == b"the last good one"


def test_a_module_that_cannot_be_exported_is_an_error_with_its_cause(tmp_path):
    with pytest.raises(ActorContractError, match=r"cannot be exported .*may not branch") as raised:
        export_onnx(Exporting(Branching()), tmp_path / "p.onnx", obs_dim=3)
    assert raised.value.__cause__ is not None
    assert list(tmp_path.iterdir()) == []


def test_an_action_that_is_not_one_row_an_observation_is_refused(tmp_path):
    with pytest.raises(ActorContractError, match=r"torch.float32 \[\d+, action_dim\] of both"):
        export_onnx(Exporting(Total()), tmp_path / "p.onnx", obs_dim=3)
    assert list(tmp_path.iterdir()) == []


def test_an_action_of_another_type_is_refused(tmp_path):
    with pytest.raises(ActorContractError, match=r"float64 .*expected torch.float32"):
        export_onnx(Exporting(Double()), tmp_path / "p.onnx", obs_dim=3)
    assert list(tmp_path.iterdir()) == []


def test_an_actor_of_unknown_width_must_be_told(tmp_path):
    with pytest.raises(ConfigError, match=r"Exporting does not say its obs_dim: pass obs_dim"):
        export_onnx(Exporting(nn.Identity()), tmp_path / "p.onnx")


def test_a_folder_that_does_not_exist_is_named(actor, tmp_path):
    with pytest.raises(ConfigError, match=r"the folder .*missing does not exist"):
        export_onnx(actor, tmp_path / "missing" / "p.onnx")


def test_a_target_that_cannot_be_replaced_leaves_nothing_behind(actor, tmp_path):
    (tmp_path / "p.onnx").mkdir()
    with pytest.raises(ConfigError, match=r"cannot write .*p.onnx \("):
        export_onnx(actor, tmp_path / "p.onnx")
    assert [p.name for p in tmp_path.iterdir()] == ["p.onnx"]


@pytest.mark.parametrize("package", ["onnxscript", "onnxruntime"])
def test_a_missing_package_is_an_error_that_names_the_extra(actor, tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        CapabilityError, match=rf"{package}.*pip install 'unilab-torchrl\[export\]'"
    ):
        export_onnx(actor, tmp_path / "p.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_wide_action_range_is_compared_to_its_own_size(tmp_path):
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 2)

        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            return 500.0 * torch.tanh(self.layer(obs))

    torch.manual_seed(0)
    written = export_onnx(Exporting(Wide()), tmp_path / "p.onnx", obs_dim=64)
    assert np.isfinite(written.max_abs_diff)
    assert written.max_abs_diff <= 500 * 1e-5
