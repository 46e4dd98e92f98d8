"""Actor contract (ADR-0017): building an actor from its spec, and validation at construction."""

from __future__ import annotations

import copy
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torchrl.checkpoint import GlobalRNGState

from unilab.errors import ActorContractError
from unilab.modules.actor_builder import import_builder
from unilab.modules.actor_spec import BUILT_IN, FlashSACActorSpec, record_build

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
    """Builds and validates the actor of a spec, built-in or custom.

    A builder is a class of ``nn.Module``, or a function that is annotated to return one; nothing of
    Python, PyTorch or another library under unilab. :func:`~unilab.modules.actor_semantics` of the
    actor has the spec.
    """
    kwargs = spec.to_dict()["kwargs"]  # a copy, which the builder may change
    builder = import_builder(spec.builder)
    try:
        actor = builder(obs_dim=obs_dim, action_dim=action_dim, device=device, **kwargs)
    except Exception as error:  # third-party code may raise anything
        raise ActorContractError(
            f"actor builder {spec.builder!r} raised {type(error).__name__}: {error}; it must take "
            f"obs_dim={obs_dim}, action_dim={action_dim}, device={device} and kwargs={spec.kwargs}"
        ) from error
    validate_actor(actor, obs_dim=obs_dim, action_dim=action_dim)
    if spec.builder != BUILT_IN:  # which records its arguments, defaults included, itself
        record_build(actor, spec, obs_dim=obs_dim, action_dim=action_dim)
    return actor


def validate_actor(actor: nn.Module, *, obs_dim: int, action_dim: int) -> None:
    """Runs a copy of an actor once through everything that training, evaluation and export call.

    The copy runs first with the actor's weights and then with other ones, because a head that
    starts at 0 or a copy made at construction would hide what is exported. The actor itself is
    not called, and the random generators are restored.

    Raises:
        ActorContractError: names the clause of ADR-0017 that the actor breaks.
    """
    _check_members(actor)
    with trial_copy(actor) as copied:
        trial = _Trial(copied, obs_dim, action_dim)
        trial.forward()
        with torch.no_grad():
            trial.mean_and_std()
            trial.explore()
            trial.export()
            trial.state_dict()
            trial.perturb()
            trial.export(" after its weights changed")


@contextmanager
def trial_copy(actor: Any) -> Iterator[Any]:
    """A deep copy of an actor to run in its place; restores the random generators afterwards."""
    try:
        copied = copy.deepcopy(actor)
    except Exception as error:  # anything may be among its attributes
        raise ActorContractError(
            f"{type(actor).__name__} must be copyable, because validation and export run on a copy "
            f"(ADR-0017 C8), but copy.deepcopy raised {type(error).__name__}: {error}; detach "
            "tensors that it keeps between calls, and create locks and files on first use"
        ) from error
    tensors = [*actor.parameters(), *actor.buffers()]
    copies = {id(tensor) for tensor in (*copied.parameters(), *copied.buffers())}
    versions = [_version(tensor) for tensor in tensors]
    generators = GlobalRNGState()
    before = generators.state_dict()
    try:
        if not copies.isdisjoint(map(id, tensors)):
            raise _breach(actor, "C8 copy", "copy.deepcopy must copy its parameters and buffers")
        yield copied
        if versions != [_version(tensor) for tensor in tensors]:
            raise _breach(actor, "C8 copy", "a copy must not change the original: use self in it")
    finally:
        generators.load_state_dict(before)


def _version(tensor: Tensor) -> int:
    """Counts in-place changes."""
    return 0 if tensor.is_inference() else tensor._version


def tensor_problem(name: str, value: Any, shape: Sequence[int], like: Tensor) -> str:
    """Why a value is not a tensor of this shape and the dtype and device of ``like``, or ``""``."""
    if (
        isinstance(value, Tensor)
        and (*value.shape,) == (*shape,)
        and (value.dtype, value.device) == (like.dtype, like.device)
    ):
        return ""
    wanted = f"a tensor of shape {list(shape)} and {like.dtype} on {like.device}"
    return f"{name} must be {wanted}, got {_described(value)}"


def aux_losses_problem(aux: Any) -> str:
    """Why the ``aux_losses`` of a training pass are not named 0-dim tensors, or ``""``."""
    if not isinstance(aux, Mapping):
        return f"aux_losses must be a dict of 0-dim tensors, got {_described(aux)}"
    for name, value in aux.items():
        if not isinstance(name, str) or not re.fullmatch(r"\w+", name, re.ASCII):
            return f"the name of an aux loss must be letters, digits and underscores, got {name!r}"
        if not isinstance(value, Tensor) or value.dim() or not value.is_floating_point():
            return f"aux loss {name!r} must be a 0-dim float tensor, got {_described(value)}"
    return ""


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)} and {value.dtype} on {value.device}"
    return f"{value!r} of type {type(value).__name__}"


def _breach(actor: Any, clause: str, problem: str) -> ActorContractError:
    name = type(actor).__name__
    return ActorContractError(f"{name} breaks the actor contract (ADR-0017 {clause}): {problem}")


def _check_members(actor: Any) -> None:
    """C6: methods, parameters and the transform's name."""
    if not isinstance(actor, nn.Module):
        raise _breach(actor, "C6 members", "it must be a torch.nn.Module")
    for name in _METHODS:
        if not callable(getattr(actor, name, None)):
            raise _breach(actor, "C6 members", f"it has no method {name}")
    if not any(p.requires_grad for p in actor.parameters()):
        raise _breach(actor, "C6 parameters", "it has no parameter that requires a gradient")
    for name, p in actor.named_parameters():
        if is_lazy(p) or p.is_meta:
            problem = f"{name} has no values: give it its size and its device in the builder"
            raise _breach(actor, "C6 parameters", problem)
    transform = getattr(actor, "action_transform_id", None)
    if not isinstance(transform, str) or not transform:
        problem = f"it must be a non-empty string that names the transform, got {transform!r}"
        raise _breach(actor, "C6 action_transform_id", problem)


