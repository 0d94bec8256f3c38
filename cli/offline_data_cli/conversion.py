"""Options of a conversion on the command line, from the table in `offline_data.formats.options`."""

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import Parameter
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from offline_data.formats.options import Option, Options, TextOptions, options_of
from offline_data.store.layout import LayoutName
from offline_data_cli.help import panel_of
from offline_data_cli.options import Context, OptionTable, option

_OPTIONS = options_of(Options)
Layout = Annotated[LayoutName | None, option(_OPTIONS["layout"].help)]
Audit = Annotated[str, option(_OPTIONS["audit"].help, metavar=_OPTIONS["audit"].metavar)]

_KEYWORD = Parameter.KEYWORD_ONLY

Given = Mapping[str, Any]  # values of the command line by the name of the option, not yet parsed


@dataclass(frozen=True)
class ConversionOptions(OptionTable):
    """The options of a conversion, by field."""

    command: str  # `download` or `convert`

    def parameters(self) -> list[Parameter]:
        """See `OptionTable`."""
        found: list[Parameter] = []
        for table in (Options, TextOptions):
            kinds = get_type_hints(table)
            for name, each in options_of(table).items():
                if each.help and each.only in {None, self.command}:
                    kind = _kind_of(kinds[name], each)
                    # of text None: a dataset is not text unless one of its options is given
                    default = getattr(table, name) if table is Options or kind is bool else None
                    names = [parameter.name for parameter in found]
                    place = names.index(each.below) + 1 if each.below else len(found)
                    typed = Annotated[kind, self._describe(each)]  # type: ignore[valid-type] # at run time
                    found.insert(
                        place, Parameter(name, _KEYWORD, default=default, annotation=typed)
                    )
        return found

    def _describe(self, each: Option) -> Any:
        """Return what typer shows of an option."""
        text = (self.command == "convert" and each.help_of_convert) or each.help
        names = () if each.flag is None else (each.flag,)
        panel = panel_of(each.sources)
        return option(text, *names, metavar=each.metavar, min=each.least, rich_help_panel=panel)


def _kind_of(kind: Any, each: Option) -> Any:
    """Return the type in which typer reads an option of a field of this type."""
    if kind is bool:
        return bool
    union = get_origin(kind) is not Literal and get_args(kind)
    kind = union[0] if union else kind
    if each.parse is not None:
        kind = list[str] if get_origin(kind) is Mapping else str
    return kind | None


def parse_options(context: Context, given: Given, *, split_of_text: bool = True) -> Options:
    """Parse the options of the table; `split_of_text`: whether `--split` is that of text."""
    from offline_data.pipeline.ingest import pinned_text

    text, others = (_parse_fields(table, given) for table in (TextOptions, Options))
    (others if split_of_text else text).pop("split", None)
    tokenized = pinned_text(TextOptions(**text) if text else None, context.settings)
    return Options(**others, text=tokenized)


def _parse_fields(table: type, given: Given) -> dict[str, Any]:
    """Return the values of the fields of a table that were given."""
    found = {}
    for name, each in options_of(table).items():
        if (value := given.get(name)) not in (None, False, []):
            found[name] = value if each.parse is None else each.parse(value)
    return found
