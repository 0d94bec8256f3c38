"""Recorded games: Atari DQN Replay, Gen-DGRL and Katakomba."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from offline_data.formats.catalogues import Catalog, CatalogEntry, TableCatalog, read_catalog

LACK = "Some runs of this game have no checkpoint 50 (google-research/batch_rl issue 33)."
KINDS = {
    "1M_E": (1_000_000, "expert, 1M steps, 200 levels"),
    "1M_S": (1_000_000, "mixed expert and suboptimal, 1M steps, 200 levels"),
    "10M": (10_000_000, "expert, 10M steps, 200 levels"),
    "25M": (25_000_000, "all of a training, suboptimal, 25M steps, 200 levels"),
    "level_1_E": (100_000, "expert, 100k steps, 1 level"),
    "level_1_S": (100_000, "suboptimal, 100k steps, 1 level"),
    "level_40_E": (100_000, "expert, 100k steps, 40 levels"),
    "level_40_S": (100_000, "suboptimal, 100k steps, 40 levels"),
}
"""Transitions per game, rounded, and contents, according to procgen/README.md of
facebookresearch/gen_dgrl and the names."""
ROLES = {
    "arc": "archeologist", "bar": "barbarian", "cav": "caveman", "hea": "healer", "kni": "knight",
    "mon": "monk", "pri": "priest", "ran": "ranger", "rog": "rogue", "sam": "samurai", "tou": "tourist",
    "val": "valkyrie", "wiz": "wizard",
}  # fmt: skip
RACES = {"hum": "human", "elf": "elf", "dwa": "dwarf", "gno": "gnome", "orc": "orc"}
ALIGNMENTS = {"neu": "neutral", "law": "lawful", "cha": "chaotic"}


@lru_cache(maxsize=1)
def games() -> dict[str, bool]:
    """Return the games, and whether some of their runs lack the last checkpoint."""
    return {row["game"]: row["some_lack_50"] == "1" for row in read_catalog("atari_dqn")}


class AtariDQNCatalog(Catalog):
    """Five runs of each game."""

    name = "atari_dqn"
    title = "Atari DQN Replay: 60 games, 5 runs of DQN each, 50 million steps a run"
    citation = (
        "Rishabh Agarwal, Dale Schuurmans, Mohammad Norouzi: An Optimistic Perspective on Offline "
        "Reinforcement Learning, ICML 2020, arXiv:1907.04543"
    )
    action = "discrete"

    def catalog(self) -> Sequence[CatalogEntry]:
        """List the runs; each has about 50 million steps (batch_rl's README), sizes are not published."""
        summary = "84×84 frames, 51 checkpoints of a million steps"
        return [
            CatalogEntry(
                f"{game}/{run}", 50_000_000, summary=summary, notes=(LACK,) if lacks else ()
            )
            for game, lacks in games().items()
            for run in range(1, 6)
        ]


class GenDGRLCatalog(TableCatalog):
    """Datasets of eight kinds for each game."""

    name = "gen_dgrl"
    title = "Gen-DGRL: 16 Procgen games, to learn on some levels and play on others"
    licence = "CC-BY-NC-4.0"
    citation = (
        "Ishita Mediratta, Qingfei You, Minqi Jiang, Roberta Raileanu: The Generalization Gap in Offline "
        "Reinforcement Learning, ICLR 2024, arXiv:2312.05742"
    )
    action = "discrete"

    def catalog(self) -> Sequence[CatalogEntry]:
        kinds = {name: KINDS[name.partition("-")[2]] for name in self.rows}
        return [CatalogEntry(name, steps, summary=text) for name, (steps, text) in kinds.items()]


class KatakombaCatalog(TableCatalog):
    """One dataset for each character."""

    name = "katakomba"
    title = "Katakomba: NetHack, 38 characters played by a bot (HDF5)"
    action = "discrete"
    licence = "NGPL"
    citation = (
        "Vladislav Kurenkov, Alexander Nikulin, Denis Tarasov, Sergey Kolesnikov: Katakomba: Tools and "
        "Benchmarks for Data-Driven NetHack, 2023, arXiv:2306.08772"
    )

    def catalog(self) -> Sequence[CatalogEntry]:
        return [
            CatalogEntry(name, int(row["transitions"]), summary=_describe_character(name))
            for name, row in self.rows.items()
        ]


def _describe_character(name: str) -> str:
    role, race, alignment = name.split("-")
    return f"{ALIGNMENTS[alignment]} {RACES[race]} {ROLES[role]}"
