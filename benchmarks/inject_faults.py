"""Injects faults into trainings and counts those that do not end as they should.

    python benchmarks/inject_faults.py [--rounds 14] [--seed 0] [--kind NAME ...] [--algorithm appo]

Signals at random times, full and read-only disks, removed and damaged files, limits and closed
streams. A fault fails if the exit code is wrong, a traceback or more than one error is printed, a
checkpoint is lost, or anything is left behind: a process, a semaphore, a file in /dev/shm, in
TMPDIR or in the run folder. Linux only. It needs mount namespaces (root, or users who may make
them), for small disks and a /dev/shm of its own.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faulted_command import ALGORITHMS, SIGNALS, Case, Launcher


def stopped_by_signals(case: Case) -> None:
    signum = case.random.choice(SIGNALS)
    case.train()
    case.wait()
    times = case.random.choice((1, 1, 1, 2, 3))
    for _ in range(times):
        if case.launcher.exit_code() is None:
            case.signal(signum)
        time.sleep(case.random.uniform(0.0, 0.2))
    # A signal before Python has handlers, or a third one, ends the process at once.
    case.ends(128 + signum, -signum, *([130] if times == 3 else []))
    case.resumes()


def killed(case: Case) -> None:
    case.train()
    case.wait()
    case.signal(signal.SIGKILL)
    case.ends(-signal.SIGKILL)
    case.resumes()


def suspended(case: Case) -> None:
    case.train()
    case.wait()
    case.signal(signal.SIGSTOP)
    time.sleep(case.random.uniform(0.1, 1.0))
    case.signal(signal.SIGCONT, group=True)
    time.sleep(case.random.uniform(0.0, 0.5))
    case.signal(signal.SIGTERM)
    case.ends(143, -signal.SIGTERM)
    case.resumes()


def environment_process_killed(case: Case) -> None:
    case.train("training.collector=pipelined")
    case.wait("loop")
    for pid in case.processes():
        if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    case.ends(2)
    case.checkpoint_kept()
    case.resumes()


def terminal_closed(case: Case) -> None:
    ours, theirs = os.openpty()
    name = os.ttyname(theirs)
    case.readable = False
    case.train(stdout=name, stderr=name)
    os.close(theirs)
    case.wait("loop")
    os.close(ours)
    case.ends(129, -signal.SIGHUP)
    case.resumes()


def disk_full(case: Case) -> None:
    kib = case.random.choice((64, 200, 400, 1000))
    mount(case.run, f"size={kib}k")
    freed = case.random.random() < 0.4
    traced = case.random.choice(("true", "false"))
    case.train(f"training.trace={traced}", minutes=0.03)
    case.wait("loop" if kib == 1000 or freed else None)
    fill(case.run / "filler")
    if freed:
        time.sleep(case.random.uniform(0.0, 0.5))
        (case.run / "filler").unlink()
    case.ends(0, 2)
    (case.run / "filler").unlink(missing_ok=True)
    case.resumes(2)  # its own checkpoints may fill a small disk
    unmount(case.run)


def file_size_limited(case: Case) -> None:
    case.readable = False  # standard error is a file too
    case.train(minutes=0.03)
    case.wait()
    try:
        limit = case.random.choice((0, 100, 5_000, 100_000))
        resource.prlimit(case.pid, resource.RLIMIT_FSIZE, (limit, limit))
    except ProcessLookupError:
        case.problems.append("it had ended before the fault")
    case.ends(0, 2)
    case.resumes()


def file_size_limited_at_start(case: Case) -> None:
    case.readable = False
    limit = case.random.choice((0, 100, 5_000, 100_000))
    case.train(minutes=0.01, limits={"RLIMIT_FSIZE": limit})
    case.ends(0, 2)
    case.resumes()


def folder_removed(case: Case) -> None:
    part = case.random.choice((".", ".", "checkpoints", "tensorboard"))
    case.train(minutes=0.03)
    case.wait("loop")
    for _ in range(5):
        shutil.rmtree(case.run / part, ignore_errors=True)
    case.ends(0, 2)


def folder_moved(case: Case) -> None:
    case.train(minutes=0.03)
    case.wait("loop")
    case.run.rename(case.run.with_name("moved"))
    case.ends(0, 2)
    case.checkpoint_kept(case.run.with_name("moved"))


def folder_replaced_by_a_file(case: Case) -> None:
    part = case.random.choice((".", "checkpoints", "tensorboard", "progress.csv"))
    case.train(minutes=0.03)
    case.wait("loop")
    (case.run / part).rename(case.run.with_name("moved"))
    if part == "progress.csv":
        (case.run / part).mkdir()
    else:
        (case.run / part).write_text("")
    case.ends(0, 2)


def folder_read_only(case: Case) -> None:
    case.train(minutes=0.03)
    case.wait("loop")
    subprocess.run(["mount", "--bind", case.run, case.run], check=True)
    subprocess.run(["mount", "-o", "remount,ro,bind", case.run], check=True)
    case.may_leave_files = True  # it cannot remove what it began to write
    case.ends(0, 2)
    unmount(case.run)
    case.checkpoint_kept()
    case.resumes()


def folder_unusable_at_start(case: Case) -> None:
    target = case.folder / "target"
    how = case.random.choice(("file", "read-only", "no such device"))
    if how == "file":
        target.write_text("")
    elif how == "read-only":
        mount(target, "ro")
    else:
        target = Path("/proc/nowhere")
    name = case.random.choice(("training.run_dir", "training.log_root"))
    case.train(f"{name}={target}", *(["training.run_dir=null"] if "log" in name else []))
    case.ends(2)
    if how == "read-only":
        unmount(target)


def files_damaged(case: Case) -> None:
    case.trained()
    files = [p for p in case.run.rglob("*") if p.is_file() and "tensorboard" not in p.parts]
    path = case.random.choice([*files, *case.run.glob("*.*")])
    how = case.random.choice(("bytes", "cut", "empty", "removed", "directory", "text", "cells"))
    content = bytearray(path.read_bytes())
    if how == "bytes":
        for _ in range(20):
            content[case.random.randrange(len(content))] = case.random.randrange(256)
    if how == "cells":
        content += b"900000000,1,2" + 100 * b",3" + b"\n"
    short = {"cut": content[: len(content) // 2], "empty": b"", "text": b"\x00not this\xff\n"}
    path.unlink()
    if how == "directory":
        path.mkdir()
    elif how != "removed":
        path.write_bytes(short.get(how, content))
    command = case.random.choice(("resume", "resume", "resume", "play", "plot"))
    if command == "resume":
        case.train(f"training.resume={case.run}", minutes=0.005)
    else:
        case.command(command, str(case.run), *(["--robots", "1"] if command == "play" else []))
    case.damaged = True
    case.ends(0, 2)


def few_descriptors(case: Case) -> None:
    limit = case.random.randint(3, 60)
    case.train(minutes=0.01, limits={"RLIMIT_NOFILE": limit})
    case.ends(0, 2)
    case.resumes()


def descriptors_taken(case: Case) -> None:
    """None is left from some time on."""
    case.train(minutes=0.03)
    case.wait()
    try:
        resource.prlimit(case.pid, resource.RLIMIT_NOFILE, (3, 3))
    except ProcessLookupError:
        case.problems.append("it had ended before the fault")
    case.may_leave_files = True  # it cannot list, and so not remove, what it began to write
    case.ends(0, 2)
    case.resumes()


def reader_gone(case: Case) -> None:
    """``| head -1``, of standard output, standard error or both."""
    command = case.random.choice(("train", "train", "train", "list", "--help", "plot", "play"))
    if command in ("plot", "play"):
        case.trained()
    pipe = case.folder / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    streams = case.random.choice((["stdout"], ["stdout"], ["stderr"], ["stdout", "stderr"]))
    job: dict[str, Any] = dict.fromkeys(streams, str(pipe))
    if command == "train":
        case.train(minutes=0.03, **job)
        for _ in range(200):
            if case.launcher.exit_code() is not None or readable(reader):
                break
            time.sleep(0.05)
        os.close(reader)
        case.ends(0)
    else:
        arguments = [str(case.run)] if command in ("plot", "play") else []
        arguments += ["--robots", "1"] if command == "play" else []
        case.command(command, *arguments, **job)
        streams_of = Path(f"/proc/{case.pid}/fd")
        while not any(pipe.samefile(streams_of / n) for n in "12"):  # it opens the pipe itself
            time.sleep(0.001)
        os.close(reader)
        case.ends(0, 141)


def streams_closed(case: Case) -> None:
    closed = case.random.choice(([0], [1], [2], [1, 2], [0, 1, 2]))
    case.readable = False
    case.train(minutes=0.01, closed=closed)
    case.ends(0)
    case.checkpoint_kept()


def output_on_a_full_disk(case: Case) -> None:
    stream = case.random.choice(("stdout", "stderr"))
    case.train(minutes=0.01, **{stream: "/dev/full"})
    case.ends(0)
    case.checkpoint_kept()


def shared_memory_full(case: Case) -> None:
    fill(Path("/dev/shm/filler"))
    case.train(minutes=0.01)
    case.ends(0)
    Path("/dev/shm/filler").unlink()


def temporary_folder_unusable(case: Case) -> None:
    mount(case.folder / "tmp", case.random.choice(("size=4k", "ro")))
    if case.random.random() < 0.5:
        shutil.rmtree(case.folder / "tmp", ignore_errors=True)
    compiled = f"algo.algo_params.compile={case.random.choice(('true', 'false'))}"
    case.train(*([compiled] if case.algorithm == "flashsac" else []), minutes=0.01)
    case.ends(0, 2)
    unmount(case.folder / "tmp")


def resume_stopped(case: Case) -> None:
    case.trained()
    case.train(f"training.resume={case.run}", "training.max_minutes=null")
    case.wait("start", 3.0)
    signum = case.random.choice((*SIGNALS, signal.SIGKILL))
    case.signal(signum)
    case.ends(128 + signum, -signum)
    case.checkpoint_kept()
    case.resumes()


KINDS: dict[str, Callable[[Case], None]] = {
    kind.__name__: kind
    for kind in (
        stopped_by_signals,
        killed,
        suspended,
        environment_process_killed,
        terminal_closed,
        disk_full,
        file_size_limited,
        file_size_limited_at_start,
        folder_removed,
        folder_moved,
        folder_replaced_by_a_file,
        folder_read_only,
        folder_unusable_at_start,
        files_damaged,
        few_descriptors,
        descriptors_taken,
        reader_gone,
        streams_closed,
        output_on_a_full_disk,
        shared_memory_full,
        temporary_folder_unusable,
        resume_stopped,
    )
}


def readable(fd: int) -> bool:
    try:
        return bool(os.read(fd, 1))
    except BlockingIOError:
        return False


def mount(path: Path, options: str) -> None:
    path.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "disk", path], check=True)


def unmount(path: Path) -> None:
    subprocess.run(["umount", "-l", path], check=True)


def fill(path: Path) -> None:
    """Fills the disk that a file is on."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(size * b"0")
            except OSError:
                pass


