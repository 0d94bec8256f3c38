"""D3rlpy."""
