"""ADR-0017, building and validating: each test is named after its clause."""

from __future__ import annotations

import copy
import math
import multiprocessing
import random
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from reference.actors import PlainActor
from torch import Tensor, nn

from unilab.errors import ActorContractError
from unilab.modules import (
    FlashSACActor,
    FlashSACActorSpec,
    actor_semantics,
    build_actor,
    validate_actor,
)

PLAIN = "reference.actors:PlainActor"
OBS, ACTION = 3, 2


def spec(builder: str = PLAIN, **kwargs: object) -> FlashSACActorSpec:
    return FlashSACActorSpec(builder=builder, kwargs=kwargs)


def build(builder: str = PLAIN, **kwargs: object) -> nn.Module:
    return build_actor(spec(builder, **kwargs), obs_dim=OBS, action_dim=ACTION)


@pytest.mark.parametrize("wrap", [dict, OmegaConf.create])
@pytest.mark.parametrize("path", [PLAIN, "reference.actors.PlainActor"])
def test_c1_a_spec_is_read_from_a_dict_or_a_config_node_in_both_spellings(wrap, path):
    config = wrap({"builder": path, "kwargs": {"low": -2, "high": [1.0, {"a": None}]}})
    read = FlashSACActorSpec.from_config(config)
    assert read.to_dict() == {"builder": PLAIN, "kwargs": {"low": -2, "high": [1.0, {"a": None}]}}
    assert type(read.kwargs["high"]) is list
    assert FlashSACActorSpec.from_config(read.to_dict()) == read


def test_c1_kwargs_may_be_left_out():
    assert FlashSACActorSpec.from_config({"builder": PLAIN}).kwargs == {}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"builder": PLAIN, "kwarg": {}}, r"unknown key 'kwarg' .*did you mean 'kwargs'"),
        ({"kwargs": {}}, "has no builder: name one as"),
        ([PLAIN], r"actor_config=\['reference.*expected \{\"builder\""),
        ({"builder": PLAIN, "kwargs": [1]}, r"kwargs=\[1\]: expected a mapping"),
        ({"builder": "PlainActor"}, "builder 'PlainActor': expected a dotted path"),
        ({"builder": "a.b:c d"}, "builder 'a.b:c d': expected a dotted path"),
        ({"builder": None}, "builder None: expected a dotted path"),
        ({"builder": PLAIN, "kwargs": None}, "kwargs=None: expected a mapping"),
        ({"builder": "__main__:Actor"}, "__main__ is another module in every process"),
        (OmegaConf.create({"builder": "???"}), "has no builder: name one as"),
        (OmegaConf.create({"builder": PLAIN, "kwargs": {"a": "???"}}), "cannot be read .*a"),
        (OmegaConf.create({"builder": PLAIN, "kwargs": {"a": "${no}"}}), "cannot be read .*'no'"),
    ],
)
def test_c1_c2_another_key_or_no_dotted_path_is_refused(config, message):
    with pytest.raises(ActorContractError, match=message):
        FlashSACActorSpec.from_config(config)


@pytest.mark.parametrize(
    ("builder", "message", "cause"),
    [
        ("no_such_package:Actor", "no_such_package cannot be imported", ModuleNotFoundError),
        ("reference.actors:PlainActr", "has no 'PlainActr' .*did you mean", AttributeError),
        ("reference.actors:raising", "raised RuntimeError: no weights here", RuntimeError),
        ("reference.actors:not_callable", "is 3: expected a callable", None),
        ("reference.actors:no_module", "returned dict: expected a torch.nn.Module", None),
    ],
)
def test_c2_a_builder_that_cannot_build_is_refused_with_its_cause(builder, message, cause):
    with pytest.raises(ActorContractError, match=message) as caught:
        build(builder)
    assert cause is None or isinstance(caught.value.__cause__, cause)


def test_c2_a_builder_that_takes_other_arguments_is_refused():
    with pytest.raises(ActorContractError, match=r"raised TypeError: .*wdith.*kwargs=\{'wdith'"):
        build(wdith=3)


