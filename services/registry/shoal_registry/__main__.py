"""Runs the registry: python -m shoal_registry."""

from shoal_common.process import run
from shoal_registry.server import main
from shoal_registry.settings import RegistrySettings

run("registry", RegistrySettings, main)
