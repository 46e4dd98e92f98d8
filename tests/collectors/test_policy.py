"""Which policies are taken, and how the others are refused: as TorchRL's collector does."""

from __future__ import annotations

import pytest
import torch
from reference.counting import Counting
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs.utils import RandomPolicy

from unilab.collectors.policy import check_policy, device_of
from unilab.errors import ConfigError


class OfTensors(nn.Module):
    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return observation[:, :1]


class OfATensorDict(nn.Module):
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.set("action", torch.zeros(3, 1))


def test_modules_and_functions_of_a_tensordict_are_taken():
    module = TensorDictModule(nn.Linear(2, 1), ["obs"], ["action"])
    for policy in (
        None,
        module,
        torch.compile(module),
        RandomPolicy(Counting()().action_spec),
        OfATensorDict(),
        lambda data: data.set("action", torch.zeros(3, 1)),
    ):
        check_policy(policy)


def test_a_module_of_tensors_is_refused_with_the_way_to_wrap_it():
    with pytest.raises(TypeError, match="Failed to wrap the policy"):
        Collector(Counting()(), OfTensors(), frames_per_batch=3)
    with pytest.raises(ConfigError, match="policy"):
        check_policy(OfTensors())


def test_what_cannot_be_called_is_refused():
    with pytest.raises(ConfigError, match="policy"):
        check_policy("actor.pt")


def test_a_policy_lives_where_its_parameters_are_and_otherwise_on_the_cpu():
    assert device_of(nn.Linear(2, 1, device="meta")) == torch.device("meta")
    assert device_of(OfTensors()) == device_of(None) == torch.device("cpu")
