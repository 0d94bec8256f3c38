"""Earlier names of parts of `offline_data.plugins`."""
