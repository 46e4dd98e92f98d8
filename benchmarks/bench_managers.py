"""The managers' share of a randomised Go2 step, a partial reset, and the start.

    python benchmarks/bench_managers.py [--num-threads 0] [--steps 200] [--gait] [--motion]

The robots differ in mass, centre of mass, friction, armature, gains, gravity and encoder bias, are
pushed, and see noisy, delayed encoders; actions are small, so that they stand and few are reset.
The managers' share is what of a step is not spent in the physics batch. ``--gait`` adds eight terms
of gait and safety, forces and history of the feet's contacts, and reads of the feet's bodies.
``--motion`` measures G1s that track a motion instead, with targets near it, for about half a second
each: what their managers take over physics, and their resets.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from dataclasses import replace

import torch

from unilab.envs import (
    EventTermCfg,
    ManagerBasedRlEnv,
    ManagerBasedRlEnvCfg,
    RewardTermCfg,
    SceneEntityCfg,
    mdp,
)
from unilab.tasks.tracking.g1 import g1_motion_tracking
from unilab.tasks.velocity.go2 import go2_velocity_flat

WARMUP = 20
TARGETS = {256: 0.12, 1024: 0.08}
RESET_TARGET, START_TARGET_S = 0.15, 3.0
MOTION_TARGET = 0.20


def randomised_go2(num_threads: int) -> ManagerBasedRlEnvCfg:
    """The task with everything that can differ between robots."""
    base = go2_velocity_flat()
    trunk = SceneEntityCfg("robot", body_names="base")
    drawn = {
        "payload": (mdp.randomize_rigid_body_mass, "startup", {
            "mass_distribution_params": (-1.0, 2.0), "operation": "add", "asset_cfg": trunk}),
        "com": (mdp.randomize_rigid_body_com, "startup", {
            "com_range": {"x": (-0.02, 0.02), "y": (-0.02, 0.02)}, "asset_cfg": trunk}),
        "gravity": (mdp.randomize_physics_scene_gravity, "startup", {
            "gravity_distribution_params": ((0.0, 0.0, -0.2), (0.0, 0.0, 0.2))}),
        "encoder_bias": (mdp.randomize_encoder_bias, "startup", {"bias_range": (-0.02, 0.02)}),
        "foot_friction": (mdp.randomize_geom_friction, "reset", {
            "friction_distribution_params": (0.4, 1.2)}),
        "armature": (mdp.randomize_joint_parameters, "reset", {
            "armature_distribution_params": (0.9, 1.1)}),
        "motors": (mdp.randomize_actuator_gains, "reset", {
            "stiffness_distribution_params": (0.9, 1.1),
            "damping_distribution_params": (0.8, 1.2)}),
    }  # fmt: skip
    events = {
        name: EventTermCfg(func=func, mode=mode, params=params)
        for name, (func, mode, params) in drawn.items()
    }
    events["push"] = EventTermCfg(
        func=mdp.push_by_setting_velocity,
        mode="interval",
        interval_range_s=(10.0, 15.0),
        params={"velocity_range": {"x": (-0.5, 0.5), "y": (-0.5, 0.5)}},
    )
    obs = base.observations["obs"]
    late = {"delay_max_lag": 1, "delay_update_period": None}
    encoders = replace(obs.terms["joint_pos"], params={"biased": True}, **late)
    sensed = replace(obs, terms={**obs.terms, "joint_pos": encoders})
    return replace(
        base,
        events={**base.events, **events},
        observations={**base.observations, "obs": sensed},
        num_threads=num_threads,
    )


def with_gait(cfg: ManagerBasedRlEnvCfg) -> ManagerBasedRlEnvCfg:
    """The task with the terms of gait and safety."""
    soles = SceneEntityCfg("robot", body_names=".*_foot")
    std = {f"std_{gait}": {".*": 0.3} for gait in ("standing", "walking", "running")}
    terms = {
        "clearance": (mdp.feet_clearance, {"target_height": 0.1, "asset_cfg": soles}),
        "slip": (mdp.feet_slip, {"sensor_name": "feet", "asset_cfg": soles}),
        "landing": (mdp.soft_landing, {"sensor_name": "feet"}),
        "swing": (mdp.feet_swing_height, {
            "sensor_name": "feet", "target_height": 0.1, "asset_cfg": soles}),
        "upright": (mdp.upright, {"std": 0.5}),
        "posture": (mdp.variable_posture, {"command_name": "base_velocity", **std}),
        "power": (mdp.electrical_power_cost, {}),
        "action_acc": (mdp.action_acc_l2, {}),
    }  # fmt: skip
    gait = {k: RewardTermCfg(func=f, weight=-1e-3, params=p) for k, (f, p) in terms.items()}
    feet = replace(cfg.scene.sensors["feet"], fields=("found", "force"), history_length=3)
    scene = replace(cfg.scene, sensors={"feet": feet})
    return replace(cfg, scene=scene, rewards={**cfg.rewards, **gait})


class Physics:
    """The seconds that an environment's batch takes, added up while it works."""

    def __init__(self, env: ManagerBasedRlEnv) -> None:
        self.seconds = 0.0
        step = env.backend.step_tensor

        def timed(ctrl: torch.Tensor, nstep: int) -> None:
            start = time.perf_counter()
            step(ctrl, nstep)
            self.seconds += time.perf_counter() - start

        env.backend.step_tensor = timed


