"""ADR-0017, building and validating: each test is named after its clause."""

from __future__ import annotations

import copy
import io
import math
import multiprocessing
import random
import subprocess
import sys
import threading
from contextlib import nullcontext

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
def test_c01_from_config_reads_a_dict_or_a_config_node(wrap, path):
    config = wrap({"builder": path, "kwargs": {"low": -2, "high": [1.0, {"a": None}]}})
    read = FlashSACActorSpec.from_config(config)
    assert read.to_dict() == {"builder": PLAIN, "kwargs": {"low": -2, "high": [1.0, {"a": None}]}}
    assert type(read.kwargs["high"]) is list
    assert FlashSACActorSpec.from_config(read.to_dict()) == read
    assert FlashSACActorSpec.from_config({"builder": PLAIN}).kwargs == {}


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"builder": PLAIN, "kwarg": {}}, "'kwarg'.*'kwargs'"),
        ({"kwargs": {}}, "builder"),
        ([PLAIN], "actor_config"),
        ({"builder": PLAIN, "kwargs": [1]}, "kwargs"),
        ({"builder": PLAIN, "kwargs": None}, "kwargs"),
        ({"builder": "PlainActor"}, "'PlainActor'"),
        ({"builder": "a.b:c d"}, "'a.b:c d'"),
        ({"builder": None}, "None"),
        ({"builder": "__main__:Actor"}, "__main__"),
        (OmegaConf.create({"builder": "???"}), "builder"),
    ],
)
def test_c01_c02_from_config_refuses_other_keys_and_other_paths(config, name):
    with pytest.raises(ActorContractError, match=name):
        FlashSACActorSpec.from_config(config)


@pytest.mark.parametrize(
    ("builder", "name", "cause"),
    [
        ("no_such_package:Actor", "no_such_package", ModuleNotFoundError),
        ("reference.actors:PlainActr", "'PlainActr'", AttributeError),
        ("reference.actors:raising", "RuntimeError: no weights here", RuntimeError),
        ("reference.actors:not_callable", "class or a function, got 3", None),
        ("reference.actors:no_module", "dict", None),
    ],
)
def test_c02_a_builder_that_cannot_build_is_refused_with_its_cause(builder, name, cause):
    with pytest.raises(ActorContractError, match=name) as caught:
        build(builder)
    assert cause is None or isinstance(caught.value.__cause__, cause)


@pytest.mark.parametrize(
    ("kwargs", "name"),
    [
        ({"a": {"b": torch.relu}}, r"kwargs\.a\.b"),
        ({"a": [1.0, math.nan]}, r"kwargs\.a\[1\].*nan"),
        ({"a": torch.ones(2)}, r"kwargs\.a.*tolist\(\)"),
        ({"a": np.float32(1.0)}, r"kwargs\.a.*float32"),
        ({"a": {1: 2}}, r"kwargs\.a"),
        ({"a": b"x"}, r"kwargs\.a"),
    ],
)
def test_c03_kwargs_that_json_cannot_hold_are_refused_by_key(kwargs, name):
    with pytest.raises(ActorContractError, match=name):
        spec(**kwargs)


def test_c03_the_record_keeps_the_kwargs_of_the_call_whatever_changes_later():
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


@pytest.mark.slow
@pytest.mark.parametrize("builder", [PLAIN, "unilab.modules:FlashSACActor"])
def test_c04_a_spawned_process_rebuilds_the_same_actor(builder):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=_rebuild, args=(spec(builder).to_dict(), queue))
    child.start()
    weights, semantics = queue.get(timeout=600)
    child.join()

    torch.manual_seed(0)
    actor = build(builder)
    assert semantics == actor_semantics(actor)
    assert weights.keys() == actor.state_dict().keys()
    assert all((value.numpy() == weights[key]).all() for key, value in actor.state_dict().items())


@pytest.mark.slow
def test_c05_unilab_imports_no_builder_by_itself():
    code = "import sys, unilab.trainers, unilab.modules; print('reference' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_c06_the_built_in_actor_and_a_plain_one_pass():
    validate_actor(FlashSACActor(OBS, ACTION, 8, 1), obs_dim=OBS, action_dim=ACTION)
    assert build(low=-2.0, high=0.5).scale.tolist() == [1.25, 1.25]
    assert isinstance(build("unilab.modules.FlashSACActor", hidden_dim=4), FlashSACActor)


