"""Running episodes: the part of a checkpoint from which a synchronous run continues exactly."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.collectors import Collector

from unilab.errors import ConfigError
from unilab.trainers.checkpoint import Stateful
from unilab.trainers.state_check import state_problem

_logger = logging.getLogger(__name__)


class Episodes:
    """The running episodes of a collector, saved with it and continued in another one.

    Saved are the environment with its physics and generator, the collector's current
    observations, the policy's exploration noise and the returns so far. Only TorchRL's
    ``Collector`` over an environment with ``export_episodes`` and ``import_episodes`` has such a
    state. All others have an empty one: a :class:`~unilab.collectors.PipelinedCollector` is a step
    ahead of the loop that saves.

    Args:
        env: the environment that the collector steps.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self._collector: Any = None
        self._returns: Stateful
        self._loaded: Mapping[str, Any] = {}
        self._warned = ""

    def attach(self, collector: Any, returns: Stateful) -> str:
        """Continue the loaded episodes in a new collector, and save its episodes from now on.

        Args:
            collector: any collector or iterable.
            returns: the returns so far.

        Returns:
            Why new episodes begin instead, or ``""``.
        """
        loaded, self._loaded = self._loaded, {}
        if not isinstance(collector, Collector) or not hasattr(self._env, "export_episodes"):
            return "only those of unilab's environments that step in this process are saved"
        self._collector, self._returns = collector, returns
        if "env" not in loaded:
            return str(loaded.get("problem", "the checkpoint holds no episodes"))
        before = self.state_dict()
        try:
            self._continue(loaded)
        except Exception as error:  # a state of another structure fails in many ways
            if "env" in before:
                self._continue(before)
            return str(error) if isinstance(error, ConfigError) else f"invalid state: {error!r}"
        return ""

    def _continue(self, loaded: Mapping[str, Any]) -> None:
        """Set environment, collector, exploration and returns to a :meth:`state_dict`."""
        collector, now = self._collector, self._collector._carrier
        self._env.import_episodes(loaded["env"])
        counts = {"frames": collector._frames, "iter": collector._iter}
        collector.load_state_dict({**counts, **loaded["collector"]}, strict=False)
        root = TensorDict(loaded["root"], now.batch_size)
        known = root.select(*now.keys(True, True)).to_dict()
        if problem := state_problem(known, now.to_dict(), "root"):
            raise ConfigError(problem)
        noise = []
        for key, module, name, value in self._exploration():
            if (saved := loaded["exploration"].get(key)) is not None:
                # Before the first action it has no rows.
                shapes = (value.shape, (*now.batch_size, *value.shape[1:]))
                if saved.shape not in shapes or saved.dtype != value.dtype:
                    raise ConfigError(f"{key} must have shape {list(shapes[1])}, got {saved.shape}")
                noise.append((module, name, saved.to(value.device)))
        self._returns.load_state_dict(loaded["returns"])
        for each in noise:  # and the root last: what fails before leaves them as they were
            setattr(*each)
        collector._carrier = now.empty().update(root)

    def state_dict(self) -> dict[str, Any]:
        if self._collector is None:
            return {}
        if not (episodes := self._env.export_episodes()):
            problem = getattr(self._env, "episodes_problem", "")
            if problem and problem != self._warned:
                self._warned = problem
                _logger.warning("a resumed run will begin new episodes: %s", problem)
            return {"problem": problem} if problem else {}
        # Frames are counted by the run, and the policy's weights are the learner's.
        others = ("policy_state_dict", "frames", "iter")
        collector = {k: v for k, v in self._collector.state_dict().items() if k not in others}
        return {
            "env": episodes,
            "collector": collector,
            "root": self._collector._carrier.cpu().clone().to_dict(),
            "exploration": {key: value.cpu() for key, _, _, value in self._exploration()},
            "returns": self._returns.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep a :meth:`state_dict` for :meth:`attach`."""
        self._loaded = state

    def _exploration(self) -> Iterator[tuple[str, nn.Module, str, Tensor]]:
        """Tensors of the policy's modules that their own ``state_dict`` leaves out."""
        policy = self._collector.policy
        modules = policy.named_modules() if isinstance(policy, nn.Module) else ()
        for path, module in modules:
            unsaved = {name: module._buffers[name] for name in module._non_persistent_buffers_set}
            for name, value in {**unsaved, **vars(module)}.items():
                if isinstance(value, Tensor):
                    yield f"{path}.{name}", module, name, value