def main(rounds: int, seed: int, kinds: list[str], algorithm: str, root: Path) -> int:
    """Injects a fault of each kind in each round; returns how many failed."""
    mount(Path("/dev/shm"), "size=64m")
    launcher = Launcher()
    total, failed = Counter[str](), Counter[str]()
    for number in range(rounds * len(kinds)):
        kind = kinds[number % len(kinds)]
        case = Case(launcher, root / str(number), f"{seed}/{number}", algorithm)
        try:
            KINDS[kind](case)
        except Exception as error:
            case.problems.append(f"harness: {error!r}")
        total[kind] += 1
        if case.problems:
            failed[kind] += 1
            print(f"{number} {kind}: {'; '.join(case.problems)}")
            print("   | " + "\n   | ".join(case.output.splitlines()[-12:]), flush=True)
        else:
            shutil.rmtree(case.folder)
    print(f"\n{'kind':30} faults failed")
    for kind in kinds:
        print(f"{kind:30} {total[kind]:6} {failed[kind]:6}")
    print(f"{'all':30} {total.total():6} {failed.total():6}")
    return failed.total()


if __name__ == "__main__":
    if os.environ.get("UNILAB_FAULTS") != "namespace":
        os.environ["UNILAB_FAULTS"] = "namespace"
        user = [] if os.getuid() == 0 else ["-r"]
        os.execvp("unshare", ["unshare", "-m", *user, sys.executable, *sys.argv])
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=14, help="faults of each kind (14)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="flashsac")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="unilab-faults-") as root:
        arguments = (options.rounds, options.seed, options.kind, options.algorithm, Path(root))
        sys.exit(bool(main(*arguments)))
