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
from tensordict import TensorDictBase

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


class PlainClose(CountingEnv):
    """Is closed without a word, or fails in that."""

    def close(self) -> None:
        if self.faults:
            raise OSError("cannot let go")
        print("closed")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Mute(CountingEnv):
    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        raise Unspeakable


def making(kind: type[CountingEnv], **faults: Any) -> Callable[[], CountingEnv]:
    """A function that makes one of them, of three rows."""
    return partial(kind, 3, faults)
