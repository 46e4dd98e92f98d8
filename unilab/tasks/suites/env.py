"""Environments of other suites, with the physics, observations and rewards that they have there."""

from __future__ import annotations

import logging
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import mujoco
import torch
from torch import Tensor
from torchrl.data import Bounded

from unilab.backends import MujocoBackend
from unilab.checks import Positive, check_fields
from unilab.envs import TorchEnv
from unilab.envs.episode_sums import EpisodeSums
from unilab.envs.nonfinite import is_finite, non_finite
from unilab.envs.torch_env import control_steps
from unilab.envs.torch_settings import TorchSettings
from unilab.errors import CapabilityError
from unilab.tasks import SUITES

_logger = logging.getLogger(__name__)
_CAUSES = ("terminated", "time_out")


@dataclass(frozen=True, kw_only=True)
class SuiteEnvCfg:
    """Settings of every suite task."""

    env_class: ClassVar[type[SuiteEnv]]
    episode_length_s: Positive
    """Seconds until an episode is truncated."""
    init_at_random_ep_len: bool = False
    """Whether the first episodes begin at random points of their time."""
    num_threads: int = 0
    """Physics threads; 0 takes all cores."""

    def __post_init__(self) -> None:
        check_fields(self)

    def make(self, *, num_envs: int, device: torch.device | str, seed: int | None) -> SuiteEnv:
        return self.env_class(self, num_envs=num_envs, device=device, seed=seed)


