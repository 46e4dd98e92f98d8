"""Quaternions as ``[..., 4]`` tensors, scalar first (w, x, y, z), as MuJoCo stores them."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


def rotate_inverse(quat: Tensor, vec: Tensor) -> Tensor:
    """A world-frame vector in the frame that ``quat`` describes.

    Args:
        quat: ``[N, 4]`` unit quaternions, frame to world.
        vec: ``[N, 3]``.

    Returns:
        ``[N, 3]``.
    """
    w, u = quat[:, :1], quat[:, 1:]
    t = torch.linalg.cross(u, vec).mul_(2.0)
    return torch.addcmul(vec, w, t, value=-1.0) + torch.linalg.cross(u, t)


def gravity_direction(quat: Tensor) -> Tensor:
    """Unit vector of gravity in the frame that ``quat`` describes.

    Args:
        quat: ``[N, 4]`` unit quaternions, frame to world.

    Returns:
        ``[N, 3]``: (0, 0, -1) when upright.
    """
    # Minus the third row of the rotation matrix, as (0, 0, 1) - 2 z (x, y, z) - 2 w (-y, x, w).
    device = quat.device
    turned = quat.index_select(1, _order(device, 2, 1, 0)).mul_(_signs(device, -1, 1, 1))
    out = torch.addcmul(_signs(device, 0, 0, 1), quat[:, 3:], quat[:, 1:], value=-2.0)
    return out.addcmul_(quat[:, :1], turned, value=-2.0)


def heading(quat: Tensor) -> Tensor:
    """Direction of the frame's x axis seen from above.

    Args:
        quat: ``[N, 4]`` unit quaternions, frame to world.

    Returns:
        ``[N]`` rad, from the world's x axis to the left, in [-pi, pi].
    """
    w, x, y, z = quat.unbind(1)
    return torch.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))


def from_euler(roll: Tensor, pitch: Tensor, yaw: Tensor) -> Tensor:
    """Rotation by roll, then pitch, then yaw about the fixed axes.

    Args:
        roll, pitch, yaw: ``[N]`` rad.

    Returns:
        ``[N, 4]``.
    """
    half = 0.5 * torch.stack((roll, pitch, yaw))
    # Each component is the sum of two products of a yaw, a pitch and a roll factor, of which rows
    # 0 to 2 are the cosines of roll, pitch and yaw and rows 3 to 5 their sines.
    trig, device = torch.cat((half.cos(), half.sin())), half.device
    products = trig.index_select(0, _order(device, 2, 2, 2, 5, 5, 5, 5, 2))
    products *= trig.index_select(0, _order(device, 1, 1, 4, 1, 4, 4, 1, 4))
    products *= trig.index_select(0, _order(device, 0, 3, 0, 0, 3, 0, 3, 3))
    first, second = products.split(4)
    return (first + second * _signs(device, 1, -1, 1, -1, shape=(4, 1))).T


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Product of rotations: first ``b``, then ``a``.

    Args:
        a, b: ``[N, 4]``.

    Returns:
        ``[N, 4]``.
    """
    # Each component is the sum, from left to right, of four products.
    order = _order(a.device, 0, 1, 2, 3, 1, 0, 3, 2, 2, 3, 0, 1, 3, 2, 1, 0)
    signs = _signs(a.device, 1, -1, -1, -1, 1, 1, 1, -1, 1, -1, 1, 1, 1, 1, -1, 1)
    factors = b.index_select(-1, order).mul_(signs).unflatten(-1, (4, 4))
    w, x, y, z = (a.unsqueeze(-2) * factors).unbind(-1)
    return w + x + y + z


@cache
def _constant(
    values: tuple[int, ...], shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """A small tensor, made once; one made in inference mode could not be used outside it."""
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=dtype, device=device).reshape(shape)


def _order(device: torch.device, *columns: int) -> Tensor:
    return _constant(columns, (-1,), torch.int64, device)


def _signs(device: torch.device, *values: int, shape: tuple[int, ...] = (-1,)) -> Tensor:
    return _constant(values, shape, torch.float32, device)
