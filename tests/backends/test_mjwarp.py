"""Physics of MuJoCo Warp on its CPU device: the contract, MuJoCo's motion, no way over NumPy."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import mujoco
import pytest
import torch
from backends.conftest import RIG
from envs.tables import assert_bitwise_equal, drive
from reference.runs import tiny_run

import unilab
from unilab.backends import MujocoBackend, assert_backend_conforms
from unilab.cli.play import play_run
from unilab.errors import CapabilityError
from unilab.tasks.classic.pendulum_swingup import pendulum_swingup

N = 3


def test_unilab_and_a_task_on_mujoco_do_not_import_warp():
    code = (
        "import sys, unilab; unilab.make('pendulum_swingup').close();"
        "print({'warp', 'mujoco_warp'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr


def test_warp_absent_is_an_error_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "warp", None)
    monkeypatch.delitem(sys.modules, "unilab.backends.mjwarp", raising=False)
    with pytest.raises(CapabilityError, match=r"pip install .*\[mjwarp\]"):
        unilab.make("pendulum_swingup", backend="mjwarp")


@pytest.fixture(scope="module")
def warp():
    """The class; its kernels come from Warp's cache, or are compiled for minutes."""
    pytest.importorskip("mujoco_warp")
    from unilab.backends.mjwarp import MjWarpBackend

    return MjWarpBackend


def rig(**changes):
    spec = mujoco.MjSpec.from_string(RIG)
    for name, value in changes.items():
        setattr(spec.option, name, value)
    return spec.compile()


@pytest.mark.slow
@pytest.mark.parametrize("model", [pendulum_swingup().scene.model, rig()], ids=["pendulum", "rig"])
def test_c16_warp_conforms(warp, model):
    assert_backend_conforms(lambda n: warp(model, n, keyframe="home"))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"solver": mujoco.mjtSolver.mjSOL_PGS}, "mjSOL_PGS"),
        ({"disableflags": 1 << 16}, "mjDSBL"),
    ],
)
def test_c20_model_that_warp_cannot_simulate_is_refused_with_the_way_out(warp, changes, name):
    with pytest.raises(CapabilityError, match=rf"{name}.*backend='mujoco'"):
        warp(rig(**changes), 1)


def test_c20_what_warp_cannot_vary_is_refused(warp):
    ball = warp(rig(), 1, keyframe="home")
    for field in ("opt.timestep", "geom_size", "body_ipos"):
        with pytest.raises(CapabilityError, match=field):
            ball.expand(field)


def test_c21_a_device_that_is_not_there_is_refused(warp):
    with pytest.raises(CapabilityError, match="cuda:7"):
        warp(rig(), 1, device="cuda:7")


@pytest.mark.slow
def test_more_contacts_than_fit_are_nan_in_the_rows_that_have_them(warp, monkeypatch):
    monkeypatch.setattr("unilab.backends.mjwarp._rows_of_constraints", lambda *_: 3)
    backend = warp(rig(), 2, keyframe="home")
    still = backend.get_state_views()["qpos"].clone()
    still[0, 2] = 0.09  # the ball is in the floor: four rows, beside one of the equality
    rows = torch.arange(2)
    backend.set_state_tensor(rows, still.double(), torch.zeros(2, 9).double())
    backend.step_tensor(backend.default_ctrl.float().repeat(2, 1), 1)
    assert backend.get_state_views()["qpos"].isfinite().all(1).tolist() == [False, True]


FIELDS = {
    "body_mass": 1.3,
    "body_inertia": 1.3,
    "geom_friction": 0.1,
    "dof_armature": None,
    "dof_damping": 2.0,
    "dof_frictionloss": None,
    "actuator_gainprm": 1.2,
    "opt.gravity": 0.8,
}
"""Factors of model fields; None adds 0.05."""


def ends(backend, field=None):
    """States of a rig that moves for 0.2 s, with a field varied."""
    if field is not None:
        value, factor = backend.expand(field), FIELDS[field]
        value.copy_(value + 0.05 if factor is None else value * factor)
        backend.set_const()
    home, moving = backend.default_qpos.repeat(N, 1), torch.ones(N, 9).double()
    home[:, 0] = torch.arange(N) * 0.1
    home[:, 2], moving[:, 2] = 0.1, 0.0  # the ball slides on the floor
    backend.set_state_tensor(torch.arange(N), home, moving)
    for _ in range(25):
        backend.step_tensor(0.5 + backend.default_ctrl.float().repeat(N, 1), 2)
    views = backend.get_state_views()
    return torch.cat((views["qpos"], views["qvel"]), 1).double()


@pytest.mark.slow
@pytest.mark.parametrize("field", FIELDS)
def test_model_field_does_what_it_does_in_mujoco(warp, field):
    here, there = (partial(kind, rig(), N, keyframe="home") for kind in (warp, MujocoBackend))
    plain, varied = ends(here()), ends(here(), field)
    torch.testing.assert_close(plain, ends(there()), rtol=0, atol=2e-3)
    torch.testing.assert_close(varied, ends(there(), field), rtol=0, atol=2e-3)
    assert (varied - plain).abs().max() > 0.02


TOLERANCE = {"pendulum_swingup": 1e-5, "cartpole_swingup": 1e-5, "go2_velocity_flat": 1e-4}
"""Of qpos after 20 control steps, rad and m."""


@pytest.mark.slow
@pytest.mark.parametrize("task", TOLERANCE)
def test_a_task_moves_as_on_mujoco(warp, task):
    ends = []
    for backend in ("mjwarp", "mujoco"):
        env = unilab.make(task, num_envs=N, seed=0, backend=backend)
        drive(env, 20)
        ends.append(env.backend.get_state_views()["qpos"].double())
        env.close()
    torch.testing.assert_close(*ends, rtol=0, atol=TOLERANCE[task])


@pytest.mark.slow
def test_episodes_continue_bit_for_bit(warp):
    env, other = (
        unilab.make("cartpole_swingup", num_envs=N, seed=seed, backend="mjwarp") for seed in (0, 1)
    )
    drive(env, 5)
    other.import_episodes(env.export_episodes())
    assert_bitwise_equal(drive(env, 5), drive(other, 5))


@pytest.mark.slow
def test_neither_a_step_nor_a_reset_goes_over_numpy(warp, monkeypatch):
    import warp as wp

    cut = {"episode_length_s": 0.1}
    env = unilab.make("cartpole_swingup", num_envs=N, backend="mjwarp", overrides=cut)
    root, done = env.reset(), 0

    def detour(*args, **kwargs):
        raise AssertionError("a way over NumPy")

    ways = ((wp.array, "numpy"), (wp.array, "assign"), (torch.Tensor, "numpy"))
    for owner, name in (*ways, (torch.Tensor, "cpu"), (wp, "from_numpy")):
        monkeypatch.setattr(owner, name, detour)
    for _ in range(20):
        data, root = env.step_and_maybe_reset(env.rand_action(root))
        done += int(data["next", "done"].sum())
    assert done >= N


@pytest.mark.slow
@pytest.mark.parametrize("trained", ["mujoco", "mjwarp"])
def test_checkpoint_of_one_backend_plays_on_the_other(warp, tmp_path, trained):
    run = tiny_run(tmp_path, "pendulum_swingup", f"env.backend={trained}")
    here, there = (
        [episode.total for episode in play_run(run, robots=2, seconds=1.0, backend=backend)]
        for backend in ("mujoco", "mjwarp")
    )
    assert here == pytest.approx(there, abs=1e-3)
