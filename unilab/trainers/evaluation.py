"""Deterministic evaluation: one episode in each of a batch of environments."""

from __future__ import annotations

from typing import Any

import torch
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

from unilab.errors import ConfigError

__all__ = ["Evaluator"]


class Evaluator:
    """Rolls a policy out without exploration, on an environment of its own.

    Args:
        env: batched environment ``[N]`` that training does not use.
        policy: follows TorchRL's exploration type; the deterministic action is taken.
        max_steps: end of the episodes, in control steps; the environment's own
            ``max_episode_length`` by default.
        trained: the environment that training uses; each evaluation takes over its count of control
            steps, and with it the stage of a curriculum. None: the count is that of ``env`` itself.

    Raises:
        ConfigError: neither the call nor the environment says how long an episode is.
    """

    def __init__(
        self,
        env: EnvBase,
        policy: TensorDictModuleBase,
        *,
        max_steps: int | None = None,
        trained: Any = None,
    ) -> None:
        self.env = env
        self.policy = policy
        self.trained = trained
        steps = max_steps if max_steps is not None else getattr(env, "max_episode_length", None)
        if steps is None:
            raise ConfigError(
                f"{type(env).__name__} has no max_episode_length: pass max_steps to Evaluator"
            )
        self.max_steps = int(steps)

    def __call__(self) -> dict[str, float]:
        """Runs the episodes.

        Returns:
            ``Eval/return``, ``Eval/episode_length`` (control steps) and ``Eval/terminated`` (share
            that ended before the time limit, e.g. by a fall), over the first episode of each
            environment; an episode still running at ``max_steps`` counts as it stands. For an
            environment with ``drain_metrics``, its reward terms and metrics under ``Eval/`` as
            well, over every episode that ended meanwhile.
        """
        if self.trained is not None:
            stage: Any = self.env
            stage.import_training_state(self.trained.export_training_state())
        drain: Any = getattr(self.env, "drain_metrics", None)
        if drain is not None:
            drain()
        # The global generators belong to training: evaluating must not change its course.
        devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
        with (
            torch.random.fork_rng(devices=devices),
            torch.no_grad(),
            set_exploration_type(ExplorationType.DETERMINISTIC),
        ):
            metrics = self._first_episodes()
        terms = drain() if drain is not None else {}
        return metrics | {
            f"Eval/{tag}": value for tag, value in terms.items() if not tag.startswith("Perf/")
        }

    def _first_episodes(self) -> dict[str, float]:
        data = self.env.reset()
        age: Any = getattr(self.env, "episode_length", None)
        if isinstance(age, torch.Tensor):
            age.zero_()  # whole episodes, also where a task begins its first ones in their midst
        alive = torch.ones(self.env.batch_size[0], device=data.device, dtype=torch.bool)
        total = torch.zeros_like(alive, dtype=torch.float32)
        length = torch.zeros_like(total)
        fell = torch.zeros_like(alive)
        for _ in range(self.max_steps):
            step, data = self.env.step_and_maybe_reset(self.policy(data))
            after = step["next"]
            total += alive * after["reward"].reshape(-1)
            length += alive
            # An episode may end both ways in one step; terminated is what cuts the bootstrap.
            fell |= alive & after["terminated"].reshape(-1)
            alive &= ~after["done"].reshape(-1)
            if not alive.any():
                break
        return {
            "Eval/return": total.mean().item(),
            "Eval/episode_length": length.mean().item(),
            "Eval/terminated": fell.float().mean().item(),
        }
