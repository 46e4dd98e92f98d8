"""The training loop: what it logs, when it saves and evaluates, how it ends."""

from __future__ import annotations

import csv
import itertools
import os
import signal
from pathlib import Path

import pytest
import torch
from torchrl.collectors import Collector

from unilab.data import make_replay_buffer
from unilab.errors import CheckpointError, CollectorError, ConfigError, NonFiniteError
from unilab.record import MetricLogger, RunFolder, metric
from unilab.trainers import Evaluator, OffPolicyRunner

TICKS = 20
FRAMES = 4 * TICKS


def read_csv(run: RunFolder) -> list[dict[str, str]]:
    with run.progress_file.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create("pendulum_swingup", 0, path=tmp_path / "run")


def test_updates_begin_when_the_buffer_holds_learning_starts(session):
    run = session()
    run.train(TICKS, learning_starts=40)
    # The buffer holds 40 transitions after the 10th of the 20 ticks.
    assert run.learner.update_count == TICKS - 10 + 1


def test_a_collector_that_keeps_the_data_to_itself_is_refused(session):
    run = session()
    collector = Collector(
        run.env, run.policy, frames_per_batch=4, total_frames=8, replay_buffer=run.buffer
    )
    with pytest.raises(ConfigError, match="replay_buffer of its own"):
        OffPolicyRunner(collector, run.learner, run.buffer, run.rewards, learning_starts=40)


def test_updates_per_step_multiplies_the_updates(session):
    run = session()
    run.train(TICKS, learning_starts=40, updates_per_step=3)
    assert run.learner.update_count == 3 * (TICKS - 10 + 1)


def test_n_step_buffers_get_the_data_in_time_order(session):
    run = session(save_replay=False)
    run.buffer = make_replay_buffer(1000, batch_size=16, n_step=3, gamma=0.9)
    run.train(TICKS)
    # The last three ticks wait for their successors.
    assert len(run.buffer) == FRAMES - 3 * 4
    assert run.learner.update_count > 0


def test_what_a_curriculum_returns_is_logged_in_evaluations_too(session, folder):
    run = session()
    run.train(
        TICKS,
        logger=MetricLogger(folder),
        evaluate=lambda: {"Eval/Curriculum/speed/max": 2.0},
        eval_interval=FRAMES,
        drain_metrics=lambda: {"Curriculum/speed/max": 1.0},
    )
    (row,) = read_csv(folder)
    assert (row["Eval/Curriculum/speed/max"], row["Curriculum/speed/max"]) == ("2", "1")


