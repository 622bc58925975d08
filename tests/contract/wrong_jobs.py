"""Jobs that go wrong, for processes that import nothing else."""

import os


def die(store, sync):
    os._exit(1)


def fail_alone(store, sync, fails):
    if fails:
        raise ValueError("this one fails, the others wait for it")
    sync()


def succeed(store, sync, answer):
    sync()
    return answer
