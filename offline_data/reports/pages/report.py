"""A report: one self-contained HTML file about a dataset, for people who do not have it."""

from __future__ import annotations

from offline_data.analysis.checks.registry import select_rules
from offline_data.analysis.checks.run import run_checks
from offline_data.analysis.episodes import episode_quality
from offline_data.analysis.info import entry_info, schema_table
from offline_data.analysis.statistics import dataset_stats
from offline_data.base.errors import UsageError
from offline_data.base.files import human_bytes
from offline_data.base.progress import SILENT, Progress
from offline_data.document.html import as_html, element, render
from offline_data.reports.pages import sections
from offline_data.reports.pages.distributions import leaf_parts, spread_parts
from offline_data.reports.pages.episodes import example_episodes, read_episode
from offline_data.reports.pages.page import page_of_sections
from offline_data.reports.pages.player import article, episode_list, player
from offline_data.reports.pages.texts import Decode, is_text, text_parts
from offline_data.store.library import Entry
from offline_data.store.reader import open_reader

# Bytes of all pictures of a report. Charts and texts are bounded, too: a report of a dataset with
# fewer than a few hundred leaves takes at most 5 MiB.
PICTURE_BYTES = 3 << 20

MOST_LISTED = 100  # episodes in the table of a report

# Bytes of the pictures of a page of one episode, their number for each camera, and their longer
# side: so that the page can be mailed.
EPISODE_BYTES, EPISODE_FRAMES, EPISODE_SIDE = 12 << 20, 600, 320


def report_page(
    entry: Entry,
    *,
    workers: int = 1,
    progress: Progress = SILENT,
    decode: Decode | None = None,
) -> bytes:
    """Return a page about a dataset; reads it three times, in bounded memory.

    The page loads nothing, and names no folder of this machine. `decode` turns tokens of a text
    dataset into text; None: their numbers are shown. Raises `ManifestError` or `FormatError` if a
    file is missing or damaged.
    """
    reader = open_reader(entry.path)
    info = entry_info(entry)
    if is_text(reader):
        found = run_checks([entry.path], select_rules(), workers=workers, progress=progress)
        return page_of_sections(
            info.id,
            {
                "state": ("Overview", sections.state(info, found)),
                "findings": ("Findings", sections.findings(found)),
                "texts": ("Texts", text_parts(reader, decode)),
                "leaves": ("Leaves", render(schema_table(info))),
                "metadata": ("Metadata", sections.metadata(info)),
            },
        )
    stats = dataset_stats(reader, progress)
    found = run_checks([entry.path], select_rules(), workers=workers, progress=progress)
    chosen = example_episodes(reader)
    budget = PICTURE_BYTES // (len(chosen) + 1)
    shown = [read_episode(reader, number, budget=budget) for number in chosen]
    middle = shown[len(shown) // 2]
    quality = episode_quality(reader, progress)
    unusual = quality.order("outliers")[:MOST_LISTED].tolist()
    numbers = sorted([*dict.fromkeys([*chosen, *unusual])][:MOST_LISTED])
    listed = as_html(
        (
            episode_list(reader, numbers, quality, playable=chosen),
            element(
                "p",
                f"{len(numbers)} of {reader.episode_count:,} episodes: those that can be played here, "
                "and those with the most outliers.",
                class_="soft",
            )
            if len(numbers) < reader.episode_count
            else None,
        )
    )
    articles = [article(one, why) for one, why in zip(shown, chosen.values(), strict=True)]
    parts = {
        "state": ("Overview", sections.state(info, found)),
        "findings": ("Findings", sections.findings(found)),
        "cameras": (f"Cameras, episode {middle.number}", sections.strips(middle)),
        "returns": ("Returns and lengths", spread_parts(reader, stats)),
        "episodes": ("Episodes", player(reader, listed, articles)),
        "leaves": (
            "Leaves",
            as_html(
                (
                    leaf_parts(reader, stats, middle.number),
                    element("h3", "Schema"),
                    render(schema_table(info)),
                )
            ),
        ),
        "metadata": ("Metadata", sections.metadata(info)),
    }
    return page_of_sections(info.id, parts)


def episode_page(entry: Entry, number: int) -> bytes:
    """Return a page that plays one episode, its pictures of at most `EPISODE_BYTES` bytes.

    Raises `NotFoundError` without such an episode, `UsageError` if the dataset is text, and as
    `report_page`.
    """
    reader = open_reader(entry.path)
    if is_text(reader):
        raise UsageError(f"{entry.id} is text, which has no steps to play", hint="`report ID`")
    shown = read_episode(
        reader, number, pictures=EPISODE_FRAMES, side=EPISODE_SIDE, budget=EPISODE_BYTES
    )
    media = sum(len(content) for one in shown.frames for _, content in one.files)
    size = f"Images in this file: {human_bytes(media)}." if media else "No images."
    played = player(reader, episode_list(reader, [number]), [article(shown)])
    info = entry_info(entry)
    parts = {
        "episodes": ("Episode", as_html((element("p", size, class_="soft"), played))),
        "metadata": ("Metadata", sections.metadata(info)),
    }
    return page_of_sections(f"{info.id}, episode {number}", parts)
