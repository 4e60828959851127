"""What may happen: events, decisions and process managers.

Pure: nothing in this package does I/O, reads a clock, draws random numbers or is asynchronous.
"""
