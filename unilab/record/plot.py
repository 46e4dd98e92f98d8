"""Learning curve of a run against environment steps and wall time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unilab.errors import CapabilityError, CheckpointError, ConfigError
from unilab.record.metric_logger import read_progress
from unilab.record.run_folder import RunFolder, unwritable

_PREFERRED = ("Eval/Episode_Reward/", "Episode_Reward/")


def plot_learning_curve(run: str | Path, out: str | Path | None = None) -> Path:
    """Draws return and task terms of a run over environment steps, with minutes on the upper axis.

    Args:
        run: the run's folder.
        out: image file to write; ``learning_curve.png`` in the run's folder by default.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise CapabilityError(
            "plots need matplotlib, which is not installed: pip install 'unilab-torchrl[plot]'"
        ) from error
    folder = RunFolder.open(run)
    rows = _read(folder.progress_file)
    figure = Figure(figsize=(8, 6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    _draw(upper, rows, ["Train/return", "Eval/return"], strip="")
    upper.set_ylabel("return")
    tags = {tag for row in rows for tag in row}
    prefix = next((p for p in _PREFERRED if any(tag.startswith(p) for tag in tags)), "")
    terms = sorted(tag for tag in tags if prefix and tag.startswith(prefix))
    if terms:
        _draw(lower, rows, terms, strip=prefix)
        lower.set_ylabel(prefix.strip("/") + " (1/s)")
    else:
        _draw(lower, rows, ["Train/episode_length", "Eval/episode_length"], strip="")
        lower.set_ylabel("episode length (control steps)")
    lower.set_xlabel("environment steps")
    _add_minutes_axis(upper, rows)
    config = folder.read_config()["config"]
    algorithm = config.get("algo", {}).get("name", "")
    minutes = f"{float(rows[-1]['minutes']):.3g} min"
    upper.set_title(f"{config.get('task', '')}  {algorithm}  {minutes}", pad=28)
    target = Path(out) if out is not None else folder.path / "learning_curve.png"
    try:
        figure.savefig(target, dpi=120)
    except OSError as error:
        raise unwritable(target, error) from error
    except ValueError as error:
        raise ConfigError(f"out must have a picture's suffix, got {target}: {error}") from error
    return target


def _read(path: Path) -> list[dict[str, str]]:
    _, rows = read_progress(path) if path.exists() else ([], [])
    if not rows:
        raise CheckpointError(f"{path} has no rows yet: let the run log once before you plot it")
    return [{tag: cell for tag, cell in row.items() if cell} for row in rows]


def _draw(axes: Any, rows: Sequence[dict[str, str]], tags: Sequence[str], *, strip: str) -> None:
    for tag in tags:
        points = [(int(row["frames"]), float(row[tag])) for row in rows if tag in row]
        if points:
            marker = "o" if tag.startswith("Eval/") else None
            axes.plot(*zip(*points, strict=True), label=tag.removeprefix(strip), marker=marker)
    if axes.lines:
        axes.legend(fontsize="small")
    axes.grid(alpha=0.3)


def _add_minutes_axis(axes: Any, rows: Sequence[dict[str, str]]) -> None:
    """Ticks of elapsed minutes at the frames where they were reached; the pace may vary."""
    last = float(rows[-1]["minutes"])
    if not last > 0.0:
        return
    ticks, labels = [], []
    for fraction in (0.25, 0.5, 0.75, 1.0):
        row = next(r for r in rows if float(r["minutes"]) >= fraction * last - 1e-9)
        ticks.append(int(row["frames"]))
        labels.append(f"{float(row['minutes']):.3g} min")
    twin = axes.secondary_xaxis("top")
    twin.set_ticks(ticks, labels)
