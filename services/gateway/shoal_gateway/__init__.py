"""The gateway: answers the public API by putting units on the queue and collecting their results."""
