"""The server kit: what every Shoal service shares."""
