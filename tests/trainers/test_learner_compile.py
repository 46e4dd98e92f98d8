"""``FlashSACLearner(compile=True)``: the same updates, eager ones without a compiler."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from reference.tiny import tiny_actor, tiny_batch, tiny_critic
from torch import Tensor, nn

from unilab.objectives import FlashSACLoss
from unilab.trainers import FlashSACLearner

TESTS = Path(__file__).parents[1]


class OutsideActor(nn.Module):
    """An actor with Python code that does not compile as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny_actor()
        self.calls: list[str] = []

    def forward(self, obs: Tensor, training: bool) -> tuple[Tensor, dict[str, Tensor]]:
        self.calls.append(f"{training} {obs.sum().item():.1f}")
        return self.inner(obs, training)

    def normalize_parameters(self) -> None:
        self.inner.normalize_parameters()


def learner(**settings: object) -> FlashSACLearner:
    return FlashSACLearner(FlashSACLoss(OutsideActor(), tiny_critic()), **settings)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.parametrize("amp_dtype", [None, "bfloat16"])
def test_compiled_updates_are_the_eager_ones_and_compile_once(amp_dtype):
    torch._dynamo.reset()
    eager, compiled = (learner(amp_dtype=amp_dtype, compile=on) for on in (False, True))
    for update in range(4):
        metrics = []
        for one in (eager, compiled):
            torch.manual_seed(update)
            # from the second update on, compiling anything again is an error
            with torch._dynamo.config.patch(error_on_recompile=update > 0):
                metrics.append(one.update(tiny_batch(seed=update)))
        for name, want in metrics[0].items():
            torch.testing.assert_close(metrics[1][name], want, rtol=1e-4, atol=1e-4)
        statistics = compiled.loss.state_dict()
        for name, want in eager.loss.state_dict().items():
            if "running" in name:
                torch.testing.assert_close(statistics[name], want, rtol=1e-4, atol=1e-4)
    terms = compiled.loss.critic_terms
    assert type(terms._call).__name__ != "method"  # it did not fall back
    # A copy of the loss compiles its own critic's terms, and without compilation none are.
    assert copy.deepcopy(compiled.loss).critic_terms._eager.__self__ is not compiled.loss
    assert FlashSACLearner(compiled.loss).loss.critic_terms is not terms
    assert len(compiled.loss.actor.calls) == 6


@pytest.mark.slow
def test_without_a_compiler_the_first_update_warns_once_and_all_are_eager(tmp_path):
    script = textwrap.dedent("""
        import warnings
        import torch
        from reference.tiny import tiny_batch, tiny_loss
        from unilab.trainers import FlashSACLearner

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            compiled = FlashSACLearner(tiny_loss(), compile=True)
            eager = FlashSACLearner(tiny_loss())
            for update in range(3):
                for learner in (compiled, eager):
                    torch.manual_seed(update)
                    learner.update(tiny_batch(seed=update))
        ours = [str(w.message) for w in caught if "updates run eagerly" in str(w.message)]
        assert len(ours) == 1, ours
        assert "compile=False" in ours[0], ours
        for name, value in eager.loss.state_dict().items():
            assert torch.equal(compiled.loss.state_dict()[name], value), name
        print("eager it is")
    """)
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={
            **os.environ,
            "CXX": "/nonexistent",
            "PYTHONPATH": str(TESTS),
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),  # nothing compiled before
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.endswith("eager it is\n"), done.stdout + done.stderr
