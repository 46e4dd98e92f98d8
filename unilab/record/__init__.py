"""What a run leaves behind: its folder, metrics, console output and plots."""

from unilab.record.console import (
    Progress,
    closing_summary,
    command_line,
    running_program,
    started_as,
)
from unilab.record.metrics import Metric, MetricLogger, ProgressCsv, metric
from unilab.record.plot import plot_learning_curve
from unilab.record.run_folder import RunFolder, package_versions
from unilab.record.video import VideoWriter

__all__ = [
    "Metric",
    "MetricLogger",
    "Progress",
    "ProgressCsv",
    "RunFolder",
    "VideoWriter",
    "closing_summary",
    "command_line",
    "metric",
    "package_versions",
    "plot_learning_curve",
    "running_program",
    "started_as",
]