def measure(cfg: ManagerBasedRlEnvCfg, num_envs: int, steps: int) -> None:
    start = time.perf_counter()
    env = ManagerBasedRlEnv(cfg, num_envs=num_envs, seed=0)
    root = env.reset()
    started = time.perf_counter() - start
    physics, draw = Physics(env), torch.Generator().manual_seed(0)
    shares, whole, resets = [], [], []
    tenth = torch.randperm(num_envs, generator=draw)[: math.ceil(num_envs / 10)]
    for step in range(WARMUP + steps):
        action = torch.rand(num_envs, env.action_spec.shape[-1], generator=draw).sub_(0.5)
        root.set("action", action.mul_(0.2))
        physics.seconds = 0.0
        start = time.perf_counter()
        _, root = env.step_and_maybe_reset(root)
        took = time.perf_counter() - start
        if step >= WARMUP:
            shares.append(1.0 - physics.seconds / took)
            whole.append(took)
        if step >= WARMUP and step % 4 == 0:
            start = time.perf_counter()
            root = env.reset(env_ids=tenth)
            resets.append(time.perf_counter() - start)
    env.close()
    share, step_ms, reset_ms = (statistics.median(x) for x in (shares, whole, resets))
    print(f"{num_envs} robots, {1e3 * step_ms:.2f} ms a step")
    print(f"  managers {share:6.1%} of a step; target {TARGETS.get(num_envs, math.nan):.0%}")
    print(f"  reset of a tenth {reset_ms / step_ms:6.1%} of a step; target {RESET_TARGET:.0%}")
    print(f"  start {started:.2f} s; target {START_TARGET_S:.0f} s")


def measure_motion(num_threads: int, steps: int, num_envs: int = 256) -> None:
    cfg = replace(g1_motion_tracking(), num_threads=num_threads)
    env = ManagerBasedRlEnv(cfg, num_envs=num_envs, seed=0)
    motion, actions = env.command_manager.get_term("motion"), env.action_manager
    root, physics = env.reset(), Physics(env)
    over, resets = [], []
    for step in range(WARMUP + steps):
        root.set("action", ((motion.joint_pos - actions.offset) / actions.scale).clamp(-1.0, 1.0))
        env.drain_metrics()
        physics.seconds = 0.0
        start = time.perf_counter()
        _, root = env.step_and_maybe_reset(root)
        took = time.perf_counter() - start
        reset = 1e-3 * env.drain_metrics()["Perf/reset_ms"]
        if step >= WARMUP:
            over.append((took - reset) / physics.seconds - 1.0)
            resets.append(reset / physics.seconds)
    env.close()
    print(f"{num_envs} robots that track a motion")
    print(f"  managers {statistics.median(over):6.1%} over physics; target {MOTION_TARGET:.0%}")
    print(f"  resets {statistics.median(resets):6.1%} over physics")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-threads", type=int, default=0, help="0: all cores")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--gait", action="store_true", help="add terms of gait and safety")
    parser.add_argument("--motion", action="store_true", help="G1s that track a motion")
    args = parser.parse_args()
    if args.motion:
        measure_motion(args.num_threads, args.steps)
        return
    cfg = randomised_go2(args.num_threads)
    for num_envs in TARGETS:
        measure(with_gait(cfg) if args.gait else cfg, num_envs, args.steps)


if __name__ == "__main__":
    main()
