"""Curriculum terms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from unilab.envs.mdp.commands import UniformVelocityCommand
from unilab.errors import ConfigError

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv


def modify_reward_weight(
    env: ManagerBasedRlEnv, env_ids: Tensor, term_name: str, weight: float, num_steps: int
) -> float:
    """Give a reward term another weight once training has taken some control steps.

    Args:
        env: the environment.
        env_ids: ``[n]``.
        term_name: the reward term; its first weight must not be 0.
        weight: the new weight.
        num_steps: control steps of the environment (not frames) until then.

    Returns:
        The weight in force.
    """
    rewards = env.reward_manager
    now = rewards.get_weight(term_name)
    if env.common_step_counter > num_steps and now != weight:
        rewards.set_weight(term_name, weight)
        now = weight
    return now


def commands_vel(
    env: ManagerBasedRlEnv,
    env_ids: Tensor,
    command_name: str,
    velocity_stages: Sequence[dict[str, Any]],
) -> dict[str, float]:
    """Widen (or narrow) a velocity command in stages.

    Args:
        env: the environment.
        env_ids: ``[n]``.
        command_name: a uniform velocity command.
        velocity_stages: each with ``step``, the control step that it begins after, and new bounds
            of some of ``lin_vel_x``, ``lin_vel_y`` (m/s) and ``ang_vel_z`` (rad/s); in order.

    Returns:
        The upper bounds in force.
    """
    command = env.command_manager.get_term(command_name)
    if not isinstance(command, UniformVelocityCommand):
        raise ConfigError(
            f"command {command_name!r} is a {type(command).__name__}: "
            "commands_vel needs a UniformVelocityCommand"
        )
    ranges = command.ranges
    for stage in velocity_stages:
        if "step" not in stage:
            raise ConfigError(f"stage {stage} has no 'step'")
        if env.common_step_counter > stage["step"]:
            ranges.update({k: v for k, v in stage.items() if k != "step" and v is not None})
    if ranges != command.ranges:
        command.set_ranges(**ranges)
    return {f"{name}_max": high for name, (_, high) in command.ranges.items()}
