"""A custom actor in FlashSAC: two encoders, an auxiliary loss, its own action range.

    python examples/custom_actor.py

Trains for half a minute, resumes for another half, exports the actor and plays the exported file.
The same from the command line:

    PYTHONPATH=examples unilab train task=pendulum_swingup \
        algo.algo_params.actor_config.builder=custom_actor:TwoEncoderActor \
        algo.algo_params.actor_config.kwargs.split=2
    PYTHONPATH=examples unilab export runs/pendulum_swingup/<run>
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
import torch.nn.functional as nnF
from torch import Tensor, nn

import unilab
from unilab.conf import compose
from unilab.examples.train_flashsac import train
from unilab.export import OnnxPolicy, export_onnx
from unilab.objectives import functional as F
from unilab.trainers import Evaluator, load_play_actor


class TwoEncoderActor(nn.Module):
    """Encodes two parts of the observation separately; a decoder reconstructs the observation.

    Args:
        obs_dim: observation width.
        action_dim: action width.
        device: where the parameters live.
        split: columns that the first encoder reads; the second reads the rest.
        latent_dim: width of each encoder's output.
        reconstruction: weight of the reconstruction loss.
        action_low: lower end of the actions, a number or one per joint.
        action_high: upper end.
    """

    action_transform_id = "tanh_affine"

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        device: torch.device | str | None = None,
        *,
        split: int,
        latent_dim: int = 32,
        reconstruction: float = 0.1,
        action_low: float | Sequence[float] = -1.0,
        action_high: float | Sequence[float] = 1.0,
    ) -> None:
        super().__init__()
        self.widths = [split, obs_dim - split]
        self.reconstruction = reconstruction
        self.encoders = nn.ModuleList(
            nn.Sequential(nn.Linear(w, 64), nn.ELU(), nn.Linear(64, latent_dim), nn.ELU())
            for w in self.widths
        )
        self.decoder = nn.Linear(2 * latent_dim, obs_dim)
        self.mean = nn.Linear(2 * latent_dim, action_dim)
        self.raw_std = nn.Linear(2 * latent_dim, action_dim)
        low, high = (torch.as_tensor(b).expand(action_dim) for b in (action_low, action_high))
        self.register_buffer("scale", 0.5 * (high - low))
        self.register_buffer("offset", 0.5 * (high + low))
        self.to(device)

    def forward(self, obs: Tensor, training: bool) -> tuple[Tensor, dict]:
        """Actions, their log_prob and, in training, the reconstruction loss."""
        latent = self._latent(obs)
        mean, log_std = self._heads(latent)
        eps = torch.randn_like(mean)
        u = mean + log_std.exp() * eps
        log_prob = F.squashed_log_prob(eps, log_std, u, self.scale.log())
        info = {"log_prob": log_prob.unsqueeze(-1)}
        if training:
            error = nnF.mse_loss(self.decoder(latent), obs)
            info["aux_losses"] = {"reconstruction": self.reconstruction * error}
        return self._transform(u), info

    def get_mean_and_std(self, obs: Tensor, training: bool = False) -> tuple[Tensor, Tensor]:
        """The Gaussian before the transform."""
        mean, log_std = self._heads(self._latent(obs))
        return mean, log_std.exp()

    @torch.no_grad()
    def explore(
        self, obs: Tensor, dones: Tensor | None = None, deterministic: bool = False
    ) -> Tensor:
        """Actions for a rollout, with fresh noise at each step."""
        mean, std = self.get_mean_and_std(obs)
        return self._transform(mean if deterministic else torch.normal(mean, std))

    def as_export_module(self) -> nn.Module:
        """Observation to deterministic action."""
        return _Deterministic(self)

    def normalize_parameters(self) -> None:
        """Nothing to do: these layers have no norms."""

    def _latent(self, obs: Tensor) -> Tensor:
        parts = obs.split(self.widths, dim=-1)
        return torch.cat([e(part) for e, part in zip(self.encoders, parts, strict=True)], dim=-1)

    def _heads(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        return self.mean(latent), F.squash_log_std(self.raw_std(latent))

    def _transform(self, u: Tensor) -> Tensor:
        return torch.addcmul(self.offset, self.scale, torch.tanh(u))


class _Deterministic(nn.Module):
    def __init__(self, actor: TwoEncoderActor) -> None:
        super().__init__()
        self.actor = actor

    def forward(self, obs: Tensor) -> Tensor:
        mean, _ = self.actor.get_mean_and_std(obs)
        return self.actor._transform(mean)


SETTINGS = [
    "task=pendulum_swingup",
    "algo.algo_params.actor_config.builder=custom_actor:TwoEncoderActor",
    "algo.algo_params.actor_config.kwargs={split: 2, action_low: -0.9, action_high: 0.9}",
    "algo.algo_params.use_whole_cycle_cuda_graph=false",
    "algo.random_warmup=false",  # random actions would leave this actor's range
    "training.max_minutes=0.5",
]


def main(overrides: Sequence[str]) -> dict[str, float]:
    """Trains, resumes, exports and plays; returns the metrics of the evaluation."""
    cfg = compose([*SETTINGS, "training.run_dir=runs/custom_actor", *overrides])
    run = cfg.training.run_dir
    train(cfg)
    again = [f"training.resume={run}", f"algo.total_frames={2 * cfg.algo.total_frames}"]
    train(compose(again))
    exported = export_onnx(load_play_actor(run), f"{run}/policy.onnx")
    env = unilab.make(cfg.task, num_envs=16, seed=1, overrides=cfg.env)
    metrics = Evaluator(env, OnnxPolicy(exported.path))()
    env.close()
    return metrics


if __name__ == "__main__":
    print(main(sys.argv[1:]))
