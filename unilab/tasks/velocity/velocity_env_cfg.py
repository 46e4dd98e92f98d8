"""What the velocity tasks share: observations, randomization, and the change to rough ground."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from unilab.envs import (
    CurriculumTermCfg,
    EventTermCfg,
    ManagerBasedRlEnvCfg,
    ObservationTermCfg,
    SceneEntityCfg,
    TerminationTermCfg,
    TerrainGeneratorCfg,
    UniformNoiseCfg,
    mdp,
    terrains,
)
from unilab.envs.scene_model import with_constant_lags


@dataclass(frozen=True, kw_only=True)
class VelocityEnvCfg(ManagerBasedRlEnvCfg):
    """A velocity task.

    ``replace(cfg, randomize=False)`` cannot be undone: it drops the terms.
    """

    randomize: bool = True
    """Vary the robot, the ground, the sensors and the delays, and push the robot. False drops
    startup and interval events, observation noise and delays of actions and actuators."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.randomize:
            return
        nominal = {
            "scene": with_constant_lags(self.scene, 0),
            "events": {name: term for name, term in self.events.items() if term.mode == "reset"},
            "observations": {
                name: replace(group, enable_corruption=False)
                for name, group in self.observations.items()
            },
            "actions": {
                name: replace(term, delay_min_lag=0, delay_max_lag=0)
                for name, term in self.actions.items()
            },
        }
        for name, value in nominal.items():
            object.__setattr__(self, name, value)


ROUGH_TERRAIN = TerrainGeneratorCfg(
    sub_terrains={
        "stairs_up": terrains.HfPyramidStairsTerrainCfg(
            proportion=2.0, step_height_range=(0.02, 0.2), inverted=True
        ),
        "stairs_down": terrains.HfPyramidStairsTerrainCfg(
            proportion=2.0, step_height_range=(0.02, 0.2)
        ),
        "slope_up": terrains.HfPyramidSlopedTerrainCfg(slope_range=(0.0, 0.4), inverted=True),
        "slope_down": terrains.HfPyramidSlopedTerrainCfg(slope_range=(0.0, 0.4)),
        "rough": terrains.HfRandomUniformTerrainCfg(proportion=2.0, amplitude_range=(0.01, 0.06)),
        "stones": terrains.HfSteppingStonesTerrainCfg(
            stone_width_range=(1.0, 0.3), stone_distance_range=(0.1, 0.3)
        ),
        "gap": terrains.HfGapTerrainCfg(gap_width_range=(0.1, 0.6)),
    },
    max_init_terrain_level=3,
)
"""Ten levels of seven kinds, in tiles of 8 m."""


def rough(flat: VelocityEnvCfg) -> VelocityEnvCfg:
    """A flat task on :data:`ROUGH_TERRAIN`, with what the robot needs there.

    Actor and critic see the ground around the robot in place of heights above 0. Commands name a
    direction to face and last long, so that robots that follow them leave their tile. They start
    near the middle of a tile, on harder ones the farther they walk.
    """
    scan = ObservationTermCfg(
        func=mdp.height_scan, noise=UniformNoiseCfg(n_min=-0.1, n_max=0.1), clip=(-1.0, 1.0)
    )
    command, start = flat.commands["base_velocity"], flat.events["reset_base"]
    assert isinstance(command, mdp.UniformVelocityCommandCfg)
    heading = replace(command.ranges, heading=(-math.pi, math.pi))
    near = {"x": (-0.5, 0.5), "y": (-0.5, 0.5), **start.params["pose_range"]}
    above_zero = ("base_height", "foot_heights")
    return replace(
        flat,
        scene=replace(flat.scene, terrain=ROUGH_TERRAIN),
        observations={
            name: replace(
                group,
                terms={
                    **{n: term for n, term in group.terms.items() if n not in above_zero},
                    "height_scan": scan,
                },
            )
            for name, group in flat.observations.items()
        },
        commands={
            "base_velocity": replace(
                command,
                ranges=heading,
                heading_command=True,
                resampling_time_range=(10.0, 20.0),
            )
        },
        rewards={
            **flat.rewards,
            "flat_orientation": replace(flat.rewards["flat_orientation"], weight=-0.2),
        },
        terminations={
            **flat.terminations,
            "out_of_bounds": TerminationTermCfg(func=mdp.terrain_out_of_bounds, time_out=True),
        },
        events={
            **flat.events,
            "reset_base": replace(start, params={**start.params, "pose_range": near}),
        },
        curriculum={
            "terrain_levels": CurriculumTermCfg(
                func=mdp.terrain_levels_vel, params={"command_name": "base_velocity"}
            )
        },
    )


