"""Event terms that vary the model between environments: domain randomization.

For every mode of events. A term draws around the values of the model file, not around its last
draw, so it may run at every reset. If several terms write the same parameter, the last one counts.

``operation`` is what a draw does to the model's value; ``distribution`` is how it is drawn, from
bounds or, for ``gaussian``, from mean and deviation; ``asset_cfg`` selects bodies, geoms or joints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from unilab.checks import check_range
from unilab.envs.entity import SceneEntityCfg, require_ids
from unilab.envs.managers.event import EventTermCfg
from unilab.envs.managers.term import ManagerTermBase, writes
from unilab.errors import CapabilityError, ConfigError

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv

__all__ = [
    "randomize_actuator_gains",
    "randomize_encoder_bias",
    "randomize_geom_friction",
    "randomize_joint_parameters",
    "randomize_physics_scene_gravity",
    "randomize_rigid_body_com",
    "randomize_rigid_body_mass",
]

_ROBOT = SceneEntityCfg("robot")
Range = tuple[float, float]
Operation = Literal["add", "scale", "abs"]
Distribution = Literal["uniform", "log_uniform", "gaussian"]
_DEVIATIONS = 4.0
"""A gaussian draw is clamped to this many standard deviations: 1 in 16,000 lies further out."""


@dataclass(frozen=True)
class Draw:
    """Random values around the model's own."""

    params: Range
    """Bounds, or mean and standard deviation of a gaussian."""
    operation: Operation
    """What a draw does to the model's value."""
    distribution: Distribution = "uniform"

    def __post_init__(self) -> None:
        low, high = self.params
        if self.distribution != "gaussian":
            check_range("range", self.params)
        elif not 0.0 <= high < math.inf or not math.isfinite(low):
            raise ConfigError(f"(mean, deviation) must be finite and (., >= 0), got {self.params}")
        if self.distribution == "log_uniform" and not low > 0.0:
            raise ConfigError(f"range must be positive for log_uniform, got {self.params}")

    def around(
        self,
        env: ManagerBasedRlEnv,
        env_ids: Tensor,
        nominal: Tensor,
        shape: tuple[int, ...] | None = None,
        not_negative: str = "",
    ) -> Tensor:
        """Drawn values ``[n, *nominal.shape]`` around the model's own, ``[m, ...]``.

        ``shape`` is that of one environment's draws, broadcast; None draws for every value.
        ``not_negative`` names a parameter that no draw may make negative.
        """
        checked = not_negative and env.scene.in_first_call
        if checked and (least := self._least(nominal).min()) < 0.0:
            raise ConfigError(
                f"{not_negative} must be at least 0, got down to {float(least):g} from "
                f"{self._shown()}"
            )
        size = (env_ids.shape[0], *(shape or nominal.shape))
        draw = torch.empty(size, dtype=nominal.dtype, device=env.device)
        if self.distribution == "uniform":
            draw.uniform_(*self.params, generator=env.generator)
        elif self.distribution == "log_uniform":
            bounds = torch.tensor(self.params, dtype=nominal.dtype).log().tolist()
            draw.uniform_(*bounds, generator=env.generator).exp_()
        else:
            draw.normal_(*self.params, generator=env.generator).clamp_(*self._bounds())
        return self._apply(nominal, draw)

    def check_positive(
        self, env: ManagerBasedRlEnv, ids: Tensor, nominal: Tensor, what: str
    ) -> None:
        """Refuse, in the term's first call, draws that could make a body's parameter 0 or negative.

        Bodies whose own value is 0, such as frames, may be scaled.
        """
        if not env.scene.in_first_call:
            return
        frames = (nominal == 0.0) & (self.operation == "scale")
        least = self._least(nominal)
        wrong = (least <= 0.0) & ~frames
        if frames.all() or wrong.any():
            bad = frames if frames.all() else wrong
            bodies = ", ".join(env.backend.bodies[i] for i in ids[bad])
            raise ConfigError(
                f"{what} of {bodies} must be above 0, got down to {float(least[bad].min()):g} from "
                f"{self._shown()}: choose other bodies with body_names"
            )

    def _bounds(self) -> Range:
        if self.distribution != "gaussian":
            return self.params
        mean, deviation = self.params
        return mean - _DEVIATIONS * deviation, mean + _DEVIATIONS * deviation

    def _least(self, nominal: Tensor) -> Tensor:
        """The least possible values."""
        ends = torch.tensor(self._bounds(), dtype=nominal.dtype, device=nominal.device)
        return self._apply(nominal, ends.reshape(2, *(1,) * nominal.ndim)).amin(0)

    def _apply(self, nominal: Tensor, draw: Tensor) -> Tensor:
        """``[n, *nominal.shape]`` from draws ``[n, ...]``."""
        if self.operation == "abs":
            return draw.expand(draw.shape[0], *nominal.shape)
        return nominal + draw if self.operation == "add" else nominal * draw

    def _shown(self) -> str:
        reach = f" at {_DEVIATIONS:g} deviations" if self.distribution == "gaussian" else ""
        return f"{self.operation} {self.params}{reach}"


