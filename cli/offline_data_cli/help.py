"""Additions to `--help`: examples, global options in two lines, exit codes."""

import re
from typing import Any

from typer.core import TyperCommand, TyperGroup

from offline_data_cli.values import parse_value

EXAMPLES: dict[str, tuple[str, ...]] = {
    "": ("search door human", "download minari:D4RL/door/human-v2", "info door"),
    "list": ("list", "list d4rl --remote --sort size"),
    "search": ("search halfcheetah medium", "search 'd4rl:hopper-*-v2' --max-size 200MB --limit 5"),
    "info": ("info minari:D4RL/door/human-v2", "info door --json", "info local:mine --history"),
    "push": (
        "push local:mine hf://OWNER/NAME",
        "push local:mine hf://OWNER/NAME --public --licence CC-BY-4.0",
        "push local:mine /srv/www/mine",
    ),
    "export": (
        "export local:mine mine --to lerobot --dry-run",
        "export door door.hdf5 --to d4rl",
        "export local:mine parquet --to parquet --view train",
    ),
    "head": ("head local:mine -n 2", "head local:mine --random 3 --seed 0"),
    "tail": ("tail local:mine -n 2",),
    "sample": ("sample local:mine --batch 32 --seed 0", "sample local:mine --batch 64 --slices 8"),
    "stats": ("stats local:mine --features --quantiles", "stats local:mine --json"),
    "plot": ("plot local:mine", "plot local:mine --out mine.png"),
    "view": ("view local:mine 0", "view local:mine 3 --out three.gif --fps 10"),
    "card": ("card local:mine", "card local:mine --out README.md"),
    "path": ("path local:mine", "path door"),
    "open": ("open local:mine",),
    "diff": ("diff minari:D4RL/door/human-v2@3f2a local:mine", "diff door ./copy --json"),
    "lock": ("lock", "lock --upgrade door", "lock --check"),
    "sync": ("sync --locked", "sync --dry-run"),
    "check": (
        "check local:mine",
        "check --all --ignore RL021 --fail-on warning --output check.sarif",
        "check --all --write-baseline checks.json",
    ),
    "explain": ("explain RL020", "explain clip"),
    "rule": ("rule", "rule RL020", "rule constant-feature"),
    "report": ("report local:mine", "report local:mine local:yours --out both.html"),
    "compare": ("compare local:mine local:yours --out both.html",),
    "browse": ("browse", "browse --port 8000 --no-open"),
    "download": (
        "download minari:D4RL/door/human-v2",
        "download d4rl:pen-human-v1 --jobs 2 --limit-rate 20MB",
    ),
    "convert": ("convert recorded.hdf5 mine", "convert recordings mine --from minari --dry-run"),
    "demo": ("demo",),
    "preprocess": (
        "preprocess local:mine --fn scale.py:scale --out scaled",
        "preprocess local:mine --step clip:action,low=-1,high=1 --out new",
    ),
    "step": ("step", "step normalize"),
    "filter": (
        "filter local:mine 'return > 100 and length >= 50' --out good",
        "filter local:mine 'return > 100' --out good --view",
    ),
    "merge": (
        "merge local:mine local:yours --out both",
        "merge local:mine local:yours --out both --common-leaves --cast",
    ),
    "split": ("split local:mine train=0.9 val=0.1 --seed 0",),
    "worker": (
        "worker --plan plan.json --rank 0 --world 8",
        "worker --plan plan.json --finish",
    ),
    "rename": ("rename local:mine yours",),
    "cp": ("cp d4rl:pen-human-v1 pen",),
    "verify": ("verify local:mine", "verify --all"),
    "rm": ("rm local:mine", "rm local:mine --dry-run"),
    "cache": ("cache ls", "cache prune --older-than 30"),
    "cache dir": ("cache dir",),
    "cache ls": ("cache ls",),
    "cache prune": ("cache prune --dry-run",),
    "cache rm": ("cache rm raw",),
    "config": ("config get", "config set root ~/datasets"),
    "config get": ("config get", "config get root"),
    "config set": ("config set root ~/datasets", "config set workers 4"),
    "config edit": ("config edit",),
    "config path": ("config path",),
    "sources": ("sources",),
    "env": ("env", "env --json"),
    "completion": ('eval "$(offline-data completion bash)"',),
    "version": ("version",),
}
"""Example command lines by verb, without the program's name unless it occurs elsewhere."""

SYNONYMS = {
    synonym: verb
    for verb, synonyms in {
        "plot": "draw figure",
        "view": "play watch render",
        "list": "ls",
        "info": "show describe inspect",
        "search": "find",
        "download": "get pull fetch install",
        "convert": "import add",
        "push": "upload publish share",
        "export": "save dump write",
        "rm": "delete remove uninstall",
        "rename": "mv move",
        "cp": "copy",
        "verify": "validate",
        "preprocess": "process map transform",
        "filter": "select",
        "merge": "join concat combine",
        "step": "steps",
        "path": "where",
        "report": "page",
        "browse": "serve explore",
        "config": "settings",
        "env": "doctor",
        "lock": "freeze",
        "check": "lint",
        "rule": "rules",
    }.items()
    for synonym in synonyms.split()
}
"""Synonyms of verbs: their names in other programs."""

