"""`config`, `completion` and `version`: settings, shell completion and version."""

import subprocess
from enum import Enum
from typing import Annotated, Any

from offline_data.base.errors import AccessError, NotFoundError, UsageError
from offline_data.base.ids import unknown
from offline_data.document.blocks import non_empty, table
from offline_data_cli import complete
from offline_data_cli.complete import SCRIPTS
from offline_data_cli.options import Context, argument
from offline_data_cli.result import Result


class Shell(str, Enum):
    """Shells with a completion script."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def get(
    context: Context,
    key: Annotated[
        str | None, argument("KEY", "Only this one.", autocompletion=complete.config_keys)
    ] = None,
) -> Result:
    """Show settings and where each comes from."""
    from offline_data.base.config import CONFIG_KEYS

    settings = context.settings
    if key is not None and key not in CONFIG_KEYS:
        raise unknown(NotFoundError, "No setting is called", key, CONFIG_KEYS, shown=repr)
    mirrors = {f"{prefix}={replacement}": prefix for prefix, replacement in settings.mirrors}
    values: dict[str, Any] = {
        "root": str(settings.root),
        "offline": settings.offline,
        "workers": settings.workers,
        "mirrors": list(mirrors),
    }
    if key is not None and key != "mirrors":
        text = str(values[key]).lower() if key == "offline" else str(values[key])
        return Result({key: values[key]}, (text,), (text,))
    shown = {name: values[name] for name in values if key in {None, name}}
    rows = [
        (name, text, settings.origins.get(name if name != "mirrors" else text, "default"))
        for name, found in shown.items()
        for value in (found if isinstance(found, list) else [found])
        for text in [str(value).lower() if name == "offline" else str(value)]
    ]
    return Result(shown, non_empty(table("key value from", rows)), [str(row[1]) for row in rows])


def set_(
    context: Context,  # noqa: ARG001 - every command takes a context
    key: Annotated[
        str, argument("KEY", "root, offline or workers.", autocompletion=complete.config_keys)
    ],
    value: Annotated[str, argument("VALUE", "Its new value.")],
) -> Result:
    """Change one setting in the config file; the rest of the file is unchanged."""
    from offline_data.base.config import write_setting

    file = write_setting(key, value)
    return Result({"key": key, "file": file}, (), (str(file),), (f"{key} is set in {file}",))


def edit(context: Context) -> Result:
    """Open the config file in the editor that VISUAL or EDITOR names."""
    from offline_data.base.config import editor_command, resolve_settings

    file = _place(context)
    command = editor_command()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        ended = subprocess.run([*command, str(file)], check=False)  # noqa: S603 - the user's own editor
    except OSError as error:
        raise AccessError(
            f"cannot start the editor {command[0]!r}, or create {file.parent}: {error.strerror}",
            hint="set EDITOR to the name of one",
        ) from error
    if ended.returncode:
        raise UsageError(f"The editor {command[0]!r} exited with status {ended.returncode}")
    resolve_settings()  # raises if the file is invalid now
    return Result({"file": file}, (), (str(file),))


def path(context: Context) -> Result:
    """Print the path of the config file, whether or not there is one."""
    file = _place(context)
    return Result({"file": file, "exists": file.exists()}, (str(file),), (str(file),))


def _place(context: Context) -> Any:
    if context.settings.config is None:
        raise UsageError(
            "No config directory: neither HOME nor XDG_CONFIG_HOME is set",
            hint="set OFFLINE_DATA_CONFIG to a path",
        )
    return context.settings.config


def completion(
    context: Context,  # noqa: ARG001
    shell: Annotated[
        Shell, argument("SHELL", "bash, zsh or fish.", autocompletion=complete.shells)
    ],
) -> Result:
    """Print the script that makes a shell complete verbs, options and ids.

    \b
    bash, in ~/.bashrc:
      eval "$(offline-data completion bash)"
    zsh, in ~/.zshrc after compinit:
      eval "$(offline-data completion zsh)"
    fish, once:
      offline-data completion fish > ~/.config/fish/completions/offline-data.fish
    """  # noqa: D301 - click keeps lines after this character
    script = SCRIPTS[shell.value]
    return Result({"shell": shell.value, "script": script}, (script.rstrip("\n"),), (script,))


def version(context: Context) -> Result:  # noqa: ARG001
    """Print the version."""
    return version_result()


def version_result() -> Result:
    """Return the installed version as a result."""
    from offline_data.reports.environment import DISTRIBUTION, installed_version

    found = installed_version(DISTRIBUTION)
    return Result({"version": found}, (f"offline-data {found or 'not installed'}",), (found or "",))
