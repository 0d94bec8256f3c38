"""Help of verbs: its three lengths, examples, options of sources, global options, exit codes."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from typer.core import TyperCommand, TyperGroup

from offline_data_cli.values import parse_value
from offline_data_cli.verbs import DOCUMENTATION

EXAMPLES: dict[str, tuple[str, ...]] = {  # by verb, without the program's name unless in the middle
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
        "export local:mine --to lerobot --out mine --dry-run",
        "export door --to d4rl --out door.hdf5",
        "export local:mine --to parquet --out parquet --view train",
    ),
    "head": ("head local:mine -n 2", "head local:mine --random 3 --seed 0"),
    "tail": ("tail local:mine -n 2",),
    "sample": ("sample local:mine --batch 32 --seed 0", "sample local:mine --batch 64 --slices 8"),
    "stats": (
        "stats local:mine --features --quantiles",
        "stats local:mine --chunk 50 --openpi norm_stats.json",
    ),
    "episodes": (
        "episodes local:mine --sort jerk --limit 10",
        "episodes local:mine --leaf observation/state --similar --json",
    ),
    "replay": ("replay local:mine", "replay local:mine --env Hopper-v5 --episodes 10 --fail"),
    "plot": ("plot local:mine", "plot local:mine --out mine.png"),
    "view": ("view local:mine 0", "view local:mine 3 --out three.gif --fps 10"),
    "card": ("card local:mine", "card local:mine --out README.md"),
    "path": ("path local:mine", "path door"),
    "open": ("open local:mine",),
    "align": ("align local:mine", "align local:mine --fix aligned"),
    "diff": ("diff minari:D4RL/door/human-v2@3f2a local:mine", "diff door ./copy --json"),
    "lock": ("lock", "lock --upgrade door", "lock --check"),
    "sync": ("sync --locked", "sync --dry-run"),
    "check": (
        "check local:mine",
        "check --all --ignore RL021 --fail-on warning --out check.sarif",
        "check --all --write-baseline checks.json",
    ),
    "explain": ("explain RL020", "explain clip"),
    "rule": ("rule", "rule RL020", "rule constant-feature"),
    "report": (
        "report local:mine",
        "report local:mine --only features",
        "report local:mine local:yours --out both.html",
    ),
    "compare": ("report local:mine local:yours --out both.html",),
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

SYNONYMS = {  # synonyms of verbs: their names in other programs
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

ELSEWHERE: dict[str, str] = {  # hints for words that are not verbs
    "concat": "`merge` writes one dataset of several; offline_data.DatasetMixture(a, b) samples them as one",
    "combine": "`merge` writes one dataset of several; offline_data.DatasetMixture(a, b) samples them as one",
    "update": "download ID --force fetches and converts a dataset again",
    "upgrade": "download ID --force fetches and converts a dataset again",
    "login": "tokens come from HF_TOKEN or `hf auth login`",
    "train": "load_dataset(ID, batch_size=256).sample() in Python gives batches",
    "create": "convert PATH --out NAME, or preprocess ID --step … --out NAME",
}

COMMON: dict[str, str] = {  # options that `-h` shows, by verb; other verbs show all of theirs
    "search": "limit min_size max_size action",
    "download": "episodes layout images keep_raw force workers dry_run",
    "convert": "source inspect mapping split episodes layout force dry_run",
    "preprocess": "fn steps list_steps out view batched by force workers dry_run",
    "check": "all_ files select ignore fail_on output_format out",
    "export": "out to view strict force dry_run",
    "merge": "out common_leaves cast force",
    "filter": "out view force",
    "split": "out seed view force",
}

OF_SOURCES: dict[str, str] = {  # an example for each source with its own options
    "atari_dqn": "download atari_dqn:Pong/1 --checkpoints 0:2",
    "hf": "download hf:roneneldan/TinyStories --tokenizer gpt2",
    "lerobot": "download lerobot:lerobot/pusht --only observation.state",
    "libero": "convert demo.hdf5 mine --from libero --alignment raw",
    "minari": "convert ~/.minari/datasets/mine-v0 mine --skip-bad-features",
    "text": "convert texts.jsonl mine --tokenizer tokenizer.json",
}

GLOBALS = "Global options (--root, --json, ...), exit codes: offline-data help options"
CODES = {  # exit codes of the program
    "0": "Success.",
    "1": "Findings of `check`, a part failed, or the prompt was declined.",
    "2": "Wrong usage: an option, a value or an id of the wrong form.",
    "3": "Not found: an unknown dataset, source, episode, rule, step or file.",
    "4": "Access denied by a host.",
    "5": "Damaged data.",
    "6": "Network error, or offline.",
    "7": "Disk full.",
    "130": "Interrupted (Ctrl-C).",
}


def epilog(verb: str) -> str:
    """Return the end of a verb's help."""
    more = "" if verb else f"Documentation: {DOCUMENTATION}\n"
    examples = f"{_format_examples(EXAMPLES[verb])}\n\n" if verb in EXAMPLES else ""
    return f"{examples}{more}{GLOBALS}"