@writes("body_mass", "body_inertia", of=("body",))
def randomize_rigid_body_mass(
    env: ManagerBasedRlEnv,
    env_ids: Tensor,
    mass_distribution_params: Range,
    operation: Operation,
    asset_cfg: SceneEntityCfg = _ROBOT,
    distribution: Distribution = "uniform",
    recompute_inertia: bool = True,
) -> None:
    """Vary the mass of bodies.

    Args:
        mass_distribution_params: kg for ``add`` and ``abs``, a factor for ``scale``.
        operation: ``scale`` skips bodies without mass.
        recompute_inertia: scale the inertia with the mass, as a change of density would.
    """
    ids = require_ids(asset_cfg.body_ids)
    nominal = env.scene.nominal("body_mass")[ids]
    draw = Draw(mass_distribution_params, operation, distribution)
    draw.check_positive(env, ids, nominal, "mass")
    mass = draw.around(env, env_ids, nominal)
    env.scene.write_field("body_mass", (ids,), mass)
    if recompute_inertia:
        ratio = torch.where(nominal > 0.0, mass / nominal, 1.0)
        inertia = env.scene.nominal("body_inertia")[ids] * ratio.unsqueeze(-1)
        env.scene.write_field("body_inertia", (ids,), inertia)


@writes("body_ipos", "body_sameframe", "body_simple", "dof_simplenum", of=("body",))
def randomize_rigid_body_com(
    env: ManagerBasedRlEnv,
    env_ids: Tensor,
    com_range: dict[str, Range],
    asset_cfg: SceneEntityCfg = _ROBOT,
) -> None:
    """Move the centre of mass of bodies by a uniform offset.

    Args:
        com_range: offsets in m by axis of the body frame (x, y, z); 0 if absent.
    """
    ids = require_ids(asset_cfg.body_ids)
    nominal = env.scene.nominal("body_ipos")[ids]
    moved = nominal.expand(env_ids.shape[0], -1, -1).clone()
    for axis, span in com_range.items():
        if axis not in ("x", "y", "z"):
            raise ConfigError(f"axis of com_range must be x, y or z, got {axis!r}")
        column = "xyz".index(axis)
        moved[..., column] = Draw(span, "add").around(env, env_ids, nominal[:, column])
    env.scene.write_field("body_ipos", (ids,), moved)
    # MuJoCo's short cuts for bodies whose centre of mass is their origin no longer hold.
    for name in ("body_sameframe", "body_simple", "dof_simplenum"):
        everything = torch.arange(env.scene.nominal(name).shape[0], device=env.scene.physics)
        none = everything.new_zeros(env_ids.shape[0], len(everything))
        env.scene.write_field(name, (everything,), none)


@writes("geom_friction", of=("geom", "body"))
def randomize_geom_friction(
    env: ManagerBasedRlEnv,
    env_ids: Tensor,
    friction_distribution_params: Range,
    operation: Operation = "abs",
    asset_cfg: SceneEntityCfg = _ROBOT,
    distribution: Distribution = "uniform",
) -> None:
    """Vary the sliding friction of geoms, one draw for all geoms of an environment.

    MuJoCo uses the larger friction of the two geoms of a contact, or the one of the geom with the
    higher ``priority``.

    Args:
        friction_distribution_params: coefficients for ``add`` and ``abs``, a factor for ``scale``.
    """
    ids = require_ids(asset_cfg.geom_ids)
    nominal = env.scene.nominal("geom_friction")[ids, 0]
    draw = Draw(friction_distribution_params, operation, distribution)
    friction = draw.around(env, env_ids, nominal, shape=(1,), not_negative="friction")
    env.scene.write_field("geom_friction", (ids, 0), friction)


@writes("dof_frictionloss", "dof_armature", "dof_damping", of=("joint",))
def randomize_joint_parameters(
    env: ManagerBasedRlEnv,
    env_ids: Tensor,
    friction_distribution_params: Range | None = None,
    armature_distribution_params: Range | None = None,
    damping_distribution_params: Range | None = None,
    operation: Operation = "scale",
    asset_cfg: SceneEntityCfg = _ROBOT,
    distribution: Distribution = "uniform",
) -> None:
    """Vary dry friction (N m), armature (kg m^2) and damping (N m s/rad) of joints.

    Args:
        friction_distribution_params, armature_distribution_params, damping_distribution_params:
            the draw of each; None leaves it alone.
    """
    dofs = env.scene[asset_cfg.name].dof_ids[asset_cfg.joint_ids]
    for name, params in (
        ("dof_frictionloss", friction_distribution_params),
        ("dof_armature", armature_distribution_params),
        ("dof_damping", damping_distribution_params),
    ):
        if params is not None:
            nominal = env.scene.nominal(name)[dofs]
            draw = Draw(params, operation, distribution)
            drawn = draw.around(env, env_ids, nominal, not_negative=name)
            env.scene.write_field(name, (dofs,), drawn)


