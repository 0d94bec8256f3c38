"""`push`: a dataset for others."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from offline_data.api.arguments import DatasetLike, entry_of, settings_of
from offline_data.base.config import user_path
from offline_data.base.progress import progress_of

if TYPE_CHECKING:
    from offline_data.base.config import Settings
    from offline_data.base.progress import Progress
    from offline_data.project.share.push import Pushed


def push(
    id: DatasetLike,
    to: str | os.PathLike[str],
    *,
    public: bool = False,
    licence: str | None = None,
    dry_run: bool = False,
    root: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    progress: bool | Progress = True,
) -> Pushed:
    """Push a dataset on this disk to the Hugging Face hub or to a folder, with a dataset card.

    `download` and `load_dataset` take the address, verify all files, and convert nothing. Files that
    are there with the same content are not sent again, so that an interrupted push is run again to go
    on. On the hub one commit has all of it; a folder is replaced as a whole.

    ```python
    offline_data.push("local:mine", "hf://me/mine")
    ds = offline_data.load_dataset("hf://me/mine")  # on another machine
    ```

    Args:
        id: A dataset id, or the path of a dataset directory.
        to: `hf://OWNER/NAME`, or the path of a folder that is new, empty, or of an earlier push.
        public: Whether everybody can read it on the hub; else a new repository is private.
        licence: Name of the licence (SPDX), for a dataset whose source states none.
        dry_run: Whether to only return what would be sent.

    Raises:
        UsageError: A new relative path `A/B`, which may be a repository's; `public`, and the licence is unknown or does not allow it; a public repository
            without `public`; a folder with other files.
        IntegrityError: A file is not as its manifest says; nothing was pushed.
        AuthError: Not logged in (`hf auth login`, or HF_TOKEN), or no right to write there.
        NetworkError, OfflineError: The hub does not answer, or another commit was made meanwhile.
        NotFoundError, InvalidIdError, AccessError, NoSpaceError: Of the dataset, of the disk.

    Example:
        >>> import tempfile, numpy as np
        >>> from offline_data import convert, download
        >>> episode = {"observations": np.eye(3), "actions": np.ones((2, 1)), "terminations": True}
        >>> with tempfile.TemporaryDirectory() as temporary:
        ...     root, folder = f"{temporary}/root", f"{temporary}/folder"
        ...     stored = convert([episode], "tiny", root=root)
        ...     pushed = push("local:tiny", folder, root=root)
        ...     again = push("local:tiny", folder, root=root)
        ...     copy = download(folder, root=root)
        >>> pushed.existed, again.existed, copy.transitions
        (False, True, 2)
    """
    from offline_data.project.share.push import push_dataset

    chosen = settings_of(root, settings)
    entry = entry_of(id, chosen)
    return push_dataset(
        entry,
        to if isinstance(to, str) else str(user_path(to, "to")),
        chosen,
        progress_of(progress),
        public=public,
        licence=licence,
        dry_run=dry_run,
    )
