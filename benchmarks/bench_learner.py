"""One learner update against its bare matrix products.

    python benchmarks/bench_learner.py [--compile] [--bf16] [--threads 2] [--clock cpu]

The floor is the matrix products of an update and nothing else: forward, and backward where a
gradient is needed, in the shapes and the number that flashsac needs them. An update is the mean of
one with an actor step and one without, as the actor steps every second update.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from tensordict import TensorDict
from timing import CLOCKS, interleaved, print_table
from torch import Tensor

from unilab.modules import FlashSACActor, FlashSACCritic
from unilab.objectives import FlashSACLoss
from unilab.trainers import FlashSACLearner

TARGET, BF16_TARGET = 1.6, 0.5
WARMUP = 4  # two updates of either kind


@dataclass(frozen=True)
class Size:
    """Widths of one configuration."""

    obs: int
    critic_obs: int
    action: int
    actor_hidden: int
    critic_hidden: int
    batch: int = 512
    members: int = 2
    bins: int = 101
    blocks: int = 2


SIZES = {
    "paper (67/67/21, 128/256)": Size(67, 67, 21, 128, 256),
    "go2 (45/49/12, 64/128)": Size(45, 49, 12, 64, 128),
}


@dataclass(frozen=True)
class Product:
    """One linear layer's products: ``y = x w^T`` and the products of its gradients."""

    x: Tensor
    w: Tensor
    grad_input: bool
    grad_weight: bool

    def __call__(self) -> None:
        y = self.x @ self.w.mT
        if self.grad_input:
            y @ self.w
        if self.grad_weight:
            y.mT @ self.x


def network(
    rows: int,
    head_rows: int,
    widths: tuple[int, int, int],
    *,
    blocks: int,
    members: int | None = None,
    heads: int = 1,
    grad_input: bool = False,
    grad_weight: bool = False,
) -> list[Product]:
    """Products of one pass; ``widths`` are input, hidden, output of a head."""
    inputs, hidden, outputs = widths
    lead = () if members is None else (members,)
    backward = grad_input or grad_weight

    def product(n: int, i: int, o: int, dx: bool) -> Product:
        return Product(torch.randn(*lead, n, i), torch.randn(*lead, o, i), dx, grad_weight)

    layers = [product(rows, inputs, hidden, grad_input)]
    for _ in range(blocks):
        layers.append(product(rows, hidden, 4 * hidden, backward))
        layers.append(product(rows, 4 * hidden, hidden, backward))
    return layers + [product(head_rows, hidden, outputs, backward) for _ in range(heads)]


def floors(size: Size) -> dict[str, Callable[[], None]]:
    """Bare products of an actor step and of a critic step."""
    b, actor = size.batch, (size.obs, size.actor_hidden, size.action)
    critic = (size.critic_obs + size.action, size.critic_hidden, size.bins)
    ensemble = {"blocks": size.blocks, "members": size.members}
    single = {"blocks": size.blocks, "heads": 2}
    steps = {
        "actor floor": [
            *network(2 * b, b, actor, **single, grad_weight=True),
            *network(b, b, critic, **ensemble, grad_input=True),
        ],
        "critic floor": [
            *network(b, b, actor, **single),  # next action
            *network(2 * b, b, critic, **ensemble),  # target
            *network(2 * b, b, critic, **ensemble, grad_weight=True),
        ],
    }
    return {name: lambda ps=products: [p() for p in ps] for name, products in steps.items()}


def make_learner(size: Size, **kwargs: object) -> FlashSACLearner:
    actor = FlashSACActor(size.obs, size.action, size.actor_hidden, size.blocks)
    critic = FlashSACCritic(
        size.critic_obs,
        size.action,
        size.critic_hidden,
        size.blocks,
        num_members=size.members,
        num_bins=size.bins,
    )
    return FlashSACLearner(FlashSACLoss(actor, critic, gamma=0.97), **kwargs)


def make_batch(size: Size) -> TensorDict:
    b = size.batch
    return TensorDict(
        {
            "obs": torch.randn(b, size.obs),
            "critic": torch.randn(b, size.critic_obs),
            "action": torch.rand(b, size.action) * 2 - 1,
            ("next", "obs"): torch.randn(b, size.obs),
            ("next", "critic"): torch.randn(b, size.critic_obs),
            ("next", "reward"): torch.randn(b, 1),
            ("next", "terminated"): torch.zeros(b, 1, dtype=torch.bool),
        },
        [b],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="pairs of updates to time")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--compile", action="store_true", help="time compile=True as well")
    parser.add_argument("--bf16", action="store_true", help="time amp_dtype=bfloat16 as well")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    variants: dict[str, dict[str, object]] = {"eager": {}}
    if args.compile:
        variants["compiled"] = {"compile": True}
    if args.bf16:
        variants["eager bf16"] = {"amp_dtype": "bfloat16"}
        if args.compile:
            variants["compiled bf16"] = {"amp_dtype": "bfloat16", "compile": True}

    rows = []
    for name, size in SIZES.items():
        batch = make_batch(size)
        contenders: dict[str, Callable[[], object]] = floors(size)
        first_update = {}
        for variant, kwargs in variants.items():
            learner = make_learner(size, **kwargs)
            start = time.perf_counter()
            learner.update(batch)
            first_update[variant] = time.perf_counter() - start
            for _ in range(WARMUP - 1):
                learner.update(batch)
            # Each is called once a round, so they alternate: with an actor step, without.
            contenders[f"{variant} both"] = partial(learner.update, batch)
            contenders[f"{variant} critic"] = partial(learner.update, batch)
        seconds = interleaved(contenders, args.rounds, args.clock)
        floor = seconds["critic floor"] + seconds["actor floor"] / 2
        rows.append((name, "matrix products", f"{floor * 1e3:.1f}", "1.00", ""))
        float32 = None
        for variant in variants:
            update = (seconds[f"{variant} both"] + seconds[f"{variant} critic"]) / 2
            float32 = float32 or update
            rows.append(
                (
                    "",
                    variant,
                    f"{update * 1e3:.1f}",
                    f"{update / floor:.2f}",
                    f"{first_update[variant]:.1f}",
                )
            )
    print_table(("configuration", "update", "ms", "x products", "first update, s"), rows)
    print(f"\ntarget: float32 <= {TARGET} x products; bf16 <= {BF16_TARGET} x the float32 update")
    print("where the CPU multiplies bf16 matrices in hardware (mkldnn: ", end="")
    print(f"{torch.ops.mkldnn._is_mkldnn_bf16_supported()}).")


if __name__ == "__main__":
    main()
