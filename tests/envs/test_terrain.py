"""Generated terrain: its heights, scans of it, resets on it, and the curriculum of levels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from envs.tables import TWINS_XML, act, drive

from unilab.backends import MujocoBackend, put_on_height_field
from unilab.envs import (
    CurriculumTermCfg,
    EventTermCfg,
    ManagerBasedRlEnv,
    ObservationTermCfg,
    SceneEntityCfg,
    TerrainGeneratorCfg,
    mdp,
    scene_model,
    terrains,
)
from unilab.errors import ConfigError, NonFiniteError
from unilab.tasks.velocity.go2 import go2_velocity_rough
from unilab.tasks.velocity.velocity_env_cfg import ROUGH_TERRAIN

KINDS = sorted(ROUGH_TERRAIN.sub_terrains)
SLOPE = terrains.HfPyramidSlopedTerrainCfg(slope_range=(0.0, 0.4))
GAP = terrains.HfGapTerrainCfg(gap_width_range=(0.2, 9.0))
STAIRS = terrains.HfPyramidStairsTerrainCfg(step_height_range=(0.0, 0.2))


def _rough(num_envs: int = 8, terrain: dict[str, Any] | None = None, **changes: Any):
    """The rough Go2 task without randomization."""
    cfg = replace(go2_velocity_rough(), randomize=False, num_threads=1)
    ground = replace(ROUGH_TERRAIN, **(terrain or {}))
    cfg = replace(cfg, scene=replace(cfg.scene, terrain=ground), **changes)
    return ManagerBasedRlEnv(cfg, num_envs=num_envs, seed=0)


@pytest.fixture(scope="module")
def everywhere() -> Iterator[ManagerBasedRlEnv]:
    """A robot on each level of each column, at first, to be read only."""
    env = _rough(100, {"max_init_terrain_level": None})
    env.reset()
    yield env
    env.close()


def _ray(env: ManagerBasedRlEnv) -> Any:
    """A function of x and y: height of the environment's ground, by MuJoCo's ray cast."""
    model = env.backend.mj_model
    data, geom = mujoco.MjData(model), np.zeros(1, np.int32)
    mujoco.mj_forward(model, data)
    ground = np.array([1, 0, 0, 0, 0, 0], np.uint8)

    def height(x: float, y: float) -> float:
        start, down = np.array([x, y, 20.0]), np.array([0.0, 0.0, -1.0])
        return 20.0 - mujoco.mj_ray(model, data, start, down, ground, 1, -1, geom, None)

    return height


def test_terrain_follows_from_its_settings_alone() -> None:
    first, again = ROUGH_TERRAIN.generate(), ROUGH_TERRAIN.generate()
    other = replace(ROUGH_TERRAIN, seed=1).generate()

    assert np.array_equal(first.heights, again.heights)
    assert not np.array_equal(first.heights, other.heights)


@pytest.mark.parametrize("name", KINDS)
def test_later_rows_are_harder(name: str) -> None:
    kind, tile = ROUGH_TERRAIN.sub_terrains[name], ROUGH_TERRAIN.tile
    made = [kind.heights(d, tile, np.random.default_rng(0)) for d in np.linspace(0.0, 1.0, 10)]
    holes = [float((h < -0.5).mean()) for h in made]
    spread = [float(np.ptp(h)) for h in made]

    assert sorted(spread) == spread or np.ptp(spread) == 0.0
    assert spread[-1] > spread[0] or holes[-1] > 2.0 * holes[0] > 0.0


def test_columns_are_shared_out_by_proportion_and_tiles_lie_in_the_grid() -> None:
    cfg = TerrainGeneratorCfg(
        sub_terrains={"a": replace(SLOPE, proportion=3.0), "b": replace(STAIRS, inverted=True)},
        num_cols=4,
        num_rows=3,
        size=(6.0, 5.0),
        border_width=1.0,
    )
    ground = cfg.generate()

    assert cfg.kinds == ["a", "a", "a", "b"]
    assert ground.heights.shape == (220, 200)
    assert ground.origins[2, 3, :2].tolist() == [6.0, 7.5]
    # 1.5 m of slope 0.4; 5 steps of 0.2 m down
    assert ground.origins[2, [0, 3], 2] == pytest.approx([0.6, -1.0])


def test_top_view_shows_heights_with_x_to_the_right_and_y_up() -> None:
    heights = np.zeros((20, 40), np.float32)
    heights[:5, 30:] = 1.0  # small y, large x
    view = terrains.GeneratedTerrain(heights, 0.1, np.zeros((1, 1, 3))).top_view()

    assert (view.shape, view.dtype) == ((20, 40, 3), np.uint8)
    assert view[-2, 35, 0] > view[2, 5, 0] + 50


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"sub_terrains": {}}, "sub_terrains"),
        ({"sub_terrains": {"a": "stairs"}}, r"sub_terrains\['a'\].*SubTerrainCfg.*'stairs'"),
        ({"num_rows": 0}, "num_rows"),
        ({"num_cols": 3}, "num_cols.*'gap'"),
        ({"difficulty_range": (0.0, 1.1)}, "difficulty_range"),
        ({"difficulty_range": (0.5, 0.2)}, "difficulty_range"),
        ({"size": (8.05, 8.0)}, r"size.*8\.05"),
        ({"border_width": -1.0}, "border_width"),
        ({"border_width": 0.25}, "border_width"),
        ({"horizontal_scale": 0.01}, "horizontal_scale"),
        ({"horizontal_scale": 0.4}, "'stairs_up'.*step_width"),
        ({"size": (2.0, 2.0)}, "'stairs_up'.*platform_width"),
        ({"max_init_terrain_level": 10}, "max_init_terrain_level"),
        ({"sub_terrains": {"a": replace(STAIRS, step_width=3.1)}}, "'a'.*step_width"),
        ({"sub_terrains": {"a": GAP}}, "'a'.*gap_width_range"),
        (
            {
                "sub_terrains": {"a": replace(SLOPE, platform_width=0.5)},
                "size": (1.0, 4.0),
                "num_rows": 1,
                "border_width": 0.0,
                "horizontal_scale": 1.0,
                "max_init_terrain_level": None,
            },
            "horizontal_scale.*1 x",
        ),
        ({"seed": -1}, "seed"),
    ],
)
def test_terrain_that_does_not_fit_is_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        replace(ROUGH_TERRAIN, **change)


def test_range_below_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="step_height_range"):
        replace(STAIRS, step_height_range=(-0.1, 0.2))


@pytest.mark.parametrize(
    ("made", "named"),
    [
        (lambda: np.zeros((3, 3)), r"\(80, 80\).*\(3, 3\)"),
        (lambda: None, "None"),
        (lambda: np.full((80, 80), None), "object"),
        (lambda: np.full((80, 80), math.nan), "finite.*6400 NaN"),
        (lambda: np.full((80, 80), 1e39), r"1000 m.*1e\+39"),
        (lambda: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_heights_of_a_kind_that_are_wrong_are_refused(made: Any, named: str) -> None:
    class Broken(terrains.SubTerrainCfg):
        def heights(self, difficulty: float, tile: terrains.Tile, rng: Any) -> np.ndarray:
            return made()

    with pytest.raises(ConfigError, match=f"'mine'.*{named}"):
        TerrainGeneratorCfg(sub_terrains={"mine": Broken()}).generate()


def test_backend_on_other_ground_is_refused() -> None:
    cfg = replace(go2_velocity_rough(), randomize=False, num_threads=1)
    ground = cfg.scene.terrain
    others = (None, replace(ground, seed=1), replace(ground, num_rows=9))
    scenes = [replace(cfg.scene, terrain=terrain) for terrain in (ground, *others)]
    own, *wrong = (
        MujocoBackend(scene_model(scene), 1, num_threads=1, keyframe=scene.keyframe)
        for scene in scenes
    )

    for backend in wrong:
        with pytest.raises(ConfigError, match=r"scene\.terrain"):
            ManagerBasedRlEnv(cfg, num_envs=1, backend=backend)
    with pytest.raises(ConfigError, match=r"no terrain"):
        ManagerBasedRlEnv(replace(cfg, scene=scenes[1]), num_envs=1, backend=own)
    env = ManagerBasedRlEnv(cfg, num_envs=1, seed=0, backend=own)
    torch.testing.assert_close(drive(env, 3)["obs"], drive(_rough(1), 3)["obs"], rtol=0, atol=0)


def test_model_without_a_floor_and_a_term_without_a_terrain_are_refused() -> None:
    cfg = go2_velocity_rough()
    with pytest.raises(ConfigError, match="one plane"):
        put_on_height_field(mujoco.MjSpec.from_string(TWINS_XML), np.zeros((5, 5)), 0.1)
    with pytest.raises(ConfigError, match=r"'terrain_levels'.*scene\.terrain"):
        ManagerBasedRlEnv(replace(cfg, scene=replace(cfg.scene, terrain=None)), num_envs=1)


def test_height_agrees_with_a_ray_cast(everywhere: ManagerBasedRlEnv) -> None:
    x, y = torch.empty(2, 2000).uniform_(-43.9, 43.9, generator=torch.Generator().manual_seed(0))
    ray = _ray(everywhere)
    cast = [ray(a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)]

    found = everywhere.scene.ground_height(x, y)
    torch.testing.assert_close(found, torch.tensor(cast), rtol=0.0, atol=2e-4)
    # beyond the field: its edge
    assert everywhere.scene.ground_height(torch.tensor([99.0]), torch.tensor([-99.0])) == 0.0
    nowhere = torch.tensor([[math.nan, 0.0], [0.0, math.nan]])
    assert everywhere.scene.ground_height(*nowhere.T).isnan().all()
    assert everywhere.scene.terrain.spawn_height(nowhere).isnan().all()


def test_height_scan_agrees_with_ray_casts_on_a_yaw_aligned_grid(everywhere) -> None:
    env = everywhere
    drive(env, 10)
    columns = list(env.observation_manager.term_widths["critic"].values())
    scan = env.observation_manager.compute()["critic"].split(columns, 1)[-1]
    root = env.backend.get_state_views()["qpos"][:, :7].numpy()
    ray = _ray(env)

    for row in range(0, 100, 7):
        (px, py, pz), (w, qx, qy, qz) = root[row, :3], root[row, 3:]
        yaw = math.atan2(2 * (w * qz + qx * qy), 1 - 2 * (qy**2 + qz**2))
        cos, sin = math.cos(yaw), math.sin(yaw)
        cast = [
            pz - 0.5 - ray(px + cos * ahead - sin * left, py + sin * ahead + cos * left)
            for left in np.linspace(-0.5, 0.5, 11)
            for ahead in np.linspace(-0.8, 0.8, 17)
        ]
        np.testing.assert_allclose(scan[row], np.clip(cast, -1.0, 1.0), atol=2e-4)


def test_height_scan_is_around_any_one_body() -> None:
    cfg = go2_velocity_rough()

    def scanning(**bodies: Any) -> ManagerBasedRlEnv:
        terms = {
            name: ObservationTermCfg(
                func=mdp.height_scan,
                params={"size": (0.4, 0.2), "asset_cfg": SceneEntityCfg(body_names=names)},
            )
            for name, names in bodies.items()
        }
        return _rough(4, observations={"obs": replace(cfg.observations["obs"], terms=terms)})

    env = scanning(root=".*", base="base", hip="FL_hip")
    drive(env, 20)
    root, base, hip = env.observation_manager.compute()["obs"].split(15, 1)
    model, ray = env.backend.mj_model, _ray(env)
    data = mujoco.MjData(model)
    data.qpos[:] = env.backend.get_state_views()["qpos"][2]
    mujoco.mj_forward(model, data)
    x, y, z = data.body("FL_hip").xpos

    torch.testing.assert_close(root, base, rtol=0.0, atol=1e-4)
    assert float(hip[2, 7]) == pytest.approx(z - 0.5 - ray(x, y), abs=2e-4)
    with pytest.raises(ConfigError, match=r"body_names.*2 bodies"):
        scanning(two=("base", "FL_hip"))
    with pytest.raises(ConfigError, match="size"):
        mdp.height_scan(env, size=(0.35, 0.2))
    with pytest.raises(ConfigError, match="resolution"):
        mdp.height_scan(env, resolution=1e-9)
    # by another term, with the default parameter; sizes from a command line are lists
    assert torch.equal(mdp.height_scan(env, size=[0.4, 0.2]), root)
    with pytest.raises(ConfigError, match="unresolved"):
        mdp.height_scan(env, asset_cfg=SceneEntityCfg(body_names="FL_hip"))


def test_robots_start_on_their_tiles_and_not_inside_the_ground() -> None:
    cfg = go2_velocity_rough()
    start = cfg.events["reset_base"]
    wide = {**start.params, "pose_range": {"x": (-3.0, 3.0), "y": (-3.0, 3.0)}}
    env = _rough(
        100,
        {"max_init_terrain_level": None},
        events={**cfg.events, "reset_base": replace(start, params=wide)},
    )
    env.reset()
    qpos, terrain = env.backend.get_state_views()["qpos"], env.scene.terrain
    model, data = env.backend.mj_model, mujoco.MjData(env.backend.mj_model)
    depth = 0.0
    for pose in qpos:
        data.qpos[:] = pose
        mujoco.mj_forward(model, data)
        depth = min([depth, *data.contact.dist])

    assert len({(int(a), int(b)) for a, b in zip(terrain.levels, terrain.types, strict=True)}) > 90
    assert (qpos[:, :2] - terrain.env_origins[:, :2]).abs().max() <= 3.0
    assert depth > -0.005


@pytest.mark.parametrize("cell", [0.3, 1.0, 2.0])
def test_highest_ground_is_found_on_coarse_grids(cell: float) -> None:
    uneven = {"a": terrains.HfRandomUniformTerrainCfg(amplitude_range=(0.5, 0.5))}
    cfg = TerrainGeneratorCfg(
        sub_terrains=uneven, size=(6.0, 6.0), border_width=0.0, horizontal_scale=cell
    )
    ground = terrains.Terrain(cfg, 1, torch.device("cpu"))
    xy = torch.empty(500, 2).uniform_(-20.0, 20.0, generator=torch.Generator().manual_seed(0))

    assert (ground.spawn_height(xy) >= ground.height(*xy.T)).all()


def test_without_a_reset_event_robots_start_on_their_tiles() -> None:
    env = _rough(8, events={})
    env.reset()
    root, terrain = env.scene["robot"].data.root_pos_w, env.scene.terrain

    torch.testing.assert_close(root[:, :2], terrain.env_origins[:, :2])
    assert (root[:, 2] - env.scene.ground_height(*root[:, :2].T) > 0.25).all()


def test_robot_at_the_edge_of_the_terrain_runs_out_of_time() -> None:
    env = _rough(3)
    root = env.reset()
    qpos = env.backend.get_state_views()["qpos"]
    qpos[:, :3] = torch.tensor([[42.9, 0.0, 0.4], [-43.1, 0.0, 0.4], [0.0, 43.1, 0.4]])
    after, _ = env.step_and_maybe_reset(act(env, root))

    assert after["next", "truncated"].flatten().tolist() == [False, True, True]
    assert not after["next", "terminated"].any()


def _end_at(env: ManagerBasedRlEnv, distance: list[float]) -> torch.Tensor:
    """End every episode with robots that far from their starts; the levels after it."""
    root, terrain = env.reset(), env.scene.terrain
    env.command_manager.get_command("base_velocity")[:, 0] = 0.5  # half of it in 20 s: 5 m
    xy = env.scene.terrain.env_origins[:, :2].clone()
    xy[:, 1] += torch.tensor(distance)
    ground = env.scene.ground_height(*xy.T)
    env.backend.get_state_views()["qpos"][:, :2] = xy.double()
    env.backend.get_state_views()["qpos"][:, 2] = (ground + 0.4).double()
    env.episode_length.fill_(env.max_episode_length - 1)
    env.step_and_maybe_reset(act(env, root))
    return terrain.levels


def test_robots_that_walk_far_move_up_and_those_that_do_not_move_down() -> None:
    commands = {"base_velocity": replace(
        go2_velocity_rough().commands["base_velocity"], resampling_time_range=(1e6, 1e6),
        rel_standing_envs=0.0, heading_command=False,
        ranges=replace(go2_velocity_rough().commands["base_velocity"].ranges, heading=None),
    )}  # fmt: skip
    env = _rough(4, commands=commands)
    levels = env.scene.terrain.levels
    levels.copy_(torch.tensor([2, 2, 0, 9]))
    after = _end_at(env, [4.2, 0.3, 0.3, 4.2]).tolist()
    means = env.drain_metrics()

    assert after[:3] == [3, 1, 0]
    assert means["Curriculum/terrain_levels/mean"] == pytest.approx(sum(after) / 4)
    assert means["Curriculum/terrain_levels/stairs_up"] == 3.0
    env.reset()  # breaks off episodes that have just begun
    env.step(act(env, env.reset()))
    env.reset()
    assert levels.tolist() == after


def climb(env: ManagerBasedRlEnv, env_ids: torch.Tensor) -> None:
    up = torch.ones_like(env_ids, dtype=torch.bool)
    env.scene.terrain.update_env_origins(env_ids, up, ~up, env.generator)


CLIMB = {"climb": CurriculumTermCfg(func=climb)}


@pytest.mark.parametrize("curriculum", [{}, {"curriculum": CLIMB}])
def test_refused_reset_leaves_levels_alone(curriculum: dict[str, Any]) -> None:
    def poison(env: ManagerBasedRlEnv, env_ids: torch.Tensor, when: list[bool]) -> None:
        pos = torch.zeros(len(env_ids), 3) + (math.nan if when else 0.0)
        env.scene["robot"].write_root_pose(pos, torch.ones(len(env_ids), 4))

    when: list[bool] = []
    event = EventTermCfg(func=poison, mode="reset", params={"when": when})
    env = _rough(4, events={"poison": event}, **curriculum)
    env.reset()
    env.step(act(env, env.reset()))
    env.scene.terrain.levels.fill_(5)
    env.episode_length.fill_(env.max_episode_length - 1)
    when.append(True)
    with pytest.raises(NonFiniteError, match="reset"):
        env.step_and_maybe_reset(act(env, env.reset(env_ids=torch.zeros(0, dtype=torch.int64))))
    assert env.scene.terrain.levels.tolist() == [5] * 4


@pytest.mark.parametrize("changes", [{}, {"curriculum": CLIMB}])
def test_levels_continue_from_a_checkpoint_and_are_shared_by_evaluations(changes) -> None:
    env, again, few = (_rough(n, **changes) for n in (20, 20, 4))
    low = _rough(4, {"num_rows": 5}, **changes)
    env.scene.terrain.levels.copy_(torch.arange(20) // 2)
    drive(env, 5)
    saved = env.scene.terrain.levels.clone()
    again.import_training_state(env.export_training_state())
    again.import_episodes(env.export_episodes())
    for other in (few, low):
        other.import_training_state(env.export_training_state())

    assert torch.equal(again.scene.terrain.levels, env.scene.terrain.levels)
    assert torch.equal(drive(again, 5)["obs"], drive(env, 5)["obs"])
    middles = saved[[2, 7, 12, 17]]
    assert torch.equal(few.scene.terrain.levels, middles)
    assert torch.equal(low.scene.terrain.levels, middles.clamp(max=4))
