"""Loading of a training run's actor, ready to act."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from unilab.errors import CheckpointError
from unilab.modules import FlashSACActorSpec, actor_semantics, build_actor
from unilab.modules.actor_spec import BUILT_IN
from unilab.output import say
from unilab.record import RunFolder
from unilab.trainers.checkpoint import newest, read_identity, read_states
from unilab.trainers.state_check import (
    differences,
    module_problem,
    range_problem,
    semantics_problem,
)

# A training run may replace its newest checkpoint while it is read.
_TRIES = 10


def load_play_actor(run_or_checkpoint: str | Path) -> nn.Module:
    """Builds the actor of a run with its recorded builder and loads its weights.

    The module of the builder that the checkpoint names is imported, which runs its code: its name
    is printed first. The builder is called if it is one by the rules of
    :func:`~unilab.modules.build_actor`: nothing of Python, PyTorch and the like.

    Args:
        run_or_checkpoint: a run's folder, whose newest checkpoint is taken, or one checkpoint.

    Returns:
        The actor on the CPU, in eval mode.
    """
    return _read(Path(run_or_checkpoint), _actor)


def load_env_training_state(run_or_checkpoint: str | Path) -> Mapping[str, Any]:
    """The training state of a run's environment, for ``import_training_state``."""
    return _read(Path(run_or_checkpoint), lambda path: read_states(path, ["env"])["env"])


def _read(given: Path, read: Callable[[Path], Any]) -> Any:
    for _ in range(_TRIES):
        path = _checkpoint(given)
        try:
            return read(path)
        except CheckpointError:
            if path.exists() or path == given:
                raise
    raise CheckpointError(f"{given} changes faster than it can be read: give one checkpoint of it")


def _checkpoint(path: Path) -> Path:
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


def _actor(path: Path) -> nn.Module:
    identity, _ = read_identity(path)
    semantics: Any = identity.get("actor_semantics") if isinstance(identity, Mapping) else None
    _check_semantics(path, semantics, None)
    _check_run(path, identity)
    if semantics["builder"] is None:
        raise CheckpointError(
            f"checkpoint {path} has no builder of its actor: train an actor of build_actor, or "
            "load the weights into your own instance"
        )
    state = read_states(path, ["learner"])["learner"]
    state = state if isinstance(state, Mapping) else {}
    _check_semantics(path, state.get("actor_semantics"), semantics)
    spec = FlashSACActorSpec(builder=semantics["builder"], kwargs=semantics["kwargs"])
    if spec.builder != BUILT_IN:
        say(f"Actor        {spec.builder}")
    actor = build_actor(
        spec,
        obs_dim=semantics["obs_dim"],
        action_dim=semantics["action_dim"],
        device="cpu",
    )
    _check_semantics(path, semantics, actor_semantics(actor))
    loss = state.get("loss")
    weights = {
        key.removeprefix("actor."): value
        for key, value in (loss.items() if isinstance(loss, Mapping) else ())
        if str(key).startswith("actor.")
    }
    problem = module_problem(weights, actor, "actor")
    problem = problem or range_problem(weights, actor)
    try:
        if not problem:
            actor.load_state_dict(weights)
    except RuntimeError as error:  # missing and unexpected keys
        problem = str(error)
    if problem:
        raise CheckpointError(
            f"checkpoint {path} does not fit the actor that {semantics['builder']} builds now "
            f"({problem}): play it with the code that it was trained with"
        )
    return actor.eval()


def _check_run(path: Path, identity: Mapping[str, Any]) -> None:
    """Compare with the run in whose folder it lies, if any: the task to play is the run's."""
    run = RunFolder(path.resolve().parent.parent)
    if not run.config_file.is_file():
        return
    content = run.read_config()
    here = {k: v for k, v in {**content, **content["config"]}.items() if k in identity}
    if problem := differences(identity, here):
        raise CheckpointError(
            f"checkpoint {path} cannot be played, its run's {run.config_file.name} differs: "
            f"{problem}"
        )


def _check_semantics(path: Path, saved: Any, live: Mapping[str, Any] | None) -> None:
    problem = semantics_problem(saved, live)
    if problem:
        raise CheckpointError(f"checkpoint {path} cannot be played: {problem}")
