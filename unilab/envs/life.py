"""What an environment remembers between calls, besides its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from unilab.errors import EnvFaultedError

FLAGS = ("done", "terminated", "truncated")


@dataclass
class Life:
    """How an environment stands: its steps, its last observation, who has ended, what failed."""

    num_envs: int
    device: torch.device
    control_steps: int = 0
    fault: BaseException | None = None
    fault_at: str = ""
    released: bool = False
    observation: dict[str, Tensor] = field(default_factory=dict)
    """The last one, for the rows that a reset leaves alone. The caller was given a copy."""
    ended: tuple[Tensor, Tensor] | None = None
    """``[num_envs]`` each, episodes that were terminated or truncated and not begun anew."""
    standing: Tensor | None = None
    """``[n]``, ended environments that the step under way leaves out."""

    def begin(self, rows: Tensor) -> None:
        """New episodes have begun in some rows."""
        if self.ended is not None:
            terminated, truncated = (flag.index_fill(0, rows, False) for flag in self.ended)
            self.ended = terminated, truncated

    def as_ended(
        self,
        rows: Tensor,
        terminated: Tensor,
        truncated: Tensor,
        observation: Mapping[str, Tensor],
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """A step's flags and observation, but in some ended rows those that they ended with."""

        def kept(old: Tensor, new: Tensor) -> Tensor:
            return new.index_copy(0, rows, old[rows])

        failed, timed_out = self.ended or (terminated, truncated)
        seen = {k: kept(self.observation[k], v) for k, v in observation.items()}
        return kept(failed, terminated), kept(timed_out, truncated), seen

    def flags(self) -> dict[str, Tensor]:
        """New ``[num_envs, 1]`` flags of the episodes that ended and were not begun anew."""
        zeros = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        terminated, truncated = self.ended or (zeros, zeros)
        flags = (terminated | truncated, terminated.clone(), truncated.clone())
        return {k: flag.unsqueeze(-1) for k, flag in zip(FLAGS, flags, strict=True)}

    def check_usable(self) -> None:
        """Refuse to go on after a failure or the end.

        Raises:
            EnvFaultedError: which it was.
        """
        if self.fault is not None:
            raise EnvFaultedError(
                f"the environment failed earlier, {self.fault_at} "
                f"({type(self.fault).__name__}: {self.fault}); "
                "its state is undefined: make a new one"
            ) from self.fault
        if self.released:
            raise EnvFaultedError("the environment is closed: make a new one")

    def fail(self, error: BaseException, what: str) -> None:
        """Give the environment up.

        Args:
            error: the reason, which is told so.
            what: step or reset.
        """
        self.fault = error
        self.fault_at = f"in a {what} after {self.control_steps} control steps"
        error.add_note(f"The environment failed {self.fault_at} and can no longer be used.")
