"""The actor contract: actors built from a spec, and refused at construction if they break it."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from unilab.errors import ActorContractError
from unilab.modules.actor_outputs import aux_losses_problem, described, tensor_problem
from unilab.modules.actor_spec import BUILT_IN, FlashSACActorSpec, import_builder, record_build
from unilab.modules.untouched import untouched

__all__ = ["build_actor", "validate_actor"]

#: rows of the trial batch; batch statistics need more than one.
_ROWS = 4
_METHODS = (
    "get_mean_and_std",
    "explore",
    "as_export_module",
    "normalize_parameters",
    "inference_startup_memory_categories",
)


def build_actor(
    spec: FlashSACActorSpec,
    *,
    obs_dim: int,
    action_dim: int,
    device: torch.device | str | None = None,
) -> nn.Module:
    """Builds and validates the actor that a spec names, the built-in one or anybody's.

    Args:
        spec: builder and its arguments.
        obs_dim: observation width ``O``.
        action_dim: action width ``A``.
        device: where the parameters live.

    Returns:
        The actor, which :func:`~unilab.modules.actor_semantics` knows the spec of.

    Raises:
        ActorContractError: the builder cannot be called, raises, or returns no actor of the
            contract; the cause is chained.
    """
    builder = import_builder(spec)
    try:
        # A copy, which the builder may keep and change.
        kwargs = spec.to_dict()["kwargs"]
        actor = builder(obs_dim=obs_dim, action_dim=action_dim, device=device, **kwargs)
    except Exception as error:  # a builder is anybody's code
        raise ActorContractError(
            f"actor builder {spec.builder!r} raised {type(error).__name__}: {error}; it was called "
            f"with obs_dim={obs_dim}, action_dim={action_dim}, device={device} and "
            f"kwargs={spec.kwargs}"
        ) from error
    if not isinstance(actor, nn.Module):
        raise ActorContractError(
            f"actor builder {spec.builder!r} returned {type(actor).__name__}: expected a "
            "torch.nn.Module"
        )
    validate_actor(actor, obs_dim=obs_dim, action_dim=action_dim)
    if spec.builder != BUILT_IN:  # which records all of its arguments itself
        record_build(actor, spec, obs_dim=obs_dim, action_dim=action_dim)
    return actor


def validate_actor(actor: nn.Module, *, obs_dim: int, action_dim: int) -> None:
    """Runs an actor once through everything that training, evaluation and export ask of it.

    Once with its weights as they are and once with others, as training will make them, so that a
    head that begins at 0, or a copy made at construction, does not hide what is exported.
    Afterwards its weights, buffers, attributes, flags and all random generators are bit for bit as
    they were.

    Args:
        actor: the actor, where its parameters are.
        obs_dim: observation width ``O``.
        action_dim: action width ``A``.

    Raises:
        ActorContractError: what the actor breaks, by its clause of ADR-0017.
    """
    trial = _Trial(actor, obs_dim, action_dim)
    trial.members()
    with untouched(actor):
        trial.forward()
        with torch.no_grad():
            trial.mean_and_std()
            trial.explore()
            trial.export()
            trial.upkeep()
            trial.state_dict()
            trial.move()
            trial.export(" once its weights have changed")


class _Trial:
    """The checks of :func:`validate_actor`, clause by clause."""

    def __init__(self, actor: Any, obs_dim: int, action_dim: int) -> None:
        self.actor = actor
        self.obs_dim = obs_dim
        self.shape = (_ROWS, action_dim)
        self.parameters: list[nn.Parameter] = []

    def members(self) -> None:
        """C6: methods, parameters and the transform's name are there."""
        if not isinstance(self.actor, nn.Module):
            self._refuse("C6 members", "it is no torch.nn.Module")
        for name in _METHODS:
            if not callable(getattr(self.actor, name, None)):
                self._refuse("C6 members", f"it has no method {name}")
        self.parameters = list(self.actor.parameters())
        if not any(p.requires_grad for p in self.parameters):
            self._refuse("C6 parameters", "it has no parameter that an optimizer could move")
        for name, p in self.actor.named_parameters():
            if is_lazy(p):
                self._refuse("C6 parameters", f"{name} has no size yet: run it in the builder")
            if p.is_meta:
                self._refuse("C6 parameters", f"{name} has no values: it is on the meta device")
        transform = getattr(self.actor, "action_transform_id", None)
        if not isinstance(transform, str) or not transform:
            self._refuse(
                "C6 action_transform_id",
                f"it is {transform!r}, expected a non-empty string that names the map from the "
                "pre-transform sample to the action",
            )

    def forward(self) -> None:
        """C6: actions, their log_prob and the auxiliary losses of both kinds of pass."""
        for training in (True, False):
            clause = f"forward(obs, training={training})"
            with torch.enable_grad():
                out = self._call(clause, self.actor, self._obs(), training=training)
            if not (isinstance(out, tuple) and len(out) == 2 and isinstance(out[1], Mapping)):
                self._refuse(
                    f"C6 {clause}", f"it returned {described(out)}, expected (actions, info)"
                )
            actions, info = out
            self._tensor(clause, "actions", actions, self.shape)
            if "log_prob" not in info:
                self._refuse("C6 log_prob", f"{clause} gave info with {sorted(info)} only")
            self._tensor(clause, "log_prob", info["log_prob"], (_ROWS, 1))
            if training:
                for name, value in (("actions", actions), ("log_prob", info["log_prob"])):
                    if not value.requires_grad:
                        problem = f"no gradient leads from its {name} to its parameters"
                        self._refuse(f"C6 {clause}", problem)
                self._aux_losses(info.get("aux_losses", {}))

    def _aux_losses(self, aux: Any) -> None:
        clause = "C6 aux_losses"
        problem = aux_losses_problem(aux)
        if problem:
            self._refuse(clause, problem)
        for name, value in aux.items():
            if not value.isfinite():
                self._refuse(clause, f"{name!r} is {value.item()} on random observations")
            if value.item() and not value.requires_grad:  # 0 without gradient is one that is off
                self._refuse(clause, f"no gradient leads from {name!r} to its parameters")

    def mean_and_std(self) -> None:
        """C6: the distribution before the transform."""
        clause = "get_mean_and_std(obs)"
        out = self._call(clause, self.actor.get_mean_and_std, self._obs())
        if not (isinstance(out, tuple) and len(out) == 2):
            self._refuse(f"C6 {clause}", f"it returned {described(out)}, expected (mean, std)")
        self._tensor(clause, "mean", out[0], self.shape)
        self._tensor(clause, "std", out[1], self.shape)
        if not (out[1] > 0).all():
            self._refuse(f"C6 {clause}", "std is not above 0 everywhere")

    def explore(self) -> None:
        """C6: actions for a rollout, with and without resets."""
        dones = torch.ones(_ROWS, 1, dtype=torch.bool, device=self._obs().device)
        for kwargs in ({}, {"dones": dones}, {"deterministic": True}):
            clause = f"explore(obs, {', '.join(kwargs)})"
            out = self._call(clause, self.actor.explore, self._obs(), **kwargs)
            self._tensor(clause, "actions", out, self.shape)

    def export(self, when: str = "") -> None:
        """C6 and C7: what is exported, and that it acts as evaluation does."""
        module = self._call("as_export_module()", self.actor.as_export_module)
        if not isinstance(module, nn.Module):
            self._refuse(
                "C6 as_export_module()", f"it returned {described(module)}, expected an nn.Module"
            )
        obs = self._obs()
        exported = self._call("as_export_module()(obs)", module, obs)
        self._tensor("as_export_module()(obs)", "actions", exported, self.shape)
        explored = self._call("explore", self.actor.explore, obs, deterministic=True)
        if not torch.allclose(exported, explored, rtol=1e-4, atol=1e-5):
            apart = (exported - explored).abs().max().item()
            self._refuse(
                "C7 deterministic exploration equals export",
                f"explore(obs, deterministic=True) and as_export_module()(obs) are {apart:.3g} "
                f"apart{when}; both must give transform(mean) of the weights as they are",
            )

    def state_dict(self) -> None:
        """C24: what a checkpoint holds of it can be read back."""
        for name, value in self._call("state_dict()", self.actor.state_dict).items():
            file = io.BytesIO()
            try:
                torch.save(value.new_empty(0) if isinstance(value, Tensor) else value, file)
                file.seek(0)
                torch.load(file, weights_only=True)
            except Exception:  # whatever pickle makes of anybody's object
                self._refuse(
                    "C24 state_dict()",
                    f"{name} is {described(value)}, which no checkpoint takes: give "
                    "get_extra_state tensors, numbers and strings, in lists and dicts",
                )

    def move(self) -> None:
        """Other weights, each of its own size and sign; what was 0 is no longer."""
        generator = torch.Generator().manual_seed(1)
        for p in self.parameters:
            if p.requires_grad:
                change = 0.1 * torch.randn(p.shape, generator=generator).to(p.device, p.dtype)
                p.add_(change * torch.where(p == 0, 1.0, p.abs()))
        self._call("normalize_parameters()", self.actor.normalize_parameters)

    def upkeep(self) -> None:
        """C6: what is called after an optimizer step and before a rollout."""
        self._call("normalize_parameters()", self.actor.normalize_parameters)
        clause = "inference_startup_memory_categories()"
        sizes = self._call(clause, self.actor.inference_startup_memory_categories)
        if not isinstance(sizes, Mapping) or not all(
            isinstance(k, str) and isinstance(v, int) and v >= 0 for k, v in sizes.items()
        ):
            self._refuse(f"C6 {clause}", f"it returned {sizes!r}, expected names and byte counts")

    def _obs(self) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        obs = torch.randn(_ROWS, self.obs_dim, generator=generator)
        return obs.to(self.parameters[0].device)

    def _call(self, clause: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            out = function(*args, **kwargs)
        except Exception as error:  # an actor is anybody's code
            raise ActorContractError(
                self._message(f"C6 {clause}", f"it raised {type(error).__name__}: {error}")
            ) from error
        if [*map(id, self.actor.parameters())] != [*map(id, self.parameters)]:
            self._refuse(
                "C9 one instance",
                f"{clause} put other parameters in the place of those that the optimizer holds: "
                "change them in place",
            )
        return out

    def _tensor(self, clause: str, name: str, value: Any, shape: tuple[int, ...]) -> None:
        problem = tensor_problem(name, value, shape, self._obs())
        if problem:
            self._refuse(f"C6 {clause}", f"{problem} for {_ROWS} observations")
        if not value.isfinite().all():
            self._refuse(f"C6 {clause}", f"{name} is not finite on random observations")

    def _refuse(self, clause: str, problem: str) -> NoReturn:
        raise ActorContractError(self._message(clause, problem))

    def _message(self, clause: str, problem: str) -> str:
        return (
            f"{type(self.actor).__name__} breaks the actor contract (ADR-0017 {clause}): {problem}"
        )
