"""PostgreSQL from 15 on: the log with its leases, queue and contents, its migrations, and the embedded server."""
