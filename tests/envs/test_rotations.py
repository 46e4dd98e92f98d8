"""Rotations against MuJoCo's own functions."""

import mujoco
import numpy as np
import pytest
import torch

from unilab.envs import rotations


@pytest.fixture
def quats() -> torch.Tensor:
    q = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    q[0] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    q[1] = torch.tensor([0.0, 1.0, 0.0, 0.0])
    return q / q.norm(dim=1, keepdim=True)


def test_rotate_inverse_is_mju_rot_vec_quat_of_the_conjugate(quats):
    vecs = torch.randn(20, 3, generator=torch.Generator().manual_seed(1))
    expected, conjugate = np.zeros((20, 3)), np.zeros(4)
    for i in range(20):
        mujoco.mju_negQuat(conjugate, quats[i].double().numpy())
        mujoco.mju_rotVecQuat(expected[i], vecs[i].double().numpy(), conjugate)
    torch.testing.assert_close(
        rotations.rotate_inverse(quats, vecs).double(),
        torch.from_numpy(expected),
        atol=1e-6,
        rtol=0,
    )


def test_gravity_direction_is_down_seen_from_the_frame(quats):
    expected, conjugate = np.zeros((20, 3)), np.zeros(4)
    for i in range(20):
        mujoco.mju_negQuat(conjugate, quats[i].double().numpy())
        mujoco.mju_rotVecQuat(expected[i], np.array([0.0, 0.0, -1.0]), conjugate)
    torch.testing.assert_close(
        rotations.gravity_direction(quats).double(), torch.from_numpy(expected), atol=1e-6, rtol=0
    )


def test_gravity_points_down_when_upright():
    upright = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    assert rotations.gravity_direction(upright).tolist() == [[0.0, 0.0, -1.0]]


def test_multiply_is_mju_mul_quat(quats):
    other = quats.flip(0)
    expected = np.zeros((20, 4))
    for i in range(20):
        mujoco.mju_mulQuat(expected[i], quats[i].double().numpy(), other[i].double().numpy())
    torch.testing.assert_close(
        rotations.multiply(quats, other).double(), torch.from_numpy(expected), atol=1e-6, rtol=0
    )


def test_from_euler_turns_about_the_fixed_axes_x_then_y_then_z():
    angles = torch.rand(20, 3, generator=torch.Generator().manual_seed(2)) * 6 - 3
    expected = np.zeros((20, 4))
    for i in range(20):
        mujoco.mju_euler2Quat(expected[i], angles[i].double().numpy(), "XYZ")
    quat = rotations.from_euler(*angles.unbind(1)).double()
    torch.testing.assert_close(quat, torch.from_numpy(expected), atol=1e-6, rtol=0)


def test_heading_is_where_the_x_axis_points_seen_from_above(quats):
    expected, forward = np.zeros(20), np.zeros(3)
    for i in range(20):
        mujoco.mju_rotVecQuat(forward, np.array([1.0, 0.0, 0.0]), quats[i].double().numpy())
        expected[i] = np.arctan2(forward[1], forward[0])
    torch.testing.assert_close(
        rotations.heading(quats).double(), torch.from_numpy(expected), atol=1e-5, rtol=0
    )
