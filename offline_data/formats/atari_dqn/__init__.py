"""Atari dqn."""