@pytest.mark.parametrize("where", ["evaluate", "log"])
def test_an_error_in_evaluating_or_logging_leaves_a_checkpoint(session, folder, where):
    def evaluate():
        if where == "evaluate":
            raise RuntimeError("no evaluation")
        return {"Mine/x": 1.0}

    run = session()
    with pytest.raises((RuntimeError, ConfigError)) as caught:
        run.train(TICKS, logger=MetricLogger(folder), evaluate=evaluate, eval_interval=FRAMES // 2)
    frames = FRAMES // 2 if where == "evaluate" else FRAMES
    assert f"What was learned in {frames} frames is saved." in caught.value.__notes__
    assert session().checkpointer.load().frames == frames


def test_an_error_in_an_update_leaves_none(session, tmp_path, monkeypatch):
    run = session()
    update = run.learner.update

    def fails(batch):
        if run.learner.update_count == 3:
            raise RuntimeError("out of memory")
        return update(batch)

    monkeypatch.setattr(run.learner, "update", fails)
    with pytest.raises(RuntimeError, match="out of memory"):
        run.train(TICKS)
    assert not list(tmp_path.glob("checkpoints/*"))


def test_every_metric_of_a_run_is_in_the_schema_and_reaches_the_table(session, folder):
    run = session()
    env = run.env
    evaluate = Evaluator(session(seed=1).env, run.policy, max_steps=5)
    result = run.runner(
        TICKS,
        logger=MetricLogger(folder),
        evaluate=evaluate,
        eval_interval=FRAMES // 2,
        drain_metrics=env.drain_metrics,
        log_interval_s=1e-6,
    ).run()
    columns = read_csv(folder)[0].keys()
    assert {"Loss/qvalue", "Loss/actor", "Policy/alpha", "Policy/entropy"} <= columns
    assert {"Eval/return", "Perf/steps_per_second", "Perf/buffer_size"} <= columns
    for tag in set(columns) - {"frames", "minutes"} | set(result.metrics):
        assert metric(tag).owner
    assert result.frames == FRAMES
    assert result.exit_code == 0


def test_episode_metrics_of_the_environment_are_logged(session, folder):
    run = session()
    run.env.max_episode_length = 8
    run.train(TICKS, logger=MetricLogger(folder), drain_metrics=run.env.drain_metrics)
    (row,) = read_csv(folder)
    assert float(row["Train/episode_length"]) == 8
    assert float(row["Train/episodes"]) == 2 * 4
    assert "Episode_Reward/upright" in row
    assert float(row["Episode_Termination/time_out"]) == 1.0


def test_an_evaluation_is_logged_once_even_if_a_row_was_just_written(session, folder):
    run = session()
    evaluations = itertools.count(1)
    run.train(
        TICKS,
        logger=MetricLogger(folder),
        evaluate=lambda: {"Eval/return": float(next(evaluations))},
        eval_interval=10 * FRAMES,
        checkpoint_interval=FRAMES,
    )
    # The checkpoint at the last step logs a row; the evaluation at the end comes after it.
    assert [row["Eval/return"] for row in read_csv(folder) if row["Eval/return"]] == ["1"]


def test_evaluations_come_at_the_interval_and_at_the_end(session, folder):
    run = session()
    evaluations = itertools.count(1)
    run.train(
        TICKS,
        logger=MetricLogger(folder),
        evaluate=lambda: {"Eval/return": float(next(evaluations))},
        eval_interval=FRAMES * 2 // 5,
        log_interval_s=1e-6,
    )
    rows = {int(r["frames"]): r["Eval/return"] for r in read_csv(folder) if r["Eval/return"]}
    assert list(rows.values()) == ["1", "2", "3"]
    assert list(rows) == [32, 64, 80]


def test_without_an_interval_nothing_is_evaluated(session):
    run = session()
    run.train(TICKS, evaluate=lambda: pytest.fail("evaluated"), eval_interval=None)


def test_checkpoints_come_at_the_interval_and_at_the_end(session):
    run = session()
    run.train(TICKS, checkpoint_interval=32)
    names = sorted(p.name for p in run.checkpointer.latest().parent.iterdir())
    assert [int(name.split("-")[1]) for name in names] == [32, 64, 80]


def test_a_checkpoint_at_the_last_step_is_not_written_twice(session, folder, monkeypatch):
    run = session()
    saved = []
    save = run.checkpointer.save
    monkeypatch.setattr(run.checkpointer, "save", lambda c: saved.append(c.frames) or save(c))
    run.train(TICKS, checkpoint_interval=FRAMES, logger=MetricLogger(folder))
    assert saved == [FRAMES]
    assert len(read_csv(folder)) == 1


def test_time_limit_ends_the_run_with_a_checkpoint(session):
    run = session()
    counters = run.train(TICKS, max_minutes=1e-9)
    assert counters.frames == 4
    assert run.checkpointer.load().frames == 4


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_after_the_step_with_a_checkpoint(session, signum):
    run = session()

    def interrupted(data):
        for i, batch in enumerate(data):
            if i == 5:
                os.kill(os.getpid(), signum)
            yield batch

    runner = run.runner(TICKS, evaluate=lambda: pytest.fail("evaluated"), eval_interval=1000)
    runner.collector = interrupted(runner.collector)
    before = signal.getsignal(signum)
    result = runner.run()
    assert result.exit_code == 128 + signum
    assert result.frames == 6 * 4
    assert run.checkpointer.load().frames == 6 * 4
    assert signal.getsignal(signum) is before


def test_c14_a_dead_process_that_the_metrics_find_first_leaves_a_checkpoint(session, folder):
    run, asked = session(), []

    def drain() -> dict[str, float]:
        asked.append(True)
        if len(asked) == 1:
            raise CollectorError("the collector process died")
        return {}

    with pytest.raises(CollectorError, match="died"):
        run.train(TICKS, logger=MetricLogger(folder), drain_metrics=drain, log_interval_s=1e-9)
    saved = run.checkpointer.latest().name.split("-")[1]
    assert int(read_csv(folder)[-1]["frames"]) == int(saved) == 4


def test_a_nan_in_training_is_named_and_keeps_the_checkpoint_before(session):
    run = session()
    run.train(TICKS)
    counters = run.checkpointer.load()
    runner = run.runner(TICKS, counters=counters, log_interval_s=600)
    # Without a policy in the loop, whose NaN actions the environment would refuse first.
    runner.collector = [batch.clone() for batch in runner.collector]
    with torch.no_grad():
        run.learner.loss.log_alpha.fill_(float("nan"))
    with pytest.raises(NonFiniteError, match=r"alpha.* became NaN or infinite before 160 frames"):
        runner.run()
    assert run.checkpointer.load().frames == FRAMES


def test_a_diverged_policy_ends_the_run_at_the_environment(session):
    run = session()
    run.train(TICKS)
    with torch.no_grad():
        run.actor.mean_head.weight.fill_(float("nan"))
    with pytest.raises(NonFiniteError, match=r"action is not finite.*diverged policy"):
        run.train(TICKS)
    assert run.checkpointer.load().frames == FRAMES


def test_c15_what_became_nan_first_is_named_although_the_environment_fails_first(session):
    run = session()
    update = run.learner.update

    def poisoned(batch):
        metrics = update(batch)
        if run.learner.update_count == 3:
            with torch.no_grad():
                run.actor.mean_head.weight.fill_(float("nan"))
            metrics["loss_aux_gait"] = torch.tensor(float("nan"))
        else:
            metrics["loss_aux_gait"] = torch.tensor(1.0)
        return metrics

    run.learner.update = poisoned
    with pytest.raises(NonFiniteError, match=r"^loss_aux_gait became NaN") as caught:
        run.train(TICKS)
    assert "action is not finite" in str(caught.value.__context__)


def test_a_tag_outside_the_schema_is_an_error(session, folder):
    run = session()
    with pytest.raises(ValueError, match="'Mine/x' is not in the schema"):
        run.train(TICKS, logger=MetricLogger(folder), drain_metrics=lambda: {"Mine/x": 1.0})


def test_resumed_minutes_and_frames_add_up(session):
    run = session()
    counters = run.train(TICKS)
    minutes = counters.minutes
    assert minutes > 0
    run.train(TICKS, counters)
    assert counters.frames == 2 * FRAMES
    assert counters.minutes > minutes


def test_an_error_in_the_loop_leaves_the_console_closed(session, tmp_path):
    run = session()
    closed = []

    class Console:
        def advance(self, frames):
            raise CheckpointError("disk full")

        def close(self):
            closed.append(True)

    with pytest.raises(CheckpointError, match="disk full"):
        run.train(TICKS, progress=Console())
    assert closed == [True]


def test_any_iterable_of_transitions_will_do(session):
    run = session()
    data = [batch.clone() for batch in run.collector(TICKS)]
    runner = OffPolicyRunner(data, run.learner, run.buffer, run.rewards, learning_starts=32)
    assert runner.run().frames == FRAMES
    assert run.learner.update_count > 0
