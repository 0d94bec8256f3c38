"""OGBench: npz files without rewards, in which flags tell episodes."""