@writes("actuator_gainprm", "actuator_biasprm", of=("actuator", "joint"))
class randomize_actuator_gains(ManagerTermBase):
    """Vary the gains of position actuators, DC motors among them, at their joints.

    Args:
        stiffness_distribution_params: N m/rad, or a factor; None leaves it alone.
        damping_distribution_params: N m s/rad, or a factor; None leaves it alone.
    """

    def __init__(self, cfg: EventTermCfg, env: ManagerBasedRlEnv) -> None:
        super().__init__(cfg, env)
        ids = require_ids(cfg.params["asset_cfg"].actuator_ids)
        chosen = [env.backend.actuators[i] for i in ids]
        dc_motors = [math.isfinite(a.saturation_effort) for a in chosen]
        self._affine = torch.tensor([not dc for dc in dc_motors], device=env.device)
        self._has_affine, self._has_dc_motors = not all(dc_motors), any(dc_motors)
        # MuJoCo has the gains of a DC motor at 4 and 6 of its gainprm.
        self._stiffness_at = torch.where(self._affine, 0, 4)
        held = env.scene.nominal("actuator_gainprm")[ids, self._stiffness_at].tolist()
        bad = [
            a.name
            for a, gain in zip(chosen, held, strict=True)
            if a.stiffness != a.gain
            or not math.isclose(a.gain, gain, rel_tol=1e-6)  # physics may keep it in float32
            or not gain
            or a.bias
        ]
        if bad:
            raise CapabilityError(
                f"actuators {bad} must be position actuators whose gain is the stiffness of their "
                "bias: choose others with actuator_names"
            )
        gear2 = [a.gear**2 for a in chosen]
        self._gear2 = torch.tensor(gear2, dtype=torch.float64, device=env.device)

    def __call__(
        self,
        env: ManagerBasedRlEnv,
        env_ids: Tensor,
        stiffness_distribution_params: Range | None = None,
        damping_distribution_params: Range | None = None,
        operation: Operation = "scale",
        asset_cfg: SceneEntityCfg = _ROBOT,
        distribution: Distribution = "uniform",
    ) -> None:
        ids, gains = require_ids(asset_cfg.actuator_ids), env.scene.nominal("actuator_gainprm")
        affine, dc_motors = self._affine, ~self._affine
        if stiffness_distribution_params is not None:
            nominal = gains[ids, self._stiffness_at] * self._gear2
            draw = Draw(stiffness_distribution_params, operation, distribution)
            stiffness = draw.around(env, env_ids, nominal, not_negative="stiffness") / self._gear2
            env.scene.write_field("actuator_gainprm", (ids, self._stiffness_at), stiffness)
            if self._has_affine:
                bias = -stiffness[:, affine]
                env.scene.write_field("actuator_biasprm", (ids[affine], 1), bias)
        if damping_distribution_params is not None:
            biases = env.scene.nominal("actuator_biasprm")
            nominal = torch.where(affine, -biases[ids, 2], gains[ids, 6]) * self._gear2
            draw = Draw(damping_distribution_params, operation, distribution)
            damping = draw.around(env, env_ids, nominal, not_negative="damping") / self._gear2
            if self._has_affine:
                bias = -damping[:, affine]
                env.scene.write_field("actuator_biasprm", (ids[affine], 2), bias)
            if self._has_dc_motors:
                gain = damping[:, dc_motors]
                env.scene.write_field("actuator_gainprm", (ids[dc_motors], 6), gain)


@writes("opt.gravity")
def randomize_physics_scene_gravity(
    env: ManagerBasedRlEnv,
    env_ids: Tensor,
    gravity_distribution_params: tuple[tuple[float, float, float], tuple[float, float, float]],
    operation: Operation = "add",
    distribution: Distribution = "uniform",
) -> None:
    """Vary gravity (m/s^2); ``projected_gravity`` still points down the world's z axis.

    Args:
        gravity_distribution_params: lower and upper bounds, x, y and z each.
    """
    nominal = env.scene.nominal("opt.gravity")
    drawn = [
        Draw(params, operation, distribution).around(env, env_ids, nominal[i : i + 1])
        for i, params in enumerate(zip(*gravity_distribution_params, strict=True))
    ]
    env.scene.write_field("opt.gravity", (torch.arange(3),), torch.cat(drawn, dim=1))


@writes(of=("joint",))
def randomize_encoder_bias(
    env: ManagerBasedRlEnv,
    env_ids: Tensor,
    bias_range: Range,
    asset_cfg: SceneEntityCfg = _ROBOT,
) -> None:
    """Draw an offset for each encoder (rad): what it reads above the joint's position.

    ``joint_pos_rel(biased=True)`` reads the encoders, and so do the position actuators of joints,
    also those that no action drives; actuators of tendons do not.
    """
    bias = env.scene[asset_cfg.name].data.encoder_bias
    columns = torch.arange(bias.shape[1], device=bias.device)[asset_cfg.joint_ids]
    drawn = Draw(bias_range, "abs").around(env, env_ids, bias[0, columns])
    env.scene.write_tensor(bias, columns, drawn, "encoder bias")
