"""An exported file as a policy."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from tensordict import TensorDict
from torchrl.envs.utils import ExplorationType, set_exploration_type

from unilab.errors import CapabilityError, CheckpointError, ConfigError
from unilab.export import OnnxPolicy
from unilab.modules import FlashSACPolicy


@pytest.fixture
def file(exported, tmp_path):
    return Path(shutil.copy(exported.path, tmp_path))


@pytest.mark.parametrize("batch", [[4], [2, 3]])
def test_it_acts_like_the_actors_policy_without_exploration(actor, file, batch):
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


def test_keys_can_be_chosen(file):
    policy = OnnxPolicy(file, obs_key="sensed", action_key=("agent", "action"))
    out = policy(TensorDict({"sensed": torch.zeros(3, 5)}, [3]))
    assert out["agent", "action"].shape == (3, 2)


def test_observations_of_another_width_are_refused(file):
    with pytest.raises(ConfigError, match=r"takes 5 observations and was given 6"):
        OnnxPolicy(file)(TensorDict({"obs": torch.zeros(3, 6)}, [3]))


def test_a_missing_file_is_an_error_that_says_how_to_make_one(tmp_path):
    with pytest.raises(CheckpointError, match=r"no policy file at .*`unilab export <run>`"):
        OnnxPolicy(tmp_path / "p.onnx")


@pytest.mark.parametrize("keep", [0, 100, 0.5])
def test_a_damaged_file_is_an_error(file, keep):
    content = file.read_bytes()
    file.write_bytes(content[: int(keep * len(content)) if keep < 1 else keep])
    with pytest.raises(CheckpointError, match=r"damaged or is no ONNX file"):
        OnnxPolicy(file)


def foreign(path, inputs, *, node="Sum", kind=TensorProto.FLOAT, out=None, metadata=None):
    """A file of one node that someone else wrote."""
    values = [helper.make_tensor_value_info(n, kind, s) for n, s in inputs]
    out = helper.make_tensor_value_info("y", kind, inputs[0][1] if out is None else out)
    nodes = [helper.make_node(node, [n for n, _ in inputs], ["y"])]
    graph = helper.make_graph(nodes, "g", values, [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    helper.set_model_props(model, metadata or {"author": "someone else"})
    onnx.save(model, str(path))
    return path


def test_a_foreign_file_of_the_right_shape_plays(tmp_path):
    policy = OnnxPolicy(foreign(tmp_path / "f.onnx", [("state", ["n", 3])]))
    obs = torch.randn(2, 3)
    assert torch.equal(policy(TensorDict({"obs": obs}, [2]))["action"], obs)
    assert policy.metadata == {"author": "someone else"}


@pytest.mark.parametrize("text", ["not json {", "[" * 100_000])
def test_metadata_that_are_no_json_are_strings(tmp_path, text):
    file = foreign(tmp_path / "f.onnx", [("x", ["n", 3])], metadata={"note": text})
    assert OnnxPolicy(file).metadata == {"note": text}


@pytest.mark.parametrize(
    "inputs", [[("a", ["n", 3]), ("b", ["n", 3])], [("a", ["n", 3, 1])], [("a", ["n", "w"])]]
)
def test_a_foreign_file_of_another_shape_is_refused(tmp_path, inputs):
    with pytest.raises(CheckpointError, match=r"expected one input \[batch, obs_dim\]"):
        OnnxPolicy(foreign(tmp_path / "f.onnx", inputs))


@pytest.mark.parametrize(
    ("kind", "name"), [(TensorProto.DOUBLE, "double"), (TensorProto.STRING, "string")]
)
def test_a_foreign_file_of_another_type_is_refused(tmp_path, kind, name):
    file = foreign(tmp_path / "f.onnx", [("x", ["n", 3])], node="Identity", kind=kind)
    with pytest.raises(CheckpointError, match=rf"x tensor\({name}\).*both tensor\(float\)"):
        OnnxPolicy(file)


def test_a_file_of_a_fixed_batch_plays_that_many_robots_and_no_other(tmp_path):
    policy = OnnxPolicy(foreign(tmp_path / "f.onnx", [("x", [2, 3])]))
    assert policy(TensorDict({"obs": torch.ones(2, 3)}, [2]))["action"].shape == (2, 3)
    with pytest.raises(
        CheckpointError, match=r"f.onnx cannot act on 4 .*free batch size"
    ) as raised:
        policy(TensorDict({"obs": torch.ones(4, 3)}, [4]))
    assert "\n" not in str(raised.value)


def test_a_file_that_gives_another_number_of_actions_is_refused(tmp_path):
    file = foreign(tmp_path / "f.onnx", [("x", ["n", 3])], node="ReduceSum", out=["m", 1])
    with pytest.raises(CheckpointError, match=r"computes \[1, 1\] from 4 .*expected \[4, 1\]"):
        OnnxPolicy(file)(TensorDict({"obs": torch.ones(4, 3)}, [4]))


def test_without_onnxruntime_the_error_names_the_extra(file, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(CapabilityError, match=r"pip install 'unilab-torchrl\[export\]'"):
        OnnxPolicy(file)
