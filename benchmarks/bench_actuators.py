"""Physics of a control step of Go2 with each actuator model, against torques made in Python.

    python benchmarks/bench_actuators.py [--num-envs 256] [--num-threads 0] [--rounds 100]

MuJoCo computes all models within its batch. The last row has ``<motor>`` actuators and computes the
DC motor's torques with PyTorch before each of the four physics steps.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from timing import interleaved, print_table

from unilab.backends import MujocoBackend
from unilab.envs import DCMotorCfg, IdealPDActuatorCfg, scene_model
from unilab.tasks.velocity.go2 import go2_velocity_flat

KP, KD, STALL, FREE, DECIMATION = 35.0, 0.5, 45.0, 30.0, 4
PD: dict[str, Any] = {"joint_names_expr": ".*", "stiffness": KP, "damping": KD}
DC: dict[str, Any] = {**PD, "saturation_effort": STALL, "velocity_limit": FREE}
MODELS: dict[str, IdealPDActuatorCfg | None] = {
    "<position> of the model file": None,
    "IdealPDActuatorCfg": IdealPDActuatorCfg(**PD),
    "DCMotorCfg": DCMotorCfg(**DC),
    "DCMotorCfg, 4 steps late": DCMotorCfg(**DC, delay_min_lag=4, delay_max_lag=4),
    "torques in Python": IdealPDActuatorCfg(**PD | {"stiffness": 0.0, "damping": 0.0}),
}


def physics(model: IdealPDActuatorCfg | None, args: argparse.Namespace) -> Callable[[], None]:
    """Advances standing robots by a control step."""
    base = go2_velocity_flat().scene
    groups = {} if model is None else {"legs": model}
    robot = replace(base.entities["robot"], actuators=groups)
    compiled = scene_model(replace(base, entities={"robot": robot}))
    backend = MujocoBackend(
        compiled, args.num_envs, num_threads=args.num_threads, keyframe=base.keyframe
    )
    backend.get_sensor_view("imu_gyro")  # as the task does: sensors are then made current
    targets = backend.default_qpos[7:].repeat(args.num_envs, 1)
    if model is None or model.stiffness:
        return lambda: backend.step_tensor(targets, DECIMATION)
    pos, vel = (backend.get_state_views()[name][:, -12:] for name in ("qpos", "qvel"))

    def step() -> None:
        for _ in range(DECIMATION):
            torque, lost = KP * (targets - pos) - KD * vel, STALL * vel / FREE
            backend.step_tensor(torque.clamp(-STALL - lost, STALL - lost), 1)

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--num-threads", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=100)
    args = parser.parse_args()
    steps = {name: physics(model, args) for name, model in MODELS.items()}
    interleaved(steps, 10)
    seconds = interleaved(steps, args.rounds)
    first = seconds[next(iter(steps))]
    rows = [(n, f"{1e3 * s:.2f} ms", f"{s / first:.2f} x") for n, s in seconds.items()]
    print_table((f"{args.num_envs} robots", "control step", "to the first"), rows)


if __name__ == "__main__":
    main()
