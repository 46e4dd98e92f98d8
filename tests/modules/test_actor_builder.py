"""ADR-0017 C2: what the path of a builder may name."""

from __future__ import annotations

import sys

import pytest

from unilab.errors import ActorContractError
from unilab.modules import FlashSACActorSpec, build_actor
from unilab.modules.actor_builder import import_builder

MINE = """
from __future__ import annotations
import functools, os, typing
from typing import Self
import torch
from torch import nn
from torch.nn import Linear
if typing.TYPE_CHECKING:
    from nowhere import Missing

def fails(*args, **kwargs):
    raise SystemExit("called")

class Actor(nn.Module):
    __init__ = forward = fails
    @classmethod
    def build(cls, **kwargs) -> Self: fails()
    @staticmethod
    def make(**kwargs) -> Actor: fails()

class Kind(type):
    __call__ = fails

class OfKind(nn.Module, metaclass=Kind): pass

class NoModule:
    __init__ = __call__ = fails

def make(obs: Missing) -> nn.Module: fails()
def quoted() -> "Actor": fails()
def plain(**kwargs): fails()
def number(**kwargs) -> int: fails()
def perhaps(**kwargs) -> nn.Module | None: fails()
def unknown(**kwargs) -> Missing: fails()

decorated = torch.no_grad()(make)
undecorated = (lambda function: lambda *a, **k: function(*a, **k))(make)
called = functools.partial(make, obs=1)
cached = functools.cache(make)
instance = NoModule.__new__(NoModule)
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Two packages as pip installs them."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "mine.py").write_text(MINE)
    (folder / "front.py").write_text("from mine import Actor, make")
    (folder / "program").mkdir()
    (folder / "program" / "__main__.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in ("mine", "front", "program"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "path",
    [
        "mine:Actor",
        "mine:Actor.build",
        "mine:Actor.make",
        "mine:OfKind",
        "mine:make",
        "mine:quoted",
        "mine:decorated",
        "front:Actor",
        "front:make",
        "unilab.modules:FlashSACActor",
        "unilab.examples.custom_actor:TwoEncoderActor",
    ],
)
def test_c02_classes_of_modules_and_functions_that_return_one_are_builders(installed, path):
    assert callable(import_builder(path))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("logging:basicConfig", "logging"),
        ("os:system", "os"),
        ("subprocess:run", "subprocess"),
        ("builtins:exec", "builtins"),
        ("antigravity:webbrowser", "antigravity"),
        ("this:s", "this"),
        ("test.support:run_in_subprocess", "test"),
        ("torch:load", "torch"),
        ("torch.nn:Linear", "torch"),
        ("torchrl.modules:MLP", "torchrl"),
        ("numpy:load", "numpy"),
        ("hydra.utils:instantiate", "hydra"),
        ("unilab.trainers:load_play_actor", "unilab"),
        ("unilab.trainers:FlashSACLearner", "FlashSACLearner"),
        ("program.__main__:make", "script"),
        ("mine:os.system", "class"),
        ("mine:nn.Linear", "class"),
        ("mine:Linear", "torch"),
        ("mine:Actor.to", "torch"),
        ("mine:Actor.forward", "-> nothing"),
        ("mine:NoModule", "nn.Module"),
        ("mine:instance", "function"),
        ("mine:called", "function"),
        ("mine:cached", "function"),
        ("mine:plain", r'-> nothing: write "def plain\(...\) -> nn.Module:"'),
        ("mine:undecorated", "nn.Module"),
        ("mine:number", "int"),
        ("mine:perhaps", "None"),
        ("mine:unknown", "Missing"),
    ],
)
def test_c02_anything_else_is_refused_and_not_called(installed, path, name):
    before = set(sys.modules)
    spec = FlashSACActorSpec(builder=path)
    with pytest.raises(ActorContractError, match=rf"{path}.*{name}"):
        build_actor(spec, obs_dim=3, action_dim=2)
    # Python's own modules and programs are not even imported.
    assert {"antigravity", "this", "test", "program"}.isdisjoint(set(sys.modules) - before)
