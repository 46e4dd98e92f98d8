"""Actor contract (ADR-0017): building an actor from its spec, and validation at construction."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torchrl.checkpoint import GlobalRNGState

from unilab.errors import ActorContractError
from unilab.modules.actor_builder import import_builder
from unilab.modules.actor_calls import (
    breach,
    copy_of,
    described,
    forward_outputs,
    mean_and_std,
    tensor_problem,
    trial_copy,
)
from unilab.modules.actor_spec import (
    BUILT_IN,
    FlashSACActorSpec,
    actor_semantics,
    record_build,
)
from unilab.modules.log_prob_check import log_prob_errors

#: rows of the trial batch; batch statistics need more than one.
_ROWS = 4
_METHODS = ("get_mean_and_std", "explore", "as_export_module", "normalize_parameters")
#: nats per joint by which log_prob may be off; float32 explains less than 1e-4.
_LOG_PROB_ATOL = 3e-3
#: calls of explore in which a deterministic call between them must not show.
_NOISE_STEPS = 8


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
        record_build(actor, spec, obs_dim=obs_dim, action_dim=action_dim, validated=True)
    return actor


def validate_unbuilt(actor: nn.Module) -> None:
    """Validates an instance that :func:`build_actor` did not, if it tells its widths.

    These are its attributes ``obs_dim`` and ``action_dim``.
    """
    semantics = actor_semantics(actor)
    widths = {name: semantics[name] for name in ("obs_dim", "action_dim")}
    known = semantics["builder"] is not None
    if known and (semantics["kind"] == "flashsac" or vars(actor)["_built_as"]["validated"]):
        return
    if all(type(width) is int for width in widths.values()):
        validate_actor(actor, **widths)


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
            trial.change_weights()
            trial.export(" after its weights changed")
            trial.noise_state()
        trial.log_prob()


def _check_members(actor: Any) -> None:
    """C6: methods, parameters and the transform's name."""
    if not isinstance(actor, nn.Module):
        raise breach(actor, "C6 members", "it must be a torch.nn.Module")
    for name in _METHODS:
        if not callable(getattr(actor, name, None)):
            raise breach(actor, "C6 members", f"it has no method {name}")
    if not any(p.requires_grad for p in actor.parameters()):
        raise breach(actor, "C6 parameters", "it has no parameter that requires a gradient")
    for name, p in actor.named_parameters():
        if is_lazy(p) or p.is_meta:
            problem = f"{name} has no values: give it its size and its device in the builder"
            raise breach(actor, "C6 parameters", problem)
    transform = getattr(actor, "action_transform_id", None)
    if not isinstance(transform, str) or not transform:
        problem = f"it must be a non-empty string that names the transform, got {transform!r}"
        raise breach(actor, "C6 action_transform_id", problem)


