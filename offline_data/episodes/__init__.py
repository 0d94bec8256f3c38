"""Episodes between layers: `EpisodeBatch`, its leaves, and cutting flat arrays into them."""

from offline_data.episodes.batch import Dropped, EpisodeBatch
from offline_data.episodes.fields import Key, join_key, split_key

__all__ = ["Dropped", "EpisodeBatch", "Key", "join_key", "split_key"]
