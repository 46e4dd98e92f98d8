"""Tasks by name: made here, made in another process, changed by overrides (0001-C7, C8)."""

import math
import multiprocessing
import pickle
from collections.abc import Iterator

import pytest
import torch

import unilab
from unilab import registry
from unilab.envs import ManagerBasedRlEnvCfg, RewardTermCfg, SceneEntityCfg, TorchEnv
from unilab.errors import ConfigError
from unilab.tasks.classic.pendulum_swingup import pendulum_swingup

ONE_THREAD = {"num_threads": 1}


def rollout(make_env: registry.EnvFactory) -> dict[str, torch.Tensor]:
    """A few steps under fixed actions, as plain arrays (they travel between processes)."""
    env = make_env()
    root, out = env.reset(), []
    for step in range(4):
        root.set("action", torch.full(env.action_spec.shape, 0.2 * step))
        data, root = env.step_and_maybe_reset(root)
        out.append(data["next", "obs"])
    env.close()
    return torch.stack(out).numpy()


def send_rollout(pipe, pickled: bytes) -> None:
    pipe.send(rollout(pickle.loads(pickled)))
    pipe.close()


def short_pendulum() -> ManagerBasedRlEnvCfg:
    """A pendulum with the test's own name.

    Not part of the first line.
    """
    return pendulum_swingup()


@pytest.fixture
def registered() -> Iterator[str]:
    registry.register("short_pendulum", short_pendulum)
    yield "short_pendulum"
    del registry._registered["short_pendulum"]


def test_c7_unilab_make_is_the_registrys():
    assert unilab.make is registry.make


def test_make_builds_the_task_with_everything_asked_for():
    env = unilab.make("pendulum_swingup", num_envs=3, seed=7, overrides={"num_threads": 2})
    assert isinstance(env, TorchEnv)
    assert env.batch_size == (3,)
    assert env.device == torch.device("cpu")
    assert env.generator.initial_seed() == 7
    assert env.backend.num_threads == 2


def test_the_packaged_tasks_are_listed_and_described():
    assert [name for name in registry.names() if "/" not in name] == [
        "cartpole_swingup",
        "g1_velocity_flat",
        "go2_velocity_flat",
        "pendulum_swingup",
    ]
    assert registry.describe("go2_velocity_flat").startswith("Unitree Go2 follows a commanded")


def test_c7_an_unknown_task_names_the_nearest_and_all():
    for call in (registry.make, registry.dims, registry.describe):
        with pytest.raises(
            ConfigError,
            match=r"no task named 'go2_velocity_flt' \(did you mean 'go2_velocity_flat'.*"
            r"`unilab list` shows them: cartpole_swingup, dmc/.*, g1_velocity_flat, go2_",
        ):
            call("go2_velocity_flt")


def test_dims_are_those_of_the_environment():
    assert registry.dims("go2_velocity_flat") == registry.Dims(
        obs=45, critic=49, action=12, has_critic=True
    )
    assert registry.dims("pendulum_swingup") == registry.Dims(
        obs=3, critic=3, action=1, has_critic=False
    )


def test_c8_a_factory_gives_the_same_environment_as_make():
    arguments = {"num_envs": 2, "seed": 3, "overrides": ONE_THREAD}
    made = registry.factory("go2_velocity_flat", **arguments)
    assert (rollout(made) == rollout(lambda: unilab.make("go2_velocity_flat", **arguments))).all()


def test_c8_a_factory_gives_the_same_environment_in_a_spawned_process():
    make_env = registry.factory("go2_velocity_flat", num_envs=2, seed=3, overrides=ONE_THREAD)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=send_rollout, args=(theirs, pickle.dumps(make_env)))
    child.start()
    theirs.close()
    try:
        there = ours.recv()
    finally:
        child.join(300)
    assert child.exitcode == 0
    assert (there == rollout(make_env)).all()


