"""Adam on a learning-rate schedule of its own steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unilab.trainers.state_check import state_problem

__all__ = ["ScheduledAdam"]


class ScheduledAdam:
    """Adam whose learning rate follows a schedule of its own steps.

    Args:
        params: what it moves.
        schedule: step -> learning rate.
        sync_gradients: called with the parameters between the gradient and the step.
        capturable: steps are replayed by a CUDA graph.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        schedule: Callable[[int], float],
        sync_gradients: Callable[[list[nn.Parameter]], None] | None = None,
        *,
        capturable: bool = False,
    ) -> None:
        self.schedule = schedule
        self.steps = 0
        self.params = list(params)
        self.sync_gradients = sync_gradients
        rate: Any = schedule(0)
        if capturable:  # a captured step reads its rate from the device
            rate = torch.tensor(rate, device=self.params[0].device)
        self.adam = torch.optim.Adam(self.params, lr=rate, fused=True, capturable=capturable)

    def check_state(self, saved: Mapping[int, Any]) -> str:
        """What is wrong with saved moments of the parameters, or ``""``."""
        # A parameter that never had a gradient has none.
        params = {i: p for i, p in enumerate(self.params) if i in saved}
        fitting = {
            i: {"step": torch.zeros(()), "exp_avg": p, "exp_avg_sq": p} for i, p in params.items()
        }
        return state_problem(saved, fitting, "moments") if saved else ""

    def begin(self) -> None:
        """Set the rate of the step to come and count it, which no graph could repeat."""
        rate = self.schedule(self.steps)
        for group in self.adam.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        self.steps += 1

    def minimize(self, loss: Tensor) -> None:
        """One step down the gradient of ``loss``."""
        self.adam.zero_grad(set_to_none=True)
        loss.backward()
        if self.sync_gradients is not None:
            self.sync_gradients(self.params)
        self.adam.step()
