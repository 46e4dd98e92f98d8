"""What ranks do in tests: functions of a module, which their processes import."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from reference.actors import PlainActor
from reference.tiny import ACTION, OBS, tiny_batch, tiny_critic
from unilab.conf import compose
from unilab.objectives import FlashSACLoss
from unilab.trainers import FlashSACLearner, Ranks


def train(folder: Path, algorithm: str, settings: list[str], signalled: bool = False) -> int:
    """A training, whose rank 1 may send itself SIGTERM; each rank writes its learner's state."""
    script: Any = importlib.import_module(f"unilab.examples.train_{algorithm}")
    make, made = script.make_learner, []

    def make_learner(*args: Any) -> Any:
        learner = make(*args)
        update = learner.update

        def update_once(batch: Any) -> Any:
            learner.update = update
            os.kill(os.getpid(), signal.SIGTERM)
            return update(batch)

        if signalled and Ranks().rank == 1:
            learner.update = update_once
        made.append(learner)
        return learner

    script.make_learner = make_learner
    code = script.train(compose(settings))
    torch.save(made[0].state_dict(), folder / f"{Ranks().rank}.pt")
    return code


def train_with_rsl_rl(folder: Path, settings: list[str]) -> int:
    """A training by RSL-RL's runner; each rank writes its networks."""
    from unilab.examples import train_rsl_rl

    made: list[Any] = []

    class Runner(train_rsl_rl.RankRunner):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made.append(self)

    train_rsl_rl.RankRunner = Runner  # type: ignore[misc]
    code = train_rsl_rl.train(compose(settings))
    networks = (made[0].alg.actor, made[0].alg.critic)
    torch.save([network.state_dict() for network in networks], folder / f"{Ranks().rank}.pt")
    return code


def update(folder: Path, fault: str) -> None:
    """An update in which rank 1 is at fault; each rank that raises writes how."""
    ranks = Ranks()
    torch.manual_seed(ranks.rank)
    loss = FlashSACLoss(PlainActor(OBS, ACTION), tiny_critic())
    learner = FlashSACLearner(loss, sync_gradients=ranks.average_gradients)
    ranks.broadcast(learner)
    before = [p.clone() for p in loss.parameters()]
    if ranks.rank == 1:
        loss.actor.aux = _FAULTS[fault]
    elif fault == "hangs":
        raise TimeoutError("rank 0 waits no more")
    try:
        learner.update(tiny_batch(seed=ranks.rank))
    except Exception as error:
        moved = any(not torch.equal(a, b) for a, b in zip(before, loss.parameters(), strict=True))
        what = "moved" if moved else "kept"
        (folder / f"{ranks.rank}.txt").write_text(f"{what} {type(error).__name__}: {error}")
        raise


def _hang(mean: Any, log_std: Any) -> dict[str, Any]:
    """Rank 1 waits, deaf to signals, for a rank 0 that fails."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
    return {}


def _fail(mean: Any, log_std: Any) -> dict[str, Any]:
    raise ZeroDivisionError("no such luck")


_FAULTS = {
    "nan": lambda mean, log_std: {"shy": mean.mean(), "bold": torch.tensor(torch.nan)},
    "names": lambda mean, log_std: {"shy": mean.mean(), "timid": mean.mean()},
    "bug": _fail,
    "exits": lambda mean, log_std: sys.exit("no more"),
    "killed": lambda mean, log_std: os.kill(os.getpid(), signal.SIGKILL),
    "hangs": _hang,
}
