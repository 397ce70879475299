"""The torch runtime: one process a device, holding weights and computing packed batches for the sidecar."""
