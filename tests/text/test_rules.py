"""Rules on tokens: planted defects are found at their places, clean text has no finding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from offline_data.analysis.checks.registry import select_rules
from offline_data.analysis.checks.run import run_checks
from offline_data.episode import EpisodeBatch
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED
from tests.analysis.checks.planted import Write, changed, clean_batch, found
from tests.slow import every, slow_but

Documents = Sequence[Sequence[int]]
FORMS = ["text", "prompt", "pairs"]
WIDTH = 40
TOKENIZER = {
    "name": "toy",
    "sha256": "a" * 64,
    "pad": 0,
    "special": {"bos": 1, "eos": 2, "pad": 0},
    "chat": False,
}
EVERY_FORM = pytest.mark.parametrize("pad", [False, True], ids=["packed", "padded"])
LAYOUTS = pytest.mark.parametrize("layout", ["compact", "ted"])


def corpus(count: int = 14, seed: int = 0) -> list[list[int]]:
    """Return different documents of 18 to 38 tokens, of which each two begin with the same five."""
    rng = np.random.default_rng(seed)
    beginnings = rng.integers(10, 99, (count, 5))
    lengths = rng.integers(13, 34, count)
    return [
        [*beginnings[n // 2].tolist(), *rng.integers(10, 99, length).tolist()]
        for n, length in enumerate(lengths)
    ]


def batch(
    documents: Documents,
    form: str = "text",
    *,
    pad: bool = False,
    prompts: Sequence[int] | None = None,
    cut: Sequence[int] = (),
) -> EpisodeBatch:
    """Return documents as a conversion stores them, built token by token.

    Args:
        documents: Documents; of pairs, chosen and rejected ones in turn.
        form: One of `FORMS`.
        pad: Whether a row is a document (or pair) of `WIDTH` tokens.
        prompts: Tokens of each document's prompt; None: five.
        cut: Documents that are truncated.
    """
    prompts = [5] * len(documents) if prompts is None else prompts
    width = 2 if form == "pairs" and pad else 1
    lengths = [1 if pad else len(one) for one in documents[::width]]
    last = np.cumsum(lengths) - 1
    ended, truncated = np.zeros((2, last[-1] + 1, 1), bool)
    truncated[last[[n // width for n in cut]]] = True
    ended[last] = ~truncated[last]
    steps: dict[Any, Any] = {
        REWARD: np.zeros(ended.shape, np.float32),
        TERMINATED: ended,
        TRUNCATED: truncated,
    }
    episodes: dict[Any, Any] = {("row",): np.arange(len(lengths))}
    if pad:
        names = ["chosen_data", "rejected_data"] if width == 2 else [""]
        for first, name in enumerate(names):
            root = (name,) if name else ()
            rows = documents[first::width]
            filled = np.array([np.arange(WIDTH) < len(row) for row in rows])
            ids = np.zeros(filled.shape, np.int32)
            ids[filled] = np.concatenate(rows)
            steps |= {(*root, "input_ids"): ids, (*root, "attention_mask"): filled}
        if form != "text":
            steps["prompt_rindex",] = np.array(prompts[::width]) - 1
    else:
        steps["input_ids",] = np.array([one for row in documents for one in row], np.int32)
        if form != "text":
            steps["completion_mask",] = np.array(
                [i >= n for row, n in zip(documents, prompts, strict=True) for i in range(len(row))]
            )
        if form == "pairs":
            episodes = {
                ("row",): np.arange(len(documents)) // 2,
                ("chosen",): np.arange(len(documents)) % 2 == 0,
            }
    return EpisodeBatch(
        np.array(lengths, np.int64), steps, {}, np.ones(len(lengths), bool), episodes
    )


def about(**tokenizer: Any) -> dict[str, Any]:
    return {"tokenizer": {**TOKENIZER, **tokenizer}}


def converter(form: str, **text: Any) -> dict[str, Any]:
    return {"name": "x", "version": "1", "options": {"text": {"form": form, **text}}}


def begin(documents: Documents, number: int, *, pad: bool, pairs: bool = False) -> tuple[int, int]:
    """Return episode and row of a document's first token."""
    if pad:
        return (number // (1 + pairs),) * 2
    return number, sum(len(one) for one in documents[:number])


@pytest.mark.parametrize(
    ("form", "layout", "pad"), every(3, FORMS, ["ted", "compact"], [False, True])
)
def test_clean(write: Write, form: str, pad: bool, layout: str) -> None:
    documents = [[*one, 2] for one in corpus(20)]
    path = write(
        batch(documents, form, pad=pad), layout=layout, about=about(), converter=converter(form)
    )
    whole = run_checks([path], select_rules()).findings
    assert {one.code for one in whole} == {"RL107"}
    for items, workers in ((7, 1), (130, 3)):
        assert (
            run_checks([path], select_rules(), block_items=items, workers=workers).findings == whole
        )


def test_documents_of_any_length(write: Write) -> None:
    texts = [*corpus(30), [7], [8], list(range(100, 900))]
    report = run_checks([write(batch(texts))], select_rules())
    assert {one.code for one in report.findings} == {"RL107"}


def test_datasets_without_tokens(write: Write) -> None:
    paths = [write(clean_batch(), about=about()) for _ in range(2)]
    assert run_checks(paths, select_rules(["RL1"])).findings == ()


@EVERY_FORM
@LAYOUTS
def test_chosen_equals_rejected(write: Write, pad: bool, layout: str) -> None:
    documents = corpus()
    documents[5] = documents[4]
    documents[9] = documents[8]
    path = write(batch(documents, "pairs", pad=pad, cut=[9]), layout=layout)
    (one,) = found(path, "RL100")
    assert (one.episode, one.row) == begin(documents, 4, pad=pad, pairs=True)
    assert (one.count, one.leaf) == (2, "chosen_data/input_ids" if pad else "input_ids")
    assert one.message == ("2 of 7 pairs have the same tokens as chosen and rejected; 1 is cut off")


def test_pairs_that_were_taken_apart(write: Write) -> None:
    documents = corpus(6)
    documents[2] = documents[1]  # rejected, then chosen of another pair
    documents[5] = documents[4]
    apart = changed(batch(documents, "pairs"), episodes={("row",): np.array([0, 0, 1, 1, 2, 3])})
    assert found(write(apart), "RL100") == []


@EVERY_FORM
@pytest.mark.parametrize("form", FORMS)
def test_duplicates(write: Write, form: str, pad: bool) -> None:
    documents = corpus()
    documents[10:12], documents[6:8] = documents[2:4], documents[2:4]
    (one,) = found(write(batch(documents, form, pad=pad)), "RL101")
    pairs = form == "pairs"
    assert (one.episode, one.row) == begin(documents, 6, pad=pad, pairs=pairs)
    if pairs:
        names = "3 of 1, 5 of 1" if pad else "6 of 2, 10 of 2"
        assert one.message == f"2 of 7 pairs are copies of earlier ones: {names}"
    else:
        assert one.message == (
            "4 of 14 documents are copies of earlier ones: 6 of 2, 7 of 3, 10 of 2, 11 of 3"
        )


@EVERY_FORM
def test_swapped_and_short_ones_are_no_duplicates(write: Write, pad: bool) -> None:
    documents = corpus()
    documents[6:8] = documents[3:1:-1]  # chosen and rejected, swapped
    assert found(write(batch(documents, "pairs", pad=pad)), "RL101") == []
    short = [*corpus(), [7, 8], [7, 8], [8, 7]]
    path = write(batch(short, pad=pad))
    assert found(path, "RL101") == []
    (one,) = found(path, "RL101", tokens=2)
    assert one.message == "1 of 17 documents is a copy of an earlier one: 15 of 14"


@EVERY_FORM
@LAYOUTS
def test_prompts_of_pairs_that_differ(write: Write, pad: bool, layout: str) -> None:
    documents = corpus()
    documents[7] = [*documents[7]]
    documents[7][4] += 1  # the last token of the prompt
    documents[3] = [*documents[3][:5], 5, *documents[3][6:]]  # the first after it
    (one,) = found(write(batch(documents, "pairs", pad=pad), layout=layout), "RL102")
    assert (one.episode, one.row) == begin(documents, 6, pad=pad, pairs=True)
    assert (one.count, one.about) == (1, "pairs")


@EVERY_FORM
@pytest.mark.parametrize("form", ["prompt", "pairs"])
def test_prompts_that_merge_with_the_completion(write: Write, form: str, pad: bool) -> None:
    documents = corpus()
    merged = batch(documents, form, pad=pad)
    prefix = np.ones(len(merged.lengths), bool)
    prefix[[3, 5]] = False
    merged = changed(merged, episodes={("prompt_is_prefix",): prefix})
    (one,) = found(write(merged), "RL102")
    assert (one.episode, one.row) == (3, int(merged.lengths[:3].sum()))
    assert (one.count, one.about) == (2, "border")
    noun = "pairs" if form == "pairs" and pad else "documents"
    assert one.message == f"2 {noun} do not begin with the tokens of the prompt"


@EVERY_FORM
@LAYOUTS
@pytest.mark.parametrize("form", ["prompt", "pairs"])
def test_empty_completions(write: Write, form: str, pad: bool, layout: str) -> None:
    documents = corpus()
    documents[3], documents[9] = documents[3][:5], documents[9][:5]
    path = write(batch(documents, form, pad=pad), layout=layout)
    (one,) = found(path, "RL103")
    assert (one.episode, one.row) == begin(documents, 3, pad=pad, pairs=form == "pairs")
    total = 7 if form == "pairs" and pad else 14
    assert one.message == f"2 of {total} documents have no token after the prompt"
    assert one.leaf == ("rejected_data/input_ids" if total == 7 else "input_ids")


@EVERY_FORM
def test_most_are_truncated(write: Write, pad: bool) -> None:
    documents = corpus(10)
    path = write(batch(documents, pad=pad, cut=range(3, 8)))
    (one,) = found(path, "RL104")
    assert one.message == "5 of 10 documents are cut off"
    last = 3 if pad else sum(len(one) for one in documents[:4]) - 1
    assert (one.episode, one.row, one.count) == (3, last, 5)
    assert found(path, "RL104", share=0.6) == []
    assert found(write(batch(documents, pad=pad)), "RL104", share=0) == []


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("pads", [(False, False), (True, True), (False, True)], ids=str)
def test_leakage(write: Write, form: str, pads: tuple[bool, bool]) -> None:
    train, test = corpus(), corpus(seed=1)
    test[6:8] = train[8:10]
    first, second = pads
    paths = [
        write(batch(train, form, pad=first), name="x-train", about=about()),
        write(batch(test, form, pad=second), name="x-test", about=about()),
    ]
    (one,) = found(paths, "RL105")
    assert (one.dataset, one.about, one.severity) == ("local:x-test@1", "local:x-train", "error")
    assert (one.episode, one.row) == begin(test, 6, pad=second, pairs=form == "pairs")
    there = 4 if form == "pairs" and first else 8
    verb = "is" if form == "pairs" else "are"
    assert one.message.endswith(
        f" {verb} also in local:x-train: {one.episode} here is {there} there"
    )
    assert one.count == (1 if form == "pairs" else 2)


def test_what_is_no_leakage(write: Write) -> None:
    one = write(batch(corpus()), dataset="local:one@1", about=about())
    others = [
        write(batch(corpus()), about=about(sha256="b" * 64)),  # other tokens
        write(batch(corpus(), "pairs"), about=about()),  # pairs
        write(batch(corpus()), parents=("local:one@1",), about=about()),  # made of it
        write(batch(corpus()), dataset="local:one@2", about=about()),  # a later one
        write(clean_batch()),
    ]
    assert [found([one, other], "RL105") for other in others] == [[]] * len(others)
    (warned,) = found([one, write(batch(corpus()))], "RL105")  # an unknown tokenizer
    assert (warned.severity, warned.count) == ("warning", 14)


def test_splits_of_the_hub(write: Write) -> None:
    paths = [
        write(
            batch(corpus()),
            dataset=f"hf:a/b@{split}",
            about=about(),
            converter=converter("text", split=split),
        )
        for split in ("train", "test", "train")
    ]
    assert [one.severity for one in found(paths[:2], "RL105")] == ["error"]
    assert found(paths[::2], "RL105") == []  # the same split again


@EVERY_FORM
@LAYOUTS
def test_special_tokens_inside(write: Write, pad: bool, layout: str) -> None:
    documents = [[1, *one, 2] for one in corpus(8)]  # allowed at the ends
    clean = write(batch(documents, pad=pad), layout=layout, about=about())
    assert found(clean, "RL106") == []
    documents[2].insert(1, 1)  # twice at the beginning
    documents[4][9], documents[4][10] = 2, 0
    path = write(batch(documents, pad=pad), layout=layout, about=about())
    (one,) = found(path, "RL106")
    episode, row = begin(documents, 2, pad=pad)
    assert (one.episode, one.row, one.count) == (episode, row + (not pad), 3)
    assert one.message == ("3 tokens of beginning, end or padding inside documents: bos, eos, pad")
    assert found(write(batch(documents, pad=pad)), "RL106") == []  # marks are not known


@pytest.mark.parametrize("said", [7, {"special": [1], "sha256": []}, {"special": {"eos": "2"}}])
def test_a_manifest_that_says_nonsense(write: Write, said: Any) -> None:
    documents = [[*one[:6], 2, *one[6:]] for one in corpus()]
    path, other = (write(batch(documents), about={"tokenizer": said}) for _ in range(2))
    report = run_checks([path, other], select_rules(["RL105", "RL106"]))
    assert [one.code for one in report.findings] == ["RL105"]


@EVERY_FORM
def test_the_form_that_was_found_counts(write: Write, pad: bool) -> None:
    documents = [[1, *one[:9], 2, 1, *one[9:], 2] for one in corpus(8)]
    for form, codes in (("prompt", ["RL106"]), ("messages", [])):
        chat = {"about": {**about(chat=True), "text": {"form": form}}}
        path = write(batch(documents, "prompt", pad=pad), **chat)
        assert [one.code for one in found(path, "RL106")] == codes


@EVERY_FORM
def test_conversations_have_marks_between_turns(write: Write, pad: bool) -> None:
    documents = [[1, *one[:9], 2, 1, *one[9:], 2] for one in corpus(8)]
    documents[0][1] = 2  # not twice the same
    chat = {"about": {**about(chat=True), "text": {"form": "messages"}}}
    assert found(write(batch(documents, "prompt", pad=pad), **chat), "RL106") == []
    documents[3].insert(0, 1)  # by the template, and by the tokenizer
    documents[5][7] = 0
    (one,) = found(write(batch(documents, "prompt", pad=pad), **chat), "RL106")
    episode, row = begin(documents, 3, pad=pad)
    assert (one.episode, one.row, one.count) == (episode, row + (not pad), 2)
    assert one.message.endswith("bos, pad")
    known = about(special={"eos": 0, "pad": 0})
    ends = {"about": {**known, "text": {"form": "messages"}}}
    del documents[3][0]
    assert found(write(batch(documents, "prompt", pad=pad), **ends), "RL106") == []


@EVERY_FORM
@LAYOUTS
@pytest.mark.parametrize("form", FORMS)
def test_documents_without_an_end(write: Write, form: str, pad: bool, layout: str) -> None:
    documents = [[*one, 2] for one in corpus(12)]
    for number in (4, 7, 8):
        documents[number].pop()
    text = {"form": form, "eos": 2}
    path = write(
        batch(documents, form, pad=pad, cut=[8]), layout=layout, about={**about(), "text": text}
    )
    reports = found(path, "RL108")
    halves = form == "pairs" and pad
    assert [one.count for one in reports] == ([1, 1] if halves else [2])
    episode, row = begin(documents, 4, pad=pad, pairs=form == "pairs")
    row += 0 if pad else len(documents[4]) - 1
    assert (reports[0].episode, reports[0].row) == (episode, row)
    said = "1 document does" if halves else "2 documents do"
    assert reports[0].message == f"{said} not end with the end-of-text token"


def test_where_no_end_is_expected(write: Write) -> None:
    documents = batch(corpus(), "prompt")
    for fields in (
        {"about": about(special={"bos": 1})},
        {"about": about(special=[2])},
        {"about": about(), "converter": converter("prompt", eos="no")},
        {"about": {**about(chat=True), "text": {"form": "messages"}}},
    ):
        assert found(write(documents, **fields), "RL108") == []


@pytest.mark.parametrize(
    ("dataset", "recorded", "command"),
    [
        (
            "hf:a/b@1+text-2",
            {"tokenizer": "gpt2", "form": "prompt", "split": "test"},
            "make it again with `offline-data download hf:a/b --tokenizer gpt2 --form prompt --split test`",
        ),
        (
            "local:mine@1",
            {"tokenizer": "t.json", "max_length": 9},
            "make it again with `offline-data convert PATH mine --from text --tokenizer t.json --max-length 9 --force`",
        ),
        ("local:mine@1", {"tokenizer": 3}, ""),
    ],
)
@pytest.mark.parametrize("code", ["RL102", "RL108"])
def test_what_earlier_versions_made(
    write: Write, dataset: str, recorded: dict[str, Any], command: str, code: str
) -> None:
    wrong = changed(batch(corpus(), "prompt"), episodes={("prompt_is_prefix",): np.zeros(14, bool)})
    converted = {"name": "offline-data", "version": "0.1.0", "options": {"text": recorded}}
    known = {"form": "prompt", "columns": {}, "separator": ""}
    for text, said in ((known, command), ({**known, "eos": None}, "")):
        path = write(wrong, dataset=dataset, about={**about(), "text": text}, converter=converted)
        (one,) = found(path, code)
        assert ("earlier version" in one.message) == bool(said)
        assert one.message.endswith(said)


def test_conversations_that_earlier_versions_made_are_right(write: Write) -> None:
    wrong = changed(batch(corpus(), "prompt"), episodes={("prompt_is_prefix",): np.zeros(14, bool)})
    text, recorded = {"form": "messages", "columns": {}, "separator": ""}, converter("messages")
    (one,) = found(write(wrong, about={**about(), "text": text}, converter=recorded), "RL102")
    assert one.message == "14 documents do not begin with the tokens of the prompt"


@EVERY_FORM
@pytest.mark.parametrize("form", FORMS)
def test_lengths(write: Write, form: str, pad: bool) -> None:
    documents = [list(range(10, 10 + length)) for length in range(1, 41)]
    reports = found(write(batch(documents, form, pad=pad, prompts=[0] * 40)), "RL107")
    halves = [documents[::2], documents[1::2]] if form == "pairs" and pad else [documents]
    assert len(reports) == len(halves)
    for one, part in zip(reports, halves, strict=True):
        lengths = sorted(map(len, part))
        few, half, most = (
            lengths[round(share * (len(lengths) - 1))] for share in (0.05, 0.5, 0.95)
        )
        share = (
            f"; {100 - 100 * sum(lengths) / len(lengths) / WIDTH:.0f} % of the tokens are padding"
        )
        assert one.message == (
            f"Of {len(part)} documents, 5 % have at most {few} tokens, half at most {half}, 95 % at "
            f"most {most}, and the longest has {lengths[-1]}{share if pad else ''}"
        )
        assert (one.severity, one.count) == ("info", len(part))


@pytest.mark.parametrize(
    ("seed", "pad"), slow_but(lambda seed, pad: seed == pad, range(4), [False, True])
)
def test_random_pairs_beside_plain_loops(write: Write, seed: int, pad: bool) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 5, 120)
    documents = [rng.integers(10, 12, length).tolist() for length in lengths]
    prompts = np.repeat(rng.integers(0, 4, 60), 2)
    path = write(batch(documents, "pairs", pad=pad, prompts=prompts.tolist()))
    chosen, rejected, given = documents[::2], documents[1::2], prompts[::2]
    units = list(zip(map(tuple, chosen), map(tuple, rejected), strict=True))
    every = zip(chosen, rejected, given, strict=True)
    expected = {
        "RL100": sum(a == b for a, b in units),
        "RL101": len(units) - len(set(units)),
        "RL102": sum(a[:n] != b[:n] for a, b, n in every),
        "RL103": sum(len(one) <= n for one, n in zip(documents, prompts, strict=True)),
    }
    assert all(expected.values())
    for code, count in expected.items():
        thresholds = {"tokens": 0.0} if code == "RL101" else {}
        assert sum(one.count for one in found(path, code, items=9, **thresholds)) == count, code


def test_left_padding_is_seen(write: Write) -> None:
    documents = corpus()
    right = batch(documents, pad=True)
    left = {
        key: np.array([
            np.roll(row, WIDTH - len(one))
            for row, one in zip(right.steps[key], documents, strict=True)
        ])
        for key in (("input_ids",), ("attention_mask",))
    }  # fmt: skip
    paths = [write(changed(right, steps=left)), write(batch(documents))]
    assert found(paths, "RL105")[0].count == len(documents)
