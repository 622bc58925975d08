"""``python -m task_tracker``: the operators' commands (:mod:`task_tracker.cli`)."""

from __future__ import annotations

import sys

from task_tracker.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
