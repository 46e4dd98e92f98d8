"""FlashSAC (arXiv 2604.04539) in float64 NumPy, for tests.

Written from the algorithm's description alone, one sample, one member and one atom at a time where
that is plainest; it shares no code and no layout with the library. Parameters are flat dicts of
arrays under the library's ``state_dict`` names. Everything differentiable also runs on complex
numbers, so that :func:`gradient` can differentiate it by complex steps, exact to rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Arrays = dict[str, np.ndarray]

ADAM_BETAS = (0.9, 0.999)


def gradient(f: Callable[[Arrays], np.ndarray], params: Arrays, names: list[str]) -> Arrays:
    """Gradient of a real scalar function by complex steps: ``Im f(x + ih) / h``."""
    step = 1e-30
    out = {}
    for name in names:
        grad = np.zeros(params[name].shape)
        for index in np.ndindex(grad.shape):
            moved = params[name].astype(complex)
            moved[index] += 1j * step
            grad[index] = np.imag(f({**params, name: moved})) / step
        out[name] = grad
    return out


def unit_rows(weight: np.ndarray) -> np.ndarray:
    return weight / np.maximum(np.sqrt((weight**2).sum(-1, keepdims=True)), 1e-8)


def unit_scale_and_shift(weight: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    norm = np.sqrt((weight**2 + bias**2).sum(-1, keepdims=True) + 1e-8)
    factor = np.sqrt(weight.shape[-1]) / norm
    return weight * factor, bias * factor


def unit_scale(weight: np.ndarray) -> np.ndarray:
    return weight * np.sqrt(weight.shape[-1]) / np.sqrt((weight**2).sum(-1, keepdims=True) + 1e-8)


def normalized(params: Arrays) -> Arrays:
    """Every unit layer of a network back at its norm; head biases are free."""
    out = dict(params)
    for name, value in params.items():
        layer, _, leaf = name.rpartition(".")
        if leaf != "weight":
            continue
        if f"{layer}.running_mean" in params:
            out[name], out[f"{layer}.bias"] = unit_scale_and_shift(value, params[f"{layer}.bias"])
        elif layer == "norm":
            out[name] = unit_scale(value)
        else:
            out[name] = unit_rows(value)
    return out


def relu(x: np.ndarray) -> np.ndarray:
    return np.where(np.real(x) > 0, x, 0)


def batch_norm(
    p: Arrays, layer: str, x: np.ndarray, training: bool, stats: Arrays, momentum: float = 0.01
) -> np.ndarray:
    """Normalises ``[B, d]``; writes the moved running statistics to ``stats``."""
    mean, var = p[f"{layer}.running_mean"], p[f"{layer}.running_var"]
    if training:
        rows = len(x)
        batch_mean = x.sum(0) / rows
        squares = ((x - batch_mean) ** 2).sum(0)
        stats[f"{layer}.running_mean"] = np.real((1 - momentum) * mean + momentum * batch_mean)
        unbiased = squares / (rows - 1)
        stats[f"{layer}.running_var"] = np.real((1 - momentum) * var + momentum * unbiased)
        mean, var = batch_mean, squares / rows
    return (x - mean) / np.sqrt(var + 1e-5) * p[f"{layer}.weight"] + p[f"{layer}.bias"]


def rms_norm(weight: np.ndarray, x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weight


def trunk(p: Arrays, x: np.ndarray, training: bool, stats: Arrays) -> np.ndarray:
    """Embedder, blocks and RMS norm of one network: ``[B, in] -> [B, H]``."""
    h = batch_norm(p, "embedder.norm", x, training, stats) @ p["embedder.linear.weight"].T
    number = 0
    while f"blocks.{number}.linear1.weight" in p:
        block = f"blocks.{number}"
        y = h @ p[f"{block}.linear1.weight"].T
        y = relu(batch_norm(p, f"{block}.norm1", y, training, stats))
        y = y @ p[f"{block}.linear2.weight"].T
        h = relu(batch_norm(p, f"{block}.norm2", y, training, stats)) + h
        number += 1
    return rms_norm(p["norm.weight"], h)


def actor_heads(
    p: Arrays, obs: np.ndarray, training: bool, stats: Arrays
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and log standard deviation, ``[B, A]`` each."""
    h = trunk(p, obs, training, stats)
    mean = h @ p["mean_head.weight"].T + p["mean_head.bias"]
    raw = h @ p["std_head.weight"].T + p["std_head.bias"]
    return mean, -10 + 0.5 * (2 - -10) * (1 + np.tanh(raw))


