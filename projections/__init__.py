"""What can be asked: one module per read model (its tables, how an event changes them, its queries)."""
