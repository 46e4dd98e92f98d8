"""Sums over episodes, in one buffer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from unilab.errors import ConfigError


class EpisodeSums:
    """Sums over each environment's episode, and over the episodes that ended since the last drain.

    Args:
        names: names of the summed values, by block; the block is the prefix of its metrics' tags.
        per_step: blocks that are averaged over the steps of the episodes, not over the episodes.
    """

    def __init__(
        self,
        names: Mapping[str, Sequence[str]],
        num_envs: int,
        device: torch.device,
        per_step: Collection[str] = (),
    ) -> None:
        self._names = names
        self._tags = [f"{block}/{name}" for block, members in names.items() for name in members]
        twice = sorted({tag for tag in self._tags if self._tags.count(tag) > 1})
        if twice:
            raise ConfigError(
                f"tags of metrics must differ, got {', '.join(twice)} twice: rename a term"
            )
        self._per_step = [block in per_step for block, members in names.items() for _ in members]
        # The last two rows: the steps of the episode, and 1 once it has begun.
        self._running = torch.zeros(len(self._tags) + 2, num_envs, device=device)
        self._ended = torch.zeros(len(self._tags) + 2, dtype=torch.float64, device=device)
        sizes = [len(members) for members in names.values()]
        *blocks, self._steps, self._begun = self._running.split([*sizes, 1, 1])
        self._blocks = dict(zip(names, blocks, strict=True))

    def __getitem__(self, block: str) -> Tensor:
        """``[len(names[block]), num_envs]``, the running sums of a block, to add to."""
        return self._blocks[block]

    def so_far(self, row: int) -> tuple[dict[str, float], list[str]]:
        """Reward sums of a row's episode, and the terminations that fired in its last step."""
        sums, fired = (
            dict(zip(self._names[block], self[block][:, row].tolist(), strict=True))
            for block in ("Episode_Reward", "Episode_Termination")
        )
        return sums, [name for name, on in fired.items() if on]

    def step(self) -> None:
        """Count a control step of every environment."""
        self._begun.fill_(1.0)
        if any(self._per_step):
            self._steps.add_(1.0)

    def reset(self, rows: Tensor) -> None:
        """End the episodes of some environments; one that has not begun adds nothing."""
        self._ended += self._running.index_select(1, rows).sum(1)
        self._running.index_fill_(1, rows, 0.0)

    def state_dict(self) -> dict[str, Tensor]:
        """The live sums."""
        return {"running": self._running, "ended": self._ended}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from :meth:`state_dict`."""
        self._running.copy_(state["running"])
        self._ended.copy_(state["ended"])

    def drain(self) -> dict[str, float]:
        """Means over the episodes that ended since the last call; empty if none did."""
        *sums, steps, ended = self._ended.tolist()
        if not ended:
            return {}
        self._ended.zero_()
        counts = [steps if per_step else ended for per_step in self._per_step]
        return {
            tag: value / count for tag, value, count in zip(self._tags, sums, counts, strict=True)
        }
