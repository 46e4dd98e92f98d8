"""An exported file as a policy."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from tensordict import TensorDict
from torchrl.envs.utils import ExplorationType, set_exploration_type

from unilab.errors import CheckpointError, ConfigError
from unilab.export import OnnxPolicy
from unilab.modules import FlashSACPolicy


@pytest.fixture
def file(exported, tmp_path):
    return Path(shutil.copy(exported.path, tmp_path))


@pytest.mark.parametrize("batch", [[4], [2, 3]])
def test_it_acts_like_the_policy_of_the_actor_without_exploration(actor, file, batch):
    data = TensorDict({"obs": torch.randn(*batch, 5)}, batch)
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        expected = FlashSACPolicy(actor)(data.clone())["action"]
    given = OnnxPolicy(file)(data)["action"]
    assert given.dtype == torch.float32
    torch.testing.assert_close(given, expected, atol=1e-5, rtol=0.0)


def test_it_knows_its_widths_and_metadata(file):
    policy = OnnxPolicy(file)
    assert (policy.obs_dim, policy.action_dim) == (5, 2)
    assert policy.metadata["task"] == "t"
    assert policy.metadata["action_transform"] == "tanh_affine"


def test_it_reads_and_writes_the_given_keys(file):
    policy = OnnxPolicy(file, obs_key="sensed", action_key=("agent", "action"))
    out = policy(TensorDict({"sensed": torch.zeros(3, 5)}, [3]))
    assert out["agent", "action"].shape == (3, 2)


def test_observations_of_another_width_are_refused(file):
    with pytest.raises(ConfigError, match="width 5, got 6"):
        OnnxPolicy(file)(TensorDict({"obs": torch.zeros(3, 6)}, [3]))


def test_a_missing_file_is_an_error_that_says_how_to_make_one(tmp_path):
    with pytest.raises(CheckpointError, match="unilab export"):
        OnnxPolicy(tmp_path / "p.onnx")


@pytest.mark.parametrize("keep", [0, 100, 0.5])
def test_a_damaged_file_is_an_error(file, keep):
    content = file.read_bytes()
    file.write_bytes(content[: int(keep * len(content)) if keep < 1 else keep])
    with pytest.raises(CheckpointError, match=r"p\.onnx"):
        OnnxPolicy(file)


def foreign(path, inputs, *, kind=TensorProto.FLOAT):
    """A file of one node that another exporter wrote."""
    values = [helper.make_tensor_value_info(n, kind, s) for n, s in inputs]
    out = helper.make_tensor_value_info("y", kind, inputs[0][1])
    nodes = [helper.make_node("Sum", [n for n, _ in inputs], ["y"])]
    graph = helper.make_graph(nodes, "g", values, [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    helper.set_model_props(model, {"author": "someone else"})
    onnx.save(model, str(path))
    return path


def test_a_foreign_file_of_the_right_shape_plays(tmp_path):
    policy = OnnxPolicy(foreign(tmp_path / "f.onnx", [("state", ["n", 3])]))
    obs = torch.randn(2, 3)
    assert torch.equal(policy(TensorDict({"obs": obs}, [2]))["action"], obs)
    assert policy.metadata == {"author": "someone else"}


@pytest.mark.parametrize(
    ("inputs", "kind"),
    [
        ([("a", ["n", 3]), ("b", ["n", 3])], TensorProto.FLOAT),
        ([("a", ["n", 3, 1])], TensorProto.FLOAT),
        ([("a", ["n", "w"])], TensorProto.FLOAT),
        ([("a", ["n", 3])], TensorProto.DOUBLE),
    ],
)
def test_a_foreign_file_of_another_shape_or_type_is_refused(tmp_path, inputs, kind):
    with pytest.raises(CheckpointError, match=r"one input \[batch, obs_dim\]"):
        OnnxPolicy(foreign(tmp_path / "f.onnx", inputs, kind=kind))
