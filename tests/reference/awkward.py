"""Environments that ask more of a collector process than most; importable by it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Binary, Bounded, Categorical, Composite, Unbounded

from reference.counting import CountingEnv


class Remembering(CountingEnv):
    """The reward is the sum of the latest four actions, which it keeps as it got them."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.kept: list[torch.Tensor] = []

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.kept = [*self.kept, tensordict["action"]][-4:]
        return super()._step(tensordict).set("reward", torch.stack(self.kept).sum(0))


class Drawing(CountingEnv):
    """The rewards of its rows are of torch's, numpy's and Python's global generator."""

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        draws = [torch.rand(()).item(), np.random.rand(), random.random()]  # noqa: NPY002
        return super()._step(tensordict).set("reward", torch.tensor(draws).unsqueeze(-1))


class Obliging(CountingEnv):
    """Has methods to call."""

    def dtype(self) -> torch.dtype:
        return torch.get_default_dtype()

    def echo(self, value: Any) -> Any:
        return value

    def hang(self) -> None:
        time.sleep(600.0)

    def lock(self) -> Any:
        return threading.Lock()


class Laden(CountingEnv):
    """Has a training state larger than what a socket holds."""

    state = 0.0

    def export_training_state(self) -> dict[str, Any]:
        return {"levels": torch.full((500_000,), self.state)}

    def import_training_state(self, state: dict[str, Any]) -> None:
        self.state = state["levels"][-1].item()


class Choosy(CountingEnv):
    """Takes a number below four, and says which one it takes next."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        n = len(self.rows)
        self.action_spec = Categorical(4, shape=(n,))
        self.observation_spec["action_mask"] = Binary(4, shape=(n, 4), dtype=torch.bool)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = tensordict["action"].unsqueeze(-1) / 4.0
        return self._with_mask(super()._step(tensordict.copy().set("action", action)))

    def _reset(self, *args: Any, **kwargs: Any) -> TensorDictBase:
        return self._with_mask(super()._reset(*args, **kwargs))

    def _with_mask(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.set("action_mask", torch.arange(4) == self.count % 4)


class Agents(CountingEnv):
    """Two agents in each row, in a TensorDict of their own."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        n = len(self.rows)

        def agents(**specs: Any) -> Composite:
            return Composite(agents=Composite(specs, shape=(n, 2)), shape=(n,))

        self.observation_spec = agents(obs=Unbounded((n, 2, 2)))
        self.action_spec = agents(action=Bounded(-1.0, 1.0, (n, 2, 1)))
        self.reward_spec = Unbounded((n, 1))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = tensordict["agents", "action"].mean(1)
        return self._shared_out(super()._step(tensordict.copy().set("action", action)))

    def _reset(self, *args: Any, **kwargs: Any) -> TensorDictBase:
        return self._shared_out(super()._reset(*args, **kwargs))

    def _shared_out(self, tensordict: TensorDictBase) -> TensorDictBase:
        obs = tensordict.pop("obs").unsqueeze(1).expand(-1, 2, -1).clone()
        return tensordict.set("agents", TensorDict({"obs": obs}, obs.shape[:2]))


class Guided(CountingEnv):
    """Reads a goal that the policy gives beside the action."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        n = len(self.rows)
        self.state_spec = Composite(goal=Unbounded((n, 1)), shape=(n,))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = tensordict["action"] + tensordict["goal"]
        return super()._step(tensordict.copy().set("action", action))


def making(kind: type[CountingEnv], **faults: Any) -> Callable[[], CountingEnv]:
    """A function that makes one of them, of three rows."""
    return partial(kind, 3, faults)
