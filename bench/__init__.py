"""One module a figure, run as `python -m bench.NAME`; the last line that each prints is one JSON object."""
