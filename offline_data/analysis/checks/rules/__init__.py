"""The rules, a file for each subject; `offline_data.analysis.checks.registry` finds them."""
