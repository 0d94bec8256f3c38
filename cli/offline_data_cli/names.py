"""Datasets as users name them: an id, a path, or a unique name."""

from functools import partial
from typing import TYPE_CHECKING

from offline_data_cli.options import Context
from offline_data_cli.render import choose

if TYPE_CHECKING:
    from offline_data.store.library import Entry


def dataset_id(context: Context, text: str) -> str:
    """Return the id or path of a name; if several datasets match, the one that the user chooses.

    Raises like `resolve_name`; without a terminal to ask in, several matches are a `UsageError`.
    """
    from offline_data.formats.names import resolve_name

    return resolve_name(text, context.settings, choose=partial(choose, yes=context.yes))


def entry_named(context: Context, text: str, *, exact: bool = False) -> "Entry":
    """Return a dataset on this disk; raises like `dataset_id` and `locate`.

    `exact`: only a whole name matches, for commands that delete datasets.
    """
    from offline_data.formats.names import resolve_name
    from offline_data.store.library import locate

    if exact:
        name = resolve_name(text, context.settings, exact=True)
        return locate(name, context.settings, to_get=False)
    return locate(dataset_id(context, text), context.settings)
