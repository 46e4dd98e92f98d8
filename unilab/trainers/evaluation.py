"""Deterministic evaluation: one episode in each of a batch of environments."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tensordict.nn import TensorDictModuleBase
from torch import nn
from torchrl.checkpoint import GlobalRNGState
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

from unilab.errors import ConfigError, first_line
from unilab.record.metric_schema import as_scalars

_logger = logging.getLogger(__name__)


class Evaluator:
    """Runs a policy without exploration on a separate environment.

    Args:
        env: environment, batched ``[N]`` or single, that training does not use.
        policy: follows TorchRL's exploration type; the deterministic action is taken. What its
            modules keep between steps, such as noise or a recurrent state, is set back afterwards;
            a warning names what cannot be copied.
        max_steps: longest episode in control steps; the environment's ``max_episode_length`` by
            default.
        trained: the training environment, whose curriculum stage each evaluation copies.
    """

    def __init__(
        self,
        env: EnvBase,
        policy: TensorDictModuleBase,
        *,
        max_steps: int | None = None,
        trained: Any = None,
    ) -> None:
        self.env: Any = env
        self.policy = policy
        self.trained = trained
        steps = max_steps if max_steps is not None else getattr(env, "max_episode_length", None)
        if steps is None:
            raise ConfigError(
                f"max_steps must be given for {type(env).__name__}, which has no max_episode_length"
            )
        self.max_steps = int(steps)
        self._shared: set[str] = set()
        self._start: dict[str, Any] = getattr(env, "export_episodes", dict)()

    def __call__(self) -> dict[str, float]:
        """Means over the first episode of each environment, up to ``max_steps``.

        With unilab's environments every evaluation begins the same episodes and draws the same
        random numbers: two of them differ by the policy only, and a resumed run continues exactly.

        Returns:
            ``Eval/return``, ``Eval/episode_length`` (control steps), ``Eval/terminated`` (share
            that ended before the time limit, e.g. by a fall); and the environment's own metrics
            under ``Eval/``, over every episode that ended meanwhile.
        """
        if self._start:
            try:
                self.env.import_episodes(self._start)
            except ConfigError as error:
                self._start = {}
                _logger.warning("evaluations will not begin the same episodes: %s", error)
        if self.trained is not None:
            self.env.import_training_state(self.trained.export_training_state())
        drain = getattr(self.env, "drain_metrics", dict)
        drain()
        # Evaluation must not advance the global random generators, which belong to training.
        generators = GlobalRNGState()
        before = generators.state_dict()
        try:
            with (
                torch.no_grad(),
                set_exploration_type(ExplorationType.DETERMINISTIC),
                _separate_state(self.policy, self._shared),
            ):
                metrics = self._first_episodes()
        finally:
            generators.load_state_dict(before)
        own = as_scalars(drain())
        return metrics | {f"Eval/{k}": v for k, v in own.items() if not k.startswith("Perf/")}

    def _first_episodes(self) -> dict[str, float]:
        data = self.env.reset()
        age = getattr(self.env, "episode_length", None)
        if isinstance(age, torch.Tensor):
            age.zero_()  # whole episodes, even if the task starts its first ones at random lengths
        alive = torch.ones(data.numel(), device=data.device, dtype=torch.bool)
        total = torch.zeros_like(alive, dtype=torch.float32)
        length = torch.zeros_like(total)
        terminated = torch.zeros_like(alive)
        for _ in range(self.max_steps):
            step, data = self.env.step_and_maybe_reset(self.policy(data))
            after = step["next"]
            total += alive * after["reward"].reshape(-1)
            length += alive
            # An episode may end both ways in one step; terminated is what cuts the bootstrap.
            terminated |= alive & after["terminated"].reshape(-1)
            alive &= ~after["done"].reshape(-1)
            if not alive.any():
                break
        return {
            "Eval/return": total.mean().item(),
            "Eval/episode_length": length.mean().item(),
            "Eval/terminated": terminated.float().mean().item(),
        }


@contextmanager
def _separate_state(policy: Any, shared: set[str]) -> Iterator[None]:
    """Runs a policy on copies of its buffers and attributes; parameters and modules stay.

    What cannot be copied stays shared, is added to ``shared``, and is warned of when new there.
    """
    modules = list(policy.modules()) if isinstance(policy, nn.Module) else []
    memo = {id(each): each for module in modules for each in (module, *module.parameters())}
    kept = [(module, dict(vars(module))) for module in modules]
    for module, attributes in kept:
        for name, value in attributes.items():
            try:
                if isinstance(value, torch.Tensor) and not value.is_leaf:
                    value = value.detach()
                module.__dict__[name] = copy.deepcopy(value, memo)
            except Exception as error:
                what = f"{name} of {type(module).__name__}"
                if what not in shared:
                    shared.add(what)
                    warnings.warn(
                        f"{what} cannot be copied ({first_line(error)}), so an evaluation changes "
                        "what training goes on with if it changes this: keep what changes between "
                        "steps in tensors or in attributes that copy.deepcopy copies",
                        RuntimeWarning,
                        stacklevel=2,
                    )
    try:
        yield
    finally:
        for module, attributes in kept:
            module.__dict__.clear()
            module.__dict__.update(attributes)