class _Trial:
    """The checks of :func:`validate_actor` that run the actor, clause by clause."""

    def __init__(self, actor: Any, obs_dim: int, action_dim: int) -> None:
        self.actor = actor
        self.shape = (_ROWS, action_dim)
        self.parameters = list(actor.parameters())
        # Before it has run: it may then keep a lock or a tensor of a graph.
        self.unused = [copy_of(actor) for _ in range(3)]
        self.unused_state = self._described_state()
        generator = torch.Generator().manual_seed(0)
        obs = torch.randn(_ROWS, obs_dim, generator=generator)
        self.obs = obs.to(self.parameters[0].device)
        self.dones = torch.ones(_ROWS, dtype=torch.bool, device=self.obs.device)

    def forward(self) -> None:
        """C6: actions, log_prob and auxiliary losses, with and without training."""
        for training in (True, False):
            clause = f"forward(obs, training={training})"
            with torch.enable_grad():
                out = self._call(clause, self.actor, self.obs, training=training)
            rows, action_dim = self.shape
            actions, log_prob, aux = forward_outputs(
                self.actor, out, training=training, rows=rows, action_dim=action_dim, like=self.obs
            )
            for name, value in (("actions", actions), ("log_prob", log_prob)):
                self._finite(clause, name, value)
                if training and not value.requires_grad:
                    problem = f"no gradient leads from its {name} to its parameters"
                    self._refuse(f"C6 {clause}", problem)
            self._aux_losses(aux)

    def _aux_losses(self, aux: Any) -> None:
        clause = "C6 aux_losses"
        for name, value in aux.items():
            if not value.isfinite():
                self._refuse(clause, f"{name!r} is {value.item()} on random observations")
            if value.item() and not value.requires_grad:  # a loss that is off is a constant 0
                self._refuse(clause, f"no gradient leads from {name!r} to its parameters")

    def mean_and_std(self) -> None:
        """C6: the distribution before the transform."""
        clause = "get_mean_and_std(obs, training)"
        out = self._call(clause, mean_and_std, self.actor, self.obs)
        if not isinstance(out, tuple) or len(out) != 2:
            self._refuse(f"C6 {clause}", f"it must return (mean, std), got {described(out)}")
        mean, std = out
        self._tensor(clause, "mean", mean, self.shape)
        self._tensor(clause, "std", std, self.shape)
        if not (std > 0).all():
            self._refuse(f"C6 {clause}", "std must be above 0 everywhere")

    def explore(self) -> None:
        """C6: actions for a rollout, with and without resets."""
        for kwargs in ({}, {"dones": self.dones}, {"deterministic": True}):
            clause = f"explore(obs, {', '.join(kwargs)})"
            out = self._call(clause, self.actor.explore, self.obs, **kwargs)
            self._tensor(clause, "actions", out, self.shape)

    def export(self, when: str = "") -> None:
        """C6 and C7: the export module acts as deterministic exploration does."""
        module = self._call("as_export_module()", self.actor.as_export_module)
        if not isinstance(module, nn.Module):
            problem = f"it must return an nn.Module, got {described(module)}"
            self._refuse("C6 as_export_module()", problem)
        exported = self._call("as_export_module()(obs)", module, self.obs)
        self._tensor("as_export_module()(obs)", "actions", exported, self.shape)
        # Of new episodes: an actor with memory starts there, as does its export.
        kwargs: dict[str, Any] = {"dones": self.dones, "deterministic": True}
        explored = self._call("explore", self.actor.explore, self.obs, **kwargs)
        if not _close(exported, explored):
            self._refuse(
                "C7 deterministic exploration equals export",
                "explore(obs, deterministic=True) and as_export_module()(obs) differ by "
                f"{(exported - explored).abs().max().item():.3g}{when}: both must return "
                "transform(mean) of the current weights; layers that have a train mode, such as "
                "dropout and spectral_norm, must have it off in both",
            )

    def noise_state(self) -> None:
        """C6: noise goes on after deterministic calls as if they had not been.

        Memory that an actor has besides (a recurrent one) moves in these calls as it must, and
        its actions do not tell one from the other: such an actor is not checked.
        """
        for actor in self.unused:
            _change_weights(actor)
        remembers, plain, between = self.unused
        if self._has_memory(remembers):
            return
        generators = GlobalRNGState()
        for _ in range(_NOISE_STEPS):
            before = generators.state_dict()
            explored = self._explore(plain, self.obs)
            generators.load_state_dict(before)
            if not _close(explored, self._explore(between, self.obs)):
                self._refuse(
                    "C6 explore(obs, deterministic=True)",
                    "a call with deterministic=True changed the noise of later calls: it must "
                    "return transform(mean) before it touches noise or the actor's generators, "
                    "also where dones is true (no redraw there) and for another number of rows "
                    "(no new noise state there)",
                )
            for rows in (_ROWS, _ROWS - 1):  # an evaluation has its own number of rows
                for dones in (None, self.dones[:rows]):
                    self._explore(between, self.obs[:rows], dones=dones, deterministic=True)

    def _has_memory(self, actor: Any) -> bool:
        """Whether deterministic actions depend on the calls before."""
        obs, flipped = self.obs, self.obs.flip(0)
        first = self._explore(actor, obs, deterministic=True)
        self._explore(actor, flipped)
        self._explore(actor, flipped, deterministic=True)
        return not _close(first, self._explore(actor, obs, deterministic=True))

    def _explore(self, actor: Any, obs: Tensor, **kwargs: Any) -> Tensor:
        actions: Tensor = self._call(
            f"explore({', '.join(['obs', *kwargs])})", actor.explore, obs, **kwargs
        )
        return actions

    def log_prob(self) -> None:
        """C16: log_prob is the density of the actions, wherever that can be known."""
        errors = log_prob_errors(self.actor, self.obs.shape[1], self.shape[1])
        off = max((error for error in errors.values() if error is not None), default=0.0)
        if off > _LOG_PROB_ATOL * self.shape[1]:
            self._refuse(
                "C16 log_prob",
                f"log_prob is {off:.3g} nats off the density of the actions on random "
                "observations: it must be log N(u; mean, std) - log|det| of the transform, action "
                "range included, summed over the joints",
            )
        unknown = [f"training={training}" for training, error in errors.items() if error is None]
        if unknown:
            warnings.warn(
                f"log_prob of {type(self.actor).__name__} is not checked with "
                f"{' and '.join(unknown)}, because its actions there are not a function of one "
                "draw of [B, A] standard normal numbers alone, or are saturated: test it yourself",
                RuntimeWarning,
                stacklevel=3,
            )

    def state_dict(self) -> None:
        """C24: a checkpoint can be read back with ``weights_only=True``, into a new actor."""
        self._explore(self.actor, self.obs[1:], dones=self.dones[1:])
        state = self._described_state()
        for name in {**self.unused_state, **state}:
            unused, used = (s.get(name, "missing") for s in (self.unused_state, state))
            if unused != used:
                problem = (
                    f"{name} is {unused} in a new actor and {used} after explore, so that no "
                    "checkpoint could be loaded: keep what follows the number of environments in "
                    "a plain attribute, or in a buffer with persistent=False"
                )
                self._refuse("C24 state_dict()", problem)
        for name, value in self._call("state_dict()", self.actor.state_dict).items():
            file = io.BytesIO()
            try:
                torch.save(value.new_empty(0) if isinstance(value, Tensor) else value, file)
                file.seek(0)
                torch.load(file, weights_only=True)
            except Exception:  # pickle's errors are of many classes
                problem = (
                    f"{name} must be tensors, numbers and strings, in lists and dicts, got "
                    f"{described(value)}: change get_extra_state"
                )
                self._refuse("C24 state_dict()", problem)

    def _described_state(self) -> dict[str, str]:
        """Shape, dtype and device of every tensor in the state dict; other values vary."""
        state = self._call("state_dict()", self.actor.state_dict)
        return {k: described(v) if isinstance(v, Tensor) else "there" for k, v in state.items()}

    def change_weights(self) -> None:
        """C6: calls after an optimizer step."""
        self._call("normalize_parameters()", _change_weights, self.actor)

    def _call(self, clause: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            out = function(*args, **kwargs)
        except Exception as error:  # third-party code may raise anything
            problem = f"it raised {type(error).__name__}: {error}"
            raise breach(self.actor, f"C6 {clause}", problem) from error
        if [*map(id, self.actor.parameters())] != [*map(id, self.parameters)]:
            problem = f"{clause} replaced parameters that the optimizer holds: change them in place"
            self._refuse("C9 one instance", problem)
        return out

    def _tensor(self, clause: str, name: str, value: Any, shape: tuple[int, ...]) -> None:
        problem = tensor_problem(name, value, [shape], self.obs)
        if problem:
            self._refuse(f"C6 {clause}", f"{problem}, for {_ROWS} observations")
        self._finite(clause, name, value)

    def _finite(self, clause: str, name: str, value: Tensor) -> None:
        if not value.isfinite().all():
            self._refuse(f"C6 {clause}", f"{name} must be finite on random observations")

    def _refuse(self, clause: str, problem: str) -> NoReturn:
        raise breach(self.actor, clause, problem)


def _change_weights(actor: Any) -> None:
    """An optimizer step that changes every weight by about a tenth."""
    generator = torch.Generator().manual_seed(1)
    for p in actor.parameters():
        if p.requires_grad:
            change = 0.1 * torch.randn(p.shape, generator=generator).to(p.device, p.dtype)
            p.add_(change * torch.where(p == 0, 1.0, p.abs()))
    actor.normalize_parameters()


def _close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-4, atol=1e-5)
