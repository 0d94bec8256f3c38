'''Built-in steps of recipes, one family per file; `registry.py` lists them.

A custom step is a frozen dataclass whose fields are its parameters:

    >>> from dataclasses import dataclass, field
    >>> from offline_data.pipeline.preprocess.steps.base import Step
    >>> from offline_data.pipeline.preprocess.steps.leaves import change_columns, matching
    >>> from offline_data.pipeline.preprocess.steps.registry import parse_step, register_step
    >>> @register_step
    ... @dataclass(frozen=True)
    ... class Negate(Step, name="negate", example="negate:action"):  # as in --step negate:action
    ...     """Change the sign of some features."""
    ...
    ...     keys: tuple[str, ...] = field(metadata={"many": True})  # all unnamed values
    ...
    ...     def apply(self, chunk):
    ...         found = matching(chunk, self.keys)  # StepError if there is no such feature
    ...         return change_columns(
    ...             chunk, found, lambda values: -values
    ...         )  # new arrays: never in place

    >>> from offline_data.testing.chunks import toy_chunk
    >>> parse_step("negate:action").apply(toy_chunk([1])).batch.steps["action",].tolist()
    [[-1.0, -0.5, -0.25]]

`offline_data.testing.steps.StepContract` tests the contract of every step. To make it available in
other processes and the command line, add an entry point to the group `offline_data.steps`.

    >>> from offline_data.pipeline.preprocess.steps import registry
    >>> _ = registry._registered.pop("negate")  # so that other examples can use the name
'''
