"""The rules, a file for each subject; `offline_data.checks.registry` finds them."""
