"""Recorded episodes on disk: one memory-mapped TensorDict each."""

from __future__ import annotations

import errno
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

from tensordict import TensorDict, TensorDictBase

from unilab.checks import check_fields
from unilab.errors import ConfigError

_PREFIX = "episode_"


@dataclass(frozen=True, kw_only=True)
class RecordingCfg:
    """How much the recorders keep.

    Raises:
        ConfigError: a number that is no integer of at least 1.
    """

    num_envs: int | None = None
    """Environments that are recorded, the first ones; None records all."""
    max_steps: int | None = None
    """Control steps that are kept of an episode, the first ones; None keeps ``episode_length_s``.
    An environment needs the memory of an episode of this length."""
    max_episodes: int = 1000
    """Episodes that are kept in memory until they are drained, or in the folder in all. Later ones
    are not recorded."""

    def __post_init__(self) -> None:
        check_fields(self, "recording")
        for name in ("num_envs", "max_steps", "max_episodes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"recording {name} is {value}: give at least 1")


class EpisodeFolder:
    """A folder that recorded episodes are written to, numbered on from those that are there.

    Several environments may write to one folder.

    Args:
        path: the folder; made with the first episode.
        max_episodes: how many it may hold.

    Raises:
        ConfigError: a file is in the way.
    """

    def __init__(self, path: Path, max_episodes: int) -> None:
        file = next((p for p in (path, *path.parents) if p.exists() and not p.is_dir()), None)
        if file is not None:
            raise ConfigError(f"episodes cannot be written to {path}: {file} is no folder")
        self.path = path
        self._max = max_episodes
        found = _episodes(path)
        self._count = len(found)
        self._next = _number(found[-1]) + 1 if found else 0

    @property
    def full(self) -> bool:
        """Whether no further episode fits in."""
        return self._count >= self._max

    def write(self, episode: TensorDict) -> None:
        """Write an episode; it appears under its name once it is whole.

        It is dropped if other environments have filled the folder since.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        partial = self.path / f".{uuid.uuid4().hex}.tmp"
        try:
            episode.memmap(str(partial))
            written = False
            while not written and not self.full:
                written = _renamed(partial, self.path / f"{_PREFIX}{self._next:06d}")
                self._count += 1
                self._next += 1
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def load_episodes(path: str | Path) -> list[TensorDictBase]:
    """The recorded episodes of a run, in the order in which they ended, memory-mapped.

    Args:
        path: the ``episodes`` folder of a run.

    Returns:
        What :meth:`unilab.envs.managers.RecorderManager.drain` gives, read from disk only where it
        is looked at. Nothing in the folder is unpickled.

    Raises:
        ConfigError: there is no recorded episode.
    """
    found = _episodes(Path(path))
    if not found:
        raise ConfigError(f"there is no recorded episode in {path}: give a run's 'episodes' folder")
    return [TensorDict.load_memmap(str(episode), allow_pickle=False) for episode in found]


def _renamed(partial: Path, to: Path) -> bool:
    """Give an episode its name, unless another one has it."""
    try:
        partial.rename(to)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def _episodes(path: Path) -> list[Path]:
    found = path.glob(f"{_PREFIX}*")
    return sorted((p for p in found if p.name.removeprefix(_PREFIX).isdecimal()), key=_number)


def _number(episode: Path) -> int:
    return int(episode.name.removeprefix(_PREFIX))
