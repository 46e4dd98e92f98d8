"""The actor of a finished or running training run, ready to act."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from unilab.errors import CheckpointError
from unilab.modules import FlashSACActorSpec, actor_semantics, build_actor
from unilab.record import RunFolder
from unilab.trainers.checkpoint_files import newest, read_identity, read_states
from unilab.trainers.state_check import differences, semantics_problem, state_problem

__all__ = ["load_env_training_state", "load_play_actor"]

T = TypeVar("T")

# Readings of a run that is training and replaces its checkpoints meanwhile.
_TRIES = 10


def load_play_actor(run_or_checkpoint: str | Path) -> nn.Module:
    """Rebuilds the actor of a run from its recorded builder and loads its weights.

    The builder that the checkpoint names is imported and called, so play only files whose origin
    you know.

    Args:
        run_or_checkpoint: a run's folder, whose newest checkpoint is taken, or one checkpoint.

    Returns:
        The actor on the CPU, in eval mode. :func:`~unilab.modules.actor_semantics` of it gives its
        widths and action transform; the task and its observation groups are in the run's
        ``run_config.json`` (:meth:`~unilab.record.RunFolder.read_config`).

    Raises:
        CheckpointError: no checkpoint there, a damaged one, one of another run than the one in
            whose folder it lies, or one whose ``actor_semantics`` are missing, unreadable or not
            those of the actor that its builder makes now. No weight was loaded then.
        ActorContractError: the builder cannot be called or returns no actor of the contract.
    """
    return _read(Path(run_or_checkpoint), _actor)


def load_env_training_state(run_or_checkpoint: str | Path) -> Mapping[str, Any]:
    """How far the environment of a run had come, for ``import_training_state``.

    Args:
        run_or_checkpoint: a run's folder, whose newest checkpoint is taken, or one checkpoint.

    Raises:
        CheckpointError: no checkpoint there, a damaged one, or one without an environment's state.
    """
    state: Any = _read(Path(run_or_checkpoint), lambda path: read_states(path, ["env"])["env"])
    if not isinstance(state, Mapping):
        raise CheckpointError(f"{run_or_checkpoint}: its environment's state is {state!r}")
    return state


def _read(given: Path, read: Callable[[Path], T]) -> T:
    """What is in the newest checkpoint, which a running training may replace meanwhile."""
    for _ in range(_TRIES):
        path = _checkpoint(given)
        try:
            return read(path)
        except CheckpointError:
            if path.exists() or path == given:
                raise
            # A training run has put a newer one in its place meanwhile.
    raise CheckpointError(f"{given} changes faster than it can be read: give one checkpoint of it")


def _actor(path: Path) -> nn.Module:
    identity, _ = read_identity(path)
    semantics: Any = identity.get("actor_semantics") if isinstance(identity, Mapping) else None
    _require(path, semantics, None)
    _same_run(path, identity)
    if semantics["builder"] is None:
        raise CheckpointError(
            f"checkpoint {path} names no builder of its actor, so that it cannot be built again: "
            "train an actor made by build_actor, or load the weights into your own instance"
        )
    state = read_states(path, ["learner"])["learner"]
    state = state if isinstance(state, Mapping) else {}
    _require(path, state.get("actor_semantics"), semantics)
    actor = build_actor(
        FlashSACActorSpec(builder=semantics["builder"], kwargs=semantics["kwargs"]),
        obs_dim=semantics["obs_dim"],
        action_dim=semantics["action_dim"],
        device="cpu",
    )
    _require(path, semantics, actor_semantics(actor))
    _load(path, actor, state.get("loss"), semantics["builder"])
    return actor.eval()


def _load(path: Path, actor: nn.Module, loss: Any, builder: str) -> None:
    prefix = "actor."
    weights = {
        key.removeprefix(prefix): value
        for key, value in (loss.items() if isinstance(loss, Mapping) else ())
        if isinstance(key, str) and key.startswith(prefix)
    }
    problem = state_problem(weights, actor.state_dict(), "actor")
    try:
        if not problem:
            actor.load_state_dict(weights)
    except RuntimeError as error:
        problem = str(error)
    if problem:
        raise CheckpointError(
            f"checkpoint {path} does not fit the actor that {builder} makes now ({problem}): play "
            "it with the code that it was trained with"
        )


def _checkpoint(path: Path) -> Path:
    """The checkpoint itself, or the newest one of a run's folder."""
    run = RunFolder(path)
    if not run.checkpoints.is_dir():
        if not path.exists():
            raise CheckpointError(f"{path} does not exist: give a run's folder or a checkpoint")
        return path
    latest = newest(run.checkpoints)
    if latest is None:
        raise CheckpointError(
            f"{run.checkpoints} holds no complete checkpoint: wait for the run's first one"
        )
    return latest


def _same_run(path: Path, identity: Mapping[str, Any]) -> None:
    """Checks a checkpoint against the run in whose folder it lies, if it lies in one."""
    run = RunFolder(path.resolve().parent.parent)
    if not run.config_file.is_file():
        return
    # What is played is the task of the configuration.
    content = run.read_config()
    here = {k: v for k, v in {**content, **content["config"]}.items() if k in identity}
    if here != identity:
        raise CheckpointError(
            f"checkpoint {path} cannot be played, for its run's {run.config_file.name} differs: "
            f"{differences(identity, here)}"
        )


def _require(path: Path, saved: Any, live: Mapping[str, Any] | None) -> None:
    problem = semantics_problem(saved, live)
    if problem:
        raise CheckpointError(f"checkpoint {path} cannot be played: {problem}")
