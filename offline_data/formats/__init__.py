"""Published formats: how datasets of each are listed, read and written.

A package or module for each format has its catalogue, its reader and its writer; none makes a dataset on this
disk. Start with `base` (`Source`, `RawDataset`), `writing.base` (`ExportTarget`) and a small one, `d4rl.neorl`.
"""
