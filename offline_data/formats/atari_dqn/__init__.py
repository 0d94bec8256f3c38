"""Atari DQN Replay: checkpoints of replay buffers, a shard for each."""
