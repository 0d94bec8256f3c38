"""What offline RL asks of a batch beyond its rows: computed from indices, never stored."""
