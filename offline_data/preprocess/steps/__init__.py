'''Built-in steps of recipes, a family a file; `registry.py` names them.

A step of your own is a frozen dataclass whose fields are its parameters:

    >>> from dataclasses import dataclass, field
    >>> from offline_data.preprocess.steps.base import Step
    >>> from offline_data.preprocess.steps.leaves import changed, matching
    >>> from offline_data.preprocess.steps.registry import parse_step, register_step
    >>> @register_step
    ... @dataclass(frozen=True)
    ... class Negate(Step, name="negate", example="negate:action"):  # as in --step negate:action
    ...     """Turn the sign of some leaves around."""
    ...
    ...     keys: tuple[str, ...] = field(metadata={"many": True})  # all values without a name
    ...
    ...     def apply(self, chunk):
    ...         found = matching(chunk, self.keys)  # StepError where no leaf is called so
    ...         return changed(chunk, found, lambda values: -values)  # new arrays: never in place

    >>> from offline_data.testing.chunks import toy_chunk
    >>> parse_step("negate:action").apply(toy_chunk([1])).batch.steps["action",].tolist()
    [[-1.0, -0.5, -0.25]]

`offline_data.testing.steps.StepContract` tests what every step must hold to. Other processes, and
the command line, know it by an entry point of the group `offline_data.steps`.

    >>> from offline_data.preprocess.steps import registry
    >>> _ = registry._registered.pop("negate")  # so that the next example may have the name
'''
