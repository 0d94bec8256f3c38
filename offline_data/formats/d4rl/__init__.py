"""D4RL and the sources whose files are like its own: NeoRL, DSRL, AgileRL."""
