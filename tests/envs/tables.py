"""Small tasks for the tests: a real robot's tables, and two coupled pendulums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from unilab.envs import (
    CommandTerm,
    CommandTermCfg,
    EntityCfg,
    EventTermCfg,
    ManagerBasedRlEnv,
    ManagerBasedRlEnvCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RewardTermCfg,
    SceneCfg,
    SceneEntityCfg,
    TerminationTermCfg,
    mdp,
)
from unilab.tasks.velocity.go2 import go2_velocity_flat

TWINS_XML = """
<mujoco model="twins">
  <compiler angle="radian" autolimits="true"/>
  <option timestep="0.01"/>
  <worldbody>
    <body name="base">
      <geom size="0.05" mass="1"/>
      <body name="first" pos="0 0 0">
        <joint name="first" axis="0 1 0" range="-3 3" damping="0.2"/>
        <geom type="capsule" fromto="0 0 0 0 0 -0.4" size="0.02" mass="0.3" contype="0"/>
        <body name="second" pos="0 0.3 0">
          <joint name="second" axis="0 1 0" damping="0.2"/>
          <geom type="capsule" fromto="0 0 0 0 0 -0.4" size="0.02" mass="0.3" contype="0"/>
          <site name="tip" pos="0 0 -0.4"/>
        </body>
      </body>
    </body>
  </worldbody>
  <equality>
    <joint joint1="first" joint2="second" polycoef="0 1 0 0 0" solref="0.1 1"/>
  </equality>
  <actuator>
    <motor name="first_motor" joint="first"/>
    <motor name="second_motor" joint="second"/>
  </actuator>
  <sensor>
    <framepos name="tip_pos" objtype="site" objname="tip"/>
  </sensor>
  <keyframe>
    <key name="home" qpos="0.3 0.2" ctrl="0.1 -0.1"/>
  </keyframe>
</mujoco>
"""
TWINS = SceneEntityCfg("twins")
ON_TWINS = {"asset_cfg": TWINS}


@dataclass(frozen=True, kw_only=True)
class CommandOf(CommandTermCfg):
    """A command and metrics computed by functions of the environment."""

    resampling_time_range: tuple[float, float] = (1.0, 1.0)
    func: Callable[..., torch.Tensor] = lambda env: torch.zeros(env.num_envs, 1)
    measured: dict[str, Callable[..., torch.Tensor]] = field(default_factory=dict)

    def build(self, env: ManagerBasedRlEnv) -> CommandTerm:
        return _CommandOf(self, env)


class _CommandOf(CommandTerm):
    def __init__(self, cfg: CommandOf, env: ManagerBasedRlEnv) -> None:
        super().__init__(cfg, env)
        self._cfg = cfg

    @property
    def command(self) -> torch.Tensor:
        return self._cfg.func(self._env)

    def resample(self, rows: torch.Tensor) -> None:
        pass

    def metrics(self) -> dict[str, torch.Tensor]:
        return {name: func(self._env) for name, func in self._cfg.measured.items()}


def twins_cfg(folder: Path, **changes: Any) -> ManagerBasedRlEnvCfg:
    """Two coupled pendulums with a fixed base: 2 joints, 2 motors, episodes of 5 steps."""
    path = folder / "twins.xml"
    path.write_text(TWINS_XML)
    cfg = ManagerBasedRlEnvCfg(
        scene=SceneCfg(model=str(path), entities={"twins": EntityCfg(root_body="base")}),
        decimation=2,
        episode_length_s=0.1,
        actions={"effort": mdp.JointEffortActionCfg(scale=0.5)},
        observations={
            "obs": ObservationGroupCfg(
                terms={
                    "pos": ObservationTermCfg(func=mdp.joint_pos_rel, params=ON_TWINS),
                    "vel": ObservationTermCfg(func=mdp.joint_vel_rel, params=ON_TWINS),
                }
            )
        },
        rewards={
            "still": RewardTermCfg(func=mdp.joint_vel_l2, weight=-1.0, params=ON_TWINS),
            "effort": RewardTermCfg(func=mdp.action_l2, weight=-0.5),
        },
        terminations={
            "time_out": TerminationTermCfg(func=mdp.time_out, time_out=True),
            "too_far": TerminationTermCfg(
                func=mdp.joint_pos_out_of_limit, params={"limit": 2.5, **ON_TWINS}
            ),
        },
        events={
            "anywhere": EventTermCfg(
                func=mdp.reset_joints_by_offset,
                mode="reset",
                params={"position_range": (-0.2, 0.2), "velocity_range": (-1.0, 1.0), **ON_TWINS},
            )
        },
        num_threads=1,
    )
    return replace(cfg, **changes)


def twins(folder: Path, num_envs: int = 4, seed: int = 0, **changes: Any) -> ManagerBasedRlEnv:
    """The running environment of :func:`twins_cfg`."""
    return ManagerBasedRlEnv(twins_cfg(folder, **changes), num_envs=num_envs, seed=seed)


def go2(num_envs: int = 4, seed: int = 0, **changes: Any) -> ManagerBasedRlEnv:
    """The Go2 task with changes, its randomization reduced to sensor noise."""
    cfg = go2_velocity_flat()
    nominal = replace(cfg, randomize=False)
    same = {"num_threads": 1, "events": nominal.events, "actions": nominal.actions}
    cfg = replace(cfg, **{**same, **changes})
    return ManagerBasedRlEnv(cfg, num_envs=num_envs, seed=seed)


def act(env: ManagerBasedRlEnv, root: TensorDictBase, value: float = 0.0) -> TensorDictBase:
    """``root`` with the same action everywhere."""
    return root.set("action", torch.full(env.action_spec.shape, value))


def drive(env: ManagerBasedRlEnv, steps: int, seed: int = 0) -> TensorDict:
    """A rollout over resets under fixed random actions, ``[num_envs, steps]``."""
    draw = torch.Generator().manual_seed(seed)
    root, data = env.reset(), []
    for _ in range(steps):
        root.set("action", torch.rand(env.action_spec.shape, generator=draw) * 2 - 1)
        step, root = env.step_and_maybe_reset(root)
        data.append(step)
    return torch.stack(data, 1)


def physics_state(env: ManagerBasedRlEnv) -> torch.Tensor:
    """Everything that physics remembers, one row an environment."""
    return torch.from_numpy(env.backend._batch.state.copy())


def assert_bitwise_equal(a: TensorDictBase, b: TensorDictBase) -> None:
    assert set(a.keys(True, True)) == set(b.keys(True, True))
    for key in a.keys(True, True):
        assert torch.equal(a[key], b[key]), key
