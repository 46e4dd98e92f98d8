"""Ray casts: distances are MuJoCo's, whatever turns the sensor and whatever is left out."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from envs.tables import act, go2
from envs.test_other_physics import carts

from unilab.backends import MujocoBackend
from unilab.envs import ManagerBasedRlEnv, ObservationGroupCfg, ObservationTermCfg, mdp
from unilab.errors import CapabilityError, ConfigError
from unilab.markers import Sphere
from unilab.tasks.velocity.go2 import go2_velocity_rough

LIDAR = mdp.LidarPatternCfg(channels=3, vertical_fov_range=(-40.0, 20.0), horizontal_res=30.0)
GRID = mdp.GridPatternCfg(size=(1.6, 1.0), resolution=0.1)
# A ball in front of a wall.
XML = """
<mujoco>
  <worldbody>
    <geom name="wall" type="box" size="0.1 2 2" pos="3 0 0"/>
    <body name="ball" pos="1 0 0">
      <geom size="0.2" {group}/><geom size="0.05" pos="0.5 0 0" {group}/>
      <body name="shell"><joint/><geom size="0.3" {group}/></body>
    </body>
  </worldbody>
</mujoco>
"""


def _group(term: ObservationTermCfg) -> dict[str, ObservationGroupCfg]:
    return {"obs": ObservationGroupCfg(terms={"rays": term})}


def _term(**params: Any) -> ObservationTermCfg:
    return ObservationTermCfg(func=mdp.ray_distances, params={"max_distance": 5.0, **params})


def _rough(term: ObservationTermCfg, num_envs: int = 4) -> ManagerBasedRlEnv:
    cfg = replace(go2_velocity_rough(), randomize=False, num_threads=1, observations=_group(term))
    return ManagerBasedRlEnv(cfg, num_envs=num_envs, seed=0)


@pytest.mark.parametrize("pattern", [LIDAR, GRID], ids=["lidar", "grid"])
@pytest.mark.parametrize("alignment", ["base", "yaw", "world"])
def test_distances_are_those_of_mj_ray(pattern: Any, alignment: str) -> None:
    """After a step, from a turned and tilted robot on rough ground; its own geoms are passed."""
    env = _rough(_term(pattern=pattern, offset=(0.2, 0.0, 0.1), ray_alignment=alignment))
    root = env.reset()
    for _ in range(5):
        root = env.step(act(env, root, 0.4))["next"].exclude("reward", "done")
    found, model = root["obs"], env.backend.mj_model
    poses = env.backend.get_state_views()["qpos"].numpy().copy()
    env.close()
    starts, directions = (value.double().numpy() for value in pattern.rays())
    seen, geom = np.array([1, 1, 0, 1, 1, 1], np.uint8), np.zeros(1, np.int32)
    data, expected = mujoco.MjData(model), np.zeros(found.shape)
    for row, pose in enumerate(poses):
        data.qpos[:] = pose
        mujoco.mj_forward(model, data)
        turn = data.body("base").xmat.reshape(3, 3)
        if alignment != "base":
            yaw = math.atan2(turn[1, 0], turn[0, 0]) * (alignment == "yaw")
            cos, sin = math.cos(yaw), math.sin(yaw)
            turn = np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1.0]])
        for ray, (start, along) in enumerate(zip(starts, directions, strict=True)):
            at = pose[:3] + turn @ (start + np.array([0.2, 0.0, 0.1]))
            distance = mujoco.mj_ray(model, data, at, turn @ along, seen, 1, -1, geom, None)
            expected[row, ray] = min(distance, 5.0) if distance >= 0 else 5.0

    assert (expected < 5.0).any()
    np.testing.assert_allclose(found.numpy(), expected, atol=2e-3)


def test_a_grid_downwards_sees_the_ground_of_the_height_scan() -> None:
    env = _rough(_term(pattern=GRID, max_distance=50.0, offset=(0.0, 0.0, 20.0)))
    found = env.reset()["obs"]
    ground = mdp.height_scan(env, offset=0.0)
    env.close()
    assert (found - 20.0 - ground).abs().max() < 2e-3


@pytest.mark.parametrize("group", ["", 'group="3"'], ids=["group of the wall", "own group"])
@pytest.mark.parametrize(
    ("passed", "distance"),
    [(set(), 0.7), ({"shell"}, 0.8), ({"ball", "shell"}, 2.9), ({"world"}, 0.7)],
)
def test_rays_pass_through_the_bodies_that_are_left_out(group, passed, distance) -> None:
    backend = MujocoBackend(mujoco.MjModel.from_xml_string(XML.format(group=group)), 2)
    start = torch.zeros(2, 2, 3, dtype=torch.float64)
    direction = torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]).double().expand(2, -1, -1)
    found = backend.cast_rays(start, direction, frozenset(passed))
    backend.close()
    assert found[:, 0].tolist() == pytest.approx([distance] * 2, abs=1e-5)
    assert found[:, 1].isinf().all()


def test_what_meets_nothing_reads_max_distance_and_the_rest_is_drawn() -> None:
    pattern = mdp.LidarPatternCfg(channels=2, vertical_fov_range=(-60.0, 10.0), horizontal_res=90.0)
    env = go2(2, observations=_group(_term(pattern=pattern, max_distance=2.0)))
    found = env.reset()["obs"]
    drawn = [marker for marker in env.debug_draw(0) if isinstance(marker, Sphere)]
    env.close()
    assert (found[:, :4] < 2.0).all()
    assert (found[:, 4:] == 2.0).all()
    assert [ball.centre[2] for ball in drawn] == pytest.approx([0.0] * 4, abs=1e-5)


def test_a_whole_turn_of_a_lidar_has_no_ray_twice() -> None:
    _, direction = LIDAR.rays()
    assert len(direction) == 36
    assert len(direction.mul(1e4).round().unique(dim=0)) == 36
    ends = mdp.LidarPatternCfg(
        channels=1,
        vertical_fov_range=(0.0, 0.0),
        horizontal_fov_range=(-30.0, 30.0),
        horizontal_res=15.0,
    ).rays()[1]
    assert ends[:, 1].tolist() == pytest.approx([-0.5, -0.258819, 0.0, 0.258819, 0.5], abs=1e-6)


@pytest.mark.parametrize("pattern", [LIDAR, GRID], ids=["lidar", "grid"])
def test_the_mirror_of_rays_is_that_of_their_directions(pattern) -> None:
    env = go2(1, observations=_group(_term(pattern=pattern)))
    index, sign = env.mirror["obs"]
    env.close()
    rays = torch.cat(pattern.rays(), 1)
    image = rays[index] * torch.tensor([1.0, -1.0, 1.0] * 2)
    torch.testing.assert_close(image, rays, rtol=0, atol=1e-4)
    assert (sign == 1.0).all()


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"exclude": ("wall",)}, "wall"),
        ({"max_distance": 0.0}, "max_distance"),
        ({"ray_alignment": "up"}, "ray_alignment"),
    ],
)
def test_settings_that_cannot_work_are_refused(params, name) -> None:
    with pytest.raises(ConfigError, match=name):
        go2(1, observations=_group(_term(pattern=LIDAR, **params)))


def test_physics_without_ray_casts_is_refused_at_construction() -> None:
    def cast(env: ManagerBasedRlEnv) -> torch.Tensor:
        ray = torch.zeros(env.num_envs, 1, 3)
        return env.scene.cast_rays(ray, ray)

    with pytest.raises(CapabilityError, match="rays"):
        carts(observations=_group(ObservationTermCfg(func=cast)))
