"""The verbs of the program, by panel of `--help`; a verb is imported when it is called."""

from typing import TypeAlias

DOCUMENTATION = "https://offline-data.github.io/offline-data/"

# Printed for a command line without arguments; indented lines can be pasted.
FIRST_STEPS = f"""\
Download, check and sample offline-RL datasets.

Find a dataset, download it, and look at it:
  offline-data search hopper medium
  offline-data download d4rl:hopper-medium-v2
  offline-data info d4rl:hopper-medium-v2

Sample a batch in Python:
  offline_data.load_dataset("d4rl:hopper-medium-v2", batch_size=256).sample()

All commands: offline-data --help
Documentation: {DOCUMENTATION}
"""
"""Printed for a command line without arguments; indented lines can be pasted."""

Table: TypeAlias = dict[str, tuple[str, str]]  # function, as `module:name`, and line of `--help`

VERBS: dict[str, Table] = {  # verbs by panel of `--help`
    "Get": {
        "search": (
            "listing:search",
            "Search the catalogues of all sources; works offline.",
        ),
        "download": (
            "download:download",
            "Download datasets and convert them.",
        ),
        "convert": (
            "download:convert",
            "Convert a local file or folder to a dataset.",
        ),
        "list": (
            "listing:list_",
            "List datasets on this disk; with --remote, those of all sources.",
        ),
        "push": (
            "share:push",
            "Push a dataset to the Hugging Face hub or to a folder.",
        ),
    },
    "Look": {
        "info": ("inspection:info", "Show schema, counts, provenance and licence of a dataset."),
        "head": ("inspection:head", "Show transitions: the first, the last, or random ones."),
        "stats": ("inspection:stats", "Show statistics of every feature and of the episodes."),
        "episodes": (
            "episodes:episodes",
            "Show the quality of episodes: idle steps, jerk, outliers and more.",
        ),
        "plot": (
            "pictures:plot",
            "Plot returns, lengths, rewards, actions, coverage and more.",
        ),
        "report": (
            "pages:report",
            "Write an HTML page about a dataset, or comparing several.",
        ),
        "view": (
            "pictures:view",
            "Write the images of an episode as a video, or open them in Rerun.",
        ),
        "browse": (
            "pages:browse",
            "Look at datasets in a web browser, and mark episodes.",
        ),
    },
    "Check": {
        "check": ("check:check", "Check datasets for defects, as a linter does for code."),
        "explain": (
            "explain:explain",
            "Explain a rule of `check` or a step of `preprocess`, or list all.",
        ),
        "align": (
            "align:align",
            "Find features that are stored some rows late or early.",
        ),
        "replay": (
            "episodes:replay",
            "Play the actions in the environment and compare every step.",
        ),
        "diff": (
            "lock:diff",
            "Compare two datasets: schema, episodes, values and statistics.",
        ),
    },
    "Make": {
        "preprocess": (
            "preprocess:preprocess",
            "Make a new dataset by applying functions and steps to another.",
        ),
        "filter": (
            "copies:filter_",
            "Make a new dataset of the episodes that match an expression.",
        ),
        "export": (
            "export:export",
            "Write a dataset in another format, and verify every value.",
        ),
        "merge": (
            "copies:merge",
            "Make one dataset of the episodes of several.",
        ),
        "split": (
            "copies:split",
            "Split the episodes of a dataset at random into new datasets.",
        ),
    },
    "Project": {
        "lock": (
            "lock:lock",
            "Lock the datasets of datasets.toml: revisions and checksums.",
        ),
        "sync": (
            "lock:sync",
            "Download the datasets of datasets.lock.",
        ),
    },
    "Manage": {
        "path": ("inspection:path", "Print the directory of a dataset."),
        "rename": ("copies:rename", "Rename a dataset to local:NAME. Nothing is copied."),
        "rm": ("manage:rm", "Delete datasets. Lists them and asks first."),
        "env": (
            "listing:env",
            "Show versions, settings, sources and paths, for bug reports.",
        ),
        "demo": (
            "demo:demo",
            "Record, check, show and train on a small dataset; works offline.",
        ),
        "completion": (
            "environment:completion",
            "Print the script that makes a shell complete verbs, options and ids.",
        ),
    },
}

HIDDEN: Table = {  # not listed: others have their output, or they are named where needed
    "card": ("pages:card", "Write a dataset card, README.md in the Hugging Face Hub's format."),
    "compare": ("pages:compare", "Write one HTML page that shows several datasets side by side."),
    "cp": ("copies:cp", "Copy a dataset to local:NAME, comparing every file with its checksum."),
    "open": ("inspection:open_", "Open the directory of a dataset in the file manager."),
    "rule": ("explain:rule", "Explain the rules of `check`; without an argument, list them."),
    "sample": ("inspection:sample", "Sample a random batch and show its features."),
    "sources": ("listing:sources", "List dataset sources and the packages they require."),
    "step": (
        "explain:step",
        "Show what steps do and take: arguments, types, defaults, and an example.",
    ),
    "tail": ("inspection:tail", "Show the last transitions of a dataset or of one episode."),
    "verify": (
        "manage:verify",
        "Compare the files of datasets with the checksums in their manifests.",
    ),
    "version": ("environment:version", "Print the version."),
    "worker": (
        "preprocess:worker",
        "Run one worker's share of a plan: tasks I, I + N, I + 2N and so on.",
    ),
}

GROUPS: dict[str, tuple[str, str, Table]] = {  # groups of verbs: panel, help text and verbs
    "cache": (
        "Manage",
        "Show and delete the files under the root.",
        {
            "dir": (
                "manage:dir_",
                "Print the root, the folder that holds all datasets and downloads.",
            ),
            "ls": (
                "manage:ls",
                "List datasets, raw files and leftovers under the root, with their sizes.",
            ),
            "prune": (
                "manage:prune",
                "Delete raw files and leftovers that no dataset needs. Lists them and asks first.",
            ),
            "rm": ("manage:cache_rm", "Delete files by kind or path. Lists them and asks first."),
        },
    ),
    "config": (
        "Manage",
        "Show and change the settings of the config file.",
        {
            "get": ("environment:get", "Show settings and where each comes from."),
            "set": (
                "environment:set_",
                "Change one setting in the config file; the rest of the file is unchanged.",
            ),
            "edit": (
                "environment:edit",
                "Open the config file in the editor that VISUAL or EDITOR names.",
            ),
            "path": (
                "environment:path",
                "Print the path of the config file, whether or not there is one.",
            ),
        },
    ),
}
