"""Event terms that vary the model between environments: domain randomisation.

For every mode of events. A term draws around the values of the model file, whatever it drew before,
so that it may run at every reset. Several terms that write the same parameter do not add up: the
last one counts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from unilab.checks import check_range
from unilab.envs.entity import SceneEntityCfg
from unilab.envs.managers.event import EventTermCfg
from unilab.envs.managers.term import ManagerTermBase, writes
from unilab.errors import CapabilityError, ConfigError, did_you_mean

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv

__all__ = [
    "randomize_actuator_gains",
    "randomize_encoder_bias",
    "randomize_geom_friction",
    "randomize_joint_parameters",
    "randomize_physics_scene_gravity",
    "randomize_rigid_body_com",
    "randomize_rigid_body_inertia",
    "randomize_rigid_body_mass",
]


_ROBOT = SceneEntityCfg("robot")
Range = tuple[float, float]
Operation = Literal["add", "scale", "abs"]
Distribution = Literal["uniform", "log_uniform", "gaussian"]
OPERATIONS = ("add", "scale", "abs")
DISTRIBUTIONS = ("uniform", "log_uniform", "gaussian")
_DEVIATIONS = 4.0
"""How far from its mean a gaussian draw may lie: 1 in 16,000 would lie further."""


@writes("body_mass", "body_inertia")
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
        operation: what the draw does to the model's mass; a factor leaves bodies without mass so.
        asset_cfg: the entity and its ``body_names``.
        distribution: how to draw; for ``gaussian`` the parameters are mean and deviation.
        recompute_inertia: scale the inertia with the mass, as a change of density would.

    Raises:
        ConfigError: a body's mass might not be positive, or there is none to scale; names it.
    """
    ids = _index(asset_cfg.body_ids)
    nominal = env.scene.nominal("body_mass")[ids]
    mass = draw_around(env, env_ids, nominal, mass_distribution_params, operation, distribution)
    require_massive(env, ids, nominal, "mass", mass_distribution_params, operation, distribution)
    env.scene.write_field("body_mass", (ids,), mass)
    if recompute_inertia:
        ratio = torch.where(nominal > 0.0, mass / nominal, 1.0)
        inertia = env.scene.nominal("body_inertia")[ids] * ratio.unsqueeze(-1)
        env.scene.write_field("body_inertia", (ids,), inertia)


@writes("body_inertia")
def randomize_rigid_body_inertia(
    env: ManagerBasedRlEnv,
    env_ids: Tensor,
    inertia_distribution_params: Range,
    operation: Operation,
    asset_cfg: SceneEntityCfg = _ROBOT,
    distribution: Distribution = "uniform",
) -> None:
    """Vary the principal inertias of bodies (kg m^2), all three of a body by one draw.

    A factor leaves bodies without inertia so.

    Raises:
        ConfigError: a body's inertia might not be positive, or there is none to scale; names it.
    """
    ids = _index(asset_cfg.body_ids)
    nominal = env.scene.nominal("body_inertia")[ids]
    inertia = draw_around(
        env,
        env_ids,
        nominal,
        inertia_distribution_params,
        operation,
        distribution,
        draws=(nominal.shape[0], 1),
    )
    require_massive(
        env, ids, nominal, "inertia", inertia_distribution_params, operation, distribution
    )
    env.scene.write_field("body_inertia", (ids,), inertia)


