"""Pure process managers: what follows from a fact, given the folded state before it."""
