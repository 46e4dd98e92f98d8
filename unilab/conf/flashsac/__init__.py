"""Settings of FlashSAC; ``task/`` holds what a task changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from unilab.checks import Count, Positive
from unilab.settings import OffPolicyCfg, TrainingCfg

if TYPE_CHECKING:
    from torchrl.data import TensorSpec

    from unilab.modules import FlashSACActorSpec

__all__ = ["FlashSACAlgoCfg", "FlashSACCfg", "FlashSACParamsCfg"]


@dataclass(frozen=True, kw_only=True)
class FlashSACParamsCfg:
    """Networks, loss and optimizers of FlashSAC; the defaults are the paper's."""

    actor_hidden_dim: int = 128
    """Width of the built-in actor."""
    actor_num_blocks: int = 2
    """Residual blocks of the built-in actor."""
    critic_hidden_dim: int = 256
    """Width of the critics; most of an update's time."""
    critic_num_blocks: int = 2
    """Residual blocks of each critic."""
    num_bins: int = 101
    """Atoms of the value distribution."""
    v_min: float = -5.0
    """Lowest value that a critic can express, in scaled rewards."""
    v_max: float = 5.0
    """Highest value; the reward scale follows it."""
    lr: float = 3e-4
    """Peak learning rate of the three Adam optimizers."""
    lr_end: float = 1.5e-4
    """Learning rate at the end of the cosine."""
    lr_warmup_steps: int = 0
    """Steps of linear warm-up from 0 to ``lr``."""
    lr_decay_steps: Count | None = None
    """Steps of the cosine from ``lr`` to ``lr_end``; null: all updates of the run."""
    tau: float = 0.01
    """How fast the target critic follows the critic."""
    alpha_init: float = 0.01
    """Initial entropy temperature."""
    min_alpha: Positive | None = None
    """Lowest temperature; null: no bound."""
    max_alpha: Positive | None = None
    """Highest temperature; null: no bound."""
    target_entropy_sigma: float = 0.15
    """Standard deviation, in actions scaled to [-1, 1], of the Gaussian whose entropy is the
    target. Smaller: a more precise policy that explores less."""
    bc_alpha: float = 0.0
    """Weight of behaviour cloning in the actor's loss, to learn from demonstrations."""
    actor_update_period: int = 2
    """Critic updates for each update of actor and temperature."""
    compile: bool = True
    """``torch.compile`` the critic's part of an update; eager, with a warning, where that fails."""
    amp_dtype: Literal["bfloat16", "auto"] | None = None
    """Precision of the hidden layers' matrix products in updates; auto: bfloat16 on a CPU with
    units for it (AMX, AVX512_BF16); null: float32. Heads and acting are always float32."""
    allow_tf32: bool = False
    """Whether float32 products of updates may use TF32 on an NVIDIA GPU, for speed (not measured).
    False leaves PyTorch's setting, which is off by default."""
    actor_config: dict[str, Any] | None = None
    """An actor of your own, ``{builder: "pkg.module:callable", kwargs: {...}}``; null: the built-in
    actor."""
    actor_normalize_parameters: bool = True
    """Project the built-in actor's weights back to their norms after each step."""
    use_whole_cycle_cuda_graph: bool | None = None
    """Capture whole updates as CUDA graphs; null: on NVIDIA. Not with an actor of your own."""

    def actor_spec(self, action_spec: TensorSpec) -> FlashSACActorSpec:
        """The actor to build: ``actor_config``, or the built-in actor.

        Args:
            action_spec: the environment's actions, whose range the built-in actor fills.
        """
        from unilab.modules import FlashSACActorSpec, action_range

        if self.actor_config is not None:
            return FlashSACActorSpec.from_config(self.actor_config)
        kwargs = {"hidden_dim": self.actor_hidden_dim, "num_blocks": self.actor_num_blocks}
        return FlashSACActorSpec(
            builder="unilab.modules:FlashSACActor", kwargs=kwargs | action_range(action_spec)
        )


@dataclass(frozen=True, kw_only=True)
class FlashSACAlgoCfg(OffPolicyCfg):
    """The algorithm."""

    name: Literal["flashsac"] = "flashsac"
    """Name in the table of algorithms."""
    algo_params: FlashSACParamsCfg = field(default_factory=FlashSACParamsCfg)
    """Networks, loss and optimizers."""

    def update_size(self) -> int:
        """Rows of a batch times weights of the critic's hidden layers, for the threads."""
        params = self.algo_params
        return self.batch_size * params.critic_num_blocks * params.critic_hidden_dim**2


@dataclass(frozen=True, kw_only=True)
class FlashSACCfg:
    """A FlashSAC training run."""

    task: str
    """A name that ``unilab list`` shows."""
    algo: FlashSACAlgoCfg = field(default_factory=FlashSACAlgoCfg)
    training: TrainingCfg = field(default_factory=TrainingCfg)
    env: dict[str, Any] = field(default_factory=dict)
    """Overrides of the task's own configuration, as in ``unilab.make(overrides=...)``."""