@writes("body_ipos", "body_sameframe", "body_simple", "dof_simplenum")
def randomize_rigid_body_com(
    env: ManagerBasedRlEnv,
    env_ids: Tensor,
    com_range: dict[str, Range],
    asset_cfg: SceneEntityCfg = _ROBOT,
) -> None:
    """Move the centre of mass of bodies by a uniform offset.

    Args:
        com_range: offsets in m by axis of the body frame (x, y, z); 0 if absent.
        asset_cfg: the entity and its ``body_names``.
    """
    ids = _index(asset_cfg.body_ids)
    nominal = env.scene.nominal("body_ipos")[ids]
    moved = nominal.expand(env_ids.shape[0], -1, -1).clone()
    for axis, span in com_range.items():
        if axis not in "xyz" or len(axis) != 1:
            raise ConfigError(f"com_range has no axis {axis!r}: axes are x, y, z")
        column = "xyz".index(axis)
        moved[..., column] = draw_around(env, env_ids, nominal[:, column], span, "add", "uniform")
    env.scene.write_field("body_ipos", (ids,), moved)
    # MuJoCo's short cuts for bodies whose centre of mass is their origin no longer hold.
    for name in ("body_sameframe", "body_simple", "dof_simplenum"):
        everything = torch.arange(env.scene.nominal(name).shape[0])
        env.scene.write_field(name, (everything,), torch.zeros(env_ids.shape[0], len(everything)))


@writes("geom_friction")
def randomize_geom_friction(
    env: ManagerBasedRlEnv,
    env_ids: Tensor,
    friction_distribution_params: Range,
    operation: Operation = "abs",
    asset_cfg: SceneEntityCfg = _ROBOT,
    distribution: Distribution = "uniform",
) -> None:
    """Vary the sliding friction of geoms, one draw for all geoms of an environment.

    MuJoCo takes the larger friction of the two geoms of a contact, or that of the one with the
    higher ``priority``.

    Args:
        friction_distribution_params: coefficients for ``add`` and ``abs``, a factor for ``scale``.
        operation: what the draw does to the model's friction.
        asset_cfg: the entity with its ``geom_names`` or ``body_names``.
        distribution: how to draw.
    """
    ids = _index(asset_cfg.geom_ids)
    nominal = env.scene.nominal("geom_friction")[ids, 0]
    friction = draw_around(
        env, env_ids, nominal, friction_distribution_params, operation, distribution, draws=(1,)
    )
    require_not_negative(nominal, "friction", friction_distribution_params, operation, distribution)
    env.scene.write_field("geom_friction", (ids, 0), friction)


