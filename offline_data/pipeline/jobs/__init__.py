"""The engine of work: tasks that may run anywhere and twice, their records, plans for several programs."""