def _format_examples(examples: Iterable[str]) -> str:
    lines = (line if line.startswith("eval") else f"offline-data {line}" for line in examples)
    return "\n  ".join(["Examples:", *lines])


_TOPIC = "offline_data_cli.help.topic"  # key of a context: one of these, or a source's name
_FULL, _SHORT, _GLOBAL = "--help", "-h", "options"
_OF = "Options of "


def panel_of(sources: Sequence[str]) -> str | None:
    """Return the panel of options that only some sources have; None without sources."""
    return f"{_OF}{', '.join(sources)}" if sources else None


def _sources_of(panel: str) -> list[str]:
    return panel.removeprefix(_OF).split(", ") if panel.startswith(_OF) else []


class _Help:
    """Help of a verb or a group: plain text, in panels, without an import for its looks."""

    folded: frozenset[str] = frozenset()  # global options, which only `help options` describes

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line; `-h` requests the short help, a source's name its options."""
        if ctx.meta.get(_TOPIC) != _GLOBAL:
            words = {word.partition(":")[0] for word in args}
            named = [source for source in self._sources(ctx) if source in words]
            length = _SHORT if "-h" in args and "--help" not in args else _FULL
            ctx.meta[_TOPIC] = named[0] if named else length
        return super().parse_args(ctx, args)  # type: ignore[misc, no-any-return] # of a command

    def get_help_option(self, ctx: Any) -> Any:
        """Return `--help`, parsed like the other options."""
        option = parse_value(super().get_help_option(ctx), bool)  # type: ignore[misc] # of a command
        option.help = "Show the full help and exit; -h: summary."
        return option

    def panels(self, ctx: Any) -> dict[str, list[Any]]:
        """Return arguments and options by panel, without hidden ones."""
        panels: dict[str, list[Any]] = {"Arguments": []}
        for param in self.get_params(ctx):  # type: ignore[attr-defined] # of a command
            if not getattr(param, "hidden", False):
                of = "Arguments" if param.param_type_name == "argument" else "Options"
                panel = getattr(param, "rich_help_panel", None) or of
                panels.setdefault(panel, []).append(param)
        return panels

    def _sources(self, ctx: Any) -> list[str]:
        return sorted({source for panel in self.panels(ctx) for source in _sources_of(panel)})

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the text of the command, unless only some options are requested."""
        if ctx.meta[_TOPIC] in {_FULL, _SHORT}:
            super().format_help_text(ctx, formatter)  # type: ignore[misc] # of a command

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options by panel, each name with its value and its text."""
        topic = ctx.meta[_TOPIC]
        sections: dict[str, list[tuple[str, str]]] = {}
        for panel, params in self.panels(ctx).items():
            rows = [describe(p, ctx) for p in params if self._is_shown(p, panel, ctx)]
            if topic == _SHORT:  # one section of options, and the first sentence of each text
                rows = [(name, re.split(r"(?<=\.) ", text)[0]) for name, text in rows]
                panel = panel if panel == "Arguments" else "Options"
            sections.setdefault(panel, []).extend(rows)
        for title, rows in sections.items():
            rows.sort(key=lambda row: row[0] == "-h, --help")
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
        if topic == _GLOBAL:
            with formatter.section("Exit codes"):
                formatter.write_dl(list(CODES.items()))
        elif topic == _FULL and (sources := self._sources(ctx)):
            formatter.write(f"\nOptions for {', '.join(sources)}: {ctx.info_name} --help SOURCE\n")

    def _is_shown(self, param: Any, panel: str, ctx: Any) -> bool:
        """Return True if the requested help has a parameter."""
        topic, sources = ctx.meta[_TOPIC], _sources_of(panel)
        if topic not in {_FULL, _SHORT}:
            return param.name in self.folded if topic == _GLOBAL else topic in sources
        if sources or param.name in self.folded:
            return False
        common = COMMON.get(ctx.info_name)
        if topic == _FULL or panel == "Arguments" or param.name == "help":
            return True
        return panel == "Options" if common is None else param.name in common.split()

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the rest of the usage line: arguments, optional ones in brackets, required options."""
        params = [p for p in self.get_params(ctx) if not getattr(p, "hidden", False)]  # type: ignore[attr-defined] # of a command
        arguments = [p for p in params if p.param_type_name == "argument"]
        options = [p for p in params if p.param_type_name == "option" and p.required]
        return [
            "[OPTIONS]",
            *(p.metavar if p.required else f"[{p.metavar}]" for p in arguments),
            *(describe(p, ctx)[0] for p in options),
            *(["COMMAND"] if hasattr(self, "commands") else []),
        ]

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write examples and the last lines as they are."""
        topic, path = ctx.meta[_TOPIC], ctx.command_path
        if topic == _FULL:
            formatter.write(f"\n{self.epilog}\n")  # type: ignore[attr-defined] # of a command
        elif topic == _SHORT:
            formatter.write(f"\nAll options and examples: {path} --help\n")
        elif topic != _GLOBAL:
            verb = path.rpartition(" ")[2]
            example = OF_SOURCES[topic]
            if example.startswith(verb):
                formatter.write(f"\n{_format_examples([example])}\n")
            formatter.write(f"\nAll other options: {path} --help\n")


