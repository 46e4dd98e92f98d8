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


def rotated(quats, vecs, *, inverse):
    """``mju_rotVecQuat`` of every row."""
    out, quat = np.zeros((len(quats), 3)), np.zeros(4)
    for i, q in enumerate(quats.double().numpy()):
        (mujoco.mju_negQuat if inverse else np.copyto)(quat, q)
        mujoco.mju_rotVecQuat(out[i], vecs[i].double().numpy(), quat)
    return torch.from_numpy(out).float()


def assert_near(value, expected, atol=1e-6):
    torch.testing.assert_close(value, expected, atol=atol, rtol=0)


def test_rotate_inverse(quats):
    vecs = torch.randn(20, 3, generator=torch.Generator().manual_seed(1))
    assert_near(rotations.rotate_inverse(quats, vecs), rotated(quats, vecs, inverse=True))


def test_rotate_undoes_its_inverse(quats):
    vecs = torch.randn(20, 3, generator=torch.Generator().manual_seed(1))
    assert_near(rotations.rotate(quats, vecs), rotated(quats, vecs, inverse=False))
    back = rotations.rotate(rotations.inverse(quats), vecs)
    assert_near(back, rotations.rotate_inverse(quats, vecs))


def test_rotations_of_several_at_once_are_those_one_by_one(quats):
    vecs = torch.randn(20, 3, generator=torch.Generator().manual_seed(1))
    first, each = quats[::5], quats.view(4, 5, 4)
    one_by_one = first.repeat_interleave(5, 0)
    turned = rotations.rotate_each(first, vecs.view(4, 5, 3)).flatten(0, 1)
    assert_near(turned, rotations.rotate(one_by_one, vecs))
    products = rotations.multiply_each(first, each).flatten(0, 1)
    assert_near(products, rotations.multiply(one_by_one, quats))


def test_angle_between_first_columns_and_yaw(quats):
    matrices, turn = np.zeros((20, 9)), rotations.of_yaw(torch.linspace(-3.1, 3.1, 20))
    for matrix, quat in zip(matrices, quats.double().numpy(), strict=True):
        mujoco.mju_quat2Mat(matrix, quat)
    columns = torch.from_numpy(matrices).float().view(20, 3, 3)[..., :2].flatten(1)
    assert_near(rotations.first_columns(quats), columns)
    turned = rotations.multiply(turn, quats)
    expected = torch.linspace(-3.1, 3.1, 20).abs()
    assert_near(rotations.angle_between(-quats, turned), expected, atol=1e-3)
    assert_near(rotations.heading(turn), torch.linspace(-3.1, 3.1, 20))


def test_gravity_direction(quats):
    down = torch.tensor([0.0, 0.0, -1.0]).expand(20, 3)
    assert_near(rotations.gravity_direction(quats), rotated(quats, down, inverse=True))
    assert rotations.gravity_direction(quats[:1]).tolist() == [[0.0, 0.0, -1.0]]


def test_heading(quats):
    ahead = rotated(quats, torch.tensor([1.0, 0.0, 0.0]).expand(20, 3), inverse=False)
    assert_near(rotations.heading(quats), torch.atan2(ahead[:, 1], ahead[:, 0]), atol=1e-5)


def test_multiply(quats):
    other, expected = quats.flip(0), np.zeros((20, 4))
    for i in range(20):
        mujoco.mju_mulQuat(expected[i], quats[i].double().numpy(), other[i].double().numpy())
    assert_near(rotations.multiply(quats, other), torch.from_numpy(expected).float())


def test_from_euler_rotates_about_fixed_x_then_y_then_z():
    angles = torch.rand(20, 3, generator=torch.Generator().manual_seed(2)) * 6 - 3
    expected = np.zeros((20, 4))
    for i in range(20):
        mujoco.mju_euler2Quat(expected[i], angles[i].double().numpy(), "XYZ")
    quats = rotations.from_euler(*angles.unbind(1))
    assert_near(quats, torch.from_numpy(expected).float())
