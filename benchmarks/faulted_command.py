"""Commands that faults are injected into: how they start, and what is wrong with their end."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ALGORITHMS = {
    "flashsac": [
        "algo.batch_size=16",
        "algo.learning_starts=32",
        "algo.n_step=1",
        "algo.replay_capacity=1000",
        "algo.algo_params.actor_hidden_dim=8",
        "algo.algo_params.critic_hidden_dim=8",
        "algo.algo_params.compile=false",
    ],
    "appo": [
        "algo.name=appo",
        "algo.num_steps=5",
        "algo.num_minibatches=1",
        "algo.num_epochs=1",
        "algo.algo_params.actor_hidden_dims=[8]",
        "algo.algo_params.critic_hidden_dims=[8]",
    ],
}
PENDULUM = [
    "task=pendulum_swingup",
    "algo.num_envs=4",
    "algo.total_frames=1_000_000_000",
    "training.num_threads=1",
    "training.device=cpu",
    "training.log_interval_s=0.05",
    "training.checkpoint_interval=80",
    "training.eval_interval=240",
    "training.eval_num_envs=2",
    "env.episode_length_s=0.4",
    "env.num_threads=1",
]
# TorchRL imports Ray where it is installed. Ray's exit hook imports more modules, which fails
# without file descriptors: the hook, the frames, the error.
RAY_EXIT = re.compile(
    r"^Exception ignored in atexit callback: <function shutdown at .*\nTraceback .*\n( .*\n)+.*\n?",
    re.MULTILINE,
)
BAD_OUTPUT = ("Traceback", "Exception ignored", "resource_tracker", "leaked", "Fatal Python")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MOST_POLLS = 5000
"""Of 20 ms; counted, as others may stop this process."""


class Launcher:
    """Forks commands from a process that has imported the library, which takes seconds."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        self._ask({})

    def start(self, **job: Any) -> int:
        """Starts ``unilab *argv``; returns its process id."""
        return self._ask(job)

    def exit_code(self) -> int | None:
        """Of the command started last; None while it runs."""
        return self._ask({"poll": True})

    def _ask(self, job: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(job), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())


