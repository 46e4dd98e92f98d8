"""The exported file: what is in it, and that nothing else is ever written."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch
from export.conftest import METADATA
from reference.tiny import tiny_batch, tiny_loss
from torch import nn

from unilab.errors import ActorContractError, CapabilityError, CheckpointError, ConfigError
from unilab.export import export_onnx
from unilab.modules import FlashSACActorSpec, build_actor
from unilab.trainers import FlashSACLearner


def run(path: Path, obs: torch.Tensor) -> torch.Tensor:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(["action"], {"obs": obs.numpy()})[0])


@pytest.mark.parametrize("rows", [1, 2, 7, 300])
def test_any_batch_gives_the_deterministic_action_after_the_transform(actor, exported, rows):
    obs = torch.randn(rows, 5) * 4.0
    expected = actor.explore(obs, deterministic=True)
    assert expected[:, 1].min() > 0.0  # the second joint's range is [0, 4]
    torch.testing.assert_close(run(exported.path, obs), expected, atol=1e-5, rtol=0.0)


def test_the_result_describes_the_file(exported):
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


def test_the_file_has_no_paths_or_code_of_the_exporting_machine(exported):
    content = exported.path.read_bytes()
    graph = onnx.load(exported.path).graph
    assert not any(node.metadata_props or node.doc_string for node in graph.node)
    assert b".py" not in content
    assert str(Path.home()).encode() not in content


@pytest.mark.slow
def test_a_custom_actor_is_exported_and_left_as_it_was(tmp_path):
    spec = FlashSACActorSpec(builder="reference.actors:PlainActor", kwargs={"high": 3.0})
    actor = build_actor(spec, obs_dim=5, action_dim=2, device="cpu").train()
    state, rng = copy.deepcopy(actor.state_dict()), torch.get_rng_state()
    export_onnx(actor, tmp_path / "p.onnx", obs_dim=5)
    assert all(module.training for module in actor.modules())
    assert all(torch.equal(value, state[key]) for key, value in actor.state_dict().items())
    assert torch.equal(torch.get_rng_state(), rng)
    obs = torch.randn(9, 5)
    expected = actor.explore(obs, deterministic=True)
    torch.testing.assert_close(run(tmp_path / "p.onnx", obs), expected, atol=1e-5, rtol=0.0)


@pytest.mark.slow
def test_an_actor_is_exported_after_an_update_in_bfloat16(tmp_path):
    loss = tiny_loss()
    FlashSACLearner(loss, amp_dtype="bfloat16").update(tiny_batch())
    assert export_onnx(loss.actor, tmp_path / "p.onnx").max_abs_diff <= 1e-5


class Exporting(nn.Module):
    """The members that an export needs; explores as it exports, unless told otherwise."""

    action_transform_id = "none"

    def __init__(self, module: nn.Module, explores: nn.Module | None = None) -> None:
        super().__init__()
        self.module = module
        self.explores = module if explores is None else explores

    def as_export_module(self) -> nn.Module:
        return self.module

    def explore(self, obs, dones=None, deterministic=False):
        assert deterministic
        return self.explores(obs)


class Doing(nn.Module):
    """A function of the observation."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.function(obs)


def same(obs: torch.Tensor) -> torch.Tensor:
    return 1.0 * obs


REFUSED = {
    "another action": (Doing(same), Doing(lambda obs: obs + 1e-4), "differ by"),
    "a random action": (Doing(lambda obs: obs + torch.rand_like(obs)), None, "differ by"),
    "not finite": (Doing(lambda obs: obs.where(obs < 5.0, torch.nan)), Doing(same), "by nan"),
    "a sum over the batch": (Doing(same), Doing(lambda obs: obs.sum(0)), "explore"),
    "another width": (Doing(lambda obs: obs[:, :2]), Doing(same), r"\[1, 2\].*\[1, 3\]"),
    "another type": (Doing(lambda obs: obs.double()), None, "float64"),
    "a branch": (Doing(lambda obs: obs if obs.sum() > 0 else -obs), None, "data-dependent"),
    "batch sizes": (Doing(lambda obs: obs if len(obs) < 100 else -obs), None, "256|batch"),
    "no module": (torch.tanh, None, "cannot be exported"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_does_not_act_as_the_actor_is_not_written(tmp_path, case):
    module, explores, message = REFUSED[case]
    actor = Exporting(nn.Identity(), explores or (module if module is not torch.tanh else None))
    actor.as_export_module = lambda: module
    (tmp_path / "p.onnx").write_bytes(b"the last good one")
    with pytest.raises(ActorContractError, match=message) as raised:
        export_onnx(actor, tmp_path / "p.onnx", obs_dim=3)
    assert "\n" not in str(raised.value)
    assert [p.name for p in tmp_path.iterdir()] == ["p.onnx"]
    assert (tmp_path / "p.onnx").read_bytes() == b"the last good one"


@pytest.mark.slow
def test_the_file_acts_as_the_actor_does_in_eval_mode(tmp_path):
    actor = Exporting(nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5)))
    actor.module(torch.randn(64, 3) + 2.0)
    export_onnx(actor, tmp_path / "p.onnx", obs_dim=3)
    assert actor.module[0].training
    obs = torch.randn(4, 3)
    torch.testing.assert_close(run(tmp_path / "p.onnx", obs), actor.eval().module(obs))


@pytest.mark.slow
def test_a_wide_action_range_is_compared_relative_to_its_size(tmp_path):
    torch.manual_seed(0)
    wide = Exporting(nn.Sequential(nn.Linear(64, 2), nn.Tanh(), Doing(lambda a: 500.0 * a)))
    assert export_onnx(wide, tmp_path / "p.onnx", obs_dim=64).max_abs_diff <= 500 * 1e-5


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("p.onnx", {}, "obs_dim"),
        ("missing/p.onnx", {"obs_dim": 3}, "path.*missing"),
        (".", {"obs_dim": 3}, "path"),
    ],
)
def test_arguments_are_refused_before_anything_is_exported(tmp_path, name, kwargs, message):
    with pytest.raises(ConfigError, match=message):
        export_onnx(Exporting(nn.Identity()), tmp_path / name, **kwargs)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    name = "n" * 250 + ".onnx"  # too long for any file system once something is added to it
    with pytest.raises(CheckpointError, match="cannot be written"):
        export_onnx(Exporting(nn.Identity()), tmp_path / name, obs_dim=3)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("package", ["onnxscript", "onnxruntime"])
def test_a_missing_package_is_an_error_that_names_the_extra(actor, tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(CapabilityError, match=rf"{package}.*unilab-torchrl\[export\]"):
        export_onnx(actor, tmp_path / "p.onnx")
