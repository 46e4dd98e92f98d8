"""What collectors over an environment process have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torchrl.collectors import BaseCollector
from torchrl.envs import EnvBase

from unilab.collectors.placement import Placement, resolve_collector_tensor_placement
from unilab.collectors.process import EnvProcess, Interruptor
from unilab.errors import ConfigError


class ProcessCollector(BaseCollector):
    """A collector that owns an environment process; arguments are those of its subclasses."""

    def __init__(
        self,
        make_env: Callable[[], EnvBase] | EnvProcess,
        policy: Any,
        *,
        frames_per_batch: int,
        total_frames: int | None,
        placement: Placement | None,
        return_same_td: bool,
        interruptor: Interruptor | None,
    ) -> None:
        super().__init__()
        if frames_per_batch < 1:
            raise ConfigError(f"frames_per_batch must be at least 1, got {frames_per_batch}")
        self.env = make_env if isinstance(make_env, EnvProcess) else EnvProcess(make_env)
        self.env.claim()
        self.env.interruptor = interruptor
        self.policy = policy
        frames = -1 if total_frames is None else total_frames
        self.total_frames = float("inf") if frames < 0 else frames
        self.return_same_td = return_same_td
        if placement is None:
            parameters = policy.parameters() if isinstance(policy, nn.Module) else ()
            device = next((parameter.device for parameter in parameters), "cpu")
            placement = resolve_collector_tensor_placement("cpu", device)
        self.placement = placement
        self._frames = 0
        self._iter = -1
        with self._closing_on_error():
            self.placement.check_env(self.env.description.device)
        num_envs = self.env.description.layout.transition.numel()
        self.frames_per_batch = -(-frames_per_batch // num_envs)  # ticks, as in TorchRL
        self.requested_frames_per_batch = self.frames_per_batch * num_envs

    @contextmanager
    def _closing_on_error(self) -> Iterator[None]:
        """Ends the environment process if the collector cannot be made."""
        try:
            yield
        except BaseException:
            self.env.close(0.0)
            raise

    def shutdown(
        self,
        timeout: float | None = None,
        close_env: bool = True,
        raise_on_error: bool = True,
    ) -> None:
        """End the environment process and free the shared memory; a second call does nothing.

        Args:
            timeout: seconds for the environment to close, 5 by default.
            close_env: no effect, the environment ends with its process; as ``raise_on_error``.
        """
        self.env.close(5.0 if timeout is None else timeout)
        self._free_memory()

    @abstractmethod
    def _free_memory(self) -> None:
        """Drop what lies in the shared memory; may be called again."""
