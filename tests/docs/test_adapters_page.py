"""The code of the page on other libraries runs as it stands."""

from __future__ import annotations

import pytest
from docs.pages import blocks

from unilab.envs import TorchEnv

pytest.importorskip("gymnasium", reason="needs Gymnasium: pip install 'unilab-torchrl[gym]'")
pytest.importorskip("rsl_rl", reason="needs RSL-RL: pip install 'unilab-torchrl[rsl-rl]'")


def test_adapters_page_runs_from_top_to_bottom(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict = {}
    for block in blocks("guide/adapters.md", "python"):
        exec(compile(block, "docs/guide/adapters.md", "exec"), names)

    assert "(16, 45) (16, 49) AutoresetMode.SAME_STEP" in capsys.readouterr().out
    assert names["learner"].update_count == 11
    assert not isinstance(names["pendulums"](), TorchEnv)
    assert all(bool(v.isfinite()) for v in names["metrics"].values())
    assert names["runner"].current_learning_iteration == 1
    assert names["runner"].alg.critic.obs_dim == 49
