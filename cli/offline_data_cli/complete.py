"""Shell completion: the words offered after TAB, and the shell scripts; it never fails."""

from collections.abc import Callable, Iterable
from typing import Any

import typer

from offline_data.base.config import CONFIG_KEYS, Settings, resolve_settings
from offline_data.base.plurals import plural

BASH = r"""# bash completion of offline-data: eval "$(offline-data completion bash)"
_offline_data_completion() {
    local line="${COMP_LINE:0:COMP_POINT}" word item before
    word="${line##*[[:space:]]}"
    # bash splits words at ':' and '=': the part before them is kept
    before=""
    [[ $COMP_WORDBREAKS == *:* && $word == *:* ]] && before="${word%"${word##*:}"}"
    [[ $COMP_WORDBREAKS == *=* && ${word#"$before"} == *=* ]] && before="${word%"${word##*=}"}"
    COMPREPLY=()
    while IFS=$'\t' read -r item _; do
        [[ -n $item ]] || continue
        [[ $item == *[!A-Za-z0-9._:/=@%+,-]* ]] && printf -v item '%q' "$item"
        COMPREPLY+=("${item#"$before"}")
    done < <(env COLUMNS=9999 _TYPER_COMPLETE_ARGS="$line" _TYPER_COMPLETE_FISH_ACTION=get-args \
        _OFFLINE_DATA_COMPLETE=complete_fish "$1" 2>/dev/null)
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *: ]] && compopt -o nospace
    return 0
}
complete -o default -F _offline_data_completion offline-data
"""
ZSH = r"""#compdef offline-data
# zsh completion of offline-data: eval "$(offline-data completion zsh)" after compinit,
# or write it to a file _offline-data in a folder of $fpath
_offline_data() {
    local word text; local -a found
    while IFS=$'\t' read -r word text; do
        [[ -n $word ]] && found+=(${word//:/\\:}${text:+:$text})
    done < <(env COLUMNS=9999 _TYPER_COMPLETE_ARGS="${(j: :)words[1,CURRENT]}" _TYPER_COMPLETE_FISH_ACTION=get-args \
        _OFFLINE_DATA_COMPLETE=complete_fish offline-data 2>/dev/null)
    if (( $#found )); then _describe -V 'offline-data' found; else _files; fi
}
if [[ $funcstack[1] == _offline-data ]]; then _offline_data "$@"; else compdef _offline_data offline-data; fi
"""
FISH = r"""# fish completion of offline-data: offline-data completion fish | source
function __offline_data_complete
    set -l found (env COLUMNS=9999 _TYPER_COMPLETE_ARGS=(commandline -cp | string collect) \
        _TYPER_COMPLETE_FISH_ACTION=get-args _OFFLINE_DATA_COMPLETE=complete_fish offline-data 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete --command offline-data --no-files --keep-order --arguments '(__offline_data_complete)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}

Words = Callable[[typer.Context, str], list[tuple[str, str]]]


def _offers(words: Callable[[Settings], Iterable[tuple[str, str]]]) -> Words:
    """Return a completion function for typer: words with help texts that start as typed."""

    def offer(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        above: Any = ctx
        roots = []
        while above is not None:
            roots.append(above.params.get("root"))
            above = above.parent
        try:
            settings = resolve_settings(root=next(filter(None, roots), None), offline=True)
            return [(word, text) for word, text in words(settings) if word.startswith(incomplete)]
        except Exception:  # noqa: BLE001 - a message would interrupt the line being typed
            return []

    return offer


def _local_ids(settings: Settings) -> Iterable[tuple[str, str]]:
    from offline_data.base.ids import parse_id
    from offline_data.store.library import list_local

    for one in list_local(settings.root):
        dataset = parse_id(one.id)
        yield f"{dataset.source}:{dataset.name}", plural(one.transitions, "step")


def _all_ids(settings: Settings) -> Iterable[tuple[str, str]]:
    from offline_data.formats.search import search

    return [(dataset.id, dataset.summary) for dataset in search("", settings)]


def _sources(_settings: Settings) -> Iterable[tuple[str, str]]:
    from offline_data.formats.registry import iter_sources

    return [(source.name, source.title) for source in iter_sources()]


def _steps(_settings: Settings) -> Iterable[tuple[str, str]]:
    from offline_data.pipeline.preprocess.steps.registry import describe_step, step_names

    return [(name, describe_step(name)["does"]) for name in step_names()]


def _kinds(_settings: Settings) -> Iterable[tuple[str, str]]:
    from offline_data.store.cache import KINDS

    return [(kind, "all of this kind") for kind in KINDS]


def _rules(_settings: Settings) -> Iterable[tuple[str, str]]:
    from offline_data.analysis.checks.reference import rule_texts

    return [(text.code, text.summary) for text in rule_texts().values()]


def _targets(_settings: Settings) -> Iterable[tuple[str, str]]:
    from offline_data.formats.writing.base import TARGETS

    return [(name, "") for name in TARGETS]


ids_here = _offers(_local_ids)
all_ids = _offers(_all_ids)
sources = _offers(_sources)
steps = _offers(_steps)
rules = _offers(_rules)
targets = _offers(_targets)
explained = _offers(lambda settings: [*_rules(settings), *_steps(settings)])
kinds = _offers(_kinds)
config_keys = _offers(lambda _: [(key, "") for key in CONFIG_KEYS])
shells = _offers(lambda _: [(shell, f"completion script for {shell}") for shell in SCRIPTS])