class _Trial:
    """The checks of :func:`validate_actor` that run the actor, clause by clause."""

    def __init__(self, actor: Any, obs_dim: int, action_dim: int) -> None:
        self.actor = actor
        self.shape = (_ROWS, action_dim)
        self.parameters = list(actor.parameters())
        generator = torch.Generator().manual_seed(0)
        obs = torch.randn(_ROWS, obs_dim, generator=generator)
        self.obs = obs.to(self.parameters[0].device)

    def forward(self) -> None:
        """C6: actions, log_prob and auxiliary losses, with and without training."""
        for training in (True, False):
            clause = f"forward(obs, training={training})"
            with torch.enable_grad():
                out = self._call(clause, self.actor, self.obs, training=training)
            actions, info = self._pair(clause, out, "(actions, info)")
            self._tensor(clause, "actions", actions, self.shape)
            if not isinstance(info, Mapping) or "log_prob" not in info:
                self._refuse("C6 log_prob", f"info of {clause} must have log_prob, got {info!r}")
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
            if value.item() and not value.requires_grad:  # a loss that is off is a constant 0
                self._refuse(clause, f"no gradient leads from {name!r} to its parameters")

    def mean_and_std(self) -> None:
        """C6: the distribution before the transform."""
        clause = "get_mean_and_std(obs)"
        out = self._call(clause, self.actor.get_mean_and_std, self.obs)
        mean, std = self._pair(clause, out, "(mean, std)")
        self._tensor(clause, "mean", mean, self.shape)
        self._tensor(clause, "std", std, self.shape)
        if not (std > 0).all():
            self._refuse(f"C6 {clause}", "std must be above 0 everywhere")

    def explore(self) -> None:
        """C6: actions for a rollout, with and without resets."""
        dones = torch.ones(_ROWS, 1, dtype=torch.bool, device=self.obs.device)
        for kwargs in ({}, {"dones": dones}, {"deterministic": True}):
            clause = f"explore(obs, {', '.join(kwargs)})"
            out = self._call(clause, self.actor.explore, self.obs, **kwargs)
            self._tensor(clause, "actions", out, self.shape)

    def export(self, when: str = "") -> None:
        """C6 and C7: the export module acts as deterministic exploration does."""
        module = self._call("as_export_module()", self.actor.as_export_module)
        if not isinstance(module, nn.Module):
            problem = f"it must return an nn.Module, got {_described(module)}"
            self._refuse("C6 as_export_module()", problem)
        exported = self._call("as_export_module()(obs)", module, self.obs)
        self._tensor("as_export_module()(obs)", "actions", exported, self.shape)
        explored = self._call("explore", self.actor.explore, self.obs, deterministic=True)
        if not torch.allclose(exported, explored, rtol=1e-4, atol=1e-5):
            self._refuse(
                "C7 deterministic exploration equals export",
                "explore(obs, deterministic=True) and as_export_module()(obs) differ by "
                f"{(exported - explored).abs().max().item():.3g}{when}: both must return "
                "transform(mean) of the current weights",
            )

    def state_dict(self) -> None:
        """C24: a checkpoint can be read back with ``weights_only=True``."""
        for name, value in self._call("state_dict()", self.actor.state_dict).items():
            file = io.BytesIO()
            try:
                torch.save(value.new_empty(0) if isinstance(value, Tensor) else value, file)
                file.seek(0)
                torch.load(file, weights_only=True)
            except Exception:  # pickle's errors are of many classes
                problem = (
                    f"{name} must be tensors, numbers and strings, in lists and dicts, got "
                    f"{_described(value)}: change get_extra_state"
                )
                self._refuse("C24 state_dict()", problem)

    def perturb(self) -> None:
        """C6: calls after an optimizer step, which changes every weight by about a tenth."""
        generator = torch.Generator().manual_seed(1)
        for p in self.parameters:
            if p.requires_grad:
                change = 0.1 * torch.randn(p.shape, generator=generator).to(p.device, p.dtype)
                p.add_(change * torch.where(p == 0, 1.0, p.abs()))
        for name in ("normalize_parameters", "inference_startup_memory_categories"):
            self._call(f"{name}()", getattr(self.actor, name))

    def _call(self, clause: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            out = function(*args, **kwargs)
        except Exception as error:  # third-party code may raise anything
            problem = f"it raised {type(error).__name__}: {error}"
            raise _breach(self.actor, f"C6 {clause}", problem) from error
        if [*map(id, self.actor.parameters())] != [*map(id, self.parameters)]:
            problem = f"{clause} replaced parameters that the optimizer holds: change them in place"
            self._refuse("C9 one instance", problem)
        return out

    def _pair(self, clause: str, out: Any, names: str) -> tuple[Any, Any]:
        if not isinstance(out, tuple) or len(out) != 2:
            self._refuse(f"C6 {clause}", f"it must return {names}, got {_described(out)}")
        return out

    def _tensor(self, clause: str, name: str, value: Any, shape: tuple[int, ...]) -> None:
        problem = tensor_problem(name, value, shape, self.obs)
        if problem:
            self._refuse(f"C6 {clause}", f"{problem} for {_ROWS} observations")
        if not value.isfinite().all():
            self._refuse(f"C6 {clause}", f"{name} must be finite on random observations")

    def _refuse(self, clause: str, problem: str) -> NoReturn:
        raise _breach(self.actor, clause, problem)
