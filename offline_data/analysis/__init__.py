"""Facts about a dataset: statistics, checks, quality of episodes, alignment, replays.

It reads datasets and changes nothing but summaries in manifests; it prints and draws nothing. Start with `info`,
or with `checks.rule` for a rule of `check`.
"""
