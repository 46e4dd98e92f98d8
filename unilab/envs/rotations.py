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
    order, sign, up = _gravity_constants(quat.device)
    turned = quat.index_select(1, order).mul_(sign)
    out = torch.addcmul(up, quat[:, 3:], quat[:, 1:], value=-2.0)
    return out.addcmul_(quat[:, :1], turned, value=-2.0)


@cache
def _gravity_constants(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    order = torch.tensor([2, 1, 0], device=device)
    sign = torch.tensor([-1.0, 1.0, 1.0], device=device)
    return order, sign, torch.tensor([0.0, 0.0, 1.0], device=device)


def from_euler(roll: Tensor, pitch: Tensor, yaw: Tensor) -> Tensor:
    """Rotation by roll, then pitch, then yaw about the fixed axes.

    Args:
        roll, pitch, yaw: ``[N]`` rad.

    Returns:
        ``[N, 4]``.
    """
    half = 0.5 * torch.stack((roll, pitch, yaw))
    (cr, cp, cy), (sr, sp, sy) = half.cos(), half.sin()
    return torch.stack(
        (
            cy * cp * cr + sy * sp * sr,
            cy * cp * sr - sy * sp * cr,
            cy * sp * cr + sy * cp * sr,
            sy * cp * cr - cy * sp * sr,
        ),
        dim=-1,
    )


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Product of rotations: first ``b``, then ``a``.

    Args:
        a, b: ``[N, 4]``.

    Returns:
        ``[N, 4]``.
    """
    aw, ax, ay, az = a.unbind(-1)
    bw, bx, by, bz = b.unbind(-1)
    return torch.stack(
        (
            aw * bw - ax * bx - ay * by - az * bz,
            aw * bx + ax * bw + ay * bz - az * by,
            aw * by - ax * bz + ay * bw + az * bx,
            aw * bz + ax * by - ay * bx + az * bw,
        ),
        dim=-1,
    )
