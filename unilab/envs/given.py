"""What a caller gives an environment: actions, rows and training states, checked or refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from unilab.envs.finite import bad_rows, is_finite
from unilab.errors import ConfigError, NonFiniteError

TRAINING_STATE_VERSION = 1
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def checked_action(action: Any, shape: torch.Size, device: torch.device) -> Tensor:
    """An action that a step can take.

    Args:
        action: what was given.
        shape: ``[num_envs, A]``.
        device: the environment's.

    Raises:
        ConfigError: there is none, it is no tensor, or one of another shape, dtype or device.
        NonFiniteError: it is not finite.
    """
    if action is None:
        raise ConfigError("step was given no 'action': set one, or call env.rand_action(td)")
    if not isinstance(action, Tensor):
        raise ConfigError(f"action is of type {type(action).__name__}: expected a torch.Tensor")
    if action.shape != shape:
        raise ConfigError(f"action has shape {tuple(action.shape)}: expected {tuple(shape)}")
    if action.dtype != torch.float32:
        raise ConfigError(
            f"action has dtype {action.dtype}: expected torch.float32; use action.float()"
        )
    if action.layout != torch.strided:
        raise ConfigError(f"action is {action.layout}: expected a dense tensor")
    if action.device != device:
        raise ConfigError(
            f"action is on {action.device}: expected {device}; use action.to(env.device)"
        )
    if not is_finite(action):
        rows = bad_rows(action)
        raise NonFiniteError(
            f"action is not finite (first rows: {rows}): look for a diverged policy", rows
        )
    return action


def rows_of_mask(mask: Tensor, num_envs: int) -> Tensor:
    """Rows ``[n]`` that a ``_reset`` mask ``[num_envs, 1]`` selects.

    Raises:
        ConfigError: it is no such mask.
    """
    if mask.dtype != torch.bool or mask.shape not in ((num_envs,), (num_envs, 1)):
        raise ConfigError(
            f"_reset is {mask.dtype} of shape {tuple(mask.shape)}: "
            f"expected a torch.bool mask of shape {(num_envs, 1)}"
        )
    return mask.reshape(num_envs).nonzero().flatten()


def rows_left_out(mask: Any, ended: tuple[Tensor, Tensor] | None, num_envs: int) -> Tensor | None:
    """Rows ``[n]`` that a ``_step`` mask ``[num_envs]`` leaves out; None: there are none.

    Args:
        mask: what was given, if it was.
        ended: ``[num_envs]`` each, episodes that were terminated or truncated.
        num_envs: environments in the batch.

    Raises:
        ConfigError: it is no such mask, or leaves out an environment whose episode goes on.
    """
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.numel() != num_envs:
        raise ConfigError(f"_step is {mask!r}: expected a torch.bool mask of shape {(num_envs,)}")
    rows = (~mask.reshape(num_envs)).nonzero().flatten()
    if not rows.shape[0]:
        return None
    going = rows if ended is None else rows[~(ended[0] | ended[1])[rows]]
    if going.shape[0]:
        raise ConfigError(
            f"_step leaves out environments {going[:8].tolist()}, whose episodes go on: physics "
            "advances all together, so only those that ended can be left out"
        )
    return rows


def rows_of_ids(env_ids: Any, num_envs: int, device: torch.device) -> Tensor:
    """Rows ``[n]`` in order, int64 on the device, from a 1-D integer tensor.

    Raises:
        ConfigError: it is no such tensor, out of range, or names a row twice.
    """
    if not isinstance(env_ids, Tensor) or env_ids.ndim != 1 or env_ids.dtype not in _INTEGERS:
        given = repr(env_ids)
        if isinstance(env_ids, Tensor):
            given = f"{env_ids.dtype} of shape {tuple(env_ids.shape)}"
        raise ConfigError(f"env_ids is {given}: expected a 1-D integer tensor")
    rows = env_ids.to(device, torch.int64).sort().values
    if rows.shape[0] and not 0 <= int(rows[0]) <= int(rows[-1]) < num_envs:
        raise ConfigError(f"env_ids {env_ids.tolist()} must lie in [0, {num_envs})")
    if (rows[1:] == rows[:-1]).any():
        raise ConfigError(f"env_ids {env_ids.tolist()} name an environment twice")
    return rows


def control_steps_of(state: Mapping[str, Any]) -> int:
    """Control steps in an environment's training state.

    Raises:
        ConfigError: another version, or a counter that is not a non-negative integer.
    """
    if not isinstance(state, Mapping):
        raise ConfigError(f"environment training state is {state!r}: expected a dict")
    version, steps = state.get("version"), state.get("control_steps")
    if version != TRAINING_STATE_VERSION or isinstance(version, bool):
        raise ConfigError(
            f"environment training state has version {version!r}: expected {TRAINING_STATE_VERSION}"
        )
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 0:
        raise ConfigError(
            f"environment training state has control_steps {steps!r}: "
            "expected a non-negative integer"
        )
    return steps
