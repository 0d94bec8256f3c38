"""robomimic and files like its own (MimicGen, Isaac Lab), read and written."""