class SuiteEnv(TorchEnv):
    """A task computed as its suite computes it: on the host, in float64, from MuJoCo's own fields.

    Everything that a step publishes goes to the device in one float32 packet.

    Attributes:
        suite: name of the suite in :data:`~unilab.tasks.SUITES`.
        model: path of the model file in the suite's package.
        decimation: physics substeps of one control step.
        reward_terms: names of the columns of :meth:`_rewards`.
        fields: derived fields of MuJoCo's ``mjData`` that the task reads, besides the state.
        current: whether derived fields are up to date with the state, or those that the last
            substep began with.
    """

    suite: ClassVar[str]
    model: ClassVar[str]
    decimation: ClassVar[int]
    reward_terms: ClassVar[tuple[str, ...]]
    fields: ClassVar[tuple[str, ...]] = ()
    current: ClassVar[bool] = False
    _generator_device = "cpu"  # as physics

    @TorchSettings()
    def __init__(
        self,
        cfg: SuiteEnvCfg,
        *,
        num_envs: int,
        device: torch.device | str = "cpu",
        seed: int | None = None,
    ) -> None:
        self.cfg = cfg
        backend = MujocoBackend(
            self._compile(),
            num_envs,
            num_threads=cfg.num_threads,
            fields=self.fields,
            current=self.current,
        )
        staggered = cfg.init_at_random_ep_len
        super().__init__(num_envs=num_envs, device=device, seed=seed, staggered=staggered)
        self.backend = backend
        self.step_dt = self.decimation * backend.timestep
        self.max_episode_length = control_steps(cfg.episode_length_s, self.step_dt)
        self.data = self._publish(backend.get_state_views())
        self._episodes = EpisodeSums(
            {"Episode_Reward": self.reward_terms, "Episode_Termination": _CAUSES},
            num_envs,
            self.device,
        )
        self._staged: dict[str, Tensor] = {}
        self._last_rows = self._all_rows, self._all_rows.cpu()
        self._width = sum(block.shape[1] for block in self._observation(self.data))
        self._make_specs(len(backend.actuators))
        low, high = (
            torch.tensor(bound, dtype=torch.float32, device=self.device).expand(num_envs, -1)
            for bound in zip(*(a.ctrl_range for a in backend.actuators), strict=True)
        )
        self.action_spec = Bounded(low, high, low.shape, device=self.device)

    def _compile(self, *edits: Callable[[mujoco.MjSpec], None]) -> mujoco.MjModel:
        """The task's model after further edits, without MuJoCo's warnings to the model's author."""
        package = SUITES[self.suite]
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise CapabilityError(
                f"{self.suite}/ tasks read their models from {package}, which is not installed: "
                f'pip install "unilab-torchrl[{self.suite}]"'
            )
        path = Path(spec.origin).parent / self.model
        # Without a handler MuJoCo prints each warning and appends it to MUJOCO_LOG.TXT.
        before = mujoco.get_mju_user_warning()
        mujoco.set_mju_user_warning(_logger.debug)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = mujoco.MjSpec.from_file(str(path))
                for edit in (self._edit, *edits):
                    edit(model)
                return model.compile()
        finally:
            mujoco.set_mju_user_warning(before)

    def _edit(self, spec: mujoco.MjSpec) -> None:
        """Change the model as the suite does for the task."""

    @abstractmethod
    def _observation(self, data: Mapping[str, Tensor]) -> Sequence[Tensor]:
        """Blocks of columns ``[n, *]`` of the observation of the rows that ``data`` holds."""

    @abstractmethod
    def _rewards(self, action: Tensor) -> Sequence[Tensor]:
        """The reward's terms after a step, ``[num_envs]`` each, which add up to the reward."""

    @abstractmethod
    def _initial_state(self, rows: int) -> dict[str, Tensor]:
        """State that episodes begin with, drawn: ``qpos`` and ``qvel``, ``[rows, width]`` float64,
        and what else :meth:`_write` uses."""

    def _terminated(self) -> Tensor:
        """``[num_envs]`` bool, whether episodes ended other than by time."""
        return torch.zeros(self.num_envs, dtype=torch.bool)

    def _publish(self, views: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Live tensors ``[num_envs, width]`` float64 by name, from the backend's views."""
        return dict(views)

    def _advance(self, ctrl: Tensor) -> None:
        """Advance physics by a control step under ``[num_envs, nu]`` controls."""
        self.backend.step_tensor(ctrl, self.decimation)

    def _write(self, rows: Tensor, start: dict[str, Tensor]) -> None:
        """Begin episodes of some rows in a state of :meth:`_initial_state`."""
        self.backend.set_state_tensor(rows, start["qpos"], start["qvel"])

    def _uniform(self, rows: int, low: Tensor, high: Tensor) -> Tensor:
        """``[rows, width]`` float64 between bounds ``[width]``."""
        unit = torch.rand(rows, len(low), dtype=torch.float64, generator=self.generator)
        return low + (high - low) * unit

    def _normal(self, rows: int, width: int, scale: float) -> Tensor:
        """``[rows, width]`` float64 with standard deviation ``scale``."""
        return torch.randn(rows, width, dtype=torch.float64, generator=self.generator) * scale

    @property
    def obs_groups_spec(self) -> dict[str, int]:
        return {"obs": self._width}

    def episode_so_far(self, row: int) -> tuple[dict[str, float], list[str]]:
        return self._episodes.so_far(row)

    def deployment_metadata(self) -> dict[str, Any]:
        space = self.action_spec.space
        return {
            "control_period": self.step_dt,
            "action_joint_names": [actuator.joint for actuator in self.backend.actuators],
            "action_low": space.low[0].tolist(),
            "action_high": space.high[0].tolist(),
        }

    def drain_metrics(self) -> dict[str, float]:
        """Metrics since the last call; those of episodes are means over the ended ones."""
        return super().drain_metrics() | self._episodes.drain()

    def _physics(self, action: Tensor) -> None:
        action = action.cpu().double()
        self._advance(action)
        host = torch.empty(self.num_envs * (self._width + len(self.reward_terms) + 2))
        obs, outcome = self._unpacked(host)
        _write_blocks(obs, self._observation(self.data))
        terms = torch.stack(tuple(self._rewards(action)), 1)
        _write_blocks(outcome, (terms.sum(1, keepdim=True), self._terminated()[:, None], terms))
        if not is_finite(host):
            values = {"observation": obs, "reward": outcome}
            raise non_finite("physics left non-finite values", values)
        self._obs, self._outcome = self._unpacked(host.to(self.device))

    def _unpacked(self, packet: Tensor) -> tuple[Tensor, Tensor]:
        """A packet's observation, and its columns of reward, terminated and reward terms."""
        obs, outcome = packet.tensor_split((self.num_envs * self._width,))
        return obs.view(self.num_envs, -1), outcome.view(self.num_envs, -1)

    def _evaluate(self) -> tuple[Tensor, Tensor, Tensor]:
        reward, terminated, terms = self._outcome.split((1, 1, len(self.reward_terms)), 1)
        truncated = self.episode_length >= self.max_episode_length
        self._episodes.step()
        self._episodes["Episode_Reward"].add_(terms.T)
        ended = self._episodes["Episode_Termination"]
        ended[0], ended[1] = terminated[:, 0], truncated
        return reward[:, 0], terminated[:, 0].bool(), truncated

    def _observe(self, rows: Tensor | None = None) -> dict[str, Tensor]:
        if rows is None:
            return {"obs": self._obs}
        obs = torch.empty(rows.shape[0], self._width)
        host_rows = self._on_host(rows)
        data = {name: field.index_select(0, host_rows) for name, field in self.data.items()}
        _write_blocks(obs, self._observation(data))
        return {"obs": obs.to(self.device)}

    def _stage_reset(self, rows: Tensor) -> None:
        self._staged = self._initial_state(rows.shape[0])

    def _commit_reset(self, rows: Tensor) -> None:
        self._episodes.reset(rows)
        self._write(self._on_host(rows), self._staged)

    def _on_host(self, rows: Tensor) -> Tensor:
        """The rows of a reset on the CPU, copied once."""
        if self._last_rows[0] is not rows:
            self._last_rows = rows, rows.cpu()
        return self._last_rows[1]

    def _export_task(self) -> dict[str, Any]:
        return {"backend": self.backend.state_dict(), "sums": self._episodes.state_dict()}

    def _import_task(self, state: dict[str, Any]) -> None:
        self.backend.load_state_dict(state["backend"])
        self._episodes.load_state_dict(state["sums"])

    def close(self, *, raise_if_closed: bool = True) -> None:
        super().close(raise_if_closed=raise_if_closed)
        self.data = {}
        self.backend.close()


def _write_blocks(target: Tensor, blocks: Sequence[Tensor]) -> None:
    """Fill the columns of a float32 tensor in one pass over each block's memory."""
    parts = target.split([block.shape[1] for block in blocks], 1)
    for part, block in zip(parts, blocks, strict=True):
        part.copy_(block)
