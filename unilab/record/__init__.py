"""What a run leaves behind: its folder, metrics, console output and plots."""

from unilab.record.console import Progress, closing_summary, started_as
from unilab.record.metrics import MetricLogger, ProgressCsv
from unilab.record.plot import plot_learning_curve
from unilab.record.run_folder import RunFolder
from unilab.record.schema import Metric, metric

__all__ = [
    "Metric",
    "MetricLogger",
    "Progress",
    "ProgressCsv",
    "RunFolder",
    "closing_summary",
    "metric",
    "plot_learning_curve",
    "started_as",
]
