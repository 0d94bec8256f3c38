"""TorchRL's recipes of tokenization, and the loader that keeps their results as a dataset."""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import offline_data.rows  # noqa: F401 # isort: skip # an error of ours without torch
import numpy as np
import torch
from tensordict import MemoryMappedTensor, TensorDict, TensorDictBase

from offline_data.base.config import resolve_settings
from offline_data.base.errors import FormatError, MissingDependencyError, NotFoundError, UsageError
from offline_data.base.json import shown
from offline_data.base.pickles import by_name, pickled_by_name
from offline_data.base.plurals import plural
from offline_data.pipeline.preprocess.identity import UnknownIdentityError, digest_of
from offline_data.rows.gather.mmap import map_file
from offline_data.rows.indexing import positive
from offline_data.store.layout import TED
from offline_data.store.reader import DatasetReader

_ROWS = 1000  # rows that are tokenized at once
_MADE = frozenset({"done", "terminated", "truncated", "next", "episode"})  # roots of other leaves
_TEXTS = ("text", "prompt", "label", "valid_sample")  # columns that are not kept, as in TorchRL
_PAIR = ("prompt", "chosen", "rejected")


class _PrivateTensor(MemoryMappedTensor):  # type: ignore[misc]
    """Rows of a file of a dataset; writing to them changes this process's memory, not the file.

    Pickled, they are the name of the file and which rows, so that other processes map it, too. Rows
    that are not consecutive are a plain tensor, which is copied, as is what was written to.
    """

    @classmethod
    def of_file(
        cls,
        path: str | os.PathLike[str],
        dtype: torch.dtype,
        size: torch.Size,
        rows: tuple[int, int] | None = None,
    ) -> _PrivateTensor:
        """Map a file of this size, all or `rows[0]` to `rows[1]`; also called to unpickle them."""
        begin, end = rows or (0, size[0])
        words = map_file(Path(path), size[0], size[1:].numel() * dtype.itemsize).words
        return cls._create(words.view(dtype).view(size)[begin:end], str(path), size, begin)

    @classmethod
    def _create(
        cls, tensor: torch.Tensor, file: str, size: torch.Size, begin: int
    ) -> _PrivateTensor:
        made = cls(tensor)
        made.filename = file if tensor.shape == size else None
        made.index, made.parent_shape, made._handler = None, tensor.shape, None
        made._place = file, size, begin
        return made

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Return rows or values, as a view of this memory."""
        part: torch.Tensor = self.as_subclass(torch.Tensor)[index]
        rows = index[0] if isinstance(index, tuple) and len(index) == 1 else index
        if not isinstance(rows, slice) or rows.step not in {None, 1}:
            return part
        file, size, begin = self._place
        return self._create(part, file, size, begin + rows.indices(len(self))[0])

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the place, or the values if something was written to this memory."""
        if self.is_inference() or self._version:
            return self.as_subclass(torch.Tensor).clone().__reduce_ex__(protocol)
        file, size, begin = self._place
        place = file, self.dtype, size, (begin, begin + len(self))
        return by_name((type(self).of_file, place))


@pickled_by_name
class TensorDictTokenizer:
    """Tokenizes the texts of a sample, one or a list, as TorchRL's class of that name.

    Args:
        tokenizer: A tokenizer of transformers.
        max_length: Tokens of a row.
        key: Name of the text in a sample.
        padding: As the tokenizer takes it.
        truncation: Whether longer texts are cut off.
        return_tensordict: Whether to return a TensorDict; else what the tokenizer returns.
        device: Of the TensorDict.
    """

    def __init__(
        self,
        tokenizer: Any,
        max_length: int,
        key: str = "text",
        padding: str | bool = "max_length",
        truncation: bool = True,
        return_tensordict: bool = True,
        device: torch.device | str | None = None,
    ) -> None:
        self.tokenizer, self.max_length, self.key = tokenizer, max_length, key
        self.padding, self.truncation = padding, truncation
        self.return_tensordict, self.device = return_tensordict, device

    @property
    def _columns(self) -> tuple[str, ...]:
        return (self.key,)

    def __call__(self, sample: Mapping[str, Any]) -> Any:
        """Return `input_ids` and `attention_mask`, `[max_length]` or `[n, max_length]`."""
        texts = sample[self.key]
        return self._result(self._tokenize(texts), [] if isinstance(texts, str) else [len(texts)])

    def _tokenize(self, texts: Any) -> Any:
        return self.tokenizer(
            texts, max_length=self.max_length, padding=self.padding, truncation=self.truncation
        )

    def _result(self, tokens: Any, size: Sequence[int]) -> Any:
        if not self.return_tensordict:
            return tokens
        leaves = {name: torch.tensor(values) for name, values in dict(tokens).items()}
        return TensorDict(leaves, size, device=self.device)


