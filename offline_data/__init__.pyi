"""Public names and the modules of this package that they live in; `__init__.py` imports them on first use."""

from .api import card as card
from .api import check as check
from .api import convert as convert
from .api import diff as diff
from .api import download as download
from .api import export as export
from .api import info as info
from .api import inspect_files as inspect_files
from .api import list_datasets as list_datasets
from .api import load_arrays as load_arrays
from .api import lock as lock
from .api import merge as merge
from .api import plot as plot
from .api import push as push
from .api import remove as remove
from .api import search as search
from .api import stats as stats
from .api import sync as sync
from .api import verify as verify
from .buffers.bridges.agile import ReplayDataset as ReplayDataset
from .buffers.bridges.agile import Transition as Transition
from .buffers.bridges.agile import to_tensordict as to_tensordict
from .buffers.bridges.agile import to_torch_tensor as to_torch_tensor
from .buffers.bridges.schema import from_schema as from_schema
from .buffers.bridges.ted_flat import Flat2TED as Flat2TED
from .buffers.bridges.ted_flat import TED2Flat as TED2Flat
from .buffers.bridges.torchrl import Trajectory as Trajectory
from .buffers.bridges.torchrl import TrajectoryPredicate as TrajectoryPredicate
from .buffers.bridges.torchrl import filter_trajectories as filter_trajectories
from .buffers.bridges.torchrl import find_start_stop_traj as find_start_stop_traj
from .buffers.bridges.torchrl import iter_trajectories as iter_trajectories
from .buffers.bridges.torchrl import traj as traj
from .buffers.buffer import ReplayBuffer as ReplayBuffer
from .buffers.dataset import BaseDatasetExperienceReplay as BaseDatasetExperienceReplay
from .buffers.derived import action_chunk as action_chunk
from .buffers.derived import delta_timestamps as delta_timestamps
from .buffers.derived import frame_stack as frame_stack
from .buffers.derived import n_step as n_step
from .buffers.derived import normalize as normalize
from .buffers.derived import relabel as relabel
from .buffers.derived import return_to_go as return_to_go
from .buffers.derived import timestep as timestep
from .buffers.ensemble import DatasetMixture as DatasetMixture
from .buffers.ensemble import ReplayBufferEnsemble as ReplayBufferEnsemble
from .buffers.ensemble import SamplerEnsemble as SamplerEnsemble
from .buffers.ensemble import StorageEnsemble as StorageEnsemble
from .buffers.ensemble import WriterEnsemble as WriterEnsemble
from .buffers.ensemble.offline_to_online import (
    OfflineToOnlineReplayBuffer as OfflineToOnlineReplayBuffer,
)
from .buffers.ensemble.offline_to_online import prefill_replay_buffer as prefill_replay_buffer
from .buffers.experience_replay import AtariDQNExperienceReplay as AtariDQNExperienceReplay
from .buffers.experience_replay import D4RLExperienceReplay as D4RLExperienceReplay
from .buffers.experience_replay import GenDGRLExperienceReplay as GenDGRLExperienceReplay
from .buffers.experience_replay import MinariExperienceReplay as MinariExperienceReplay
from .buffers.experience_replay import OpenMLExperienceReplay as OpenMLExperienceReplay
from .buffers.experience_replay import RobosetExperienceReplay as RobosetExperienceReplay
from .buffers.experience_replay import VD4RLExperienceReplay as VD4RLExperienceReplay
from .buffers.lerobot_replay import LeRobotExperienceReplay as LeRobotExperienceReplay
from .buffers.load import load_dataset as load_dataset
from .buffers.load import open_dataset as open_dataset
from .buffers.load import register_dataset as register_dataset
from .buffers.load import torchrl_dataset as torchrl_dataset
from .buffers.openx_replay import OpenXExperienceReplay as OpenXExperienceReplay
from .buffers.prioritized import PrioritizedReplayBuffer as PrioritizedReplayBuffer
from .buffers.prioritized import (
    TensorDictPrioritizedReplayBuffer as TensorDictPrioritizedReplayBuffer,
)
from .buffers.samplers import PrioritizedSampler as PrioritizedSampler
from .buffers.samplers import PrioritizedSliceSampler as PrioritizedSliceSampler
from .buffers.samplers import RandomSampler as RandomSampler
from .buffers.samplers import Sampler as Sampler
from .buffers.samplers import SamplerWithoutReplacement as SamplerWithoutReplacement
from .buffers.samplers import SliceSampler as SliceSampler
from .buffers.samplers import SliceSamplerWithoutReplacement as SliceSamplerWithoutReplacement
from .buffers.storage import LazyMemmapStorage as LazyMemmapStorage
from .buffers.storage import LazyStackStorage as LazyStackStorage
from .buffers.storage import LazyTensorStorage as LazyTensorStorage
from .buffers.storage import ListStorage as ListStorage
from .buffers.storage import TensorStorage as TensorStorage
from .buffers.streaming import StreamingDataset as StreamingDataset
from .buffers.tensordict_buffer import TensorDictReplayBuffer as TensorDictReplayBuffer
from .buffers.trajectories import split_trajs as split_trajs
from .buffers.views.episode import Episode as Episode
from .buffers.writers import ImmutableDatasetWriter as ImmutableDatasetWriter
from .buffers.writers import RoundRobinWriter as RoundRobinWriter
from .buffers.writers import TensorDictMaxValueWriter as TensorDictMaxValueWriter
from .buffers.writers import TensorDictRoundRobinWriter as TensorDictRoundRobinWriter
from .buffers.writers import Writer as Writer
from .checks.finding import Finding as Finding
from .preprocess.steps.base import Step as Step
from .preprocess.steps.registry import register_step as register_step
from .sources.options import TextOptions as TextOptions
from .text.data import PairwiseDataset as PairwiseDataset
from .text.data import PromptData as PromptData
from .text.data import RewardData as RewardData
from .text.data import create_infinite_iterator as create_infinite_iterator
from .text.data import get_dataloader as get_dataloader
from .text.documents import Documents as Documents
from .text.tokenize import PromptTensorDictTokenizer as PromptTensorDictTokenizer
from .text.tokenize import TensorDictTokenizer as TensorDictTokenizer
from .text.tokenize import TokenizedDatasetLoader as TokenizedDatasetLoader
from .text.topk import TopKRewardSelector as TopKRewardSelector
from .version import __version__ as __version__

__all__: list[str]  # noqa: PYI035 - it has the names above
