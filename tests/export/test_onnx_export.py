"""The exported file: what is in it, and that nothing else is ever written."""

from __future__ import annotations

import copy
import importlib.util
import json
import logging
import re
import sys
import threading
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


@pytest.mark.parametrize("metadata", [{1: 2}, ["gain"]])
def test_metadata_without_names_are_refused(actor, tmp_path, metadata):
    with pytest.raises(ConfigError, match=r"metadata is .*expected a mapping from names to JSON"):
        export_onnx(actor, tmp_path / "p.onnx", metadata=metadata)


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
    """As much of an actor as an export needs; explores as it exports, unless told otherwise."""

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


def refused(actor, tmp_path, match, obs_dim=3):
    """An export that raises and leaves the older file as it was."""
    (tmp_path / "p.onnx").write_bytes(b"the last good one")
    with pytest.raises(ActorContractError, match=match) as raised:
        export_onnx(actor, tmp_path / "p.onnx", obs_dim=obs_dim)
    assert [p.name for p in tmp_path.iterdir()] == ["p.onnx"]
    assert (tmp_path / "p.onnx").read_bytes() == b"the last good one"
    return raised.value


@pytest.mark.parametrize(
    "explores", [lambda obs: torch.tanh(5.0 * obs), lambda obs: obs + 1e-4], ids=["tanh", "close"]
)
def test_a_module_that_does_not_act_as_the_actor_does_is_refused(tmp_path, explores):
    actor = Exporting(Doing(lambda obs: 1.0 * obs), Doing(explores))
    refused(actor, tmp_path, r"as_export_module\(\) and explore\(.*differ by .*nothing was written")


def test_a_module_with_weights_from_before_the_training_is_refused(actor, tmp_path):
    before = copy.deepcopy(actor).as_export_module()
    actor.mean_head.weight.data.add_(0.1)
    actor.as_export_module = lambda: before
    refused(actor, tmp_path, r"differ by .*from the weights as they are", obs_dim=5)


def test_a_random_action_is_refused(tmp_path):
    noisy = Exporting(Doing(lambda obs: obs + torch.rand_like(obs)))
    refused(noisy, tmp_path, r"differ by [\d.]+ .*without randomness")


def test_a_file_that_is_right_for_some_batch_sizes_only_is_refused(tmp_path):
    actor = Exporting(Doing(lambda obs: obs if obs.shape[0] < 100 else -obs))
    refused(actor, tmp_path, r"the exported file and explore\(.*differ by .* on 256 random")


def test_weights_that_are_not_finite_are_refused(actor, tmp_path):
    actor.mean_head.weight.data[0, 0] = float("nan")
    refused(actor, tmp_path, r"gives an action that is not finite .*the training diverged", 5)


def test_a_module_that_is_not_finite_for_some_observations_is_refused(tmp_path):
    actor = Exporting(Doing(lambda obs: obs.where(obs < 5.0, torch.nan)), nn.Identity())
    refused(actor, tmp_path, r"as_export_module\(\) gives an action that is not finite")


def test_a_module_that_cannot_be_exported_is_one_line_with_its_cause(tmp_path, monkeypatch, capsys):
    logged = []
    monkeypatch.setattr(logging.Logger, "callHandlers", lambda self, record: logged.append(record))
    branching = Exporting(Doing(lambda obs: obs if obs.sum() > 0 else -obs))
    error = refused(branching, tmp_path, r"cannot be exported .*data-dependent.*may not branch")
    assert error.__cause__ is not None
    assert "\n" not in str(error)
    assert "\x1b" not in str(error)
    warned = [record for record in logged if record.levelno >= logging.WARNING]
    assert (warned, *capsys.readouterr()) == ([], "", "")


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda obs: obs.double(), r"returns torch.float64 \[1, 3\] .*expected torch.float32 \[1,"),
        (lambda obs: obs.sum(0, keepdim=True), r"returns torch.float32 \[1, 3\] for 2 float32"),
        (lambda obs: obs[:, 0], r"returns torch.float32 \[1\] for 1 float32"),
        (lambda obs: (obs, obs), r"returns tuple for 1 float32"),
        (lambda obs: obs @ torch.zeros(3, 2).bfloat16(), r"raised RuntimeError for 1 float32"),
        (lambda obs: obs @ torch.zeros(4, 2), r"raised RuntimeError .* observations of width 3"),
    ],
    ids=["type", "sum", "flat", "tuple", "raises", "width"],
)
@pytest.mark.parametrize("part", ["as_export_module()", "explore(obs, deterministic=True)"])
def test_what_is_no_action_for_each_observation_is_refused(tmp_path, part, function, problem):
    wrong, right = Doing(function), nn.Identity()
    actor = Exporting(wrong, right) if part.startswith("as_") else Exporting(right, wrong)
    refused(actor, tmp_path, rf"^{re.escape(part)} {problem}")


