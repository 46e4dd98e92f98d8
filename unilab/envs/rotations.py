"""Functions of unit quaternions ``[..., 4]``, frame to world, scalar first as in MuJoCo."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

_OF_PRODUCTS = (
    *(0, 0, 0, 0, 0, 0),  # ww, wx, wy, wz
    *(0, 0, 0, 0, 0, 2),
    *(0, 0, 0, 0, -2, 0),
    *(0, -2, 2, 0, 0, 0),
    *(0, 0, 0, 0, 0, 0),  # xw, xx, xy, xz
    *(0, 0, 0, -2, 0, 0),
    *(0, 2, 2, 0, 0, 0),
    *(0, 0, 0, 0, 2, 0),
    *(0, 0, 0, 0, 0, 0),  # yw, yx, yy, yz
    *(0, 0, 0, 0, 0, 0),
    *(-2, 0, 0, 0, 0, 0),
    *(0, 0, 0, 0, 0, 2),
    *(0, 0, 0, 0, 0, 0),  # zw, zx, zy, zz
    *(0, 0, 0, 0, 0, 0),
    *(0, 0, 0, 0, 0, 0),
    *(-2, 0, 0, -2, 0, 0),
)
"""What each product of components adds to the first two columns of the matrix."""


def rotate(quat: Tensor, vec: Tensor) -> Tensor:
    """Rotate vectors ``[N, 3]`` of the frame of ``quat`` into the world frame."""
    w, u = quat[:, :1], quat[:, 1:]
    t = torch.linalg.cross(u, vec).mul_(2.0)
    return torch.addcmul(vec, w, t) + torch.linalg.cross(u, t)


def rotate_inverse(quat: Tensor, vec: Tensor) -> Tensor:
    """Rotate world-frame vectors ``[N, 3]`` into the frame of ``quat``."""
    w, u = quat[:, :1], quat[:, 1:]
    t = torch.linalg.cross(u, vec).mul_(2.0)
    return torch.addcmul(vec, w, t, value=-1.0) + torch.linalg.cross(u, t)


def inverse(quat: Tensor) -> Tensor:
    """The inverse rotation."""
    return quat * _constant((1, -1, -1, -1), torch.float32, quat.device)


def angle_between(a: Tensor, b: Tensor) -> Tensor:
    """Smallest angle that turns one frame into the other, ``[...]`` rad in [0, pi]."""
    # q and -q are the same rotation. From the chord, because an arc cosine is coarse near 0.
    chord = torch.minimum((a - b).norm(dim=-1), (a + b).norm(dim=-1))
    return 4.0 * torch.asin((0.5 * chord).clamp(max=1.0))


def first_columns(quat: Tensor) -> Tensor:
    """The frame's x and y axis as the first two columns of the rotation matrix, row by row.

    ``[..., 6]``, a continuous representation of a rotation (Zhou et al. 2019).
    """
    # Linear in the products of two components.
    products = (quat.unsqueeze(-1) * quat.unsqueeze(-2)).view(-1, 16)
    weights = _constant(_OF_PRODUCTS, torch.float32, quat.device).view(16, 6)
    ones = _constant((1, 0, 0, 1, 0, 0), torch.float32, quat.device)
    return torch.addmm(ones, products, weights).view(*quat.shape[:-1], 6)


def gravity_direction(quat: Tensor) -> Tensor:
    """Unit vector of gravity in the frame of ``quat`` ``[N, 4]``: (0, 0, -1) when upright."""
    # Minus the third row of the rotation matrix: (0, 0, 1) - 2 z (x, y, z) - 2 w (-y, x, w).
    # Operations on whole tensors, because this runs in every step.
    device = quat.device
    up = _constant((0, 0, 1), torch.float32, device)
    signs = _constant((-1, 1, 1), torch.float32, device)
    turned = quat.index_select(1, _constant((2, 1, 0), torch.int64, device)).mul_(signs)
    out = torch.addcmul(up, quat[:, 3:], quat[:, 1:], value=-2.0)
    return out.addcmul_(quat[:, :1], turned, value=-2.0)


def heading(quat: Tensor) -> Tensor:
    """Yaw of the frame's x axis, ``[...]`` rad to the left of the world's, in [-pi, pi]."""
    w, x, y, z = quat.unbind(-1)
    return torch.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))


def of_yaw(yaw: Tensor) -> Tensor:
    """Rotation by ``yaw`` ``[...]`` rad about the vertical axis."""
    half, zero = 0.5 * yaw, torch.zeros_like(yaw)
    return torch.stack((half.cos(), zero, zero, half.sin()), -1)


def multiply_each(a: Tensor, b: Tensor) -> Tensor:
    """:func:`multiply` of ``a [N, 4]`` with each of ``b [N, M, 4]``, by one product of matrices."""
    device = a.device
    columns = _constant((0, 1, 2, 3, 1, 0, 3, 2, 2, 3, 0, 1, 3, 2, 1, 0), torch.int64, device)
    signs = (1, 1, 1, 1, -1, 1, 1, -1, -1, -1, 1, 1, -1, 1, -1, 1)
    left = a.index_select(1, columns) * _constant(signs, torch.float32, device)
    return torch.bmm(b, left.view(-1, 4, 4))


def rotate_each(quat: Tensor, vec: Tensor) -> Tensor:
    """:func:`rotate` of each of ``vec [N, M, 3]`` by ``quat [N, 4]``, by one product of
    matrices."""
    x, y = first_columns(quat).view(-1, 3, 2).unbind(-1)
    rows = torch.stack((x, y, torch.linalg.cross(x, y)), 1)
    return torch.bmm(vec, rows)


def from_euler(roll: Tensor, pitch: Tensor, yaw: Tensor) -> Tensor:
    """Rotation by roll, then pitch, then yaw (``[N]`` rad) about the fixed axes."""
    half = 0.5 * torch.stack((roll, pitch, yaw))
    (cr, cp, cy), (sr, sp, sy) = half.cos(), half.sin()
    w = cy * cp * cr + sy * sp * sr
    x = cy * cp * sr - sy * sp * cr
    y = cy * sp * cr + sy * cp * sr
    z = sy * cp * cr - cy * sp * sr
    return torch.stack((w, x, y, z), dim=1)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Product of rotations: first ``b``, then ``a``."""
    # ab is component a of the first factor times component b of the second.
    products = a.unsqueeze(-1) * b.unsqueeze(-2)
    ww, wx, wy, wz, xw, xx, xy, xz, yw, yx, yy, yz, zw, zx, zy, zz = products.flatten(-2).unbind(-1)
    w = ww - xx - yy - zz
    x = wx + xw + yz - zy
    y = wy - xz + yw + zx
    z = wz + xy - yx + zw
    return torch.stack((w, x, y, z), dim=-1)


@cache
def _constant(values: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # an inference tensor could not be used outside the mode
        return torch.tensor(values, dtype=dtype, device=device)