def launch() -> None:
    """The launcher's process."""
    import torch.utils.tensorboard  # noqa: F401

    import unilab.examples.train_appo
    import unilab.examples.train_flashsac  # noqa: F401
    from unilab.cli import main

    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored
    answers, pid, code = os.fdopen(os.dup(1), "w"), 0, None
    for line in sys.stdin:
        job = json.loads(line)
        if "poll" in job and code is None:
            done, status = os.waitpid(pid, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if done else None
        elif "argv" in job:
            code = None
            pid = os.fork()
            if pid == 0:
                break
            while os.getsid(pid) != pid:
                time.sleep(0.001)
        print(json.dumps(code if "poll" in job else pid), file=answers, flush=True)
    else:
        return
    os.setsid()
    os.chdir(job["cwd"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(job["stdout"], os.O_WRONLY | os.O_CREAT), 1)
    os.dup2(os.open(job["stderr"], os.O_RDWR | os.O_CREAT), 2)
    os.closerange(3, 100)
    for stream in job["closed"]:
        os.close(stream)
    os.environ.update(TMPDIR=job["tmp"], **job["env"])
    tempfile.tempdir = None
    sys.argv = sys.orig_argv = ["unilab", *job["argv"]]
    sys.stdin, sys.stdout, sys.stderr = (
        None if n in job["closed"] else os.fdopen(n, "r" if n == 0 else "w", closefd=False)
        for n in range(3)
    )
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
    for name, limit in job["limits"].items():
        resource.setrlimit(getattr(resource, name), (limit, limit))
    sys.exit(main(job["argv"]))


class Case:
    """One fault: a command, what happens to it, and what was wrong with its end."""

    def __init__(self, launcher: Launcher, folder: Path, seed: str, algorithm: str) -> None:
        self.launcher = launcher
        self.algorithm = algorithm
        self.random = random.Random(seed)
        self.folder = folder
        self.run = folder / "work" / "run"
        self.problems: list[str] = []
        self.output = ""
        self.pid = 0
        self.may_leave_files = self.damaged = False
        self.readable = True
        for name in ("work", "tmp"):
            (folder / name).mkdir(parents=True)

    def train(self, *settings: str, minutes: float | None = None, **job: Any) -> None:
        """Starts a training, with a second process in one of six cases, APPO's always."""
        pipelined = self.random.random() < 1 / 6 or self.algorithm == "appo"
        settings = (f"training.collector={'pipelined' if pipelined else 'sync'}", *settings)
        if not any("training.resume" in setting for setting in settings):
            own = ALGORITHMS[self.algorithm]
            settings = (f"training.run_dir={self.run}", *PENDULUM, *own, *settings)
        if minutes is not None:
            settings = (*settings, f"training.max_minutes={minutes}")
        self.command("train", *settings, **job)

    def resume(self) -> None:
        self.train(f"training.resume={self.run}", minutes=0.003)

    def trained(self) -> None:
        """A run with checkpoints, before the fault."""
        self.train(minutes=0.01)
        self.ends(0)
        self.problems = [f"before the fault: {problem}" for problem in self.problems]

    def command(self, *argv: str, stdout: str = "", stderr: str = "", **job: Any) -> None:
        """Starts ``unilab *argv``."""
        for name in ("out", "err"):
            (self.folder / name).write_text("")
        self.pid = self.launcher.start(
            argv=argv,
            cwd=str(self.folder / "work"),
            tmp=str(self.folder / "tmp"),
            stdout=stdout or str(self.folder / "out"),
            stderr=stderr or str(self.folder / "err"),
            **{"limits": {}, "closed": [], "env": {}, **job},
        )

    def wait(self, phase: str | None = None, most: float = 1.0) -> None:
        """Waits for a random time in the start-up or in the loop."""
        phase = phase or self.random.choice(("start", "loop", "loop", "loop"))
        for _ in range(MOST_POLLS if phase == "loop" else 0):
            if any(self.run.glob("checkpoints/checkpoint-*")) or self.launcher.exit_code():
                break
            time.sleep(0.02)
        time.sleep(self.random.uniform(0.0, most))

    def signal(self, signum: int, group: bool | None = None) -> None:
        """To the process, or to all of its group as a terminal does."""
        self.may_leave_files |= signum == signal.SIGKILL
        group = self.random.random() < 0.5 if group is None else group
        try:
            (os.killpg if group else os.kill)(self.pid, signum)
        except ProcessLookupError:
            self.problems.append("it had ended before the fault")

    def processes(self) -> list[int]:
        """Processes of the command that run."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
                environ = stat.with_name("environ").read_bytes()
            except OSError:
                continue
            ours = int(fields[3]) == self.pid or f"TMPDIR={self.folder}/".encode() in environ
            if ours and fields[0] not in "ZX":
                found.append(int(stat.parent.name))
        return found

    def ends(self, *codes: int) -> None:
        """Waits for the end and checks it."""
        polls = 0
        while (code := self.launcher.exit_code()) is None:
            time.sleep(0.02)
            polls += 1
            if polls == MOST_POLLS:
                self.problems.append("it does not end")
                os.kill(self.pid, signal.SIGKILL)
        self.output = "".join((self.folder / n).read_text(errors="replace") for n in ("out", "err"))
        self.output = RAY_EXIT.sub("", self.output)
        if code not in codes:
            self.problems.append(f"exit code {code}, not {' or '.join(map(str, codes))}")
        self.problems += [f"{bad!r} in the output" for bad in BAD_OUTPUT if bad in self.output]
        told = sum(line.startswith("error:") for line in self.output.splitlines())
        if self.readable and told != (code == 2):
            self.problems.append(f"{told} errors with exit code {code}")
        for _ in range(100):  # what a kill ended may take a moment to notice
            if not (left := self.processes()):
                break
            time.sleep(0.1)
        for pid in left:
            line = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:200]
            self.problems.append(f"process left: {line}")
            os.kill(pid, signal.SIGKILL)
        self._check_files()

    def _check_files(self) -> None:
        left = [*Path("/dev/shm").iterdir(), *(self.folder / "tmp").glob("*")]
        left += [p for p in (self.folder / "work").iterdir() if p.name not in ("run", "moved")]
        if not self.may_leave_files:
            left += [*self.run.glob("*.partial"), *self.run.glob("checkpoints/.*")]
        for path in left:
            if path.name != "filler" and not path.name.startswith("torchinductor"):
                self.problems.append(f"file left: {path}")
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for checkpoint in self.run.glob("checkpoints/checkpoint-*"):
            if not self.damaged and (bad := damage(checkpoint)):
                self.problems.append(f"{checkpoint.name} is damaged: {bad}")

    def checkpoint_kept(self, where: Path | None = None) -> None:
        if not any((where or self.run).glob("checkpoints/checkpoint-*")):
            self.problems.append("no checkpoint is left")

    def resumes(self, *codes: int) -> None:
        """Checks that the run continues from its newest checkpoint, if it has one."""
        has_one = any(self.run.glob("checkpoints/checkpoint-*"))
        if has_one and (self.run / "run_config.json").exists():
            before, self.may_leave_files = self.may_leave_files, False
            self.resume()
            self.ends(0, *codes)
            self.may_leave_files = before
            try:
                with (self.run / "progress.csv").open(newline="") as file:
                    rows = list(csv.reader(file, strict=True))
                if len({len(row) for row in rows}) != 1:
                    self.problems.append("progress.csv has rows of several lengths")
            except (OSError, csv.Error) as error:
                self.problems.append(f"progress.csv: {error}")


def damage(checkpoint: Path) -> str:
    """What is wrong with a checkpoint, or ""."""
    try:
        json.loads((checkpoint / "manifest.json").read_text())
        for file in checkpoint.rglob("state.pt"):
            digest = file.with_name("state.sha256").read_text()
            if hashlib.sha256(file.read_bytes()).hexdigest() != digest:
                return f"{file.parent.name} differs from its SHA-256"
    except (OSError, ValueError) as error:
        return str(error)
    return ""


if __name__ == "__main__":
    launch()
