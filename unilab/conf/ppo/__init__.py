"""Settings of PPO; ``task/`` holds what a task changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from unilab.checks import Count, Positive
from unilab.settings import OnPolicyCfg, TrainingCfg

if TYPE_CHECKING:
    from unilab.modules import FlashSACActorSpec

__all__ = ["PPOAlgoCfg", "PPOCfg", "PPOParamsCfg"]


@dataclass(frozen=True, kw_only=True)
class PPOParamsCfg:
    """Networks, loss and optimizer of PPO; the defaults are those of RSL-RL's velocity tasks."""

    actor_hidden_dims: tuple[Count, ...] = (128, 128, 128)
    """Widths of the actor's hidden layers."""
    critic_hidden_dims: tuple[Count, ...] = (128, 128, 128)
    """Widths of the value network's hidden layers."""
    activation: Literal["elu", "relu", "silu", "tanh"] = "elu"
    """Activation of both networks."""
    normalize_obs: bool = True
    """Normalise observations by what was seen so far; the statistics are part of the policy."""
    init_std: Positive = 1.0
    """Standard deviation of the actions at the start."""
    lr: Positive = 1e-3
    """Learning rate of Adam, at the start if it is adaptive."""
    desired_kl: Positive | None = 0.01
    """Divergence of the policy from the rollout's, in nats, that the learning rate aims at; null: a
    constant rate."""
    clip_epsilon: Positive = 0.2
    """How far the ratio of new to old probability may move from 1 before its gradient stops."""
    clip_value: bool = True
    """Clip changes of the value in the same way."""
    entropy_coeff: float = 0.01
    """Weight of the policy's entropy. Larger: explores more and longer."""
    critic_coeff: float = 1.0
    """Weight of the value's error."""
    max_grad_norm: Positive = 1.0
    """Longest gradient of the actor, and of the value network."""
    actor_config: dict[str, Any] | None = None
    """An actor of your own without an action transform, ``{builder: "pkg.module:callable", kwargs:
    {...}}``; null: the built-in actor."""

    def actor_spec(self) -> FlashSACActorSpec:
        """The actor to build: ``actor_config``, or the built-in actor."""
        from unilab.modules import FlashSACActorSpec

        if self.actor_config is not None:
            return FlashSACActorSpec.from_config(self.actor_config)
        kwargs = {
            "hidden_dims": list(self.actor_hidden_dims),
            "activation": self.activation,
            "normalize_obs": self.normalize_obs,
            "init_std": self.init_std,
        }
        return FlashSACActorSpec(builder="unilab.modules:GaussianActor", kwargs=kwargs)


@dataclass(frozen=True, kw_only=True)
class PPOAlgoCfg(OnPolicyCfg):
    """The algorithm."""

    name: Literal["ppo"] = "ppo"
    """Name in the table of algorithms."""
    algo_params: PPOParamsCfg = field(default_factory=PPOParamsCfg)
    """Networks, loss and optimizer."""

    def update_size(self) -> int:
        """Rows of a minibatch times weights of the value network's hidden layers, for the
        threads."""
        widths = self.algo_params.critic_hidden_dims
        weights = sum(a * b for a, b in pairwise(widths))
        return self.rollout_frames // self.num_minibatches * weights


@dataclass(frozen=True, kw_only=True)
class PPOCfg:
    """A PPO training run."""

    task: str
    """A name that ``unilab list`` shows."""
    algo: PPOAlgoCfg = field(default_factory=PPOAlgoCfg)
    training: TrainingCfg = field(default_factory=TrainingCfg)
    env: dict[str, Any] = field(default_factory=lambda: {"init_at_random_ep_len": True})
    """Overrides of the task's own configuration, as in ``unilab.make(overrides=...)``. The first
    episodes begin at random points of their time: without that a rollout of a task that only ends
    by its time limit would hold the same part of all episodes."""
