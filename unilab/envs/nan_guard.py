"""NaN guard: the last states of an environment that became non-finite, and their replay."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unilab.backends import MujocoBackend, SimBackend
from unilab.errors import ConfigError, NonFiniteError, why_unreadable

DUMP_VERSION = 2


@dataclass(frozen=True, kw_only=True)
class NanGuardCfg:
    """What is kept, and where it is written once a value is not finite."""

    output_dir: str
    """Folder for the dump, below the one that the environment writes to."""
    buffer_size: int = 100
    """Control steps that are kept."""
    max_envs_to_dump: int = 5
    """Environments in a dump."""

    def __post_init__(self) -> None:
        for name in ("buffer_size", "max_envs_to_dump"):
            if getattr(self, name) < 1:
                raise ConfigError(f"nan_guard {name} is {getattr(self, name)}: give at least 1")


class NanGuard:
    """Keeps the last states, actions and controls of every environment.

    Args:
        cfg: what is kept.
        backend: the physics.
        action_dim: columns of an action.
    """

    def __init__(self, cfg: NanGuardCfg, backend: SimBackend, action_dim: int) -> None:
        self.parent = Path()
        """What the configured folder is relative to."""
        self._cfg = cfg
        self._backend = backend
        self._state = backend.get_replay_state()
        self._states = self._state.new_zeros(cfg.buffer_size, *self._state.shape)
        self._actions = torch.zeros(cfg.buffer_size, backend.num_envs, action_dim)
        self._ctrls = torch.zeros(cfg.buffer_size, backend.num_envs, len(backend.actuators))
        self._recorded = 0

    def record(self, action: Tensor, ctrl: Tensor) -> None:
        """Keep the state before a step, its actions and its controls ``[num_envs, nu]``."""
        at = self._recorded % self._cfg.buffer_size
        self._states[at].copy_(self._state)
        self._actions[at].copy_(action)
        self._ctrls[at].copy_(ctrl)
        self._recorded += 1

    def dump(self, error: NonFiniteError, *, control_steps: int, nstep: int, seed: int) -> Path:
        """Write the kept states of the rows that the error names.

        Args:
            error: what was found.
            control_steps: when.
            nstep: physics substeps of a control step.
            seed: of the environment's random generator.

        Returns:
            The file.
        """
        rows = error.rows[: self._cfg.max_envs_to_dump]
        kept = min(self._recorded, self._cfg.buffer_size)
        order = [i % self._cfg.buffer_size for i in range(self._recorded - kept, self._recorded)]
        models = [bytearray(self._backend.get_model_bytes(row)) for row in rows]
        content = {
            "version": DUMP_VERSION,
            "backend": type(self._backend).__name__,
            "message": str(error),
            "seed": seed,
            "control_steps": control_steps,
            "nstep": nstep,
            "rows": rows,
            "states": self._states[order][:, rows].clone(),
            "actions": self._actions[order][:, rows].clone(),
            "ctrls": self._ctrls[order][:, rows].clone(),
            "last": self._state[rows].clone(),
            "models": [torch.frombuffer(model, dtype=torch.uint8) for model in models],
        }
        folder = self.parent / self._cfg.output_dir
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"nan_dump_{control_steps}.pt"
        torch.save(content, path.with_suffix(".tmp"))
        os.replace(path.with_suffix(".tmp"), path)
        return path


def load_dump(path: str | Path) -> dict[str, Any]:
    """Read a dump.

    Raises:
        ConfigError: it is missing, or no dump of this version.
    """
    try:
        content = torch.load(path, weights_only=True)
    except FileNotFoundError as error:
        raise ConfigError(f"there is no dump at {path}") from error
    except Exception as error:
        raise ConfigError(f"{path} is no dump of the NaN guard: {why_unreadable(error)}") from error
    version = content.get("version") if isinstance(content, dict) else None
    if version != DUMP_VERSION:
        raise ConfigError(f"{path} is a dump of version {version!r}: expected {DUMP_VERSION}")
    return content


def replay_dump(path: str | Path, backend: type[SimBackend] = MujocoBackend) -> str:
    """Repeat the last control step of every row of a dump.

    Args:
        path: the file.
        backend: the physics that left it.

    Returns:
        A report: what was found then, and whether the repetition ends in the same state.

    Raises:
        ConfigError: the file cannot be read, or other physics left it.
    """
    dump = load_dump(path)
    if dump["backend"] != backend.__name__:
        raise ConfigError(
            f"{path} was left by {dump['backend']}: replay it with "
            f"unilab.envs.nan_guard.replay_dump(path, {dump['backend']})"
        )
    lines = [
        f"after {dump['control_steps']} control steps with seed {dump['seed']}: {dump['message']}"
    ]
    for i, row in enumerate(dump["rows"]):
        after = backend.replay(
            dump["models"][i].numpy().tobytes(),
            dump["states"][-1, i],
            dump["ctrls"][-1, i].double(),
            dump["nstep"],
        )
        same = torch.equal(after.nan_to_num(), dump["last"][i].nan_to_num())
        finite = "finite" if bool(after.isfinite().all()) else "not finite"
        lines.append(
            f"row {row}: physics is {finite} after the last step, "
            f"{'the same' if same else 'NOT the same'} as then, bit for bit; largest value "
            "of the states before it: "
            + " ".join(f"{value:.3g}" for value in dump["states"][-5:, i].abs().amax(1))
        )
    return "\n".join(lines)