class PromptTensorDictTokenizer(TensorDictTokenizer):
    """Tokenizes prompts with their labels, as TorchRL's class of that name.

    `prompt_rindex` is the place of the prompt's last token. `valid_sample` is False for rows whose
    last token does not end a text: those that fill `max_length`. The batch size is `[n]`, where
    TorchRL's has none.
    """

    def __init__(
        self,
        tokenizer: Any,
        max_length: int,
        key: str = "prompt",
        padding: str | bool = "max_length",
        truncation: bool = True,
        return_tensordict: bool = True,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(tokenizer, max_length, key, padding, truncation, return_tensordict, device)

    @property
    def _columns(self) -> tuple[str, ...]:
        return self.key, "label"

    def __call__(self, sample: Mapping[str, Any]) -> Any:
        """Return `input_ids`, `attention_mask`, `prompt_rindex` and `valid_sample`, `[n, …]`."""
        prompts = sample[self.key]
        alone = self.tokenizer(prompts, max_length=self.max_length, truncation=True)["input_ids"]
        tokens = self._tokenize(
            [p + label for p, label in zip(prompts, sample["label"], strict=True)]
        )
        tokens["prompt_rindex"] = [len(ids) - 1 for ids in alone]
        end = self.tokenizer.eos_token_id
        tokens["valid_sample"] = [ids[-1] == end for ids in tokens["input_ids"]]
        return self._result(tokens, [len(prompts)])


def pre_tokenization_hook(
    dataset: Iterable[Mapping[str, Any]], min_length: int = 5
) -> Iterable[dict[str, str]]:
    r"""Return the chosen texts of comparisons, each after its prompt, then the rejected ones.

    Pairs of equal texts, or with one of fewer than `min_length` words, are dropped, with a warning
    that says how many.

    Args:
        dataset: Rows with `prompt`, `chosen` and `rejected`; iterated twice.
        min_length: Words.

    Example:
        >>> row = {"prompt": "p", "chosen": "a b c d e", "rejected": "f g h i j"}
        >>> list(pre_tokenization_hook([row]))
        [{'text': 'p\na b c d e'}, {'text': 'p\nf g h i j'}]
    """

    def texts(role: str) -> Iterator[dict[str, str]]:
        dropped = count = 0
        for count, row in enumerate(dataset, 1):  # noqa: B007 - read after the loop
            both = row["chosen"], row["rejected"]
            if both[0] != both[1] and all(len(text.split()) >= min_length for text in both):
                yield {"text": f"{row['prompt']}\n{row[role]}"}
            else:
                dropped += 1
        if dropped and role == "chosen":
            warnings.warn(
                f"{plural(dropped, 'pair')} of {count:,} {'is' if dropped == 1 else 'are'} dropped: "
                "their texts are equal, or one has fewer "
                f"than {plural(min_length, 'word')}",
                stacklevel=2,
            )

    return chain(texts("chosen"), texts("rejected"))


@pickled_by_name
class TokenizedDatasetLoader:
    """Tokenizes a dataset once and returns it memory-mapped; TorchRL's class of that name.

    Unlike TorchRL's, its result is a dataset of this package, `local:tokens/…`: a conversion that was
    interrupted never counts as done, and other arguments or another tokenizer have another name. One
    that is there is used without asking the hub or reading the rows, also after the hub has changed;
    `offline-data rm` deletes it. Functions are known by their code and what they close over. Only
    what `tokenizer_fn` returns is kept, not other columns. The tokenizer runs in this process, without
    the limits that `download` and `convert` set to those of strangers.

    Args:
        split: `"train"` or `"valid"`, or another split.
        max_length: Tokens of a row.
        dataset_name: Dataset of the hub; with `from_disk`, a folder of `DatasetDict.save_to_disk`.
        tokenizer_fn: `TensorDictTokenizer` or a class like it.
        pre_tokenization_hook: Called with the rows; returns those to tokenize. For a function other
            than ours the rows are a `datasets.Dataset`.
        root_dir: Root of all datasets; None: the user's.
        from_disk: Whether `dataset_name` is a folder.
        valid_size: Most rows of a split whose name begins with `valid`.
        num_workers: Ignored: fast tokenizers use all cores.
        tokenizer_class: Class with `from_pretrained`; None: `transformers.AutoTokenizer`.
        tokenizer_model_name: Name for it; its end of text pads.
    """

    def __init__(
        self,
        split: str,
        max_length: int,
        dataset_name: str | os.PathLike[str],
        tokenizer_fn: type[TensorDictTokenizer],
        pre_tokenization_hook: Callable[[Any], Iterable[Mapping[str, Any]]] | None = None,
        root_dir: str | os.PathLike[str] | None = None,
        from_disk: bool = False,
        valid_size: int = 2000,
        num_workers: int | None = None,
        tokenizer_class: Any = None,
        tokenizer_model_name: str | None = None,
    ) -> None:
        positive(max_length, "max_length")
        self.split, self.max_length, self.dataset_name = split, max_length, str(dataset_name)
        self.tokenizer_fn, self.pre_tokenization_hook = tokenizer_fn, pre_tokenization_hook
        self.root_dir, self.from_disk, self.valid_size = root_dir, from_disk, valid_size
        self.num_workers = num_workers
        if tokenizer_class is None:
            try:
                from transformers import AutoTokenizer
            except ImportError as error:
                raise MissingDependencyError(
                    "Tokenizing needs transformers, which is not installed",
                    hint="pip install 'offline-data[rlhf]'",
                ) from error
            tokenizer_class = AutoTokenizer
        self.make_tokenizer(
            tokenizer_class=tokenizer_class, tokenizer_model_name=tokenizer_model_name or "gpt2"
        )

    def make_tokenizer(self, *, tokenizer_class: Any, tokenizer_model_name: str) -> None:
        """Create the tokenizer, which pads with its end of text."""
        self.tokenizer = tokenizer_class.from_pretrained(tokenizer_model_name)
        if self.tokenizer.eos_token is not None:
            self.tokenizer.pad_token = self.tokenizer.eos_token

    def load(self) -> TensorDict:
        """Return the tokens as a memory-mapped TensorDict `[N]`, tokenizing them if needed.

        Raises:
            NotFoundError: No such dataset, split or folder, or no row is left.
            FormatError: A file is damaged, or a row lacks a text.
            UsageError: What a function depends on cannot be determined.
            OfflineError, NetworkError, AuthError: The dataset cannot be fetched.
        """
        from offline_data.text.stored import published_rows, saved_rows, stored_tokens

        settings = resolve_settings(root=self.root_dir)
        most = self.valid_size if self.split.startswith("valid") else None
        find_rows = saved_rows if self.from_disk else published_rows
        rows, origin = find_rows(self.dataset_name, self.split, settings, most)
        label = f"{Path(self.dataset_name).name}-{self.split}-{self._key(origin)}"
        name = re.sub(r"[^A-Za-z0-9._]+", "-", label).lstrip("-._")
        path = stored_tokens(name, lambda: self._batches(rows), settings)
        reader = DatasetReader(path)
        table = reader.manifest.tables[TED]
        leaves = {
            leaf.key: _PrivateTensor.of_file(
                path / leaf.file,
                getattr(torch, leaf.dtype),
                torch.Size([table.rows, *leaf.shape]),
            )
            for leaf in table.leaves
            if leaf.key[0] not in _MADE
        }
        return TensorDict(leaves, [table.rows])

    def _key(self, origin: str) -> str:
        """Return what the tokens depend on, as hex digits."""
        tokenizer, hook = self.tokenizer, self.pre_tokenization_hook
        backend = getattr(tokenizer, "backend_tokenizer", None)
        vocabulary = tokenizer.get_vocab()
        if backend:
            vocabulary = json.loads(backend.to_str()) | {"padding": None, "truncation": None}
        identity = [
            origin,
            self.split,
            self.max_length,
            self.valid_size if self.split.startswith("valid") else None,
            # all rows are kept now; those of this class always were
            _identity(self.tokenizer_fn) + "*" * (self.tokenizer_fn is not TensorDictTokenizer),
            hook and _identity(hook),
            type(tokenizer).__name__,
            vocabulary,
            [tokenizer.pad_token_id, tokenizer.padding_side, tokenizer.truncation_side],
            [getattr(tokenizer, "split_special_tokens", None), tokenizer.model_input_names],
        ]
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]

    def _batches(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield tokenized columns of some rows at a time."""
        hook = self.pre_tokenization_hook
        if hook is pre_tokenization_hook:
            rows = hook(_WithText(rows, _PAIR))
        elif hook is not None:
            try:
                from datasets import Dataset
            except ImportError as error:
                raise MissingDependencyError(
                    "A pre_tokenization_hook is given a datasets.Dataset, and datasets is not installed",
                    hint="pip install datasets",
                ) from error
            rows = hook(Dataset.from_list(list(rows)))
        tokenize = self.tokenizer_fn(
            self.tokenizer, max_length=self.max_length, return_tensordict=False
        )
        iterator = iter(_WithText(rows, getattr(tokenize, "_columns", ())))
        some = list(islice(iterator, _ROWS))
        if not some:
            raise NotFoundError(
                f"{self.dataset_name} has no row to tokenize in split {self.split!r}",
                hint="a pre_tokenization_hook drops all of them" if hook else None,
            )
        while some:
            columns = {name: [row[name] for row in some] for name in some[0]}
            tokens = dict(tokenize(columns))
            yield {name: np.array(v) for name, v in tokens.items() if name not in _TEXTS}
            some = list(islice(iterator, _ROWS))

    @staticmethod
    def dataset_to_tensordict(
        dataset: Any,
        data_dir: str | os.PathLike[str],
        prefix: Any = None,
        features: Sequence[str] | None = None,
        batch_dims: int = 1,
        valid_mask_key: Any = None,
    ) -> TensorDict:
        """Write columns as a memory-mapped TensorDict, as TorchRL's method does.

        Args:
            dataset: A TensorDict, or columns by name with an attribute `features`.
            data_dir: Folder to write to.
            prefix: Key of the rows in the result; None: its root.
            features: Columns to write; None: all.
            batch_dims: Dimensions of rows.
            valid_mask_key: Column, bool, of the rows to keep.
        """
        if not isinstance(dataset, TensorDictBase):
            names = dataset.features if features is None else features
            leaves = {name: torch.as_tensor(dataset[name]) for name in names}
            size = next(iter(leaves.values())).shape[:batch_dims]
            dataset = TensorDict(leaves, size)
        if valid_mask_key is not None and valid_mask_key in dataset.keys(include_nested=True):
            dataset = dataset[dataset.get(valid_mask_key)]
        out = dataset if not prefix else TensorDict({prefix: dataset}, [])
        written: TensorDict = out.memmap_(prefix=str(data_dir))
        return written


def _identity(function: Any) -> str:
    """Return a function's or class's identity: ours by name, others' a digest, or `UsageError`."""
    module = getattr(function, "__module__", None) or ""
    if module.partition(".")[0] == "offline_data" and hasattr(function, "__qualname__"):
        return f"{module}.{function.__qualname__}"
    try:
        return digest_of(function)
    except UnknownIdentityError as error:
        raise UsageError(
            f"The tokens of {shown(repr(function), 80)} cannot be cached: {error}",
            hint="pass a function or class whose closed-over values can be pickled",
        ) from error


class _WithText:
    """Rows, each with text in some columns; iterating raises `FormatError` for others."""

    def __init__(self, rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
        self._rows, self._columns = rows, columns

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for number, row in enumerate(self._rows):
            for name in self._columns:
                text = row.get(name)
                if not isinstance(text, str):
                    raise FormatError(
                        f"Row {number} has {shown(text)} in column {name!r}; expected text",
                        hint=f"the columns of the dataset are {', '.join(row)}",
                    )
                try:
                    text.encode()
                except UnicodeEncodeError as error:
                    raise FormatError(f"Row {number}, column {name!r}: {error}") from error
            yield row