def describe(param: Any, ctx: Any) -> tuple[str, str]:
    """Return an argument or the names of an option with its value, and its text with the default."""
    if param.param_type_name == "argument":
        return param.metavar, param.help
    usage, text = param.get_help_record(ctx)
    names = ", ".join(sorted(param.opts, key=len))
    value = "" if param.is_flag else re.sub("[<>]", "", usage.removeprefix(", ".join(param.opts)))
    default = re.search(r"  \[.*?(default: [^;\]]*).*\]$", text)
    return f"{names}{value}", f"{param.help}{f' ({default[1]})' if default else ''}"


class Verb(_Help, TyperCommand):
    """A verb whose help ends with a summary of the global options."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse arguments; `--output`, as other programs have it, is `--out`."""
        names = {name for parameter in self.params for name in parameter.opts}
        if "--out" in names and "--output" not in names:
            end = args.index("--") if "--" in args else len(args)
            args = [re.sub(r"\A--output(?==|\Z)", "--out", arg) for arg in args[:end]] + args[end:]
        return super().parse_args(ctx, args)


class Verbs(_Help, TyperGroup):
    """A group of verbs that also accepts their names in other programs."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the verbs by panel, without importing them, then the options."""
        panels = self.commands.panels  # type: ignore[attr-defined] # `Commands`
        if ctx.meta[_TOPIC] == _SHORT:
            with formatter.section("Commands"):
                formatter.write_dl([(panel, ", ".join(verbs)) for panel, verbs in panels.items()])
        elif ctx.meta[_TOPIC] == _FULL:
            for panel, verbs in panels.items():
                with formatter.section(panel):
                    formatter.write_dl(list(verbs.items()))
        super().format_options(ctx, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the verb named by an argument, by its own name or a synonym."""
        name = args[0]
        if name == "help" and ctx.parent is None:
            if args[1:] == [_GLOBAL]:
                ctx.meta[_TOPIC] = args.pop()
            args = [*args[1:], "--help"]
            name = args[0]
        if ctx.parent is None and name not in self.commands:
            if name in ELSEWHERE:
                ctx.fail(f"No such command {name!r}: {ELSEWHERE[name]}")
            args = [SYNONYMS.get(name, name), *args[1:]]
        return super().resolve_command(ctx, args)
