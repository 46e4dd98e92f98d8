"""Check of a task's mirror against its physics and its terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unilab.backends import MjModelBackend, MujocoBackend
from unilab.envs.mirror import Columns, TaskMirror, reflected
from unilab.envs.scene_model import scene_model, with_constant_lags
from unilab.envs.torch_env import TorchEnv
from unilab.errors import CapabilityError, ConfigError

if TYPE_CHECKING:
    from unilab.envs.manager_based_rl_env import ManagerBasedRlEnv, ManagerBasedRlEnvCfg

_PAIRS, _STEPS = 16, 8
_SAME = 1e-3
"""Largest difference between terms of exactly mirrored states, as a share of their values."""
_MOVEMENT = 0.1
"""Largest deviation of a joint, as a share of its movement. Models of real robots are not quite
symmetric, G1 by 0.003; a wrong sign or pair deviates by the movement itself."""


def checked_mirror(env: TorchEnv) -> dict[str, Columns]:
    """The environment's ``mirror``, after a trial of it with the task's physics and terms.

    In the trial, on flat ground, environments without randomization and their mirror images take
    mirrored random actions for a few steps. Joints must move alike, and observations, rewards and
    terminations agree. A ConfigError names the joint or the term that does not.
    """
    try:
        return _checked(env)
    except ConfigError as error:
        raise ConfigError(f"{error}; or train without it, with algo.symmetry=false") from error


def _checked(env: TorchEnv) -> dict[str, Columns]:
    mirror = env.mirror
    if mirror is None:
        raise ConfigError(
            "mirror must be declared by the task for symmetry, got None: name the words of left "
            "and right parts in its configuration, such as mirror={'left': 'right'}"
        )
    backend = getattr(env, "backend", None)
    if not isinstance(backend, MjModelBackend):
        raise CapabilityError(
            f"a mirror can be checked with a MuJoCo model only, got {type(backend).__name__}: use "
            "env.mirror, which checks names, axes and home pose"
        )
    cfg: ManagerBasedRlEnvCfg = env.cfg
    rows = 2 * _PAIRS
    model: Any = backend.mj_model
    if cfg.scene.terrain is not None:  # left and right of a robot differ there
        model = scene_model(replace(cfg.scene, terrain=None))
    physics = MujocoBackend(model, rows, num_threads=1, keyframe=cfg.scene.keyframe)
    make: Any = type(env)
    trial = make(_nominal(cfg), num_envs=rows, seed=0, backend=physics)
    try:
        _Trial(trial).run()
    finally:
        trial.close()
    return mirror


def _nominal(cfg: ManagerBasedRlEnvCfg) -> ManagerBasedRlEnvCfg:
    """The task without events and noise, with constant delays and commands, on flat ground."""
    observations = {
        name: replace(
            group,
            enable_corruption=False,
            terms={n: replace(t, delay_min_lag=t.delay_max_lag) for n, t in group.terms.items()},
        )
        for name, group in cfg.observations.items()
    }
    actions = {n: replace(t, delay_min_lag=t.delay_max_lag) for n, t in cfg.actions.items()}
    commands = {n: replace(t, resampling_time_range=(1e6, 1e6)) for n, t in cfg.commands.items()}
    return replace(
        cfg,
        scene=replace(with_constant_lags(cfg.scene), terrain=None),
        observations=observations,
        actions=actions,
        commands=commands,
        events={},
        curriculum={},
        recorders={},
        nan_guard=None,
        init_at_random_ep_len=False,
    )


class _Trial:
    """Environments in the first half of the rows, their mirror images in the second."""

    def __init__(self, env: ManagerBasedRlEnv) -> None:
        self._env = env
        self._mirror = TaskMirror(env)
        self._rows = torch.arange(2 * _PAIRS)
        self._first, self._second = self._rows.split(_PAIRS)
        self._qpos, self._qvel = (env.backend.get_state_views()[n] for n in ("qpos", "qvel"))
        self._of_qpos, self._of_qvel = self._mirror.state()
        self._draw = torch.Generator().manual_seed(0)

    @torch.inference_mode(False)
    @torch.no_grad()
    def run(self) -> None:
        """Step all of them and compare."""
        env, of_action = self._env, self._mirror.action
        problem = self._begin()
        moved, off = torch.zeros(2, self._qvel.shape[1], dtype=self._qvel.dtype)
        for _ in range(_STEPS):
            action = 2.0 * torch.rand(_PAIRS, len(of_action[0]), generator=self._draw) - 1.0
            before = self._qvel[self._first]
            env._physics(torch.cat((action, reflected(of_action, action))))
            after, there = self._qvel[self._first], self._qvel[self._second]
            moved += (reflected(self._of_qvel, after - before)).square().sum(0)
            off += (there - reflected(self._of_qvel, after)).square().sum(0)
            self._write(self._qpos[self._first], after, reset=False)
            env.episode_length.add_(1)
            env._evaluate()
            problem = problem or self._differing_term(env._observe())
        # Terms differ as well where physics does.
        problem = self._differing_joint((off / moved.clamp(min=1e-8)).sqrt()) or problem
        if problem:
            raise ConfigError(f"mirror: {problem}")

    def _begin(self) -> str:
        """Begin mirrored episodes with random velocities and commands; a term that differs."""
        env, speed = self._env, torch.randn(_PAIRS, self._qvel.shape[1], generator=self._draw)
        env.reset()
        self._write(self._qpos[self._first], 0.3 * speed.to(self._qvel), reset=True)
        for term in env.terms:
            term.reset(self._rows)
        for name, command in env.command_manager.terms.items():
            columns, before = self._mirror.command(name), env.generator.get_state()
            command.reset(self._first)
            env.generator.set_state(before)
            command.reset(self._second)
            command.reflect(self._second)
            command.command[self._second] = reflected(columns, command.command[self._first])
        return self._differing_term(env._observe(self._rows))

    def _write(self, qpos: Tensor, qvel: Tensor, *, reset: bool) -> None:
        """Write states to the first half and their mirror images to the second."""
        qpos = torch.cat((qpos, reflected(self._of_qpos, qpos)))
        qvel = torch.cat((qvel, reflected(self._of_qvel, qvel)))
        self._env.backend.set_state_tensor(self._rows, qpos, qvel, reset=reset)
        self._env.scene.read()

    def _differing_term(self, observation: Mapping[str, Tensor]) -> str:
        """What is wrong with the first term that differs; empty if none does."""
        env, found = self._env, ""
        for group, value in observation.items():
            wanted, got = reflected(self._mirror.groups[group], value[self._first]), value[_PAIRS:]
            widths = env.observation_manager.term_widths[group]
            blocks = (x.split(list(widths.values()), dim=1) for x in (wanted, got))
            for name, *pair in zip(widths, *blocks, strict=True):
                label = f"observation ({group}) term {name!r}"
                found = found or _difference(label, "see ObservationTermCfg.mirror", *pair)
        for kind, names, values in (
            ("reward", env.reward_manager.term_names, env.reward_manager.episode_sums),
            ("termination", list(env.cfg.terminations), env.termination_manager.term_dones.float()),
        ):
            for name, value in zip(names, values.unsqueeze(-1), strict=True):
                pair = value.split(_PAIRS)
                found = found or _difference(
                    f"{kind} term {name!r}", "it must treat left and right alike", *pair
                )
        return found

    def _differing_joint(self, deviation: Tensor) -> str:
        """What is wrong with the joint that deviates most; empty if it is little."""
        joints = self._env.backend.joints
        # The root follows the joints: it is named if it alone deviates.
        most = [(j.type != "free", float(deviation[j.qvel].max()), j.name) for j in joints]
        large = [found for found in most if found[1] > _MOVEMENT]
        if not large:
            return ""
        _, share, name = max(large)
        return (
            f"joint {name!r} must move as the mirror image of {self._mirror.name(name)!r}, but "
            f"deviates by {share:.0%} of its movement: look at the words of the mirror and compare "
            "masses, gains, limits and geoms of both sides"
        )


def _difference(label: str, way_out: str, wanted: Tensor, got: Tensor) -> str:
    """Where the values ``[pairs, width]`` of a term differ; empty if they agree."""
    off = (got - wanted).abs()
    if off.max() <= _SAME * wanted.abs().max().clamp(min=1e-2):
        return ""
    row, column = divmod(int(off.argmax()), off.shape[1])
    where = f" in column {column}" if off.shape[1] > 1 else ""
    return (
        f"{label} must be {float(wanted[row, column]):.4g}{where} in a mirrored state, got "
        f"{float(got[row, column]):.4g}: {way_out}"
    )
