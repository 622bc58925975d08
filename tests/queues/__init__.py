"""Redis and ARQ, with a server of their own where one can be started."""
