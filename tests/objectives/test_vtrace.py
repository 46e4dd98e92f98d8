"""V-trace advantages against the sums of the paper (Espeholt et al., 2018, section 4.1)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import ValueOperator
from torchrl.objectives import ClipPPOLoss

from unilab.modules import GaussianActor, GaussianPolicy, ValueNetwork
from unilab.objectives import VTrace
from unilab.trainers import PPOLearner
from unilab.trainers.ppo_learner import divergence

N, T, GAMMA, RHO, C = 5, 9, 0.9, 1.1, 0.8


def networks() -> tuple[GaussianPolicy, ValueOperator]:
    torch.manual_seed(0)
    actor = GaussianActor(3, 2, [8], init_std=0.5)
    torch.nn.init.orthogonal_(actor.mean_head.weight)
    return GaussianPolicy(actor), ValueOperator(ValueNetwork(3, [8]), in_keys=["obs"])


def vtrace(policy: GaussianPolicy, value: ValueOperator, **settings: float | bool) -> VTrace:
    return VTrace(gamma=GAMMA, actor_network=policy, value_network=value, **settings)


def lagged(policy: GaussianPolicy) -> TensorDict:
    """A rollout, before the policy moves; it has every kind of episode end."""
    terminated, truncated = (torch.rand(N, T, 1) < share for share in (0.15, 0.15))
    terminated[0, 2], truncated[0, 2] = True, True
    terminated[1, 3], truncated[1, 3] = False, True
    terminated[2, -1], truncated[2, -1] = False, True
    after = {"obs": torch.randn(N, T, 3), "reward": torch.randn(N, T, 1)}
    after |= {"terminated": terminated, "done": terminated | truncated}
    data = TensorDict({"obs": torch.randn(N, T, 3), "next": after}, [N, T])
    with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
        policy(data)
        policy.actor.mean_head.bias += torch.tensor([0.3, -0.2])
        policy.actor.log_std += 0.1
    return data


def log_density(policy: GaussianPolicy, data: TensorDict) -> np.ndarray:
    with torch.no_grad():
        moments = policy.actor.get_mean_and_std(data["obs"].reshape(N * T, -1))
        mean, std = (each.view(N, T, -1).double().numpy() for each in moments)
    z = (data["action"].double().numpy() - mean) / std
    return (-0.5 * z**2 - np.log(std) - 0.5 * np.log(2 * np.pi)).sum(-1)


@pytest.mark.parametrize("interaction", [ExplorationType.RANDOM, ExplorationType.DETERMINISTIC])
def test_targets_and_advantages_are_the_papers_sums_over_each_episode(interaction):
    """A time limit bootstraps from the observation before the reset; a fall does not."""
    policy, value = networks()
    data = lagged(policy)
    rho = np.exp(log_density(policy, data) - data["action_log_prob"].double().numpy())
    assert (rho > RHO).any()
    assert (rho < C).any()
    with torch.no_grad():
        now, after = (
            value.module(each["obs"]).double().numpy()[..., 0] for each in (data, data["next"])
        )
    reward, terminated, done = (
        data["next", key].double().numpy()[..., 0] for key in ("reward", "terminated", "done")
    )
    after = after * (1.0 - terminated)
    target, advantage = np.zeros((N, T)), np.zeros((N, T))
    for n in range(N):
        for s in range(T):
            target[n, s], weight = now[n, s], 1.0
            for t in range(s, T):
                error = reward[n, t] + GAMMA * after[n, t] - now[n, t]
                target[n, s] += weight * min(RHO, rho[n, t]) * error
                weight *= GAMMA * min(C, rho[n, t])
                if done[n, t]:
                    break
        for s in range(T):
            ends = done[n, s] or s == T - 1
            later = after[n, s] if ends else target[n, s + 1]
            advantage[n, s] = min(RHO, rho[n, s]) * (reward[n, s] + GAMMA * later - now[n, s])
    with set_exploration_type(interaction):
        out = vtrace(policy, value, rho_thresh=RHO, c_thresh=C)(data.copy())
    np.testing.assert_allclose(out["value_target"][..., 0], target, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(out["advantage"][..., 0], advantage, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(out["state_value"][..., 0], now, rtol=1e-5)


def test_a_learner_starts_each_rollout_at_ratios_of_1_though_its_policy_has_moved():
    policy, value = networks()
    data = lagged(policy)
    loss = ClipPPOLoss(policy, value, functional=False)
    learner = PPOLearner(loss, vtrace(policy, value, average_adv=True))
    rollout = learner.add_advantages(data)
    moved = rollout.copy().set("action_log_prob", data["action_log_prob"].reshape(-1))
    assert divergence(loss(moved)) > 0.1
    metrics = [learner.update(rollout) for _ in range(3)]
    assert metrics[0]["kl"].item() == pytest.approx(0.0, abs=1e-6)
    assert metrics[2]["kl"] > 1e-6
    assert rollout["advantage"].std().item() == pytest.approx(1.0, abs=1e-4)


def test_advantages_that_are_equal_for_all_actions_do_not_move_a_policy_with_lag():
    """Else an error of the values would continue the last step, e.g. narrow the policy further."""
    policy, value = networks()
    data = lagged(policy)
    data["next", "terminated"].fill_(True)
    data["next", "done"].fill_(True)
    with torch.no_grad():
        data["next", "reward"] = value.module(data["obs"]) + 1.0
    out = vtrace(policy, value, average_adv=True)(data)
    assert out["advantage"].abs().max() < 0.1