ENDLESS: dict = {}
ENDLESS["a"] = ENDLESS


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"a": {"b": torch.relu}}, r"kwargs\.a\.b=.*travel as JSON"),
        ({"a": [1.0, math.nan]}, r"kwargs\.a\[1\]=nan \(float\)"),
        ({"a": torch.ones(2)}, r"kwargs\.a=.*pass its tolist\(\)"),
        ({"a": np.float32(1.0)}, r"kwargs\.a=.*float32"),
        ({"a": {1: 2}}, r"kwargs\.a has the key 1: expected strings"),
        ({"a": b"x"}, r"kwargs\.a=b'x' \(bytes\)"),
        ({"a": 10**400}, r"kwargs\.a=1000.*\(int\)"),
        (ENDLESS, "kwargs are nested without end"),
    ],
)
def test_c3_kwargs_that_json_cannot_hold_are_refused_by_key(kwargs, message):
    with pytest.raises(ActorContractError, match=message):
        spec(**kwargs)


def test_c3_the_record_is_what_the_builder_was_called_with_whatever_changes_later():
    given = spec("reference.actors:popping", low=[-2.0, -3.0])
    actor = build_actor(given, obs_dim=OBS, action_dim=ACTION)
    given.kwargs["low"].clear()
    assert actor.scale.tolist() == [1.5, 1.5]
    assert actor_semantics(actor)["kwargs"] == {"low": [-2.0, -3.0]}


def _rebuild(config: dict, queue: multiprocessing.Queue) -> None:
    torch.set_num_threads(1)  # as here: the orthogonal start depends on it in the last bit
    torch.manual_seed(0)
    actor = build_actor(
        FlashSACActorSpec.from_config(config), obs_dim=OBS, action_dim=ACTION, device="cpu"
    )
    # NumPy: a tensor's storage would die with this process.
    weights = {name: value.numpy() for name, value in actor.state_dict().items()}
    queue.put((weights, actor_semantics(actor)))


@pytest.mark.parametrize("builder", [PLAIN, "unilab.modules:FlashSACActor"])
def test_c4_a_spawned_process_rebuilds_the_same_actor(builder):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    config = spec(builder).to_dict()
    child = context.Process(target=_rebuild, args=(config, queue))
    child.start()
    weights, semantics = queue.get(timeout=600)
    child.join()

    torch.manual_seed(0)
    actor = build(builder)
    assert semantics == actor_semantics(actor)
    assert weights.keys() == actor.state_dict().keys()
    assert all((value.numpy() == weights[key]).all() for key, value in actor.state_dict().items())


def test_c5_unilab_imports_no_builder_by_itself():
    code = "import sys, unilab.trainers, unilab.modules; print('reference' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_c6_the_built_in_actor_and_a_plain_one_pass():
    validate_actor(FlashSACActor(OBS, ACTION, 8, 1), obs_dim=OBS, action_dim=ACTION)
    assert build(low=-2.0, high=0.5).scale.tolist() == [1.25, 1.25]
    assert isinstance(build("unilab.modules.FlashSACActor", hidden_dim=4), FlashSACActor)


class Broken(PlainActor):
    """A plain actor with some of it replaced."""

    def __init__(self, **changes: object) -> None:
        super().__init__(OBS, ACTION)
        self.__dict__.update(changes)


def forwards(change):
    """A forward pass whose actions and info are changed."""

    class Forwards(Broken):
        def forward(self, obs: Tensor, training: bool) -> object:
            return change(*super().forward(obs, training))

    return Forwards()


def info(**entries: object):
    return forwards(lambda actions, info: (actions, {**info, **entries}))


def in_evaluation(change):
    """A forward pass that is changed without training alone."""

    class Evaluates(Broken):
        def forward(self, obs: Tensor, training: bool) -> object:
            out = super().forward(obs, training)
            return out if training else change(*out)

    return Evaluates()


class Doubled(nn.Module):
    """Exports twice the mean, untransformed: the action as long as the mean is 0."""

    def __init__(self, actor: PlainActor) -> None:
        super().__init__()
        self.actor = actor

    def forward(self, obs: Tensor) -> Tensor:
        return 2.0 * self.actor.mean(obs)


class BeginsAtZero(Broken):
    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.mean.weight)
        nn.init.zeros_(self.mean.bias)

    def as_export_module(self) -> nn.Module:
        return Doubled(self)


class Snapshot(Broken):
    """Exports a copy of its first weights."""

    def __init__(self) -> None:
        super().__init__()
        self.copies = [copy.deepcopy(self)]

    def as_export_module(self) -> nn.Module:
        return PlainActor.as_export_module(self.copies[0])


def slightly_off():
    actor = Broken()
    module = copy.deepcopy(actor).as_export_module()
    module.actor.offset += 3e-4
    actor.as_export_module = lambda: module
    return actor


