"""Records of a run: folder, metrics, console output, plots and videos."""

from unilab.record.console import Progress, closing_summary
from unilab.record.metric_logger import MetricLogger, ProgressCsv
from unilab.record.metric_schema import Metric, metric
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
    "metric",
    "package_versions",
    "plot_learning_curve",
]
