"""Runs the LoRA store: python -m shoal_lora_store."""

from shoal_common.process import run
from shoal_lora_store.server import main
from shoal_lora_store.settings import LoraStoreSettings

run("lora_store", LoraStoreSettings, main)