ELSEWHERE: dict[str, str] = {
    "concat": "`merge` writes one dataset of several; offline_data.DatasetMixture(a, b) samples them as one",
    "combine": "`merge` writes one dataset of several; offline_data.DatasetMixture(a, b) samples them as one",
    "update": "download ID --force fetches and converts a dataset again",
    "upgrade": "download ID --force fetches and converts a dataset again",
    "login": "tokens come from HF_TOKEN or `hf auth login`",
    "train": "load_dataset(ID, batch_size=256).sample() in Python gives batches",
    "create": "convert PATH NAME, or preprocess ID --step … --out NAME",
}
"""Hints for words that are not verbs."""

GLOBALS = (
    "Global: --root DIR, --offline, --json, -q/--quiet, -y/--yes, -v/--verbose, -V,\n"
    "  --format table|tsv|json, --color WHEN, --no-progress, --no-truncate"
)
CODES = (
    "Exit codes: 0 fine · 1 findings, a part failed, or the answer was no\n"
    "  2 usage: a wrong form · 3 not found: an unknown name · 4 no access\n"
    "  5 damaged · 6 network · 7 disk full · 130 Ctrl-C"
)
DOCUMENTATION = "README.md of offline-data"
"""Location of the documentation."""


def epilog(verb: str) -> str:
    """Return the end of a verb's help."""
    lines = [
        f"  {line}" if line.startswith("eval") else f"  offline-data {line}"
        for line in EXAMPLES[verb]
    ]
    examples = "\n".join(["Examples:", *lines])
    return f"{examples}\n\n{GLOBALS if verb else CODES}\n\nMore: {DOCUMENTATION}"


_SHORT = "offline_data_cli.help.short"
"""Key of a context: whether the short help was requested."""
_FIRST = ("Arguments", "Options")
"""Panels of the short help."""


class _Help:
    """Help of a verb or a group: plain text, in panels, without an import for its looks."""

    folded: frozenset[str] = frozenset()
    """Names of the global options that are in the last lines instead."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line; `-h` asks for the short help."""
        ctx.meta[_SHORT] = "-h" in args and "--help" not in args
        return super().parse_args(ctx, args)  # type: ignore[misc, no-any-return] # of a command

    def get_help_option(self, ctx: Any) -> Any:
        """Return `--help`, parsed like the other options."""
        option = parse_value(super().get_help_option(ctx), bool)  # type: ignore[misc] # of a command
        option.help = "Show this help and exit; -h is short."
        return option

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options by panel, each name with its value and its text."""
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        for param in self.get_params(ctx):  # type: ignore[attr-defined] # of a command
            if not (ctx.parent and param.name in self.folded):
                argument = param.param_type_name == "argument"
                panel = getattr(param, "rich_help_panel", None) or "Options"
                rows = panels.setdefault("Arguments" if argument else panel, [])
                rows.append(
                    (param.metavar, param.help) if argument else _describe_option(param, ctx)
                )
        for panel, rows in panels.items():
            if ctx.meta[_SHORT]:
                end = r"(?<=\.) (?=[A-Z])|(?<=\.\)) |(?<=\.) (?=\()"  # of the first sentence
                rows = [(name, re.split(end, text)[0]) for name, text in rows]
            if rows and (panel in _FIRST or not ctx.meta[_SHORT]):
                with formatter.section(panel):
                    formatter.write_dl(rows)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return what follows the name of the command: arguments that can be left out in brackets."""
        params = [p for p in self.get_params(ctx) if p.param_type_name == "argument"]  # type: ignore[attr-defined] # of a command
        return [
            "[OPTIONS]",
            *(p.metavar if p.required else f"[{p.metavar}]" for p in params),
            *(["COMMAND"] if hasattr(self, "commands") else []),
        ]

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write examples and the last lines as they are."""
        if ctx.meta[_SHORT]:
            formatter.write(f"\nAll options and examples: {ctx.command_path} --help\n")
            return
        formatter.write(f"\n{self.epilog}\n")  # type: ignore[attr-defined] # of a command


def _describe_option(param: Any, ctx: Any) -> tuple[str, str]:
    """Return the names of an option with its value, and its text with the default."""
    usage, text = param.get_help_record(ctx)
    names = ", ".join(sorted(param.opts, key=len))
    value = usage.removeprefix(", ".join(param.opts)) if not param.is_flag else ""
    default = re.search(r"  \[.*?(default: [^;\]]*).*\]$", text)
    return f"{names}{value}", f"{param.help}{f' [{default[1]}]' if default else ''}"


class Verb(_Help, TyperCommand):
    """A verb whose help ends with a summary of the global options."""


class Verbs(_Help, TyperGroup):
    """A group of verbs that also accepts their names in other programs."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the verbs by panel, without importing them, then the options."""
        for panel, verbs in self.commands.panels.items():  # type: ignore[attr-defined] # `Commands`
            with formatter.section(panel):
                if ctx.meta[_SHORT]:
                    formatter.write_text(", ".join(verbs))
                else:
                    formatter.write_dl(list(verbs.items()))
        super().format_options(ctx, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the verb named by an argument, by its own name or a synonym."""
        name = args[0]
        if name == "help" and ctx.parent is None:
            args = [*args[1:], "--help"]
            name = args[0]
        if ctx.parent is None and name not in self.commands:
            if name in ELSEWHERE:
                ctx.fail(f"No such command {name!r}: {ELSEWHERE[name]}")
            args = [SYNONYMS.get(name, name), *args[1:]]
        return super().resolve_command(ctx, args)
