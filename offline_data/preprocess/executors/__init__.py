"""Who runs the tasks: this process, local processes, a pool that is given, Ray."""
