"""The LoRA store: adapter bytes by their sha256."""
