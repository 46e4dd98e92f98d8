"""The robots' published figures, and rigid-body dynamics computed from them alone."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROBOTS = ("go2", "g1")


def load(robot: str) -> dict[str, Any]:
    """The figures of a robot as published."""
    return json.loads((Path(__file__).parent / f"{robot}.json").read_text())


@dataclass(frozen=True)
class Drive:
    """Position control of one joint."""

    stiffness: float
    damping: float
    effort_limit: float
    armature: float
    frictionloss: float


def drives(figures: dict[str, Any]) -> dict[str, Drive]:
    """How each hinge is driven, by joint name."""
    given = figures["actuator_figures"]
    hinges = [j["name"] for j in figures["joints"] if j["type"] == "hinge"]
    out = {}
    for name in hinges:
        if "groups" in given:
            groups = [g for p, g in given["groups"].items() if re.fullmatch(p, name)]
            assert len(groups) == 1, (name, groups)
            group, effort, friction = groups[0], groups[0]["effort_limit"], 0.0
        else:
            limits = given["effort_limit"]
            effort = next(v for part, v in limits.items() if name.endswith(f"_{part}_joint"))
            group, friction = given, given["frictionloss"]
        out[name] = Drive(group["stiffness"], group["damping"], effort, group["armature"], friction)
    return out


def home(figures: dict[str, Any]) -> np.ndarray:
    """Home configuration ``[nq]``: root position, upright, then the hinges."""
    pose = figures["default_pose"]
    hinges = [j["name"] for j in figures["joints"] if j["type"] == "hinge"]
    values = [
        next((v for p, v in pose["joint_pos"].items() if re.fullmatch(p, name)), 0.0)
        for name in hinges
    ]
    return np.array([*pose["root_pos"], 1.0, 0.0, 0.0, 0.0, *values])


def rotation(quat: np.ndarray) -> np.ndarray:
    """``[3, 3]`` rotation of a quaternion (w, x, y, z) of any length."""
    w, x, y, z = np.asarray(quat) / np.linalg.norm(quat)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def turn(axis: np.ndarray, angle: float) -> np.ndarray:
    """``[3, 3]`` rotation about a unit axis (Rodrigues)."""
    x, y, z = axis
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross


def mass_matrix(figures: dict[str, Any], qpos: np.ndarray) -> np.ndarray:
    """Joint-space inertia ``[nv, nv]`` of the figures, as the Hessian of the kinetic energy.

    ``sum over links of m Jv' Jv + Jw' I Jw``, plus armature. Velocities: the root's linear one in
    the world frame and angular one in its own, then the hinges.
    """
    driven = drives(figures)
    joints = {j["body"]: j for j in figures["joints"]}
    columns = {j["name"]: 6 + i for i, j in enumerate(figures["joints"][1:])}
    size = 6 + len(columns)
    matrix = np.zeros((size, size))
    for name, column in columns.items():
        matrix[column, column] = driven[name].armature
    frames: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    # Velocities of each link's origin and its rotation, as linear maps of the joint velocities.
    jacobians: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for body in figures["bodies"]:
        name, parent = body["name"], body["parent"]
        if parent == "world":
            origin, rot = qpos[:3], rotation(qpos[3:7])
            linear, angular = np.zeros((3, size)), np.zeros((3, size))
            linear[:, :3], angular[:, 3:6] = np.eye(3), rot
        else:
            parent_origin, parent_rot = frames[parent]
            parent_linear, parent_angular = jacobians[parent]
            arm = parent_rot @ body["pos"]
            origin, rot = parent_origin + arm, parent_rot @ rotation(body["quat"])
            linear = parent_linear + np.cross(parent_angular.T, arm).T
            angular = parent_angular.copy()
            if name in joints:
                joint = joints[name]
                column = columns[joint["name"]]
                axis = np.asarray(joint["axis"])
                angular[:, column] += rot @ axis
                rot = rot @ turn(axis, qpos[column + 1])
        frames[name], jacobians[name] = (origin, rot), (linear, angular)
        centre = linear + np.cross(angular.T, rot @ body["ipos"]).T
        principal = rot @ rotation(body["iquat"])
        inertia = principal @ np.diag(body["diaginertia"]) @ principal.T
        matrix += body["mass"] * centre.T @ centre + angular.T @ inertia @ angular
    return matrix
