"""Model fields that differ between environments."""

import numpy as np
import torch

from unilab.backends import MujocoBackend

HEAVY = [1, 3]
OTHERS = [0, 2, 4]


def ball_pushed(backend: MujocoBackend) -> torch.Tensor:
    """Positions after the ball has slid on the floor for 0.4 s."""
    n = backend.num_envs
    qpos, qvel = backend.default_qpos.repeat(n, 1), torch.zeros(n, 9)
    qpos[:, 2], qvel[:, 0] = 0.1, 2.0
    backend.set_state_tensor(torch.arange(n), qpos, qvel)
    backend.step_tensor(torch.full((n, 2), 0.4), 100)
    return backend.get_state_views()["qpos"].clone()


def test_a_mass_changes_only_its_environments_and_agrees_with_a_model_compiled_so(
    backend, rig_model, rig_spec
):
    shared = ball_pushed(backend)
    lower = rig_model.body("lower").id
    masses = backend.expand("body_mass")
    masses[HEAVY, lower] = 0.9
    backend.expand("body_inertia")[HEAVY, lower] *= 3.0
    backend.set_const(torch.tensor(HEAVY))
    mixed = ball_pushed(backend)

    rig_spec.body("lower").geoms[0].mass = 0.9
    compiled = MujocoBackend(rig_spec.compile(), 1, keyframe="home")
    expected = ball_pushed(compiled)[0]
    assert torch.equal(mixed[OTHERS], shared[OTHERS])
    assert not torch.allclose(mixed[1, 7:], shared[1, 7:])
    torch.testing.assert_close(mixed[HEAVY], expected.expand(2, -1), rtol=0, atol=1e-12)


def test_a_reset_follows_a_fields_own_values(rig_model):
    """Whether an equality is on after a reset is a field of the model, too."""
    backend = MujocoBackend(rig_model, 3, keyframe="home")
    backend.expand("eq_active0")[1, 0] = 0
    home = backend.default_qpos.repeat(3, 1)
    backend.set_state_tensor(torch.arange(3), home, torch.zeros(3, 9))
    assert backend._batch.bind("eq_active")[:, 0].tolist() == [1, 0, 1]


def test_a_reset_is_the_same_by_copy_and_by_mujoco(rig_model):
    """Once a field is expanded that resets depend on, MuJoCo's own reset is used."""
    states = []
    for expand in (False, True):
        backend = MujocoBackend(rig_model, 4, keyframe="home")
        if expand:
            backend.expand("eq_active0")
        backend.step_tensor(torch.full((4, 2), 0.7), 30)
        home = backend.default_qpos.repeat(2, 1)
        backend.set_state_tensor(torch.tensor([0, 3]), home, torch.full((2, 9), 0.1))
        states.append(backend._batch.state.copy())
    np.testing.assert_array_equal(states[0], states[1])
