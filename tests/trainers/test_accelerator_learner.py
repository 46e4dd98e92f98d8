"""Learning on the emulated accelerator: the CPU's results, and where it waits for the device."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from reference.accelerator import DEVICE
from reference.tiny import tiny_batch, tiny_loss

from unilab.data import RewardNormalizer, SymmetryTransform, make_replay_buffer
from unilab.trainers import Evaluator, FlashSACLearner, ReplayContents

TICKS = 12


def on_cpu(state):
    return {path: value.cpu() for path, value in state.items()}


@pytest.mark.parametrize("settings", [{}, {"n_step": 3}, {"amp_dtype": "bfloat16"}])
def test_training_gives_the_cpus_results_bit_for_bit(session, differing, accelerator, settings):
    here, there = session(**settings), session(**settings, device=DEVICE)
    for run in (here, there):
        torch.manual_seed(0)
        run.train(TICKS, save=False)
    assert there.learner.update_count > 0
    assert there.learner.loss.log_alpha.device == there.buffer.sample().device == DEVICE
    assert differing(here.state(), on_cpu(there.state())) == []


@pytest.mark.parametrize(("device", "other"), [(DEVICE, "cpu"), ("cpu", DEVICE)])
def test_c22_a_checkpoint_continues_on_another_device(
    session, differing, accelerator, device, other
):
    saved = session(device=device)
    counters = saved.train(TICKS)
    assert saved.learner.update_count % saved.learner.actor_update_period  # next: critic only
    resumed = session(seed=1, device=other)
    resumed.checkpointer.load()
    assert differing(on_cpu(saved.state()), on_cpu(resumed.state())) == []
    for run in (saved, resumed):
        torch.manual_seed(0)
        run.env.set_seed(7)
        run.train(TICKS, counters, save=False)
    assert differing(on_cpu(saved.state()), on_cpu(resumed.state())) == []


def test_an_update_copies_nothing_and_does_not_wait(accelerator):
    learner = FlashSACLearner(tiny_loss().to(DEVICE))
    batch = tiny_batch().to(DEVICE)
    accelerator.clear()
    for _ in range(4):
        learner.update(batch)
    assert (accelerator.up, accelerator.down, accelerator.waits) == ([], [], [])


@pytest.mark.parametrize(("n_step", "up", "waits"), [(1, 0, 0), (3, 1, 1)])
def test_storing_and_sampling_wait_for_the_device_only_to_join_steps(
    accelerator, n_step, up, waits
):
    data = tiny_batch(4).reshape(4, 1).to(DEVICE)
    buffer = make_replay_buffer(100, 8, device=DEVICE, n_step=n_step, gamma=0.9)
    still = torch.arange(data["obs"].shape[-1]), torch.ones(data["obs"].shape[-1])
    buffer.append_transform(SymmetryTransform({"obs": still}))
    rewards = RewardNormalizer(0.9)
    for _ in range(n_step + 2):  # the first batch takes the mirror to the device
        accelerator.clear()
        rewards.update(data)
        buffer.extend(data)
        rewards.normalize(buffer.sample()) if len(buffer) else None
    assert (len(accelerator.up), accelerator.down, len(accelerator.waits)) == (up, [], waits)


def test_a_row_of_metrics_waits_once_for_losses_and_once_for_episodes(session, accelerator):
    run = session(device=DEVICE)
    run.train(TICKS, save=False, log_interval_s=0.0)
    assert run.runner.exit_code == 0, "no signal from elsewhere ended it early"
    events = [*accelerator.down, *accelerator.waits]
    waited = Counter(e.where.split()[-1] for e in events if e.where.startswith("trainers/runner"))
    assert waited == {"_mean_updates": run.learner.update_count, "drain": TICKS}


def test_an_evaluation_waits_once_a_step_and_for_its_three_results(session, accelerator):
    run = session(device=DEVICE)
    evaluate = Evaluator(run.env, run.policy, max_steps=5)
    accelerator.clear()
    evaluate()
    waited = Counter(e.where.split()[0] for e in accelerator.waits if "evaluation" in e.where)
    assert sorted(waited.values()) == [1, 1, 1, 5]
    assert not any("evaluation" in e.where for e in accelerator.down)


def test_replay_contents_move_to_another_device_and_keep_its_generator(accelerator):
    here, there = (make_replay_buffer(100, 8, device=d, seed=3) for d in ("cpu", DEVICE))
    there.extend(tiny_batch().to(DEVICE))
    ReplayContents(here).load_state_dict(ReplayContents(there).state_dict())
    assert here.state_dict()["_rng"][1] == "cpu"
    assert torch.equal(here.sample()["obs"], there.sample()["obs"].cpu())
