"""Settings of SAC; ``task/`` holds what a task changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from unilab.checks import Count, Positive
from unilab.settings import OffPolicyCfg, TrainingCfg

if TYPE_CHECKING:
    from torchrl.data import TensorSpec

    from unilab.modules import FlashSACActorSpec

__all__ = ["SACAlgoCfg", "SACCfg", "SACParamsCfg"]


@dataclass(frozen=True, kw_only=True)
class SACParamsCfg:
    """Networks, loss and optimizers of SAC.

    The defaults are those of FastSAC (Seo et al., arXiv 2512.01996) for thousands of environments
    on a GPU, scaled to two CPU cores where a field says so.
    """

    actor_hidden_dims: tuple[Count, ...] = (128, 64, 32)
    """Widths of the actor's hidden layers; a quarter of FastSAC's."""
    critic_hidden_dims: tuple[Count, ...] = (192, 96, 48)
    """Widths of the critics' hidden layers, most of an update's time; a quarter of FastSAC's."""
    activation: Literal["elu", "relu", "silu", "tanh"] = "silu"
    """Activation of all networks."""
    layer_norm: bool = True
    """Normalise the hidden layers of all networks; FastSAC's, for stable values."""
    normalize_obs: bool = True
    """Normalise observations by what was seen so far; the statistics are part of the policy."""
    lr: Positive = 3e-4
    """Learning rate of the three Adam optimizers."""
    tau: Positive = 0.02
    """How fast the target critics follow the critics. FastSAC's 0.125 is for batches of 8192."""
    actor_update_period: Count = 2
    """Critic updates for each update of actor and temperature; FastSAC: 4, at 8 updates a step."""
    alpha_init: Positive = 0.01
    """Initial entropy temperature; FlashSAC's. Larger: explores more at first, learns later."""
    target_entropy_sigma: Positive = 0.15
    """Standard deviation of the Gaussian whose entropy is the target, in actions of [-1, 1]; as
    FlashSAC's. Smaller: a more precise policy that explores less."""
    actor_config: dict[str, Any] | None = None
    """An actor of your own, ``{builder: "pkg.module:callable", kwargs: {...}}``; null: the built-in
    actor."""

    def actor_spec(self, action_spec: TensorSpec) -> FlashSACActorSpec:
        """The actor to build: ``actor_config``, or the built-in actor.

        Args:
            action_spec: the environment's actions, whose range the built-in actor fills.
        """
        from unilab.modules import FlashSACActorSpec, action_range

        if self.actor_config is not None:
            return FlashSACActorSpec.from_config(self.actor_config)
        kwargs = {
            "hidden_dims": list(self.actor_hidden_dims),
            "activation": self.activation,
            "layer_norm": self.layer_norm,
            "normalize_obs": self.normalize_obs,
            "init_std": None,
        }
        return FlashSACActorSpec(
            builder="unilab.modules:GaussianActor", kwargs=kwargs | action_range(action_spec)
        )


@dataclass(frozen=True, kw_only=True)
class SACAlgoCfg(OffPolicyCfg):
    """The algorithm."""

    name: Literal["sac"] = "sac"
    """Name in the table of algorithms."""
    algo_params: SACParamsCfg = field(default_factory=SACParamsCfg)
    """Networks, loss and optimizers."""

    def update_size(self) -> int:
        """Rows of a batch times weights of the critics' hidden layers, for the threads."""
        widths = self.algo_params.critic_hidden_dims
        return self.batch_size * 2 * sum(a * b for a, b in pairwise(widths))


@dataclass(frozen=True, kw_only=True)
class SACCfg:
    """A SAC training run."""

    task: str
    """A name that ``unilab list`` shows."""
    algo: SACAlgoCfg = field(default_factory=SACAlgoCfg)
    training: TrainingCfg = field(default_factory=TrainingCfg)
    env: dict[str, Any] = field(default_factory=dict)
    """Overrides of the task's own configuration, as in ``unilab.make(overrides=...)``."""
