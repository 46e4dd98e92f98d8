"""What a collector process finds out about the environment that it made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensordict import NestedKey
from torchrl.envs import ActionMask, Compose, EnvBase, InitTracker, Transform, TransformedEnv

from unilab.errors import CollectorError

__all__ = ["action_masks", "checked", "has_method", "inputs", "marking_resets"]


def checked(env: Any) -> EnvBase:
    """What a user's function returned, if it is an environment.

    Raises:
        CollectorError: it is none.
    """
    if not isinstance(env, EnvBase):
        raise CollectorError(
            f"make_env returned a {type(env).__name__}: it must return a torchrl EnvBase"
        )
    return env


def marking_resets(env: EnvBase) -> EnvBase:
    """The environment with ``is_init`` where it has none: exploration restarts at resets."""
    keys = env.observation_spec.keys(include_nested=True, leaves_only=True)
    if any((key if isinstance(key, str) else key[-1]) == "is_init" for key in keys):
        return env
    if isinstance(env, TransformedEnv):  # TorchRL warns where one is put around another
        return env.append_transform(InitTracker())
    return TransformedEnv(env, InitTracker())


def inputs(env: EnvBase) -> list[NestedKey]:
    """What the learner gives: actions, and state that is the policy's to write."""
    own = {*env.full_observation_spec.keys(True, True), *env.full_done_spec.keys(True, True)}
    state = [key for key in env.full_state_spec.keys(True, True) if key not in own]
    return [*env.action_keys, *state]


def action_masks(env: EnvBase) -> Iterator[tuple[NestedKey, NestedKey]]:
    """Actions, and the entries that say which of them are allowed, of ``ActionMask`` transforms."""
    while isinstance(env, TransformedEnv):
        for transform in _flat(env.transform):
            if isinstance(transform, ActionMask):
                action, mask = transform.in_keys
                yield action, mask
        env = env.base_env


def _flat(transform: Transform) -> Iterator[Transform]:
    if isinstance(transform, Compose):
        for each in transform:
            yield from _flat(each)
    else:
        yield transform


def has_method(env: EnvBase, method: str) -> bool:
    """Whether the innermost environment's class has a method; batches of envs claim any."""
    while isinstance(env, TransformedEnv):
        env = env.base_env
    return hasattr(type(env), method)
