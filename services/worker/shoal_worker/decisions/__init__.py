"""What a worker decides, as pure code: no I/O, the clock passed in. The worker and the simulator share it."""