def test_a_task_of_ones_own_is_registered_described_and_made(registered):
    assert registered in registry.names()
    assert registry.describe(registered) == "A pendulum with the test's own name."
    assert unilab.make(registered, num_envs=2).batch_size == (2,)
    made = pickle.loads(pickle.dumps(registry.factory(registered, num_envs=1)))
    assert made.cfg_factory is short_pendulum


def test_what_is_registered_is_a_function():
    with pytest.raises(ConfigError, match=r"cfg_factory of 'x' is a .*Cfg: give the function that"):
        registry.register("x", short_pendulum())


def test_a_name_cannot_be_taken_twice(registered):
    with pytest.raises(ConfigError, match=r"'short_pendulum' exists already: choose another name"):
        registry.register(registered, short_pendulum)


@pytest.mark.parametrize(
    "overrides",
    [
        {"rewards.upright.weight": 2.5, "episode_length_s": 3},
        {"rewards": {"upright": {"weight": 2.5}}, "episode_length_s": 3.0},
        {"rewards": {"upright.weight": 2.5}, "episode_length_s": 3.0},
    ],
)
def test_overrides_are_nested_or_dotted(overrides):
    env = unilab.make("pendulum_swingup", overrides=overrides)
    assert env.cfg.rewards["upright"].weight == 2.5
    assert env.max_episode_length == 150
    # The task itself stays.
    assert pendulum_swingup().rewards["upright"].weight == 1.0


def test_a_list_stands_for_a_tuple_and_an_integer_for_a_float():
    env = unilab.make(
        "go2_velocity_flat",
        overrides={
            "commands.base_velocity.ranges.lin_vel_x": [0, 1],
            "observations.obs.terms.command.scale": [1, 1, 1],
        },
    )
    assert env.cfg.commands["base_velocity"].ranges.lin_vel_x == (0.0, 1.0)
    assert env.cfg.observations["obs"].terms["command"].scale == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("actions.joint_pos.scale", {".*hip.*": 0.2, ".*(thigh|calf).*": 0.5}),
        ("observations.obs.terms.command.scale", 1.0),
        ("observations.obs.terms.joint_vel.scale", [0.1] * 12),
        ("rewards.pose.params.asset_cfg", SceneEntityCfg("robot", joint_names="FL.*")),
    ],
)
def test_an_override_may_be_what_the_field_allows_and_the_task_does_not_use(path, value):
    env = unilab.make("go2_velocity_flat", overrides={path: value, **ONE_THREAD})
    env.rollout(2)


def test_a_term_is_taken_out_by_none():
    overrides = {"rewards.action_rate": None, "events": {"reset_joints": None}, **ONE_THREAD}
    env = unilab.make("go2_velocity_flat", overrides=overrides)
    assert "action_rate" not in env.reward_manager.term_names
    assert "reset_joints" not in env.describe()
    assert "action_rate" in unilab.make("go2_velocity_flat").reward_manager.term_names


