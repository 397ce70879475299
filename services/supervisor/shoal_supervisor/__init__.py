"""Supervisor: starts the processes of an embedded mesh, and starts those anew that end."""
