"""The scheduler: who holds which model, and how long each lane would let a unit wait."""