def log_tanh_derivative(u: np.ndarray) -> np.ndarray:
    """``log(1 - tanh(u)^2) = -2 log cosh(u)``, with the large exponential taken out."""
    size = np.where(np.real(u) < 0, -u, u)
    return -2 * (size + np.log1p(np.exp(-2 * size)) - np.log(2))


def sample_action(
    p: Arrays,
    obs: np.ndarray,
    eps: np.ndarray,
    training: bool,
    stats: Arrays,
    low: float | np.ndarray = -1.0,
    high: float | np.ndarray = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Actions ``[B, A]`` for the noise ``eps`` and their log-densities ``[B]``."""
    mean, log_std = actor_heads(p, obs, training, stats)
    std = np.exp(log_std)
    u = mean + std * eps
    normal = -0.5 * ((u - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    half_width = (np.asarray(high) - np.asarray(low)) / 2
    log_prob = (normal - log_tanh_derivative(u) - np.log(half_width)).sum(-1)
    return np.asarray(low) + half_width * (np.tanh(u) + 1), log_prob


def member(p: Arrays, index: int) -> Arrays:
    """One network out of the ensemble's stacked arrays."""
    return {name: value[index] for name, value in p.items() if name != "support"}


def critic_log_p(
    p: Arrays, obs: np.ndarray, action: np.ndarray, training: bool, stats: Arrays
) -> np.ndarray:
    """Log-probabilities ``[E, B, K]``."""
    x = np.concatenate([obs, action], -1)
    outs, moved = [], []
    for index in range(len(p["head.weight"])):
        one, one_stats = member(p, index), {}
        logits = trunk(one, x, training, one_stats) @ one["head.weight"].T + one["head.bias"]
        top = np.real(logits).max(-1, keepdims=True)
        outs.append(logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True)))
        moved.append(one_stats)
    stats.update({name: np.stack([m[name] for m in moved]) for name in moved[0]})
    return np.stack(outs)


def value(log_p: np.ndarray, support: np.ndarray) -> np.ndarray:
    return (np.exp(log_p) * support).sum(-1)


def target_entropy(action_dim: int, sigma: float = 0.15) -> float:
    return 0.5 * action_dim * np.log(2 * np.pi * np.e * sigma**2)


def target_atoms(
    reward: np.ndarray,
    terminated: np.ndarray,
    next_log_prob: np.ndarray,
    alpha: float,
    discount: np.ndarray,
    support: np.ndarray,
) -> np.ndarray:
    atoms = np.zeros((len(reward), len(support)))
    for row in range(len(reward)):
        for k, z in enumerate(support):
            bootstrap = 0.0 if terminated[row] else z - alpha * next_log_prob[row]
            atoms[row, k] = reward[row] + discount[row] * bootstrap
    return np.clip(atoms, support[0], support[-1])


def project(atoms: np.ndarray, p: np.ndarray, support: np.ndarray) -> np.ndarray:
    """Every bin receives from an atom in proportion to how near it is: a tent of one step."""
    step = (support[-1] - support[0]) / (len(support) - 1)
    out = np.zeros((len(atoms), len(support)))
    for row in range(len(atoms)):
        for k, z in enumerate(support):
            out[row, k] = (p[row] * np.maximum(0, 1 - np.abs(atoms[row] - z) / step)).sum()
    return out


def actor_loss(
    actor: Arrays,
    critic: Arrays,
    batch: Arrays,
    alpha: float,
    eps: np.ndarray,
    bc_alpha: float,
    stats: Arrays,
) -> tuple[np.ndarray, np.ndarray]:
    """Loss and entropy; the actor sees obs and next_obs in one pass."""
    rows = len(batch["obs"])
    both = np.concatenate([batch["obs"], batch["next_obs"]])
    action, log_prob = sample_action(actor, both, eps, True, stats)
    action, log_prob = action[:rows], log_prob[:rows]
    values = value(critic_log_p(critic, batch["critic"], action, False, {}), critic["support"])
    q = np.where(np.real(values[0]) <= np.real(values[1]), values[0], values[1])
    loss = (alpha * log_prob - q).mean()
    if bc_alpha:
        weight = bc_alpha * np.abs(np.real(q)).mean()
        loss = loss + weight * ((action - batch["action"]) ** 2).mean()
    return loss, -np.real(log_prob).mean()


