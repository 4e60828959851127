"""The log, its leases and contents in PostgreSQL, and the embedded server."""
