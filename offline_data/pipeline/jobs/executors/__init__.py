"""Executors run the tasks of a job: in this process, in local processes, in a given pool, on Ray."""
