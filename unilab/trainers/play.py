"""The actor of a finished or running training run, ready to act."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torchrl.checkpoint import CheckpointRotation

from unilab.errors import CheckpointError
from unilab.modules import FlashSACActorSpec, actor_semantics, build_actor
from unilab.modules.actor_spec import semantics_problem
from unilab.record import RunFolder
from unilab.trainers.checkpoint_files import read_identity, read_states

__all__ = ["load_play_actor"]


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
        CheckpointError: no checkpoint there, a damaged one, or one whose ``actor_semantics`` are
            missing, unreadable or not those of the run and of the actor that its builder makes now.
            No weight was loaded then.
        ActorContractError: the builder cannot be called or returns no actor of the contract.
    """
    path = _checkpoint(Path(run_or_checkpoint))
    identity, _ = read_identity(path)
    semantics: Any = identity.get("actor_semantics") if isinstance(identity, Mapping) else None
    _require(path, semantics, _of_run(path))
    _require_task(path, identity.get("task"))
    if semantics["builder"] is None:
        raise CheckpointError(
            f"checkpoint {path} names no builder of its actor, so that it cannot be built again: "
            "train an actor made by build_actor, or load the weights into your own instance"
        )
    state = read_states(path, ["learner"])["learner"]
    _require(path, state.get("actor_semantics"), semantics)
    actor = build_actor(
        FlashSACActorSpec(builder=semantics["builder"], kwargs=semantics["kwargs"]),
        obs_dim=semantics["obs_dim"],
        action_dim=semantics["action_dim"],
        device="cpu",
    )
    _require(path, semantics, actor_semantics(actor))
    prefix = "actor."
    weights = {
        key.removeprefix(prefix): value
        for key, value in state["loss"].items()
        if key.startswith(prefix)
    }
    try:
        actor.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(
            f"checkpoint {path} does not fit the actor that {semantics['builder']} makes now "
            f"({error}): play it with the code that it was trained with"
        ) from error
    return actor.eval()


def _checkpoint(path: Path) -> Path:
    """The checkpoint itself, or the newest one of a run's folder."""
    run = RunFolder(path)
    if not run.checkpoints.is_dir():
        if not path.exists():
            raise CheckpointError(f"{path} does not exist: give a run's folder or a checkpoint")
        return path
    latest = CheckpointRotation(run.checkpoints, keep_last=1).latest()
    if latest is None:
        raise CheckpointError(
            f"{run.checkpoints} holds no complete checkpoint: wait for the run's first one"
        )
    return latest


def _of_run(path: Path) -> Any:
    """What the run of a checkpoint says of its actor; None if it lies in no run's folder."""
    run = RunFolder(path.parent.parent)
    return run.read_config().get("actor_semantics") if run.config_file.is_file() else None


def _require_task(path: Path, saved: Any) -> None:
    run = RunFolder(path.absolute().parent.parent)
    task = run.read_config()["config"].get("task") if run.config_file.is_file() else None
    if task is not None and saved != task:
        raise CheckpointError(
            f"checkpoint {path} is of the task {saved!r}, and its run is one of {task!r}: put it "
            "back into the run that wrote it"
        )


def _require(path: Path, saved: Any, live: Mapping[str, Any] | None) -> None:
    problem = semantics_problem(saved, live)
    if problem:
        raise CheckpointError(f"checkpoint {path} cannot be played: {problem}")
