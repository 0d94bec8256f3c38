"""Demonstrations of robots: Diffusion Policy, LeRobot, LIBERO, ManiSkill, MimicGen, robomimic and RoboSet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from offline_data.formats.catalogues import Catalog, CatalogEntry, FoldersCatalog, TableCatalog

DIFFUSION_POLICY_FILES = {  # archive on the host, and zarr folder in it, by dataset
    "pusht": ("pusht.zip", "pusht_cchi_v7_replay"),
    "block_pushing": ("block_pushing.zip", "multimodal_push_seed"),
    "block_pushing_abs": ("block_pushing.zip", "multimodal_push_seed_abs"),
}
MANISKILL_ENVIRONMENTS = (  # with demonstrations, maybe in several files
    "AnymalC-Reach-v1", "DrawTriangle-v1", "LiftPegUpright-v1", "PegInsertionSide-v1", "PickCube-v1",
    "PlugCharger-v1", "PokeCube-v1", "PullCube-v1", "PullCubeTool-v1", "PushCube-v1", "PushT-v1",
    "RollBall-v1", "StackCube-v1", "TwoRobotPickCube-v1", "TwoRobotStackCube-v1",
)  # fmt: skip


class DiffusionPolicyCatalog(Catalog):
    """The published replay buffers."""

    name = "diffusion_policy"
    title = "Diffusion Policy, UMI and others: replay buffers (zarr)"
    needs = ("numcodecs",)
    extra = "zarr"
    action = "continuous"
    licence = "MIT"  # of the repository real-stanford/diffusion_policy
    citation = (
        "Cheng Chi, Siyuan Feng, Yilun Du, Zhenjia Xu, Eric Cousineau, Benjamin Burchfiel, Shuran Song: "
        "Diffusion Policy: Visuomotor Policy Learning via Action Diffusion, RSS, 2023, arXiv:2303.04137"
    )

    def catalog(self) -> Sequence[CatalogEntry]:
        return [
            CatalogEntry(name, summary=f"{inner}.zarr")
            for name, (_, inner) in DIFFUSION_POLICY_FILES.items()
        ]


class LeRobotCatalog(TableCatalog):
    """The datasets of `lerobot.tsv`; any other can be named, too."""

    name = "lerobot"
    title = "LeRobot: robot demonstrations (Parquet, mp4), any repository of the hub"
    action = "continuous"
    needs = ("pyarrow", "PIL", "av")
    extra = "lerobot"

    def catalog(self) -> Sequence[CatalogEntry]:
        return [CatalogEntry(name) for name in self.rows]


class ManiSkillCatalog(Catalog):
    """The environments; the hub knows their files."""

    name = "maniskill"
    title = "ManiSkill: demonstrations of simulated robots (HDF5 and JSON)"
    action = "continuous"
    citation = (
        "Stone Tao, Fanbo Xiang, Arth Shukla, Yuzhe Qin, Xander Hinrichsen, Xiaodi Yuan, Chen Bao, Xinsong "
        "Lin, Yulin Liu, Tse-kai Chan, Yuan Gao, Xuanlin Li, Tongzhou Mu, Nan Xiao, Arnav Gurha, Zhiao "
        "Huang, Roberto Calandra, Rui Chen, Shan Luo, Hao Su: ManiSkill3: GPU Parallelized Robotics "
        "Simulation and Rendering for Generalizable Embodied AI, 2024, arXiv:2410.00425"
    )

    def catalog(self) -> Sequence[CatalogEntry]:
        """List the environments; `remote` lists their files."""
        return [CatalogEntry(name) for name in MANISKILL_ENVIRONMENTS]


class SingleFilesCatalog(TableCatalog):
    """Datasets of one file each, with their places."""

    action = "continuous"

    def catalog(self) -> Sequence[CatalogEntry]:
        return [
            CatalogEntry(name, bytes=int(row.get("bytes") or 0) or None)
            for name, row in self.rows.items()
        ]


class RobomimicCatalog(SingleFilesCatalog):
    """robomimic's files, v0.1 to v1.5."""

    name = "robomimic"
    title = "robomimic: demonstrations of robot arms by humans and machines (HDF5)"
    licence = "MIT"
    citation = (
        "Ajay Mandlekar, Danfei Xu, Josiah Wong, Soroush Nasiriany, Chen Wang, Rohun Kulkarni, Li "
        "Fei-Fei, Silvio Savarese, Yuke Zhu, Roberto Martín-Martín: What Matters in Learning from "
        "Offline Human Demonstrations for Robot Manipulation, CoRL, 2021, arXiv:2108.03298"
    )


class MimicGenCatalog(SingleFilesCatalog):
    """MimicGen's files."""

    name = "mimicgen"
    title = "MimicGen: demonstrations generated from a few of humans (HDF5)"
    licence = "CC-BY-4.0"
    citation = (
        "Ajay Mandlekar, Soroush Nasiriany, Bowen Wen, Iretiayo Akinola, Yashraj Narang, Linxi Fan, "
        "Yuke Zhu, Dieter Fox: MimicGen: A Data Generation System for Scalable Robot Learning using "
        "Human Demonstrations, CoRL, 2023, arXiv:2310.17596"
    )


class LiberoCatalog(Catalog):
    """LIBERO's suites, a folder with a file for each task."""

    name = "libero"
    title = "LIBERO: demonstrations of 130 language-described tasks, with images (HDF5)"
    licence = "CC-BY-4.0"
    citation = (
        "Bo Liu, Yifeng Zhu, Chongkai Gao, Yihao Feng, Qiang Liu, Yuke Zhu, Peter Stone: LIBERO: "
        "Benchmarking Knowledge Transfer for Lifelong Robot Learning, NeurIPS Datasets and Benchmarks, "
        "2023, arXiv:2306.03310"
    )
    action = "continuous"

    def catalog(self) -> Sequence[CatalogEntry]:
        tasks = {"spatial": 10, "object": 10, "goal": 10, "90": 90, "10": 10}
        return [
            CatalogEntry(f"libero_{suite}", episodes=50 * count, summary=f"{count} tasks")
            for suite, count in tasks.items()
        ]


class RoboSetCatalog(FoldersCatalog):
    """Folders of `jdvakil/RoboSet_Sim` on the hub."""

    name = "roboset"
    title = "RoboSet: an arm in a kitchen and a hand, simulated by RoboHive (HDF5)"
    licence = "CC-BY-4.0"
    citation = (
        "Vikash Kumar, Rutav Shah, Gaoyue Zhou, Vincent Moens, Vittorio Caggiano, Abhishek Gupta, Aravind "
        "Rajeswaran: RoboHive: A Unified Framework for Robot Learning, NeurIPS Datasets and Benchmarks, "
        "2023, arXiv:2310.06828"
    )
    action = "continuous"
    notes: ClassVar = {
        "failures": "Rollouts of trained policies of several seeds, failures among them.",
        "replayed": "Actions of DAPG's demonstrations, replayed in RoboHive's environment.",
    }
