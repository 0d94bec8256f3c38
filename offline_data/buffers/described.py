"""Spaces, environment, normalized scores and statistics of a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import numpy as np

from offline_data.analysis.figures import DatasetStats
from offline_data.analysis.statistics import dataset_stats
from offline_data.base.errors import NotFoundError
from offline_data.base.plurals import join_names, plural
from offline_data.buffers.specs import Specs, specs_of
from offline_data.episode.fields import join_key
from offline_data.formats.environments import environment_of, make_environment, space_of
from offline_data.rows.selection import SubsetStorage
from offline_data.rows.storage import DatasetStorage, Storage
from offline_data.store.layout import EPISODE
from offline_data.store.manifest import Manifest

Returns = TypeVar("Returns")

_WIDTH = 70
"""Characters of the names of features in `repr`, unless one name is longer."""


class Described:
    """Mixin of datasets: spaces, environment, normalized scores and statistics.

    They describe the stored data, without transforms and derived features; spaces, environment and
    scores of a view are those of its dataset.
    """

    if TYPE_CHECKING:
        _steps_storage: DatasetStorage

        @property
        def manifest(self) -> Manifest:
            """The manifest of the dataset."""

        @property
        def storage(self) -> Storage:
            """The rows of this buffer."""

    def __repr__(self) -> str:
        manifest, reader = self.manifest, self._steps_storage.reader
        steps, episodes = self._size_in_steps()
        where = f" in {reader.path}" if manifest.source == "local" else ""
        kept = {*self._steps_storage.keys} - {EPISODE}
        stored = (*reader.observation_leaves, *reader.step_leaves)
        names = [join_key(key) for key in stored if key in kept]
        fitting = (n for n in range(len(names), 1, -1) if len(join_names(names, n)) <= _WIDTH)
        return "\n".join(
            (
                f"{type(self).__name__} {manifest.id}{where}",
                f"{plural(steps, 'step')} in {plural(episodes, 'episode')}",
                f"features: {join_names(names, next(fitting, 1))}",
            )
        )

    def _size_in_steps(self) -> tuple[int, int]:
        """Return the numbers of steps and episodes."""
        counts = self.manifest.counts
        return counts["transitions"], counts["episodes"]

    @property
    def observation_space(self) -> Any:
        """The Gymnasium space of an observation.

        If the source declares none, as in D4RL's files, it is a `Box` of the stored shape and
        dtype (a `Dict` of these if an observation has several features) whose bounds are those of
        the dtype: infinite for floating-point numbers, as `space.is_bounded()` says.

        Raises:
            MissingDependencyError: gymnasium cannot be imported.
            FormatError: The declared space cannot be read.
            NotFoundError: The dataset has no such feature.
        """
        return space_of(self._steps_storage.reader, "observation")

    @property
    def action_space(self) -> Any:
        """The Gymnasium space of an action; see `observation_space`, also for what is raised.

        If the source declares none, it has no bounds for scaling actions; use
        `make_env().action_space` then.
        """
        return space_of(self._steps_storage.reader, "action")

    @cached_property
    def specs(self) -> Specs:
        """TorchRL specs of `observation`, `action`, `reward` and `done`, of all stored rows.

        They are the declared spaces; where the source declares none, the bounds are those of the
        dtype (flags, 8-bit images, text codes, tokens) or else the smallest and largest value of
        each component in the data, the last observations of episodes included, for which these
        features are read once. `ds.specs.spaces["action"].origin` says which: `declared`, `dtype`
        or `data`. Declared bounds are never widened: `offline-data check` names rows outside of
        them (RL023, RL030). Discrete actions are indices (`Categorical`), as they are stored, not
        one-hot. Components with NaN have no bounds.

        ```python
        actor = TanhActor(ds.specs.observation.shape[-1], ds.specs.action)
        assert ds.specs.is_in(ds.sample(256))
        ```

        Raises:
            MissingDependencyError: torchrl is not installed.
            FormatError: A declared space cannot be read.
        """
        return specs_of(self._steps_storage.reader)

    def make_env(self, eval_env: bool = False, *, id: str | None = None, **kwargs: Any) -> Any:
        """Make the environment of the data: `gymnasium.make` of the stored spec.

        Its id must be registered: import the package that registers it first. The spec's keywords and
        step limit are used; its entry point and wrappers are not, since they name code to import.

        D4RL's MuJoCo, antmaze, maze2d, kitchen and Adroit environments are replaced by the registered
        ones that succeed them, with D4RL's step limit.

        ```python
        env = ds.make_env(render_mode="rgb_array")
        env = ds.make_env(id="Hopper-v5")  # another one than that of the data
        ```

        Args:
            eval_env: Whether to make the evaluation environment, if the source has one.
            id: A registered environment to make instead of that of the data, without its spec.
            **kwargs: Arguments of `gymnasium.make`; they override the spec's.

        Raises:
            MissingDependencyError: gymnasium, or what the environment needs, cannot be imported.
            NotFoundError: No environment, or one that is not registered.
            FormatError: The stored spec is invalid.
            UsageError: The environment cannot be made with these arguments.

        Warns:
            UserWarning: The data were recorded with wrappers, which are left out; or how the successor
                of D4RL's environment differs from it.
        """
        manifest = self.manifest
        spec = {"id": id} if id is not None else environment_of(manifest, evaluation=eval_env)
        return make_environment(spec, kwargs, manifest.about.get("requirements"))

    recover_environment = make_env
    """Minari's name for it."""

    def reference_scores(self) -> tuple[Any, Any]:
        """Return the source's reference scores of a random and an expert policy; None: unknown."""
        about = self.manifest.about
        return about.get("ref_min_score"), about.get("ref_max_score")

    def normalized_score(self, returns: Returns) -> Returns:
        """Normalize returns of episodes: 0 for a random policy, 1 for an expert, as D4RL and Minari do.

        `(returns - ref_min_score) / (ref_max_score - ref_min_score)`, by the reference scores in
        `metadata`. Published scores are 100 times this.

        Args:
            returns: Undiscounted returns of whole episodes on the scale of the environment's rewards:
                a number, array, tensor, or a list, for which an array is returned.

        Raises:
            NotFoundError: The source has no reference scores.
        """
        low, high = self.reference_scores()
        if not _is_finite(low) or not _is_finite(high) or low == high:
            raise NotFoundError(
                f"{self.manifest.id} has no reference scores (ref_min_score, ref_max_score)",
                hint="(returns - random) / (expert - random), with returns of such policies",
            )
        values: Any = np.asarray(returns, float) if isinstance(returns, (list, tuple)) else returns
        scores: Returns = (values - low) / (high - low)
        return scores

    def describe(
        self,
        *,
        chunk: int | None = None,
        relative_to: str | None = None,
        absolute: Sequence[int] = (),
    ) -> DatasetStats:
        """Compute statistics of every stored feature and of the episodes; for a view, over its rows.

        ```python
        found = ds.describe()
        print(found)  # a table: smallest, largest, mean and standard deviation of each leaf
        print(found["observation"])  # the same of each number of an observation
        found["observation"].features.mean, found.per_episode.returns.median
        ```

        One pass over all data in bounded memory. The T rows of an episode count; the observation
        after its last action only in minima and maxima. Returns are those of whole episodes.

        Args:
            chunk: Also describe action chunks; these three are documented at `offline_data.stats`.
            relative_to: Observation feature to subtract from the actions of a chunk.
            absolute: Elements of the action that it is not subtracted from.

        Raises:
            UsageError: The view is empty, or has no such chunk.
            NotFoundError: No feature `relative_to`.
            ManifestError: A file is missing or damaged.
        """
        storage, pieces = self.storage, None
        if isinstance(storage, SubsetStorage):
            cut = storage.transitions
            pieces = (cut.first.numpy(), cut.lengths.numpy())
        return dataset_stats(
            self._steps_storage.reader,
            pieces=pieces,
            chunk=chunk,
            relative_to=relative_to,
            absolute=absolute,
        )


def _is_finite(score: object) -> TypeGuard[float]:
    return isinstance(score, (int, float)) and not isinstance(score, bool) and abs(score) < np.inf