def sensed() -> dict[str, ObservationTermCfg]:
    """What the robot's own sensors give, noisy: no linear velocity, no height."""
    return {
        "base_ang_vel": ObservationTermCfg(
            func=mdp.base_ang_vel, scale=0.25, noise=UniformNoiseCfg(n_min=-0.2, n_max=0.2)
        ),
        "projected_gravity": ObservationTermCfg(
            func=mdp.projected_gravity, noise=UniformNoiseCfg(n_min=-0.05, n_max=0.05)
        ),
        "command": ObservationTermCfg(
            func=mdp.generated_commands,
            params={"command_name": "base_velocity"},
            scale=(2.0, 2.0, 1.0),
        ),
        "joint_pos": ObservationTermCfg(
            func=mdp.joint_pos_rel,
            params={"biased": True},
            noise=UniformNoiseCfg(n_min=-0.01, n_max=0.01),
        ),
        "joint_vel": ObservationTermCfg(
            func=mdp.joint_vel_rel, scale=0.05, noise=UniformNoiseCfg(n_min=-1.5, n_max=1.5)
        ),
        "actions": ObservationTermCfg(func=mdp.last_action),
    }


def events(
    *,
    trunk: str,
    feet: tuple[str, ...],
    payload: tuple[float, float],
    velocity_range: dict[str, tuple[float, float]],
    position_range: tuple[float, float],
) -> dict[str, EventTermCfg]:
    """Events that begin episodes, give every environment another robot and ground, and push it.

    The body ``trunk`` carries the payload, kg; ``feet`` are regular expressions of geoms. Episodes
    begin facing anywhere, within ``velocity_range`` (m/s, rad/s) and, of each joint, within
    ``position_range`` (rad) of the home pose.
    """
    pose = {"yaw": (-math.pi, math.pi)}
    body = SceneEntityCfg("robot", body_names=(trunk,))
    soles = SceneEntityCfg("robot", geom_names=feet)
    com = {"x": (-0.03, 0.03), "y": (-0.02, 0.02), "z": (-0.02, 0.02)}
    gains = {
        "stiffness_distribution_params": (0.9, 1.1),
        "damping_distribution_params": (0.9, 1.1),
    }
    return {
        "reset_base": EventTermCfg(
            func=mdp.reset_root_state_uniform,
            mode="reset",
            params={"pose_range": pose, "velocity_range": velocity_range},
        ),
        "reset_joints": EventTermCfg(
            func=mdp.reset_joints_by_offset,
            mode="reset",
            params={"position_range": position_range, "velocity_range": (0.0, 0.0)},
        ),
        "payload": EventTermCfg(
            func=mdp.randomize_rigid_body_mass,
            mode="startup",
            params={"mass_distribution_params": payload, "operation": "add", "asset_cfg": body},
        ),
        "com": EventTermCfg(
            func=mdp.randomize_rigid_body_com,
            mode="startup",
            params={"com_range": com, "asset_cfg": body},
        ),
        "foot_friction": EventTermCfg(
            func=mdp.randomize_geom_friction,
            mode="startup",
            params={"friction_distribution_params": (0.3, 1.2), "asset_cfg": soles},
        ),
        "motors": EventTermCfg(func=mdp.randomize_actuator_gains, mode="startup", params=gains),
        "encoder_bias": EventTermCfg(
            func=mdp.randomize_encoder_bias, mode="startup", params={"bias_range": (-0.015, 0.015)}
        ),
        "push": EventTermCfg(
            func=mdp.push_by_setting_velocity,
            mode="interval",
            interval_range_s=(5.0, 10.0),
            params={"velocity_range": dict.fromkeys(("x", "y", "yaw"), (-0.5, 0.5))},
        ),
    }