class Broken(PlainActor):
    """A plain actor with some members replaced."""

    def __init__(self, **changes: object) -> None:
        super().__init__(OBS, ACTION)
        self.__dict__.update(changes)


def forwards(change):
    """An actor with another output of its forward pass."""

    class Forwards(Broken):
        def forward(self, obs: Tensor, training: bool) -> object:
            return change(*super().forward(obs, training))

    return Forwards()


def info(**entries: object):
    return forwards(lambda actions, info: (actions, {**info, **entries}))


class StartsAtZero(Broken):
    """Exports the mean without the transform: equal to the action as long as the mean is 0."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.mean.weight)
        nn.init.zeros_(self.mean.bias)

    def as_export_module(self) -> nn.Module:
        return self.mean


class Snapshot(Broken):
    """Exports a copy of its first weights."""

    def __init__(self) -> None:
        super().__init__()
        self.copies = [copy.deepcopy(self)]

    def as_export_module(self) -> nn.Module:
        return PlainActor.as_export_module(self.copies[0])


class SlightlyOff(Broken):
    def as_export_module(self) -> nn.Module:
        module = copy.deepcopy(PlainActor.as_export_module(self))
        module.actor.offset += 3e-4
        return module


class NewWeights(Broken):
    def normalize_parameters(self) -> None:
        self.mean.weight = nn.Parameter(self.mean.weight / 2)


class Remembers(Broken):
    def get_extra_state(self) -> object:
        return {"count": np.float64(3)}


MOVES = ("draws", "restarts")


class Held(Broken):
    """Holds its noise, which deterministic calls may move, restart or redraw by mistake."""

    mistake = ""

    def explore(self, obs: Tensor, dones=None, deterministic: bool = False) -> Tensor:
        mean, std = self.get_mean_and_std(obs)
        if self.noise.shape != mean.shape and (not deterministic or self.mistake in MOVES):
            self.noise = torch.zeros_like(mean)
        if dones is not None and self.mistake == "redraws" and len(dones) == len(self.noise):
            self.noise = torch.where(dones.unsqueeze(-1), 0.0, self.noise)
        if not deterministic or self.mistake == "draws":
            self.noise = 0.9 * self.noise + torch.randn(mean.shape, generator=self.generator)
        return self._transform(mean if deterministic else mean + std * self.noise)


class Recurrent(Held):
    """Adds what it remembers of earlier observations, in deterministic calls too."""

    memory = 0.0

    def explore(self, obs: Tensor, dones=None, deterministic: bool = False) -> Tensor:
        self.memory = 0.0 if dones is not None else 0.5 * (self.memory + obs.mean())
        return super().explore(obs, dones, deterministic) + self.memory


class Kept(Broken):
    """Keeps a state for each environment as a buffer."""

    def __init__(self, rows: int | None = 0, persistent: bool = True) -> None:
        super().__init__()
        self.register_buffer("h", None if rows is None else torch.zeros(rows), persistent)

    def explore(self, obs: Tensor, dones=None, deterministic: bool = False) -> Tensor:
        self.h = obs.sum(-1)
        return super().explore(obs, dones, deterministic)


class NotPersistent(Kept):
    def __init__(self) -> None:
        super().__init__(persistent=False)


class OnFirstUse(Broken):
    """Keeps a tensor of its graph, and a lock that it makes when it is first used."""

    def forward(self, obs: Tensor, training: bool) -> tuple[Tensor, dict]:
        self.lock = threading.Lock()
        self.last, info = super().forward(obs, training)
        return self.last, info


class Original(Broken):
    """As the system of ADR-0017 calls it: flat log_prob, batch size, training without default."""

    def forward(self, observations: Tensor, training: bool):
        actions, info = super().forward(observations, training)
        return actions, {**info, "log_prob": info["log_prob"].squeeze(-1)}

    def get_mean_and_std(self, observations: Tensor, training: bool):
        return super().get_mean_and_std(observations, training)

    def inference_startup_memory_categories(self, batch_size: int) -> dict[str, int]:
        return {"noise": batch_size * 8}


def lazy():
    actor = Broken()
    actor.more = nn.LazyLinear(2)
    return actor


BREACHES = {
    "no module": (object, "C6 members.*Module"),
    "no method": (lambda: Broken(explore=None), "C6 members.*explore"),
    "no parameters": (lambda: Broken().requires_grad_(False), "C6 parameters"),
    "lazy": (lazy, r"C6 parameters.*more\.weight"),
    "meta": (lambda: Broken().to("meta"), r"C6 parameters.*mean\.weight"),
    "no transform": (lambda: Broken(action_transform_id=""), "C6 action_transform_id.*''"),
    "raises": (lambda: Broken().double(), r"C6 forward.*RuntimeError"),
    "actions alone": (lambda: forwards(lambda a, i: a), r"C6 forward\(obs, training=True\)"),
    "actions too wide": (lambda: forwards(lambda a, i: (a.repeat(1, 2), i)), r"actions.*\[4, 4\]"),
    "actions NaN": (lambda: forwards(lambda a, i: (a * math.nan, i)), "actions must be finite"),
    "actions detached": (lambda: forwards(lambda a, i: (a.detach(), i)), "gradient.*actions"),
    "info None": (
        lambda: forwards(lambda a, i: (a, None)),
        r"C6 forward.*tuple of Tensor, NoneType",
    ),
    "no log_prob": (lambda: forwards(lambda a, i: (a, {"mean": a})), "C6 .*log_prob.*None"),
    "log_prob of each joint": (
        lambda: info(log_prob=torch.zeros(4, 2)),
        r"log_prob.*\[4\] or \[4, 1\].*\[4, 2\]",
    ),
    "log_prob float64": (lambda: info(log_prob=torch.zeros(4).double()), "log_prob.*float64"),
    "log_prob detached": (
        lambda: forwards(lambda a, i: (a, {"log_prob": i["log_prob"].detach()})),
        "gradient.*log_prob",
    ),
    "aux None": (lambda: info(aux_losses=None), "C6 .*aux_losses.*None"),
    "aux rows": (lambda: info(aux_losses={"a": torch.zeros(4)}), r"C6 .*'a'.*\[4\]"),
    "aux NaN": (lambda: info(aux_losses={"a": torch.tensor(math.nan)}), "'a' is nan"),
    "aux detached": (
        lambda: info(aux_losses={"off": torch.zeros(()), "calm": torch.tensor(0.5)}),
        "C6 aux_losses.*gradient.*'calm'",
    ),
    "aux name": (lambda: info(aux_losses={"a/b": torch.tensor(1.0)}), "C6 .*'a/b'"),
    "mean alone": (lambda: Broken(get_mean_and_std=lambda obs: obs), r"C6 get_mean_and_std"),
    "std of zero in one joint": (
        lambda: Broken(
            get_mean_and_std=lambda obs: (torch.zeros(4, 2), torch.tensor([[1.0, 0.0]] * 4))
        ),
        "C6 get_mean_and_std.*std",
    ),
    "explore": (
        lambda: Broken(explore=lambda obs, dones=None, deterministic=False: obs),
        r"C6 explore.*actions.*\[4, 3\]",
    ),
    "explore without dones": (
        lambda: Broken(explore=lambda obs: torch.zeros(4, 2)),
        r"C6 explore\(obs, dones\).*TypeError",
    ),
    "export shape": (
        lambda: Broken(as_export_module=lambda: nn.Identity()),
        r"C6 as_export_module\(\)\(obs\).*\[4, 3\]",
    ),
    "export function": (
        lambda: Broken(as_export_module=lambda: torch.tanh),
        r"C6 as_export_module\(\).*Module",
    ),
    "normalize": (
        lambda: Broken(normalize_parameters=lambda: 1 / 0),
        "C6 normalize_parameters.*ZeroDivisionError",
    ),
    "parameters replaced": (NewWeights, "C9 one instance.*normalize_parameters"),
    "state": (Remembers, "C24 state_dict.*_extra_state"),
    "state of 0 rows": (Kept, r"C24 state_dict.*h is .*\[0\].*\[3\].*persistent=False"),
    "state of 4 rows": (lambda: Kept(4), r"C24 state_dict.*h is .*\[4\].*\[3\]"),
    "state that appears": (lambda: Kept(None), "C24 state_dict.*h is missing"),
    "slightly another mean": (SlightlyOff, "C7 .* 0.0003"),
    "another transform of 0": (StartsAtZero, "C7 .*after its weights changed"),
    "first weights are exported": (Snapshot, "C7 .*after its weights changed"),
    "noise of its own generator": (
        lambda: Held(mistake="draws"),
        "C6 .*deterministic=True changed",
    ),
    "noise restarted by an evaluation": (
        lambda: Held(mistake="restarts"),
        "deterministic=True changed",
    ),
    "noise redrawn at a reset of an evaluation": (
        lambda: Held(mistake="redraws"),
        "deterministic=True changed.*dones.*number of rows",
    ),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_c06_c07_a_breach_is_refused_by_its_clause(breach):
    make, message = BREACHES[breach]
    with pytest.raises(ActorContractError, match=rf"(?s){message}"):
        validate_actor(make(), obs_dim=OBS, action_dim=ACTION)


@pytest.mark.parametrize("kind", [Held, Recurrent, Original, OnFirstUse, NotPersistent, Broken])
def test_c06_what_the_contract_leaves_open_passes(kind):
    actor = kind()
    if kind is Broken:
        actor.get_mean_and_std = lambda obs: PlainActor.get_mean_and_std(actor, obs)
    validate_actor(actor, obs_dim=OBS, action_dim=ACTION)


def test_c06_build_actor_validates():
    with pytest.raises(ActorContractError, match="'shy' is inf"):
        build(weight=1e39)  # beyond float32


class Messy(PlainActor):
    """Changes whatever there is to change, in every call."""

    def __init__(self) -> None:
        super().__init__(OBS, ACTION)
        self.raw_std.bias.requires_grad_(False)
        self.raw_std.eval()
        self.mean.weight.grad = torch.ones_like(self.mean.weight)
        self.array = np.zeros(3)
        self.pair = (torch.zeros(2), 1)

    def forward(self, obs: Tensor, training: bool) -> tuple[Tensor, dict]:
        out = super().forward(obs, training)
        with torch.no_grad():
            self.mean.weight.add_(1.0)
            self.scale.mul_(2.0)
        self.raw_std.bias.requires_grad_(True)
        self.eval()
        self.array += 1
        self.pair[0].add_(1)
        self.appeared = True
        np.random.rand()  # noqa: NPY002
        random.random()
        return out


def content(actor: nn.Module) -> bytes:
    """Everything that the actor holds."""
    file = io.BytesIO()
    torch.save(actor, file)
    return file.getvalue()


def random_states() -> list[object]:
    numpy = np.random.get_state()[1].tolist()  # noqa: NPY002
    return [torch.get_rng_state().tolist(), random.getstate(), numpy]


@pytest.mark.parametrize("breaks", [False, True])
def test_c08_validation_changes_nothing(breaks):
    actor = Messy()
    actor.explore(torch.zeros(5, OBS))
    actor.weight = math.inf if breaks else 1.0
    before, generators = content(actor), random_states()
    with pytest.raises(ActorContractError) if breaks else nullcontext():
        validate_actor(actor, obs_dim=OBS, action_dim=ACTION)
    assert content(actor) == before
    assert (actor.mean.weight.grad == 1).all()
    assert random_states() == generators
    actor(torch.zeros(2, OBS), training=True)
    assert content(actor) != before


def test_c08_an_actor_that_cannot_be_copied_is_refused():
    actor = PlainActor(OBS, ACTION)
    actor.lock = threading.Lock()
    with pytest.raises(ActorContractError, match=r"PlainActor must be copyable.*lock"):
        validate_actor(actor, obs_dim=OBS, action_dim=ACTION)


def test_c08_an_actor_whose_copy_reaches_the_original_is_refused():
    shared, closure = PlainActor(OBS, ACTION), PlainActor(OBS, ACTION)
    shared.mean.__class__ = type("Shared", (nn.Linear,), {"__deepcopy__": lambda self, memo: self})
    closure.get_mean_and_std = lambda obs: PlainActor.get_mean_and_std(
        closure, obs + closure.calls.add_(1.0) * 0.0
    )
    weights = shared.mean.weight.clone()
    for actor in (shared, closure):
        with pytest.raises(ActorContractError, match="C8"):
            validate_actor(actor, obs_dim=OBS, action_dim=ACTION)
    assert torch.equal(shared.mean.weight, weights)
