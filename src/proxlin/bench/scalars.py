"""Curves for TensorBoard, and for what reads its files, such as ``wandb sync``."""

from __future__ import annotations

import importlib.util
import math
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from proxlin.bench.errors import UsageError
from proxlin.bench.loop import Report
from proxlin.bench.progress import Progress
from proxlin.bench.status import RunStatus
from proxlin.bench.watch import Watch

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter


class Scalars(Watch):
    """Writes the numbers of every step and of every evaluation beside the record of a run.

    Args:
        folder: of the run. The curves of a resumed run go on where its checkpoint was.

    Raises:
        UsageError: if tensorboardX is not installed.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        if importlib.util.find_spec("tensorboardX") is None:
            raise UsageError(
                "--tensorboard needs tensorboardX; install it with: "
                "pip install 'proxlin[tensorboard]'"
            )
        self._folder = folder
        self._writer: SummaryWriter | None = None

    def stepped(self, progress: Progress, report: Report) -> None:
        """Writes what the step reports."""
        numbers = {"batch/loss": report.value, "step/gamma": report.gamma, "step/eta": report.eta}
        self._write(progress.step, {**numbers, "step/rejected": report.rejected})

    def evaluated(self, line: Mapping[str, Any]) -> None:
        """Writes losses and accuracies."""
        keys = ("train_loss", "train_accuracy", "test_loss", "test_accuracy")
        self._write(line["step"], {key.replace("_", "/"): line[key] for key in keys})
        if self._writer:
            self._writer.flush()

    def ended(self, status: RunStatus, message: str) -> None:
        """Closes the file."""
        if self._writer:
            self._writer.close()

    def _write(self, step: int, numbers: Mapping[str, Any]) -> None:
        """Writes the finite ones; what an earlier file has from this step on is void."""
        if self._writer is None:
            from tensorboardX import SummaryWriter

            self._writer = SummaryWriter(str(self._folder), purge_step=step)
        for name, value in numbers.items():
            if value is not None and math.isfinite(value):
                self._writer.add_scalar(name, float(value), step)
