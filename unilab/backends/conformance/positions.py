"""Clauses on positions, for backends that publish them under MuJoCo's names."""

from __future__ import annotations

import torch
from torch import Tensor

from unilab.backends.base import SimBackend
from unilab.backends.conformance.subject import N, Subject, poses

_RTOL, _ATOL = 1e-4, 1e-5


def positions_follow_the_pose(it: Subject) -> None:
    """``xpos``, and with ``xmat`` also ``geom_xpos`` and ``site_xpos``, as far as published."""
    with it.made(N) as (backend,):
        if "xpos" not in backend.get_state_views():
            return
        qpos, qvel = _turned(backend)
        backend.set_state_tensor(torch.arange(N), qpos, qvel)
        bodies = _blocks(backend, "xpos", 3)
        assert bodies.shape[1] == len(backend.bodies), (
            f"xpos has {bodies.shape[1]} positions: there are {len(backend.bodies)} bodies"
        )
        assert not bodies[:, 0].any(), f"xpos of {backend.bodies[0]!r} is not the origin"
        for joint in backend.joints:
            if joint.type == "free":
                at = bodies[:, backend.bodies.index(joint.body)]
                expected = qpos[:, joint.qpos][:, :3]
                assert torch.allclose(at, expected, rtol=_RTOL, atol=_ATOL), (
                    f"xpos of {joint.body!r} is {at[0].tolist()}, its joint is at "
                    f"{expected[0].tolist()}"
                )
        if "xmat" not in backend.get_state_views():
            return
        frames = _blocks(backend, "xmat", 9).unflatten(-1, (3, 3))
        for name in ("geom_xpos", "site_xpos"):
            if name in backend.get_state_views():
                points = _blocks(backend, name, 3)
                # [N, points, bodies, 3], each point as each body sees it
                seen = torch.einsum("npbi,nbij->npbj", points[:, :, None] - bodies[:, None], frames)
                fixed = torch.isclose(seen, seen[:1], rtol=_RTOL, atol=_ATOL).all(-1).all(0)
                if name == "geom_xpos":
                    own = [backend.bodies.index(geom.body) for geom in backend.geoms]
                    fixed = fixed[torch.arange(len(own)), own].unsqueeze(1)
                loose = (~fixed.any(1)).nonzero().flatten().tolist()
                assert not loose, f"{name} of {loose} moves against its body"


def _turned(backend: SimBackend) -> tuple[Tensor, Tensor]:
    """States near home, with free bodies turned too."""
    qpos, qvel = poses(backend, 0)
    for joint in backend.joints:
        if joint.type in ("free", "ball"):
            angle = torch.arange(N).double()
            quat = torch.stack((angle.cos(), *(angle.sin() * x for x in (0.48, 0.6, 0.64))), 1)
            qpos[:, joint.qpos.stop - 4 : joint.qpos.stop] = quat
    return qpos, qvel


def a_joint_moves_the_bodies_below_it(it: Subject) -> None:
    with it.made(1) as (backend,):
        if "xpos" not in backend.get_state_views():
            return
        row, home = torch.tensor([0]), backend.default_qpos.unsqueeze(0)
        still = torch.zeros_like(poses(backend, 0)[1])
        backend.set_state_tensor(row, home, still)
        before = _blocks(backend, "xpos", 3)[0]
        for joint in backend.joints:
            if joint.type == "ball":
                continue
            qpos = home.clone()
            qpos[0, joint.qpos.start] += 0.1
            backend.set_state_tensor(row, qpos, still)
            apart = (_blocks(backend, "xpos", 3)[0] - before).abs().amax(1) > 1e-5
            moved = {b for b, on in zip(backend.bodies, apart.tolist(), strict=True) if on}
            tree = backend.subtree(joint.body)
            assert moved <= tree, (
                f"joint {joint.name!r} moves {sorted(moved - tree)}: subtree({joint.body!r}) "
                f"is {sorted(tree)}"
            )
            assert joint.type == "hinge" or moved == tree, (
                f"joint {joint.name!r} does not move {sorted(tree - moved)} of "
                f"subtree({joint.body!r})"
            )


def subtree_com_is_the_mean_of_its_masses(it: Subject) -> None:
    with it.made(N) as (backend,):
        capabilities, views = backend.get_tensor_capabilities(), backend.get_state_views()
        known = "body_mass" in capabilities.model_fields
        if not ({"subtree_com", "xipos"} <= set(views) and known):
            return
        backend.set_state_tensor(torch.arange(N), *_turned(backend))
        masses = backend.expand("body_mass").reshape(N, -1, 1).double()
        centres, means = _blocks(backend, "xipos", 3), _blocks(backend, "subtree_com", 3)
        for i, body in enumerate(backend.bodies):
            below = [backend.bodies.index(b) for b in backend.subtree(body)]
            mass = masses[:, below]
            if (mass.sum(1) > 0.0).all():
                mean = (mass * centres[:, below]).sum(1) / mass.sum(1)
                assert torch.allclose(means[:, i], mean, rtol=_RTOL, atol=_ATOL), (
                    f"subtree_com of {body!r} is {means[0, i].tolist()}: the mean of "
                    f"subtree({body!r}) is {mean[0].tolist()}"
                )


def _blocks(backend: SimBackend, name: str, width: int) -> Tensor:
    return backend.get_state_views()[name].double().reshape(backend.num_envs, -1, width).clone()


CLAUSES = (
    positions_follow_the_pose,
    a_joint_moves_the_bodies_below_it,
    subtree_com_is_the_mean_of_its_masses,
)