BAD_OVERRIDES = {
    "a new term": (
        {"rewards.new": RewardTermCfg(func=len, weight=1.0)},
        r"'rewards' has no 'new'.*; it has .*upright.* \(new ones go into the task's config\)",
    ),
    "in an empty table": (
        {"metrics.new": 3},
        r"override 'metrics.new': 'metrics' has no 'new'; it has nothing \(new ones",
    ),
    "within a table that is left out": (
        {"nan_guard.output_dir": "x"},
        r"override 'nan_guard' is \{'output_dir': 'x'\}: it is a table that the task leaves out",
    ),
    "unknown key": (
        {"episode_length": 3.0},
        r"override 'episode_length': the task has no 'episode_length' "
        r"\(did you mean 'episode_length_s'\?\); it has scene, decimation",
    ),
    "unknown term": (
        {"rewards.uprigth.weight": 3.0},
        r"override 'rewards.uprigth': 'rewards' has no 'uprigth' \(did you mean 'upright'\?\)",
    ),
    "unknown field": (
        {"rewards": {"upright": {"wieght": 3.0}}},
        r"override 'rewards.upright.wieght': 'rewards.upright' has no 'wieght' "
        r"\(did you mean 'weight'\?\)",
    ),
    "past a value": (
        {"decimation.more": 3},
        r"override 'decimation.more': 'decimation' is a value, not a table",
    ),
    "a word for a number": (
        {"episode_length_s": "long"},
        r"override 'episode_length_s' is 'long' \(str\): expected float like the present 10.0",
    ),
    "a float for an integer": (
        {"decimation": 2.5},
        r"override 'decimation' is 2.5 \(float\): expected int like the present 2",
    ),
    "a flag for a number": (
        {"decimation": True},
        r"override 'decimation' is True \(bool\): expected int like the present 2",
    ),
    "a value for a table": (
        {"rewards": 3.0},
        r"override 'rewards' is 3.0 \(float\): expected dict",
    ),
    "a value for a term": (
        {"rewards.upright": 3.0},
        r"override 'rewards.upright' is 3.0 \(float\): expected RewardTermCfg",
    ),
    "too many in a tuple": (
        {"commands.base_velocity.ranges.lin_vel_x": [0.0, 1.0, 2.0]},
        r"override 'commands.base_velocity.ranges.lin_vel_x' is \(0.0, 1.0, 2.0\) \(tuple\): "
        r"expected tuple like the present \(-0.6, 1.0\)",
    ),
    "a value for a table that is left out": (
        {"nan_guard": 5},
        r"override 'nan_guard' is 5: it is a table that the task leaves out",
    ),
    "not a number": (
        {"rewards.upright.weight": math.nan},
        r"override 'rewards.upright.weight' is nan: expected a finite number",
    ),
    "a value that the task refuses": (
        {"decimation": 0},
        r"override 'decimation': decimation is 0: give at least 1",
    ),
    "a value that a term refuses": (
        {"commands.base_velocity.ranges.lin_vel_x": [1.0, 0.0]},
        r"override 'commands.base_velocity.ranges.lin_vel_x': lin_vel_x is \(1.0, 0.0\), which is",
    ),
}


@pytest.mark.parametrize("kind", BAD_OVERRIDES)
def test_an_override_that_does_not_fit_fails_before_anything_is_built(kind):
    overrides, message = BAD_OVERRIDES[kind]
    task = "go2_velocity_flat" if "commands" in str(overrides) else "pendulum_swingup"
    with pytest.raises(ConfigError, match=message):
        registry.factory(task, num_envs=1, overrides=overrides)


@pytest.mark.parametrize("num_envs", [0, -1, 2.0, True, "4"])
def test_num_envs_must_be_a_positive_integer(num_envs):
    with pytest.raises(
        ConfigError, match=rf"num_envs is {num_envs!r}: give an integer of at least"
    ):
        registry.factory("pendulum_swingup", num_envs=num_envs)


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, "x", True])
def test_seed_must_be_an_integer_that_every_generator_takes(seed):
    with pytest.raises(ConfigError, match=rf"seed is {seed!r}: give an integer from 0 to 4294967"):
        registry.factory("pendulum_swingup", num_envs=1, seed=seed)


@pytest.mark.parametrize("device", ["gpu", "meta", None])
def test_device_must_be_one_that_terms_run_on(device):
    with pytest.raises(
        ConfigError, match=rf"device is '{device}': give 'cpu', 'cuda' or 'cuda:<n>'"
    ):
        registry.factory("pendulum_swingup", num_envs=1, device=device)


def test_overrides_must_be_a_mapping():
    with pytest.raises(ConfigError, match=r"overrides is \['decimation=3'\]: give a dict"):
        registry.factory("pendulum_swingup", num_envs=1, overrides=["decimation=3"])


def test_an_optional_setting_can_be_overridden_with_none():
    env = registry.make("go2_velocity_flat", num_envs=1, overrides={"scene.keyframe": None})
    assert env.cfg.scene.keyframe is None


def test_a_setting_that_is_not_optional_cannot_be_none():
    with pytest.raises(
        ConfigError, match=r"override 'decimation' is None \(NoneType\): expected int"
    ):
        registry.make("go2_velocity_flat", num_envs=1, overrides={"decimation": None})
