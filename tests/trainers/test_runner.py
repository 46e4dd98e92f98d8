"""The training loop: what it logs, when it saves and evaluates, how it ends."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
from pathlib import Path

import pytest
import torch
from reference.disk import largest_file
from reference.runs import rows
from tensordict import TensorDict
from torchrl.collectors import Collector

from unilab.errors import CheckpointError, CollectorError, ConfigError, NonFiniteError
from unilab.record import MetricLogger, RunFolder
from unilab.settings import TrainingCfg
from unilab.trainers import Evaluator, OffPolicyRunner, OnPolicyRunner, Run
from unilab.trainers.runner import EpisodeTracker

TICKS = 20
FRAMES = 4 * TICKS


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create("pendulum_swingup", 0, path=tmp_path / "run")


def test_a_collector_with_a_replay_buffer_is_refused(session):
    run = session()
    collector = Collector(
        run.env, run.policy, frames_per_batch=4, total_frames=8, replay_buffer=run.buffer
    )
    with pytest.raises(ConfigError, match="replay_buffer"):
        run.train(collector)


def test_metrics_of_episodes_environment_losses_and_time_are_in_the_table(session, folder):
    run = session()
    run.env.max_episode_length = 8
    run.train(
        TICKS,
        logger=MetricLogger(folder),
        evaluate=Evaluator(session(seed=1).env, run.policy, max_steps=5),
        eval_interval=FRAMES,
        drain_metrics=run.env.drain_metrics,
        log_interval_s=600.0,
    )
    (row,) = rows(folder.path)
    for tag in ("Loss/qvalue", "Policy/alpha", "Eval/return", "Perf/steps_per_second"):
        assert row[tag], tag
    assert float(row["Train/episode_length"]) == 8
    assert float(row["Train/episodes"]) == 2 * 4
    assert float(row["Episode_Termination/time_out"]) == 1.0
    assert 0.0 < float(row["Perf/collect_share"]) < 1.0
    assert run.runner.exit_code == 0


def test_evaluations_and_checkpoints_come_once_at_each_interval_and_at_the_end(
    session, folder, monkeypatch
):
    run, saved, numbers = session(), [], itertools.count(1)
    save = run.checkpointer.save
    monkeypatch.setattr(run.checkpointer, "save", lambda c: saved.append(c.frames) or save(c))
    run.train(
        TICKS,
        logger=MetricLogger(folder),
        evaluate=lambda: {"Eval/return": next(numbers)},
        eval_interval=32,
        checkpoint_interval=40,
        log_interval_s=1e-6,
    )
    table = rows(folder.path)
    evaluated = {int(row["frames"]): row["Eval/return"] for row in table if row["Eval/return"]}
    assert evaluated == {32: "1", 64: "2", 80: "3"}
    assert saved == [40, 80]


def test_the_last_evaluation_is_in_the_last_row(session, folder):
    run = session()
    run.train(
        TICKS,
        logger=MetricLogger(folder),
        evaluate=lambda: {"Eval/return": 1.0},
        eval_interval=1000,
        log_interval_s=1e-9,
    )
    frames = [int(row["frames"]) for row in rows(folder.path)]
    assert frames == list(range(4, FRAMES + 1, 4))
    last = rows(folder.path)[-1]
    assert (last["Eval/return"], last["Perf/updates"]) == ("1", str(run.learner.update_count))


def test_without_an_interval_nothing_is_evaluated(session):
    session().train(TICKS, evaluate=lambda: pytest.fail("evaluated"), eval_interval=None)


def test_the_time_limit_ends_the_run_with_a_checkpoint(session):
    run = session()
    assert run.train(TICKS, max_minutes=1e-9).frames == 4
    assert run.checkpointer.load().frames == 4


def test_a_signal_ends_the_run_after_the_step_with_a_checkpoint(session):
    run = session()

    def interrupted():
        for i, batch in enumerate(run.collector(TICKS)):
            if i == 5:
                os.kill(os.getpid(), signal.SIGTERM)
            yield batch

    run.train(interrupted(), evaluate=lambda: pytest.fail("evaluated"), eval_interval=1000)
    assert run.runner.exit_code == 128 + signal.SIGTERM
    assert run.checkpointer.load().frames == 6 * 4


@pytest.mark.parametrize("where", ["collect", "evaluate", "log"])
def test_c14_an_error_while_collecting_evaluating_or_logging_saves_first(session, where):
    run = session()

    def fail():
        raise CollectorError("the environment process died")

    def failing():
        yield from run.collector(TICKS // 2)
        fail()

    with pytest.raises(CollectorError, match="died") as caught:
        run.train(
            failing() if where == "collect" else TICKS,
            evaluate=fail if where == "evaluate" else dict,
            eval_interval=FRAMES // 2,
            drain_metrics=fail if where == "log" else None,
            log_interval_s=600.0,
        )
    frames = FRAMES if where == "log" else FRAMES // 2
    assert str(frames) in caught.value.__notes__[0]
    assert run.checkpointer.load().frames == frames


def test_a_full_disk_is_a_warning_until_the_last_checkpoint(session, folder):
    run, logger = session(), MetricLogger(folder)
    with (
        largest_file(folder.progress_file.stat().st_size),
        pytest.warns(UserWarning, match=r"checkpoints.*Training continues"),
        pytest.warns(UserWarning, match=r"progress\.csv.*Training continues"),
        pytest.raises(CheckpointError, match="checkpoints"),
    ):
        run.train(TICKS, logger=logger, checkpoint_interval=FRAMES // 2, log_interval_s=1e-6)
    assert run.runner.run.counters.frames == FRAMES


def test_a_run_folder_that_disappears_ends_the_run_and_stays_away(session, folder):
    run = session()

    def disappearing():
        for i, batch in enumerate(run.collector(TICKS)):
            if i == 5:
                folder.path.rename(folder.path.with_name("moved"))
            yield batch

    with pytest.raises(CheckpointError, match="removed or moved"):
        run.train(disappearing(), folder=folder, logger=MetricLogger(folder), log_interval_s=1e-6)
    assert run.runner.run.counters.frames == 6 * 4
    assert not folder.path.exists()


def test_an_error_in_the_loop_saves_nothing_and_closes_everything(session, folder, monkeypatch):
    run = session()

    def fail(batch):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(run.learner, "update", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        run.train(TICKS, logger=MetricLogger(folder))
    with pytest.raises(CheckpointError):
        run.checkpointer.latest()
    MetricLogger(folder).close()  # the folder is not locked any more


@pytest.mark.parametrize(
    ("on_cpu", "named"), [(True, "loss_qvalue is nan in update"), (False, r"alpha.* 160 frames")]
)
def test_a_nan_in_training_is_named_and_keeps_the_checkpoint_before(
    session, on_cpu, named, monkeypatch
):
    run = session()
    if not on_cpu:  # an accelerator's update does not look at its losses
        monkeypatch.setattr("unilab.trainers.learner.check_losses", lambda *args, **losses: None)
    run.train(TICKS)
    counters = run.checkpointer.load()
    data = [batch.clone() for batch in run.collector(TICKS)]  # no NaN actions reach the env
    with torch.no_grad():
        run.learner.loss.log_alpha.fill_(math.nan)
    with pytest.raises(NonFiniteError, match=named):
        run.train(data, counters, log_interval_s=600)
    assert run.checkpointer.load().frames == FRAMES


@pytest.mark.parametrize("where", ["my/update", "my/env", "Eval/my"])
def test_a_metric_that_is_no_number_is_named(session, where):
    run = session()
    if where == "my/update":
        update = run.learner.update
        run.learner.update = lambda batch: update(batch).set(where, torch.ones(3))
    with pytest.raises(ConfigError, match=where):
        run.train(
            TICKS,
            drain_metrics=lambda: {"my/env": None if where == "my/env" else 1.0},
            evaluate=lambda: {"Eval/my": "x" if where == "Eval/my" else 1.0},
        )


def test_c15_the_metric_that_became_nan_first_is_named_when_the_environment_fails(session):
    run = session()
    update = run.learner.update

    def poisoned(batch):
        metrics = update(batch)
        diverged = run.learner.update_count == 3
        if diverged:
            with torch.no_grad():
                run.actor.mean_head.weight.fill_(math.nan)
        return metrics.set("loss_aux_gait", torch.tensor(math.nan if diverged else 1.0))

    run.learner.update = poisoned
    with pytest.raises(NonFiniteError, match="loss_aux_gait") as caught:
        run.train(TICKS)
    assert "action" in str(caught.value.__context__)
    with pytest.raises(CheckpointError):
        run.checkpointer.latest()


def test_resumed_minutes_and_frames_add_up(session):
    run = session()
    counters = run.train(TICKS)
    minutes = counters.minutes
    assert minutes > 0
    run.train(TICKS, counters)
    assert counters.frames == 2 * FRAMES
    assert counters.minutes > minutes


@pytest.mark.parametrize(
    ("kind", "ticks", "traced"), [("off", 7, 7), ("off", 205, 20), ("on", 4, 4), ("on", 11, 1)]
)
def test_a_chrome_trace_of_the_latest_steps_is_written(session, folder, kind, ticks, traced):
    run = session()
    data = [batch.clone() for batch in run.collector(1)] * ticks
    settings = {"training": TrainingCfg(trace=True), "run": Run(folder=folder)}
    runner = (
        OnPolicyRunner(data, run.learner, **settings)
        if kind == "on"
        else OffPolicyRunner(data, run.learner, run.buffer, **settings)
    )
    with runner:
        for _ in runner:
            pass
    events = json.loads(folder.trace_file.read_text())["traceEvents"]
    assert [event["name"] for event in events].count("learn") == traced


def transitions(rewards: list[list[float]], dones: list[list[bool]]) -> TensorDict:
    reward = torch.tensor(rewards).unsqueeze(-1)
    return TensorDict(
        {"next": {"reward": reward, "done": torch.tensor(dones).unsqueeze(-1)}},
        batch_size=reward.shape[:2],
    )


def test_only_finished_episodes_are_reported():
    tracker = EpisodeTracker()
    tracker.update(transitions([[1.0, 2.0], [10.0, 20.0]], [[False, True], [False, False]]))
    assert tracker.drain() == (3.0, 2.0, 1)
    tracker.update(
        transitions([[5.0], [30.0]], [[False], [True]])[:, 0]
    )  # without a time dimension
    assert tracker.drain() == (60.0, 3.0, 1)


def test_an_unbatched_collectors_ticks_are_steps_of_one_episode():
    tracker = EpisodeTracker()
    data = transitions([[1.0, 2.0, 4.0]], [[False, False, True]])[0]
    data.names = ["time"]
    tracker.update(data)
    assert tracker.drain() == (7.0, 3.0, 1)


def test_an_infinite_return_ends_with_its_episode():
    tracker = EpisodeTracker()
    tracker.update(transitions([[torch.inf, 1.0], [1.0, 1.0]], [[False, True], [False, False]]))
    assert tracker.drain() == (torch.inf, 2.0, 1)
    tracker.update(transitions([[5.0], [1.0]], [[True], [True]]))
    assert tracker.drain() == ((5.0 + 3.0) / 2, (1 + 3) / 2, 2)


def test_an_episode_starts_at_zero_after_the_one_before():
    tracker = EpisodeTracker()
    tracker.update(transitions([[1.0, 1.0, 4.0]], [[False, True, True]]))
    assert tracker.drain() == ((2.0 + 4.0) / 2, (2 + 1) / 2, 2)


def test_without_a_finished_episode_the_means_are_nan():
    tracker = EpisodeTracker()
    for _ in range(2):
        total, length, count = tracker.drain()
        assert math.isnan(total)
        assert math.isnan(length)
        assert count == 0
        tracker.update(transitions([[1.0]], [[False]]))
