"""An environment assembled from tables of terms."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from unilab.backends import MujocoBackend, SimBackend
from unilab.checks import Count, Positive, check_fields, to_device, to_num_envs
from unilab.envs.actuators import ActuatorDelays, check_motors
from unilab.envs.deployment import deployment_metadata
from unilab.envs.episode_sums import EpisodeSums
from unilab.envs.managers.action import ActionManager, ActionTermCfg
from unilab.envs.managers.command import CommandManager, CommandTerm, CommandTermCfg
from unilab.envs.managers.curriculum import CurriculumManager, CurriculumTermCfg
from unilab.envs.managers.event import EventManager, EventTermCfg
from unilab.envs.managers.metrics import MetricsManager, MetricsTermCfg
from unilab.envs.managers.observation import ObservationGroupCfg, ObservationManager
from unilab.envs.managers.recorder import RecorderManager, RecorderTermCfg, RecordingCfg
from unilab.envs.managers.reward import RewardManager, RewardTermCfg
from unilab.envs.managers.term import ManagerTermBase, Term, stateful
from unilab.envs.managers.term_state import StateSnapshot, load_state, save_state
from unilab.envs.managers.termination import TerminationManager, TerminationTermCfg
from unilab.envs.mirror import TaskMirror
from unilab.envs.nan_guard import NanGuard, NanGuardCfg
from unilab.envs.scene import EntityScene, SceneCfg
from unilab.envs.scene_model import scene_model
from unilab.envs.terrains import Terrain, check_ground
from unilab.envs.torch_env import TorchEnv, control_steps
from unilab.envs.torch_settings import TorchSettings
from unilab.errors import CapabilityError, ConfigError, NonFiniteError
from unilab.markers import Marker

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ManagerBasedRlEnvCfg:
    """A task: its model and its tables of terms."""

    scene: SceneCfg
    decimation: Count
    """Physics substeps of one control step."""
    episode_length_s: Positive
    """Seconds until an episode may time out, rounded up to whole control steps."""
    actions: dict[str, ActionTermCfg]
    observations: dict[str, ObservationGroupCfg]
    """``obs`` and, for an asymmetric critic, ``critic``."""
    rewards: dict[str, RewardTermCfg]
    terminations: dict[str, TerminationTermCfg]
    commands: dict[str, CommandTermCfg] = field(default_factory=dict)
    events: dict[str, EventTermCfg] = field(default_factory=dict)
    curriculum: dict[str, CurriculumTermCfg] = field(default_factory=dict)
    metrics: dict[str, MetricsTermCfg] = field(default_factory=dict)
    recorders: dict[str, RecorderTermCfg] = field(default_factory=dict)
    recording: RecordingCfg = field(default_factory=RecordingCfg)
    mirror: dict[str, str] | None = None
    """Words in the names of left parts and those of the right ones, ``{"FL": "FR", "RL": "RR"}``,
    for a robot that is symmetric to its x-z plane; None: the task has no mirror."""
    init_at_random_ep_len: bool = False
    """Whether the first episodes begin at random points of their time, to desynchronise time-outs
    across environments."""
    nan_guard: NanGuardCfg | None = None
    """Folder for the last states of rows that become non-finite; None keeps nothing."""
    backend: Literal["mujoco", "mjwarp"] = "mujoco"
    """Physics: MuJoCo on CPU threads, or MuJoCo Warp on the environment's device, which needs
    ``unilab-torchrl[mjwarp]``."""
    num_threads: int = 0
    """Physics threads of MuJoCo; 0 uses all cores."""

    def __post_init__(self) -> None:
        check_fields(self)

    def make(
        self, *, num_envs: int, device: torch.device | str, seed: int | None
    ) -> ManagerBasedRlEnv:
        return ManagerBasedRlEnv(self, num_envs=num_envs, device=device, seed=seed)


class ManagerBasedRlEnv(TorchEnv):
    """A task run by managers, many environments at once.

    The order of a step: controls, physics, one packed read, terminations, rewards, interval
    events, commands, metrics, observations.

    Construction calls every term once: its output is checked, and the scene records what it reads.
    Observations and recorders are built last, so other terms cannot use their managers by then.

    ``backend`` replaces physics on ``cfg.scene.model``. Its ground, contact sensors and motors must
    be those of ``cfg.scene``.
    """

    @TorchSettings()
    @torch.inference_mode(False)  # tensors made here are written to outside of it
    def __init__(
        self,
        cfg: ManagerBasedRlEnvCfg,
        *,
        num_envs: int,
        device: torch.device | str = "cpu",
        seed: int | None = None,
        backend: SimBackend | None = None,
    ) -> None:
        if not isinstance(cfg, ManagerBasedRlEnvCfg):
            raise ConfigError(
                f"cfg must be a ManagerBasedRlEnvCfg, got {cfg!r}: call a function that returns one"
            )
        self.cfg = cfg
        terrain = None
        if cfg.scene.terrain is not None:
            terrain = Terrain(cfg.scene.terrain, to_num_envs(num_envs), to_device(device))
        if backend is None:
            ground = None if terrain is None else terrain.generated
            backend = _make_backend(cfg, scene_model(cfg.scene, ground), num_envs, device)
        _check_backend(backend, num_envs, to_device(device))
        check_ground(terrain, backend)
        staggered = cfg.init_at_random_ep_len
        super().__init__(num_envs=num_envs, device=device, seed=seed, staggered=staggered)
        self.backend = backend
        self.step_dt = cfg.decimation * backend.timestep
        self.max_episode_length = control_steps(cfg.episode_length_s, self.step_dt)
        self.scene = EntityScene(cfg.scene, backend, self.device, terrain)
        check_motors(self.scene.entities.values(), backend)
        self._actuator_delays = ActuatorDelays(self)
        self.terms: list[Term] = []
        """The bound terms, in the order of construction."""
        self.action_manager = ActionManager(cfg.actions, self)
        self.command_manager = CommandManager(cfg.commands, self)
        self.termination_manager = TerminationManager(cfg.terminations, self)
        self.reward_manager = RewardManager(cfg.rewards, self)
        self.metrics_manager = MetricsManager(cfg.metrics, self)
        per_step = list(self.terms)
        self.command_manager.dry_run()
        self.episode_sums = EpisodeSums(
            {
                "Episode_Reward": self.reward_manager.term_names,
                "Episode_Termination": self.termination_manager.term_names,
                "Metrics": [*self.command_manager.metric_names, *self.metrics_manager.term_names],
            },
            num_envs,
            self.device,
            per_step=("Metrics",),
        )
        self.event_manager = EventManager(cfg.events, self)
        with torch.inference_mode():
            for term in per_step:
                term.dry_run(self)
        self.curriculum_manager = CurriculumManager(cfg.curriculum, self)
        self.observation_manager = ObservationManager(cfg.observations, self)
        self.recorder_manager = RecorderManager(cfg.recorders, cfg.recording, self)
        self._staging = self._changed_by_staging()
        self._before_reset: list[StateSnapshot] = []
        self.scene.compile_tensor_reads()
        self._guard: NanGuard | None = None
        if cfg.nan_guard is not None:
            width = self.action_manager.action_dim
            self._guard = NanGuard(cfg.nan_guard, backend, width, self.device)
            self.scene.before_write = self._guard.record_write
        self._lost_rows = False
        self._make_specs(self.action_manager.action_dim, self.action_manager.max_action)

    @property
    def obs_groups_spec(self) -> dict[str, int]:
        return self.observation_manager.groups_spec

    @cached_property
    @torch.inference_mode(False)
    def mirror(self) -> dict[str, tuple[Tensor, Tensor]] | None:
        return None if self.cfg.mirror is None else TaskMirror(self).columns()

    def episode_so_far(self, row: int) -> tuple[dict[str, float], list[str]]:
        """Reward sums of a row's episode, and the terminations that fired in its last step."""
        return self.episode_sums.so_far(row)

    @torch.inference_mode()
    def debug_draw(self, row: int) -> list[Marker]:
        """What commands and stateful terms draw of an environment into pictures and viewers."""
        funcs = (term.func for term in self.terms)
        terms = [func for func in funcs if isinstance(func, ManagerTermBase)]
        owners: list[CommandTerm | ManagerTermBase] = [*self.command_manager.terms.values(), *terms]
        return [marker for owner in owners for marker in owner.debug_draw(row)]

    def drain_metrics(self) -> dict[str, float]:
        """Metrics since the last call: also ``Curriculum/<term>``, the term's last value.

        If episodes ended, also means over them:
        ``Episode_Reward/<term>``: weighted sum of the term over the episode, divided by
        ``episode_length_s`` (an episode that ends early counts the missing time as 0);
        ``Episode_Termination/<term>``: share of the episodes that the term ended;
        ``Metrics/<term>`` and ``Metrics/<command>/<name>``: mean over the episodes' steps.
        """
        per_second = 1.0 / self.cfg.episode_length_s
        episodes = {
            tag: value * per_second if tag.startswith("Episode_Reward/") else value
            for tag, value in self.episode_sums.drain().items()
        }
        return super().drain_metrics() | self.curriculum_manager.metrics | episodes

    def set_output_dir(self, path: str) -> None:
        if self._guard is not None:
            self._guard.parent = Path(path)

    def _physics(self, action: Tensor) -> None:
        ctrl = self.action_manager.process(action)
        self.scene.apply_wrenches()
        if self.recorder_manager.active:
            self.recorder_manager.pre_step()
        if self._guard is not None:
            self._guard.record(action, ctrl)
        self.backend.step_tensor(ctrl.to(self.scene.physics), self.cfg.decimation)
        if self._guard is not None:
            self._guard.record_after()
        self.scene.read()
        lost = self.scene.check_finite(self.termination_manager.loses_rows)
        for sensor in self.scene.sensors.values():
            sensor.update(self.step_dt)
        if lost is not None and self._guard is not None and not self._lost_rows:
            self._lost_rows = True  # the first only: rows may be lost in every step
            _logger.warning("%s. %s", lost, self._dump(self._guard, lost))

    def _evaluate(self) -> tuple[Tensor, Tensor, Tensor]:
        self.episode_sums.step()
        terminated, truncated = self.termination_manager.compute()
        reward = self.reward_manager.compute()
        self.event_manager.interval()
        self.command_manager.compute()
        self.metrics_manager.compute()
        return reward, terminated, truncated

    def _on_refused_reset(self, error: BaseException, rows: Tensor) -> None:
        if isinstance(error, NonFiniteError):
            try:
                self._stage_reset(rows, check_each=True)
            except Exception as again:
                if isinstance(again, NonFiniteError):
                    error.add_note(f"Found by running the reset events again: {again}")
            finally:
                self._discard_reset()
            self._on_fault(error)

    def _on_fault(self, error: BaseException) -> None:
        if self._guard is not None and isinstance(error, NonFiniteError):
            error.add_note(self._dump(self._guard, error))

    def _dump(self, guard: NanGuard, error: NonFiniteError) -> str:
        """Write the last states of the error's rows, and say where they are."""
        try:
            path = guard.dump(
                error,
                control_steps=self.common_step_counter,
                nstep=self.cfg.decimation,
                seed=self.generator.initial_seed(),
            )
        except Exception as refused:  # OSError, RuntimeError, ..., depending on the writer
            return f"Its last states could not be written: {refused}"
        return f"Its last states are in {path}: unilab replay-dump {path}"

    def _observe(self, rows: Tensor | None = None) -> dict[str, Tensor]:
        return self.observation_manager.compute(update_history=True, env_ids=rows)

    def _changed_by_staging(self) -> list[Any]:
        """What terms may change before a reset is written."""
        early = ("event", "curriculum", "recorder")
        found: list[Any] = stateful(t for t in self.terms if t.label.startswith(early))
        if self.cfg.curriculum:
            found += [self.curriculum_manager, self.reward_manager, self.event_manager]
            found += self.command_manager.terms.values()
        if self.scene.terrain is not None:
            found.append(self.scene.terrain.levels)
        return found

    def _stage_reset(self, rows: Tensor, check_each: bool = False) -> None:
        self._before_reset[:] = [StateSnapshot(self, self._staging)]
        self.curriculum_manager.compute(rows)  # reset events see its changes
        self.scene.stage_reset(rows)
        self._actuator_delays.stage_reset(rows)
        self.command_manager.stage_reset(rows)
        self.event_manager.stage_reset(rows, check_each)

    def _discard_reset(self) -> None:
        self.scene.discard_staged()
        for before in self._before_reset:
            before.restore()

    def _after_step(self) -> None:
        if self.recorder_manager.active:
            self.recorder_manager.post_step()

    def _after_reset(self, rows: Tensor) -> None:
        if self.recorder_manager.active:
            self.recorder_manager.post_reset(rows)

    def _end_episodes(self, rows: Tensor) -> None:
        # Last: after it only the write itself can fail.
        if self.recorder_manager.active:
            self.recorder_manager.pre_reset(rows)

    def _commit_reset(self, rows: Tensor) -> None:
        self.scene.commit_staged()  # resets of terms see the new state
        for sensor in self.scene.sensors.values():
            sensor.reset(rows)
        self.episode_sums.reset(rows)
        for term in self.terms:
            term.reset(rows)
        self.action_manager.reset(rows)
        self.command_manager.reset(rows)
        self.event_manager.reset(rows)

    def export_training_state(self) -> dict[str, Any]:
        """The control steps so far, the terrain's levels, and what curriculum and commands keep."""
        state, curriculum = super().export_training_state(), self.curriculum_manager.state_dict()
        if commands := self.command_manager.training_state():
            state["commands"] = commands
        if self.scene.terrain is not None:
            state["terrain_levels"] = self.scene.terrain.levels.clone()
        return state | {"curriculum": curriculum} if curriculum else state

    def import_training_state(self, state: Mapping[str, Any]) -> None:
        super().import_training_state(state)
        if self.scene.terrain is not None and "terrain_levels" in state:
            self.scene.terrain.spread_levels(state["terrain_levels"])
        self.curriculum_manager.load_state_dict(state.get("curriculum", {}))
        self.command_manager.load_training_state(state.get("commands", {}))

    def _export_task(self) -> dict[str, Any]:
        biases = {name: e.data.encoder_bias for name, e in self.scene.entities.items()}
        action, recorder = self.action_manager, self.recorder_manager
        # Derived from this environment's encoder biases; episodes that nobody fetched.
        left_out = (action._versions, action._biased_offset, recorder.ended)
        kept = {n: save_state(owner, self, n, *left_out) for n, owner in self._owners().items()}
        return {
            "backend": self.backend.state_dict(),
            "encoder_bias": biases,
            "wrenches": self.scene.wrenches,
            "sensors": {name: sensor.state() for name, sensor in self.scene.sensors.items()},
            "terrain_levels": None if self.scene.terrain is None else self.scene.terrain.levels,
            "sums": self.episode_sums.state_dict(),
            "kept": kept,
        }

    def _import_task(self, state: dict[str, Any]) -> None:
        self.backend.load_state_dict(state["backend"])
        for name, entity in self.scene.entities.items():
            entity.data.encoder_bias.copy_(state["encoder_bias"][name])
        if self.scene.wrenches is not None:
            self.scene.wrenches.copy_(state["wrenches"])
        for name, sensor in self.scene.sensors.items():
            for key, value in sensor.state().items():
                value.copy_(state["sensors"][name][key])
        if self.scene.terrain is not None:
            self.scene.terrain.levels.copy_(state["terrain_levels"])
        self.episode_sums.load_state_dict(state["sums"])
        for name, owner in self._owners().items():
            load_state(owner, state["kept"][name], self, name)
        self.scene.read()

    def _owners(self) -> dict[str, Any]:
        """Managers, commands and terms: what keeps something from step to step."""
        owners = {name: value for name, value in vars(self).items() if name.endswith("_manager")}
        owners |= {f"command {n!r}": term for n, term in self.command_manager.terms.items()}
        owners |= {term.label: owner for term in self.terms for owner in stateful([term])}
        return owners

    def close(self, *, raise_if_closed: bool = True) -> None:
        super().close(raise_if_closed=raise_if_closed)
        self.backend.close()

    def deployment_metadata(self) -> dict[str, Any]:
        """What a robot's controller needs to run a policy; ``unilab export`` writes it."""
        return deployment_metadata(self)

    def describe(self) -> str:
        """The terrain's table, and every manager's."""
        managers = (
            self.observation_manager,
            self.action_manager,
            self.command_manager,
            self.reward_manager,
            self.termination_manager,
            self.event_manager,
            self.curriculum_manager,
            self.metrics_manager,
            self.recorder_manager,
        )
        ground = () if self.scene.terrain is None else (self.scene.terrain,)
        return "\n".join(map(str, (*ground, *managers)))


def _make_backend(
    cfg: ManagerBasedRlEnvCfg, model: Any, num_envs: int, device: torch.device | str
) -> SimBackend:
    if cfg.backend == "mjwarp":
        from unilab.backends.mjwarp import MjWarpBackend  # which imports Warp

        return MjWarpBackend(model, num_envs, device=device, keyframe=cfg.scene.keyframe)
    return MujocoBackend(model, num_envs, num_threads=cfg.num_threads, keyframe=cfg.scene.keyframe)


def _check_backend(backend: SimBackend, num_envs: int, device: torch.device) -> None:
    name, execution = type(backend).__name__, backend.tensor_execution()
    if backend.num_envs != num_envs:
        raise ConfigError(f"num_envs must be {backend.num_envs}, as in {name}, got {num_envs}")
    there = execution.device
    same = device.type == there.type and device.index in (None, there.index)
    if execution.kind == "DEVICE_RESIDENT" and not same:
        raise CapabilityError(
            f"device must be {str(there)!r}, where {name} keeps its physics, got {str(device)!r}"
        )
    if not backend.get_tensor_capabilities().selected_row_reset:
        raise CapabilityError(f"{name} cannot reset single environments, which episodes need")
