"""Environments that count, and can be told to fail; importable by a collector process."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Binary, Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase


@dataclass(frozen=True)
class Counting:
    """Makes the environment; pickles."""

    num_envs: int = 3
    faults: dict[str, Any] = field(default_factory=dict)

    def __call__(self) -> CountingEnv:
        kind = ReportingEnv if "reports" in self.faults else CountingEnv
        return kind(self.num_envs, self.faults)


class CountingEnv(EnvBase):
    """Row ``n`` observes ``[n, steps of its episode]``; its episode ends after ``4 + n`` steps.

    The reward is the action plus a draw of the environment's own generator, so that a batch tells
    which action and which random numbers made it.

    Faults, by the number of the step (or reset) they come in: ``kill``, ``raise``, ``nan``,
    ``widen`` (steps), ``kill_reset`` and ``raise_reset`` (resets); and in seconds ``slow_make``,
    ``slow_reset``, ``slow_step``. ``mark`` is a file written when the environment is closed;
    ``reports`` makes it a :class:`ReportingEnv`.
    """

    def __init__(self, num_envs: int, faults: dict[str, Any]) -> None:
        super().__init__(device="cpu", batch_size=torch.Size([num_envs]))
        self.faults = faults
        time.sleep(faults.get("slow_make", 0.0))
        n = num_envs
        self.observation_spec = Composite(obs=Unbounded((n, 2)), shape=(n,))
        self.action_spec = Bounded(-1.0, 1.0, (n, 1))
        self.reward_spec = Unbounded((n, 1))
        flag = Categorical(2, shape=(n, 1), dtype=torch.bool)
        self.done_spec = Composite(
            done=flag, terminated=flag.clone(), truncated=flag.clone(), shape=(n,)
        )
        self.generator = torch.Generator().manual_seed(0)
        self.rows = torch.arange(n).unsqueeze(-1)
        self.count = torch.zeros(n, 1)
        self.steps = self.resets = 0

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.steps += 1
        time.sleep(self.faults.get("slow_step", 0.0))
        self._maybe("kill", "raise", self.steps)
        self.count += 1
        draw = torch.rand(len(self.rows), 1, generator=self.generator)
        terminated = self.count >= 4 + self.rows
        out = TensorDict(
            {
                "obs": self._obs(),
                "reward": tensordict["action"] + draw,
                "terminated": terminated,
                "truncated": torch.zeros_like(terminated),
                "done": terminated,
            },
            self.batch_size,
        )
        if self.steps == self.faults.get("nan"):
            out["reward"] = out["reward"] / 0.0 - out["reward"] / 0.0
        if self.steps == self.faults.get("widen"):
            out["obs"] = torch.cat([out["obs"], out["obs"]], -1)
        return out

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.resets += 1
        time.sleep(self.faults.get("slow_reset", 0.0))
        self._maybe("kill_reset", "raise_reset", self.resets)
        mask = None if tensordict is None else tensordict.get("_reset", None)
        self.count = torch.zeros_like(self.count) if mask is None else self.count * ~mask
        flag = torch.zeros_like(self.count, dtype=torch.bool)
        return TensorDict(
            {
                "obs": self._obs(),
                "done": flag,
                "terminated": flag.clone(),
                "truncated": flag.clone(),
            },
            self.batch_size,
        )

    def _set_seed(self, seed: int | None) -> None:
        if seed is not None:
            self.generator.manual_seed(seed)

    def close(self, *, raise_if_closed: bool = True) -> None:
        if "mark" in self.faults:
            Path(self.faults["mark"]).touch()
        super().close(raise_if_closed=raise_if_closed)

    def _obs(self) -> torch.Tensor:
        return torch.cat([self.rows.float(), self.count], -1)

    def _maybe(self, kill: str, fail: str, number: int) -> None:
        if number == self.faults.get(kill):
            os.kill(os.getpid(), signal.SIGKILL)
        if number == self.faults.get(fail):
            raise ArithmeticError(f"broken on purpose, number {number}")


class ReportingEnv(CountingEnv):
    """Has metrics: the steps since they were last asked for, and in which process."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.reported = 0

    def drain_metrics(self) -> dict[str, float]:
        since, self.reported = self.steps - self.reported, self.steps
        return {"Metrics/steps": float(since), "Metrics/process": float(os.getpid())}


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
