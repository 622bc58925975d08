"""Queues beside the store: Redis and ARQ, which tell workers that a task waits. They carry ids and nothing else.

Each module needs its extra: :mod:`task_tracker.queues.redis` the extra ``redis``,
:mod:`task_tracker.queues.messages` and :mod:`task_tracker.queues.arq` the extra ``arq``. Whatever is lost here loses
no task: it is in the store, and found there.
"""
