"""Devices, a broker and routers on a simulated clock, around the worker's real decisions."""
