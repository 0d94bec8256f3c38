"""Datasets as users name them: an id, a path, or a unique name."""

from typing import TYPE_CHECKING

from offline_data.errors import InvalidIdError, NotFoundError, UsageError
from offline_data_cli.options import Context
from offline_data_cli.render import choose

if TYPE_CHECKING:
    from offline_data.store.library import Entry

_MOST_LISTED = 20


def dataset_id(context: Context, text: str) -> str:
    """Return the id or path of a name; if several datasets match, the one that the user chooses.

    Raises:
        NotFoundError: No dataset has this name; ids and paths are returned unchanged.
        InvalidIdError: It cannot be a name.
        UsageError: Several datasets match, and there is no terminal to ask in.
    """
    from offline_data.reports.catalog import find_ids

    found = find_ids(text, context.settings)
    if not found:
        raise _unknown_name(context, text)
    if len(found) == 1:
        return found[0]
    listed = found[:_MOST_LISTED]
    more = f" and {len(found) - len(listed)} more" if len(listed) < len(found) else ""
    question = f"{len(found)} datasets are called {text!r}"
    return choose(question, listed, f"name one of {', '.join(listed)}{more}", yes=context.yes)


def entry_named(context: Context, text: str, *, exact: bool = False) -> "Entry":
    """Return a dataset on this disk; raises like `dataset_id` and `locate`.

    Args:
        context: Settings, and whether to ask questions.
        text: An id, a path or a name.
        exact: Whether only a whole name matches, for commands that delete datasets.
    """
    from offline_data.reports.catalog import find_ids
    from offline_data.store.library import locate

    if exact:
        from offline_data.ids import offer

        similar = find_ids(text, context.settings, catalogue=False)
        whole = [name for name in similar if text in {name, name.partition(":")[2]}]
        if len(whole) > 1:
            raise UsageError(
                f"{len(whole)} datasets are called {text!r}",
                hint=f"name one of {', '.join(whole)}",
            )
        if not whole:
            near = offer(similar[:3]) or "`offline-data list` shows the datasets on this disk"
            raise _unknown_name(context, text, near)
        return locate(whole[0], context.settings, to_get=False)
    return locate(dataset_id(context, text), context.settings)


def _unknown_name(context: Context, text: str, hint: str | None = None) -> NotFoundError:
    """Return the error for a name that no dataset has; raises `InvalidIdError` if it cannot be one."""
    from offline_data.ids import parse_id
    from offline_data.store.library import parse_known

    parse_id(f"local:{text}")
    try:
        parse_known(text, context.settings.root)
    except InvalidIdError as error:
        hint = hint or error.shell_hint
    return NotFoundError(f"No dataset is called {text!r}", hint=hint)
