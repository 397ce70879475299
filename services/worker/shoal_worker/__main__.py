"""Starts a worker: python -m shoal_worker."""

from __future__ import annotations

from shoal_common import process
from shoal_worker.server import main
from shoal_worker.settings import WorkerSettings

if __name__ == "__main__":
    process.run("worker", WorkerSettings, main)