@writes("dof_frictionloss", "dof_armature", "dof_damping")
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
            what to draw for each; None leaves it alone.
        operation: what the draws do to the model's values.
        asset_cfg: the entity and its ``joint_names``.
        distribution: how to draw.
    """
    dofs = env.scene[asset_cfg.name].dof_ids[_cpu(asset_cfg.joint_ids)]
    for name, params in (
        ("dof_frictionloss", friction_distribution_params),
        ("dof_armature", armature_distribution_params),
        ("dof_damping", damping_distribution_params),
    ):
        if params is not None:
            nominal = env.scene.nominal(name)[dofs]
            value = draw_around(env, env_ids, nominal, params, operation, distribution)
            require_not_negative(nominal, name, params, operation, distribution)
            env.scene.write_field(name, (dofs,), value)


@writes("actuator_gainprm", "actuator_biasprm")
class randomize_actuator_gains(ManagerTermBase):
    """Vary the gains of position actuators.

    Args:
        stiffness_distribution_params: N m/rad, or a factor; None leaves it alone.
        damping_distribution_params: N m s/rad, or a factor; None leaves it alone.
        operation: what the draws do to the model's gains.
        asset_cfg: the entity and its ``actuator_names`` or ``joint_names``.
        distribution: how to draw.

    Raises:
        CapabilityError: an actuator has no gains, as a motor, or one whose bias is another.
    """

    def __init__(self, cfg: EventTermCfg, env: ManagerBasedRlEnv) -> None:
        super().__init__(cfg, env)
        ids = _index(cfg.params["asset_cfg"].actuator_ids)
        chosen = [env.backend.actuators[i] for i in ids]
        motors = [a.name for a in chosen if a.stiffness == 0.0]
        if motors:
            raise CapabilityError(
                f"actuators {motors} are no position actuators and have no gains to vary: "
                "choose others with actuator_names, or leave the term out"
            )
        gains = env.scene.nominal("actuator_gainprm")[ids, 0].tolist()
        uneven = [a.name for a, gain in zip(chosen, gains, strict=True) if a.stiffness != gain]
        if uneven:
            raise CapabilityError(
                f"actuators {uneven} have a gain that is not the stiffness of their bias, so one "
                "draw cannot stand for both: vary them with a term of your own"
            )

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
        ids = _index(asset_cfg.actuator_ids)
        if stiffness_distribution_params is not None:
            nominal = env.scene.nominal("actuator_gainprm")[ids, 0]
            params = stiffness_distribution_params
            stiffness = draw_around(env, env_ids, nominal, params, operation, distribution)
            require_not_negative(nominal, "stiffness", params, operation, distribution)
            env.scene.write_field("actuator_gainprm", (ids, 0), stiffness)
            env.scene.write_field("actuator_biasprm", (ids, 1), -stiffness)
        if damping_distribution_params is not None:
            nominal = -env.scene.nominal("actuator_biasprm")[ids, 2]
            params = damping_distribution_params
            damping = draw_around(env, env_ids, nominal, params, operation, distribution)
            require_not_negative(nominal, "damping", params, operation, distribution)
            env.scene.write_field("actuator_biasprm", (ids, 2), -damping)


@writes("opt.gravity")
def randomize_physics_scene_gravity(
    env: ManagerBasedRlEnv,
    env_ids: Tensor,
    gravity_distribution_params: tuple[tuple[float, float, float], tuple[float, float, float]],
    operation: Operation = "add",
    distribution: Distribution = "uniform",
) -> None:
    """Vary gravity (m/s^2); ``projected_gravity`` keeps pointing down the world's z axis.

    Args:
        gravity_distribution_params: lower and upper bounds, x, y and z each.
        operation: what the draw does to the model's gravity.
        distribution: how to draw.
    """
    nominal = env.scene.nominal("opt.gravity")
    low, high = gravity_distribution_params
    drawn = [
        draw_around(env, env_ids, nominal[i : i + 1], (low[i], high[i]), operation, distribution)
        for i in range(3)
    ]
    env.scene.write_field("opt.gravity", (torch.arange(3),), torch.cat(drawn, dim=1))


def randomize_encoder_bias(
    env: ManagerBasedRlEnv,
    env_ids: Tensor,
    bias_range: Range,
    asset_cfg: SceneEntityCfg = _ROBOT,
) -> None:
    """Draw what each encoder reads too much (rad); ``joint_pos_rel(biased=True)`` shows it."""
    bias = env.scene[asset_cfg.name].data.encoder_bias
    columns = torch.arange(bias.shape[1], device=bias.device)[asset_cfg.joint_ids]
    drawn = draw_around(env, env_ids, bias[0, columns], bias_range, "abs", "uniform")
    env.scene.write_tensor(bias, columns, drawn, "encoder bias")


def _index(ids: Tensor | slice) -> Tensor:
    """Indices that the scene has filled in."""
    if isinstance(ids, slice):
        raise ConfigError("a SceneEntityCfg must be a parameter of the term to be resolved")
    return ids


def _cpu(ids: Tensor | slice) -> Tensor | slice:
    return ids if isinstance(ids, slice) else ids.cpu()


def draw_around(
    env: ManagerBasedRlEnv,
    env_ids: Tensor,
    nominal: Tensor,
    params: Range,
    operation: str,
    distribution: str,
    draws: tuple[int, ...] | None = None,
) -> Tensor:
    """``[n, *nominal.shape]``: the nominal values with a draw added to them, or the like.

    Args:
        nominal: ``[m, ...]``.
        params: bounds, or mean and deviation.
        operation: one of :data:`OPERATIONS`.
        distribution: one of :data:`DISTRIBUTIONS`; a gaussian ends at four deviations.
        draws: shape of an environment's draws, to be broadcast; None draws for every value.

    Raises:
        ConfigError: an unknown operation or distribution, or bounds that do not fit it.
    """
    for kind, given, options in (
        ("operation", operation, OPERATIONS),
        ("distribution", distribution, DISTRIBUTIONS),
    ):
        if given not in options:
            raise ConfigError(
                f"{kind} is {given!r}{did_you_mean(given, options)}: expected one of {options}"
            )
    low, high = params
    if distribution != "gaussian":
        check_range("range", params)
    elif not 0.0 <= high < math.inf or not math.isfinite(low):
        raise ConfigError(
            f"mean and deviation are {params}: expected finite ones, the latter at least 0"
        )
    if distribution == "log_uniform" and not low > 0.0:
        raise ConfigError(f"range {params} is not positive, as log_uniform needs")
    n = env_ids.shape[0]
    draw = torch.empty(
        (n, *(draws or nominal.shape)), dtype=nominal.dtype, device=env.generator.device
    )
    if distribution == "uniform":
        draw.uniform_(low, high, generator=env.generator)
    elif distribution == "log_uniform":
        bounds = torch.tensor(params, dtype=nominal.dtype).log().tolist()
        draw.uniform_(*bounds, generator=env.generator).exp_()
    else:
        draw.normal_(low, high, generator=env.generator)
        draw.clamp_(*_bounds(params, distribution))
    return _applied(nominal, draw.to(nominal.device), operation)


def require_not_negative(
    nominal: Tensor, what: str, params: Range, operation: str, distribution: str
) -> None:
    """Refuse draws that could give values that physics has no meaning for.

    Args:
        nominal: the model's own.
        what: the parameter's name, for messages.
        params, operation, distribution: as :func:`draw_around`.

    Raises:
        ConfigError: a value could be negative.
    """
    least = _least(nominal, params, operation, distribution)
    if bool((least < 0.0).any()):
        raise ConfigError(
            f"{params} can make a {what} of {float(least.min()):g}: it must be at least 0"
            f"{_REACH[distribution]}"
        )


def require_massive(
    env: ManagerBasedRlEnv,
    ids: Tensor,
    nominal: Tensor,
    what: str,
    params: Range,
    operation: str,
    distribution: str,
) -> None:
    """Refuse draws that could give what a body cannot have.

    Frames, which are bodies without mass, may be scaled.

    Args:
        ids: ``[bodies]``, the model's numbers.
        nominal: ``[bodies, ...]``, the model's own.
        what: the parameter's name, for messages.
        params, operation, distribution: as :func:`draw_around`.

    Raises:
        ConfigError: a mass or inertia might not be positive, or there is none to scale; names the
            bodies.
    """
    frames = (nominal == 0.0) & (operation == "scale")
    if frames.all():
        raise ConfigError(
            f"{', '.join(env.backend.bodies[i] for i in ids)} have no {what} to scale: choose "
            "others with body_names, or another operation"
        )
    least = _least(nominal, params, operation, distribution)
    wrong = (least <= 0.0) & ~frames
    if wrong.any():
        owners = ids[wrong.reshape(len(ids), -1).any(1)]
        raise ConfigError(
            f"{params} can make the {what} of {', '.join(env.backend.bodies[i] for i in owners)}"
            f" {float(least[wrong].min()):g}: it must be more than 0{_REACH[distribution]}; change "
            "it, or choose bodies with body_names"
        )


_REACH = {
    "uniform": "",
    "log_uniform": "",
    "gaussian": f", {_DEVIATIONS:g} deviations below the mean as well",
}


def _bounds(params: Range, distribution: str) -> Range:
    """The least and the greatest draw."""
    if distribution != "gaussian":
        return params
    mean, deviation = params
    return mean - _DEVIATIONS * deviation, mean + _DEVIATIONS * deviation


def _least(nominal: Tensor, params: Range, operation: str, distribution: str) -> Tensor:
    """The least value that a draw can give, of the shape of ``nominal``."""
    ends = torch.tensor(_bounds(params, distribution), dtype=nominal.dtype, device=nominal.device)
    return _applied(nominal, ends.reshape(2, *(1,) * nominal.ndim), operation).amin(0)


def _applied(nominal: Tensor, draw: Tensor, operation: str) -> Tensor:
    """What draws ``[n, ...]`` make of the nominal values, ``[n, *nominal.shape]``."""
    if operation == "abs":
        return draw.expand(draw.shape[0], *nominal.shape)
    return nominal + draw if operation == "add" else nominal * draw
