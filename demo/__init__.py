"""Two servers, one directory: `python -m demo` shows that tasks outlive the server that took them on."""