def test_actions_of_two_widths_are_refused(tmp_path):
    actor = Exporting(Doing(lambda obs: obs[:, :2]), nn.Identity())
    refused(actor, tmp_path, r"gives 2 numbers an action and explore\(.* 3: expected the same")


def test_an_actor_without_an_export_module_is_refused(actor, tmp_path):
    actor.as_export_module = lambda: torch.tanh
    refused(actor, tmp_path, r"as_export_module\(\) .* returned builtin.*expected an nn.Module")
    actor.as_export_module = lambda: {}["module"]
    refused(actor, tmp_path, r"as_export_module\(\) of the actor raised KeyError: 'module'")


def test_a_file_that_onnx_does_not_accept_is_not_written(tmp_path, monkeypatch):
    def reject(model, full_check):
        raise onnx.checker.ValidationError(f"no graph of {type(model).__name__}")

    monkeypatch.setattr(onnx.checker, "check_model", reject)
    refused(
        Exporting(nn.Identity()),
        tmp_path,
        r"no valid ONNX \(no graph of ModelProto\): nothing was written",
    )


class Uncopyable(nn.Module):
    """Holds what cannot be copied, as actors that train well may."""

    action_transform_id = "none"

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.utils.spectral_norm(nn.Linear(3, 2))
        self.lock = threading.Lock()

    def as_export_module(self) -> nn.Module:
        return self.layer

    def explore(self, obs, dones=None, deterministic=False):
        self.last = self.layer(obs)
        return self.last


def test_an_actor_that_cannot_be_copied_is_exported(tmp_path):
    actor = Uncopyable()
    lock, last = actor.lock, actor.explore(torch.ones(2, 3))
    with pytest.raises((RuntimeError, TypeError)):
        copy.deepcopy(actor)
    export_onnx(actor, tmp_path / "p.onnx", obs_dim=3)
    assert (actor.lock, actor.last) == (lock, last)
    obs = torch.randn(4, 3)
    expected = actor.eval().explore(obs).detach()
    torch.testing.assert_close(run(tmp_path / "p.onnx", obs), expected)


def test_an_actor_that_cannot_come_to_the_cpu_is_refused(tmp_path):
    actor = Exporting(nn.Linear(3, 2, device="meta"))
    refused(actor, tmp_path, r"Exporting cannot be copied to the CPU .*load_play_actor")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_an_actor_on_an_accelerator_is_exported_from_there(actor, tmp_path):
    export_onnx(copy.deepcopy(actor).cuda(), tmp_path / "p.onnx")
    obs = torch.randn(4, 5)
    torch.testing.assert_close(
        run(tmp_path / "p.onnx", obs), actor.explore(obs, deterministic=True), atol=1e-5, rtol=0.0
    )


def test_the_file_acts_as_the_actor_does_in_eval_mode(tmp_path):
    actor = Exporting(nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5)))
    actor.module(torch.randn(64, 3) + 2.0)
    export_onnx(actor, tmp_path / "p.onnx", obs_dim=3)
    assert actor.module[0].training
    obs = torch.randn(4, 3)
    torch.testing.assert_close(run(tmp_path / "p.onnx", obs), actor.eval().module(obs))


def test_an_actor_of_unknown_width_must_be_told(tmp_path):
    with pytest.raises(ConfigError, match=r"Exporting does not say its obs_dim: pass obs_dim"):
        export_onnx(Exporting(nn.Identity()), tmp_path / "p.onnx")


def test_a_folder_that_does_not_exist_is_named(actor, tmp_path):
    with pytest.raises(ConfigError, match=r"the folder .*missing does not exist"):
        export_onnx(actor, tmp_path / "missing" / "p.onnx")


@pytest.mark.parametrize("name", ["", ".", "/", "folder"])
def test_a_folder_is_no_file_to_write(actor, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    with pytest.raises(ConfigError, match=r"cannot write .*: it is a folder; give the file's name"):
        export_onnx(actor, name)
    assert [str(p) for p in Path().rglob("*")] == ["folder"]


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    name = "n" * 250 + ".onnx"  # too long for any file system once something is added to it
    with pytest.raises(ConfigError, match=r"cannot write .*\(File name too long\)"):
        export_onnx(Exporting(nn.Identity()), tmp_path / name, obs_dim=3)
    assert list(tmp_path.iterdir()) == []


def test_an_older_file_behind_a_link_is_replaced_at_once(tmp_path):
    (tmp_path / "real.onnx").write_bytes(b"older")
    (tmp_path / "older.onnx").hardlink_to(tmp_path / "real.onnx")
    (tmp_path / "link.onnx").symlink_to("real.onnx")
    export_onnx(Exporting(nn.Identity()), tmp_path / "link.onnx", obs_dim=3)
    assert (tmp_path / "link.onnx").is_symlink()
    onnx.load(tmp_path / "real.onnx")
    assert (tmp_path / "older.onnx").read_bytes() == b"older"  # not overwritten in place


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
