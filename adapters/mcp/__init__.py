"""The Model Context Protocol on stdio and on a unix socket."""
