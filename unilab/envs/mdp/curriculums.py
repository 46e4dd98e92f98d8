"""Curriculum terms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from unilab.checks import check_fits
from unilab.envs.entity import SceneEntityCfg
from unilab.envs.managers.curriculum import CurriculumTermCfg
from unilab.envs.managers.term import ManagerTermBase
from unilab.envs.mdp.commands import UniformVelocityCommand
from unilab.errors import ConfigError

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv

__all__ = ["commands_vel", "terrain_levels_vel"]

_ROBOT = SceneEntityCfg("robot")


class commands_vel(ManagerTermBase):
    """Widen (or narrow) a velocity command in stages.

    Args:
        command_name: a uniform velocity command.
        velocity_stages: in order, each with ``step``, the control step after which it begins, and
            new bounds of some of ``lin_vel_x``, ``lin_vel_y`` (m/s) and ``ang_vel_z`` (rad/s).

    Logs the current upper bounds.
    """

    def __init__(self, cfg: CurriculumTermCfg, env: ManagerBasedRlEnv) -> None:
        super().__init__(cfg, env)
        name, last = cfg.params["command_name"], -1
        self._command = command = env.command_manager.get_term(name, UniformVelocityCommand)
        self._stages: list[tuple[int, dict[str, tuple[float, float]]]] = []
        for stage in cfg.params["velocity_stages"]:
            step = stage.get("step")
            check_fits("step of a stage", step, int)
            if step <= last:
                raise ConfigError(f"step of stage {stage} must be at least {last + 1}, got {step}")
            ranges = {k: v for k, v in stage.items() if k != "step" and v is not None}
            command.check_ranges(**ranges)
            last = step
            self._stages.append((last, ranges))

    def __call__(
        self,
        env: ManagerBasedRlEnv,
        env_ids: Tensor,
        command_name: str,
        velocity_stages: Sequence[dict[str, Any]],
    ) -> dict[str, float]:
        ranges = self._command.ranges
        for step, changed in self._stages:
            if env.common_step_counter > step:
                ranges |= changed
        if ranges != self._command.ranges:
            self._command.set_ranges(**ranges)
        return {f"{name}_max": high for name, (_, high) in self._command.ranges.items()}


class terrain_levels_vel(ManagerTermBase):
    """Move robots to harder tiles when they walk far, to easier ones when they do not.

    A robot whose episode ended more than half a tile from the middle of its tile moves up; one that
    ended less than half as far from there as its last command would take it in a whole episode
    moves down. From the hardest row a robot moves up to any row. As in Isaac Lab and legged_gym.

    Logs the mean level, and the mean of each kind of terrain. Evaluations and ``play`` start on the
    levels of the training.

    Args:
        command_name: a command whose first two columns are the horizontal velocity, m/s.
    """

    def __init__(self, cfg: CurriculumTermCfg, env: ManagerBasedRlEnv) -> None:
        super().__init__(cfg, env)
        env.scene.require_terrain()

    def __call__(
        self,
        env: ManagerBasedRlEnv,
        env_ids: Tensor,
        command_name: str,
        asset_cfg: SceneEntityCfg = _ROBOT,
    ) -> dict[str, Tensor]:
        terrain, ends = env.scene.require_terrain(), env.termination_manager
        walked = env.scene[asset_cfg.name].data.root_pos_w[:, :2] - terrain.env_origins[:, :2]
        distance = walked.norm(dim=1)
        speed = env.command_manager.get_command(command_name)[:, :2].norm(dim=1)
        expected = speed * (0.5 * env.max_episode_length * env.step_dt)
        # Not episodes that were broken off, nor those of robots whose physics diverged.
        ended = (ends.terminated | ends.truncated) & (env.episode_length > 0) & ~env.scene.diverged
        up = ended & (distance > 0.5 * terrain.cfg.size[0])
        down = ended & (distance < expected) & ~up
        terrain.update_env_origins(env_ids, up[env_ids], down[env_ids], env.generator)
        return terrain.mean_levels()