class NewWeights(Broken):
    def normalize_parameters(self) -> None:
        self.mean.weight = nn.Parameter(self.mean.weight / 2)


class Remembers(Broken):
    def get_extra_state(self) -> object:
        return {"count": np.float64(3)}


def lazy():
    actor = Broken()
    actor.more = nn.LazyLinear(2)
    return actor


def confident_in_one_joint():
    std = torch.tensor([[1.0, 0.0]]).repeat(4, 1)
    return Broken(get_mean_and_std=lambda obs, training=False: (torch.zeros(4, 2), std))


def no_parameters():
    actor = Broken()
    actor.requires_grad_(False)
    return actor


def overconfident():
    actor = Broken()
    actor.get_mean_and_std = lambda obs, training=False: (torch.zeros(4, 2), torch.zeros(4, 2))
    return actor


BREACHES = {
    "no method": (lambda: Broken(explore=None), "C6 members.*no method explore"),
    "no parameters": (no_parameters, "C6 parameters.*no parameter that an optimizer"),
    "no transform": (lambda: Broken(action_transform_id=""), "C6 action_transform_id.*is ''"),
    "transform no string": (
        lambda: Broken(action_transform_id=3),
        "C6 action_transform_id.*is 3, expected a non-empty string",
    ),
    "actions alone": (
        lambda: forwards(lambda actions, info: actions),
        r"C6 forward\(obs, training=True\).*expected \(actions, info\)",
    ),
    "actions too wide": (
        lambda: forwards(lambda actions, info: (actions.repeat(1, 2), info)),
        r"actions is a tensor of shape \[4, 4\].*expected a tensor of shape \[4, 2\]",
    ),
    "no gradient": (
        lambda: forwards(lambda actions, info: (actions.detach(), info)),
        "no gradient leads from its actions",
    ),
    "no module": (object, "C6 members.*is no torch.nn.Module"),
    "lazy": (lazy, r"C6 parameters.*more\.weight has no size yet"),
    "meta": (lambda: Broken().to("meta"), r"C6 parameters.*mean\.weight .*meta device"),
    "other precision": (lambda: Broken().double(), r"C6 forward.*raised RuntimeError.*dtype"),
    "no gradient of log_prob": (
        lambda: forwards(lambda a, info: (a, {"log_prob": info["log_prob"].detach()})),
        "no gradient leads from its log_prob",
    ),
    "evaluation: actions alone": (
        lambda: in_evaluation(lambda actions, info: actions),
        r"C6 forward\(obs, training=False\).*expected \(actions, info\)",
    ),
    "evaluation: flat log_prob": (
        lambda: in_evaluation(lambda a, info: (a, {"log_prob": info["log_prob"].squeeze(-1)})),
        r"C6 forward\(obs, training=False\).*log_prob is a tensor of shape \[4\]",
    ),
    "NaN actions": (
        lambda: forwards(lambda actions, info: (actions * math.nan, info)),
        "actions is not finite on random observations",
    ),
    "no log_prob": (
        lambda: forwards(lambda actions, info: (actions, {"mean": actions})),
        r"C6 log_prob.*gave info with \['mean'\] only",
    ),
    "flat log_prob": (
        lambda: info(log_prob=torch.zeros(4)),
        r"log_prob is a tensor of shape \[4\].*expected a tensor of shape \[4, 1\]",
    ),
    "log_prob a joint": (
        lambda: info(log_prob=torch.zeros(4, 2)),
        r"log_prob is a tensor of shape \[4, 2\]",
    ),
    "aux None": (lambda: info(aux_losses=None), "C6 aux_losses.*None of type NoneType"),
    "aux without gradient": (
        lambda: info(aux_losses={"off": torch.zeros(()), "calm": torch.tensor(0.5)}),
        "C6 aux_losses.*no gradient leads from 'calm'",
    ),
    "aux no dict": (lambda: info(aux_losses=[1.0]), r"C6 aux_losses.*expected a dict"),
    "aux no scalar": (
        lambda: info(aux_losses={"a": torch.zeros(4)}),
        r"C6 aux_losses.*'a' is a tensor of shape \[4\].*expected a 0-dim float tensor",
    ),
    "aux no tensor": (lambda: info(aux_losses={"a": 1.0}), r"'a' is 1.0 of type float"),
    "aux an integer": (lambda: info(aux_losses={"a": torch.tensor(1)}), "'a' is .*int64"),
    "aux NaN": (lambda: info(aux_losses={"a": torch.tensor(math.nan)}), "'a' is nan on random"),
    "aux name": (
        lambda: info(aux_losses={"a/b": torch.tensor(1.0)}),
        "C6 aux_losses.*name 'a/b': expected letters",
    ),
    "aux no name": (lambda: info(aux_losses={"": torch.tensor(1.0)}), "the name ''"),
    "aux name a number": (lambda: info(aux_losses={1: torch.tensor(1.0)}), "the name 1:"),
    "mean and std": (
        lambda: Broken(get_mean_and_std=lambda obs: obs),
        r"C6 get_mean_and_std\(obs\).*expected \(mean, std\)",
    ),
    "std of zero": (overconfident, "std is not above 0"),
    "std of zero in one joint": (confident_in_one_joint, "std is not above 0"),
    "explore": (
        lambda: Broken(explore=lambda obs, dones=None, deterministic=False: obs),
        r"C6 explore.*actions is a tensor of shape \[4, 3\]",
    ),
    "explore in another precision": (
        lambda: Broken(explore=lambda obs, dones=None, deterministic=False: obs[:, :2].double()),
        r"C6 explore.*float64.*expected a tensor of shape \[4, 2\] and torch.float32",
    ),
    "explore without dones": (
        lambda: Broken(explore=lambda obs: torch.zeros(4, 2)),
        r"C6 explore\(obs, dones\).*raised TypeError",
    ),
    "export no module": (
        lambda: Broken(as_export_module=lambda: 3),
        r"C6 as_export_module\(\).*returned 3 of type int",
    ),
    "export shape": (
        lambda: Broken(as_export_module=lambda: nn.Identity()),
        r"C6 as_export_module\(\)\(obs\).*shape \[4, 3\]",
    ),
    "normalize": (
        lambda: Broken(normalize_parameters=lambda: 1 / 0),
        r"C6 normalize_parameters\(\).*raised ZeroDivisionError",
    ),
    "parameters replaced": (
        NewWeights,
        r"C9 one instance.*normalize_parameters\(\) put other parameters.*change them in place",
    ),
    "state": (Remembers, r"C24 state_dict\(\).*_extra_state is \{'count'.*no checkpoint takes"),
    "memory": (
        lambda: Broken(inference_startup_memory_categories=lambda: {"parameters": -1}),
        r"C6 inference_startup_memory_categories\(\).*returned \{'parameters': -1\}",
    ),
    "another mean is exported": (
        lambda: Broken(as_export_module=lambda: nn.Linear(OBS, ACTION)),
        r"C7 deterministic exploration equals export.*apart; both must give transform\(mean\)",
    ),
    "slightly another mean": (slightly_off, "C7 .* are 0.0003 apart; both must"),
    "another transform of 0": (BeginsAtZero, "C7 .*apart once its weights have changed; both"),
    "first weights are exported": (Snapshot, "C7 .*apart once its weights have changed; both"),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_c6_c7_a_breach_is_refused_by_its_clause(breach):
    make, message = BREACHES[breach]
    with pytest.raises(ActorContractError, match=rf"(?s)breaks the actor contract.*{message}"):
        validate_actor(make(), obs_dim=OBS, action_dim=ACTION)


def test_c6_build_actor_validates():
    with pytest.raises(ActorContractError, match=r"aux_losses.*'shy' is inf"):
        build(weight=1e39)  # beyond float32


def state(actor: nn.Module) -> dict[str, object]:
    """Everything that could change, by value."""
    named = {**dict(actor.named_parameters()), **dict(actor.named_buffers())}
    return {
        "tensors": {k: v.detach().clone() for k, v in named.items()},
        "same": {k: id(v) for k, v in named.items()},
        "grad": {k: (v.requires_grad, v.grad) for k, v in named.items()},
        "training": [m.training for m in actor.modules()],
        "noise": (id(actor.noise), actor.noise.clone()),
        "recent": copy.deepcopy(list(actor.recent)),
        "own": actor.generator.get_state(),
        "held": actor.held.x.clone(),
        "count": dict(actor.count),
        "attributes": sorted(actor.__dict__),
        "rng": (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()),  # noqa: NPY002
        "shared": actor.shared.tolist(),
        "slot": (id(actor.slotted.t), actor.slotted.t.clone()),
        "array": actor.array.tolist(),
        "sparse": actor.sparse.to_dense(),
        "generators": [g() for g in actor.states],
        "set": set(actor.known),
        "in a tuple": actor.pair[0].clone(),
        "resized": (actor.rows.shape, actor.rows.data_ptr()),
    }


def same(one: object, two: object) -> bool:
    """Bit for bit."""
    if isinstance(one, Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[k], two[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return one == two


class Slotted:
    __slots__ = ("__new", "t")


class Messy(PlainActor):
    """Changes whatever there is to change, in every call."""

    def __init__(self) -> None:
        super().__init__(OBS, ACTION)
        self.held = SimpleNamespace(x=torch.zeros(2))
        self.shared = torch.zeros(1).expand(3)
        self.raw_std.bias.requires_grad_(False)
        self.raw_std.eval()
        self.slotted = Slotted()
        self.slotted.t = torch.zeros(2)
        self.array = np.zeros(3)
        self.modern = np.random.default_rng(0)
        self.legacy = np.random.RandomState(0)
        self.python = random.Random(0)
        self.states = (
            lambda: self.modern.bit_generator.state,
            lambda: self.legacy.get_state()[1].tolist(),
            self.python.getstate,
        )
        self.known = {1}
        self.pair = (torch.zeros(2), 1)
        self.rows = torch.zeros(0, 2)
        self.sparse = torch.eye(2).to_sparse()
        self.mean.weight.grad = torch.ones_like(self.mean.weight)

    def forward(self, obs: Tensor, training: bool) -> tuple[Tensor, dict]:
        out = super().forward(obs, training)
        with torch.no_grad():
            self.mean.weight.add_(1.0)
            self.scale.mul_(2.0)
        self.raw_std.bias.requires_grad_(True)
        self.eval()
        self.held.x += 1
        self.held.y = 1
        self.slotted.t += 1
        self.slotted._Slotted__new = 1
        self.array += 1
        self.modern.random()
        self.legacy.rand()
        self.python.random()
        self.known.add(2)
        self.pair[0].add_(1)
        self.rows.resize_(len(obs), 2).normal_()
        self.sparse.mul_(2)
        self.shared.data = torch.ones(5)
        self.mean.weight.grad.add_(1)
        self.raw_std.weight.grad = torch.ones_like(self.raw_std.weight)
        self.appeared = True
        np.random.rand()  # noqa: NPY002
        random.random()
        return out


@pytest.mark.parametrize("breaks", [False, True])
def test_c8_validation_leaves_no_trace(breaks):
    torch.manual_seed(0)
    actor = Messy()
    actor.explore(torch.zeros(5, OBS))
    if breaks:
        actor.inference_startup_memory_categories = lambda: 1
    before = state(actor)
    if breaks:
        with pytest.raises(ActorContractError, match="inference_startup"):
            validate_actor(actor, obs_dim=OBS, action_dim=ACTION)
    else:
        validate_actor(actor, obs_dim=OBS, action_dim=ACTION)
    after = state(actor)
    assert [key for key in before if not same(before[key], after[key])] == []
    assert not hasattr(actor.held, "y")
    assert not hasattr(actor, "appeared")
    assert not hasattr(actor.slotted, "_Slotted__new")


def test_c8_what_is_only_read_is_not_written():
    actor = PlainActor(OBS, ACTION)
    actor.known = Counted({"a": 1})
    validate_actor(actor, obs_dim=OBS, action_dim=ACTION)
    assert actor.known.cleared == 0


class Counted(dict):
    cleared = 0

    def clear(self) -> None:
        self.cleared += 1
        super().clear()


def test_c8_the_built_in_actor_explores_on_as_if_never_validated():
    actions = []
    for validated in (False, True):
        torch.manual_seed(0)
        actor = FlashSACActor(OBS, ACTION, 8, 1)
        actor.explore(torch.ones(6, OBS))
        if validated:
            validate_actor(actor, obs_dim=OBS, action_dim=ACTION)
        actions.append(torch.stack([actor.explore(torch.ones(6, OBS)) for _ in range(10)]))
    assert torch.equal(*actions)


def test_c6_validation_is_done_in_the_precision_that_training_has():
    torch.set_default_dtype(torch.float64)
    try:
        validate_actor(PlainActor(OBS, ACTION), obs_dim=OBS, action_dim=ACTION)
    finally:
        torch.set_default_dtype(torch.float32)
