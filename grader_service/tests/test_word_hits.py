"""Finding words by remembered pieces equals looking for each word in the text."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grader_service.rubrics import word_hits
from grader_service.rubrics.keyword_rules import AMENDMENTS
from grader_service.rubrics.word_hits import WordHits

WORDS = tuple(word for issue in AMENDMENTS.issues for word in issue.words)
HITS = WordHits(WORDS)

# Whole words, halves of them, and every kind of blank, so that phrases arise, break and hide inside other words.
_PIECES = st.sampled_from([*WORDS, *(part for word in WORDS for part in word.split()), *(w[:-1] for w in WORDS), "x", "-", ""])
_BLANKS = st.sampled_from([" ", "", "\n", "\t", "  ", "\u00a0", "\x1f", "\u2028"])
texts = st.lists(st.tuples(_PIECES, _BLANKS), max_size=30).map(lambda pairs: "".join(a + b for a, b in pairs)) | st.text()


@given(texts)
@settings(max_examples=500, deadline=None)
def test_the_mask_holds_exactly_the_words_in_the_text(text: str) -> None:
    text = text.lower()
    assert HITS.mask_in(text) == HITS.mask_of(word for word in WORDS if word in text)


def test_long_texts_are_scanned() -> None:
    text = "y " * word_hits.LONGEST_SPLIT + "blood pressure"
    assert HITS.mask_in(text) == HITS.mask_of(["blood pressure"])


def test_the_memory_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is emptied when full, and long pieces never enter it; answers stay the same."""
    monkeypatch.setattr(word_hits, "MOST_REMEMBERED", 10)
    hits = WordHits(["locf", "ema"])
    for number in range(100):
        assert hits.mask_in(f"ema piece{number} xlocf{number} {'z' * 40} and {number}") == hits.mask_of(["locf", "ema"])
        known, telling, masks = hits._memory
        assert len(known) <= 10
        assert masks.keys() == telling <= known


def test_threads_share_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large sheets are graded beside the loop, and one thread may empty the memory while another reads a text."""
    monkeypatch.setattr(word_hits, "MOST_REMEMBERED", 8)
    hits = WordHits(WORDS)
    texts = [f"{word} piece{number} amendment c {number}" for number, word in enumerate(WORDS * 20)]
    wanted = [hits.mask_of(word for word in WORDS if word in text) for text in texts]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            for masks in threads.map(lambda _: [hits.mask_in(text) for text in texts], range(4)):
                assert masks == wanted
    finally:
        sys.setswitchinterval(interval)
