"""A dataset card as files: README.md, and the picture that it shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from offline_data.analysis.figures import DatasetStats
from offline_data.analysis.frames import image_leaves
from offline_data.analysis.info import entry_info
from offline_data.analysis.statistics import dataset_stats
from offline_data.analysis.transitions import episode_span
from offline_data.base.errors import MissingDependencyError
from offline_data.base.progress import SILENT, Progress
from offline_data.raw.images import encode_image
from offline_data.reports import figure
from offline_data.reports.card import dataset_card
from offline_data.reports.pages.episodes import MOST_LEAVES, SIDE, read_pictures
from offline_data.reports.pictures import space_evenly, summarise
from offline_data.store.library import Entry
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.store.verify import CARD

_FRAMES = 6
_GAP = ((0, 2), (0, 2), (0, 0))


def card_files(
    entry: Entry,
    progress: Progress = SILENT,
    *,
    name: str = CARD,
    address: str | None = None,
    header: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, bytes]:
    """Return the files of a card by name: the text, and a picture if Pillow or matplotlib is there.

    The picture is called as the text, `name`, with `.webp`. For `address` and `header` see
    `dataset_card`.
    """
    reader = open_reader(entry.path)
    stats = dataset_stats(reader, progress)
    picture = draw_preview(reader, stats)
    place = Path(name).with_suffix(".webp").name if picture else None
    text = dataset_card(entry_info(entry), stats, address=address, header=header, picture=place)
    return {name: text.encode(), **({place: picture} if place and picture else {})}


def draw_preview(reader: DatasetReader, stats: DatasetStats) -> bytes | None:
    """Return a WebP picture: frames of each camera over an episode, or histograms of rewards."""
    begin, stop = episode_span(reader, reader.episode_count // 2)
    rows = space_evenly(begin, stop, _FRAMES)
    try:
        strips = [
            np.concatenate([np.pad(one, _GAP, constant_values=255) for one in frames], axis=1)
            for leaf in [*image_leaves(reader).values()][:MOST_LEAVES]
            for frames, _ in [read_pictures(reader, leaf.key, rows, SIDE)]
        ]
        if strips:
            wide = max(strip.shape[1] for strip in strips)
            padded = [
                np.pad(one, ((0, 0), (0, wide - one.shape[1]), (0, 0)), constant_values=255)
                for one in strips
            ]
            return encode_image(np.concatenate(padded), "webp", 80)
        figure.require_matplotlib()
        found = summarise(reader, stats=stats, episodes=0)
        found = replace(found, actions=(), ranges=(), coverage=None, left_out=())
        return figure.encode(figure.draw(found), "webp")
    except MissingDependencyError:
        return None
