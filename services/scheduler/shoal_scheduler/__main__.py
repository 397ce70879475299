"""Runs the scheduler: python -m shoal_scheduler."""

from shoal_common.process import run
from shoal_scheduler.server import main
from shoal_scheduler.settings import SchedulerSettings

run("scheduler", SchedulerSettings, main)
