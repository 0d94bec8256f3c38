"""`export`: datasets as files of other formats, with a list of what those cannot hold, and a proof."""