def critic_targets(
    actor: Arrays,
    target: Arrays,
    batch: Arrays,
    alpha: float,
    eps: np.ndarray,
    discount: np.ndarray,
    stats: Arrays,
) -> tuple[np.ndarray, np.ndarray]:
    """Projected target distribution ``[B, K]`` and the next action ``[B, A]``."""
    rows, support = len(batch["obs"]), target["support"]
    next_action, next_log_prob = sample_action(actor, batch["next_obs"], eps, False, {})
    log_p = critic_log_p(target, *_both(batch, next_action), True, stats)[:, rows:]
    values = value(log_p, support)
    p = np.stack([np.exp(log_p[np.argmin(values[:, row]), row]) for row in range(rows)])
    atoms = target_atoms(
        batch["reward"], batch["terminated"], next_log_prob, alpha, discount, support
    )
    return project(atoms, p, support), next_action


def critic_loss(
    critic: Arrays,
    batch: Arrays,
    target_p: np.ndarray,
    next_action: np.ndarray,
    stats: Arrays,
) -> np.ndarray:
    rows = len(batch["obs"])
    log_p = critic_log_p(critic, *_both(batch, next_action), True, stats)[:, :rows]
    return -(target_p * log_p).sum(-1).mean()


def _both(batch: Arrays, next_action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    obs = np.concatenate([batch["critic"], batch["next_critic"]])
    return obs, np.concatenate([batch["action"], next_action])


def learning_rate(
    step: int, init: float, peak: float, end: float, warmup_steps: int, decay_steps: int
) -> float:
    if step < warmup_steps:
        return init + (peak - init) * step / warmup_steps
    done = min(1.0, (step - warmup_steps) / decay_steps)
    return end + (peak - end) * (1 + np.cos(np.pi * done)) / 2


def zeta_law(longest: int = 16) -> np.ndarray:
    weights = np.array([1 / n**2 for n in range(1, longest + 1)])
    return weights / weights.sum()


class Adam:
    """Adam with the published defaults, and the learning rate given at each step."""

    def __init__(self) -> None:
        self.steps = 0
        self.first: Arrays = {}
        self.second: Arrays = {}

    def step(self, params: Arrays, grads: Arrays, lr: float) -> Arrays:
        self.steps += 1
        out = dict(params)
        for name, grad in grads.items():
            m = ADAM_BETAS[0] * self.first.get(name, 0.0) + (1 - ADAM_BETAS[0]) * grad
            v = ADAM_BETAS[1] * self.second.get(name, 0.0) + (1 - ADAM_BETAS[1]) * grad**2
            self.first[name], self.second[name] = m, v
            m_hat = m / (1 - ADAM_BETAS[0] ** self.steps)
            v_hat = v / (1 - ADAM_BETAS[1] ** self.steps)
            out[name] = params[name] - lr * m_hat / (np.sqrt(v_hat) + 1e-8)
        return out


class RewardScale:
    """Running statistics of each environment's discounted return."""

    def __init__(self, gamma: float, num_envs: int, v_max: float = 5.0) -> None:
        self.gamma, self.v_max = gamma, v_max
        self.returns = [0.0] * num_envs
        self.count, self.mean, self.var, self.largest = 0.0, 0.0, 1.0, 0.0

    def tick(self, reward: np.ndarray, done: np.ndarray) -> None:
        """One step of all environments, ``[N]`` each."""
        for i in range(len(reward)):
            self.returns[i] = self.gamma * (1 - done[i]) * self.returns[i] + reward[i]
        batch = np.array(self.returns)
        n, total = len(batch), self.count + len(batch)
        delta = batch.mean() - self.mean
        between = delta**2 * self.count * n / total
        self.var = (self.var * (self.count + 1e-4) + batch.var() * n + between) / total
        self.mean += delta * n / total
        self.count = total
        self.largest = max(self.largest, np.abs(batch).max())

    @property
    def scale(self) -> float:
        return max(np.sqrt(self.var + 1e-8), self.largest / self.v_max)
