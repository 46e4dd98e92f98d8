"""Stepping and writing state: the same numbers as MuJoCo's own loop, row by row."""

import mujoco
import numpy as np
import pytest
import torch

from unilab.backends import MujocoBackend

NSTEP = 3


def plain_data(backend: MujocoBackend) -> mujoco.MjData:
    """One environment of MuJoCo's own, at its home pose."""
    data = mujoco.MjData(backend.mj_model)
    data.qpos[:] = backend.default_qpos.numpy()
    data.ctrl[:] = backend.default_ctrl.numpy()
    mujoco.mj_forward(backend.mj_model, data)
    return data


def controls(n: int, steps: int) -> torch.Tensor:
    return torch.rand(steps, n, 2, generator=torch.Generator().manual_seed(3)) * 2 - 1


def test_batch_steps_equal_a_loop_over_mjdata_bit_for_bit(backend):
    plain = [plain_data(backend) for _ in range(backend.num_envs)]
    views = backend.get_state_views()
    for ctrl in controls(backend.num_envs, 60):  # the ball lands on the way
        backend.step_tensor(ctrl, NSTEP)
        for data, row in zip(plain, ctrl, strict=True):
            data.ctrl[:] = row.numpy()
            mujoco.mj_step(backend.mj_model, data, NSTEP)
    for name in ("qpos", "qvel", "act", "ctrl", "qfrc_actuator", "actuator_force"):
        expected = np.stack([getattr(data, name) for data in plain])
        np.testing.assert_array_equal(views[name].numpy(), expected, err_msg=name)
    np.testing.assert_array_equal(views["time"].numpy()[:, 0], [data.time for data in plain])


@pytest.mark.parametrize("num_threads", [1, 3])
def test_results_do_not_depend_on_the_number_of_threads(rig_model, num_threads):
    reference = MujocoBackend(rig_model, 7, num_threads=2, keyframe="home")
    other = MujocoBackend(rig_model, 7, num_threads=num_threads, keyframe="home")
    assert other.num_threads == num_threads
    for ctrl in controls(7, 20):
        reference.step_tensor(ctrl, NSTEP)
        other.step_tensor(ctrl, NSTEP)
    assert torch.equal(reference.get_state_views()["qpos"], other.get_state_views()["qpos"])


def test_reading_sensors_does_not_change_the_physics(rig_model):
    blind = MujocoBackend(rig_model, 3, keyframe="home")
    seeing = MujocoBackend(rig_model, 3, keyframe="home")
    seeing.get_sensor_view("tip_vel")
    for ctrl in controls(3, 20):
        blind.step_tensor(ctrl, NSTEP)
        seeing.step_tensor(ctrl, NSTEP)
    assert torch.equal(blind.get_state_views()["qpos"], seeing.get_state_views()["qpos"])


def test_a_sensor_is_current_as_soon_as_it_is_bound(backend):
    backend.step_tensor(torch.zeros(5, 2), NSTEP)
    view = backend.get_sensor_view("shoulder_pos")
    assert torch.equal(view, backend.get_state_views()["qpos"][:, 7:8])


def test_the_callers_model_is_not_changed(rig_model):
    flags = rig_model.opt.disableflags
    MujocoBackend(rig_model, 1)
    assert rig_model.opt.disableflags == flags


@pytest.mark.parametrize("current", [False, True])
def test_further_fields_are_those_of_mj_step_or_of_the_state_after_it(rig_model, current):
    names = ("xpos", "cvel", "ncon", "qacc_warmstart")
    backend = MujocoBackend(rig_model, 3, keyframe="home", fields=names, current=current)
    data = plain_data(backend)
    views = backend.get_state_views()
    for ctrl in controls(1, 60):  # the ball lands on the way
        backend.step_tensor(ctrl.expand(3, -1), NSTEP)
        data.ctrl[:] = ctrl[0].numpy()
        mujoco.mj_step(backend.mj_model, data, NSTEP)
        if current:
            mujoco.mj_step1(backend.mj_model, data)
        for name in names:
            for row in views[name].numpy():
                np.testing.assert_array_equal(row, np.ravel(getattr(data, name)), err_msg=name)
    assert data.ncon > 0


def test_some_rows_go_on_alone_under_the_controls_they_have(backend):
    first = controls(backend.num_envs, 1)[0]
    backend.step_tensor(first, NSTEP)
    before = backend.get_replay_state().clone()
    rows = torch.tensor([1, backend.num_envs - 1])
    backend.step_rows(rows, 4)
    views = backend.get_state_views()
    others = [row for row in range(backend.num_envs) if row not in rows.tolist()]

    assert torch.equal(backend.get_replay_state()[others], before[others])
    assert torch.equal(views["ctrl"][rows], first[rows].double())
    plain = plain_data(backend)
    plain.ctrl[:] = first[1].numpy()
    mujoco.mj_step(backend.mj_model, plain, NSTEP + 4)
    np.testing.assert_array_equal(views["qpos"][1].numpy(), plain.qpos)
