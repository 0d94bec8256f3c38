"""RLDS as Open X-Embodiment publishes it: TFRecord and WebDataset, read, and a writer."""
