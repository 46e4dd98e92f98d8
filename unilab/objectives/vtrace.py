"""V-trace advantages."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torchrl.objectives import value
from torchrl.objectives.value.functional import vtrace_advantage_estimate


class VTrace(value.VTrace):
    """TorchRL's V-trace (Espeholt et al., arXiv 1802.01561), with the rollout's actions.

    TorchRL 0.14 weighs each step by the density of a newly drawn action; this class takes the
    action of the rollout. It also replaces the rollout's log-probabilities by the present policy's:
    a PPO loss on the result starts with ratios of 1, and clips and measures its divergence from the
    policy before the first update, as the lag is in the advantages already (Hilton et al., arXiv
    2110.00641).

    With ``average_adv`` the advantages have mean 0 and standard deviation 1 over the rollout, and
    what all actions have in common is removed before the weights.

    Args are TorchRL's. On data of the present policy ``c_thresh`` is the lambda of the returns.
    """

    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write ``advantage``, ``value_target``, ``state_value`` and ``action_log_prob``.

        Args:
            tensordict: ``[N, T]`` in time order. Where an episode ended only by a time limit, the
                value of the observation under ``"next"`` continues its return.
        """
        keys, after = self.tensor_keys, tensordict.get("next")
        values = [
            self.value_network(each.select(*self.value_network.in_keys)).get(keys.value)
            for each in (tensordict, after)
        ]
        dist = self.actor_network.get_dist(tensordict.select(*self.actor_network.in_keys))
        log_prob = dist.log_prob(tensordict.get(self.actor_network.dist_sample_keys[0]))
        collected = tensordict.get(keys.sample_log_prob)
        advantage, target = vtrace_advantage_estimate(
            self.gamma,
            log_prob.view_as(values[0]),
            collected.view_as(values[0]),
            *values,
            after.get(keys.reward),
            after.get(keys.done),
            after.get(keys.terminated),
            rho_thresh=self.rho_thresh,
            c_thresh=self.c_thresh,
            time_dim=-2,
        )
        if self.average_adv:
            # Without the weights the mean would have a gradient, along the last updates.
            weight = (log_prob.view_as(advantage) - collected.view_as(advantage)).exp()
            weight = weight.clamp_max(self.rho_thresh)
            advantage = advantage - weight * (advantage.mean() / weight.mean())
            advantage = advantage / advantage.std().clamp_min(1e-5)
        tensordict.set(keys.value, values[0])
        tensordict.set(keys.advantage, advantage)
        tensordict.set(keys.value_target, target)
        return tensordict.set(keys.sample_log_prob, log_prob.view_as(collected))
