"""Which words of a fixed list occur in a text, as substrings of it.

Answer sheets repeat themselves and each other, so what a piece of text between blanks holds is remembered: reading a sheet is
then one look-up a piece rather than one scan a word, with the same outcome.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import filterfalse
from typing import NamedTuple

LONGEST_REMEMBERED = 32
"""Pieces with more characters are rare and not remembered."""

MOST_REMEMBERED = 65_536
"""The memory is emptied before it holds more pieces; each takes about 150 bytes."""

LONGEST_SPLIT = 8_192
"""Longer texts are scanned for each word: their many pieces may all be new, and a scan's cost is known."""


class WordHits:
    """Finds words in texts. Bit i of a mask stands for the i-th word; words that occur twice in the list share their place."""

    def __init__(self, words: Iterable[str]) -> None:
        self._bits = {word: 1 << place for place, word in enumerate(dict.fromkeys(words))}
        self._every = (1 << len(self._bits)) - 1
        # A phrase needs a piece that holds its first word; those bits stand above the words' own.
        self._phrases: dict[str, dict[str, int]] = {}
        for word, bit in self._bits.items():
            lead, blank, rest = word.partition(" ")
            if blank:
                self._phrases.setdefault(lead + blank, {})[rest] = bit
        self._leads = [(lead, 1 << place) for place, lead in enumerate(self._phrases, len(self._bits))]
        self._rests = {lead: tuple(rests) for lead, rests in self._phrases.items()}
        self._in_pieces = [(word, bit) for word, bit in self._bits.items() if " " not in word]
        self._in_pieces += [(lead.rstrip(" "), bit) for lead, bit in self._leads]
        self._any = re.compile("|".join(re.escape(word) for word, _ in self._in_pieces))
        self._memory = _Memory(set(), set(), {})

    def mask_of(self, words: Iterable[str]) -> int:
        """The mask with the bits of these words. Raises KeyError for a word outside the list."""
        mask = 0
        for word in words:
            mask |= self._bits[word]
        return mask

    def mask_in(self, text: str) -> int:
        """The mask of the words that occur in the text, which must be in lower case."""
        mask = 0
        if len(text) > LONGEST_SPLIT:
            for word, bit in self._bits.items():
                if word in text:
                    mask |= bit
            return mask
        pieces = text.split()
        memory = self._memory
        if len(memory.known) + len(pieces) > MOST_REMEMBERED:
            memory = self._memory = _Memory(set(), set(), {})  # another thread may still read the old one
        # Most pieces are known, and most of those hold no word: sets pass over them without a line of ours for each.
        for piece in filterfalse(memory.known.__contains__, pieces):
            mask |= self._learn(memory, piece)
        for piece in memory.telling.intersection(pieces):
            mask |= memory.masks[piece]
        if mask > self._every:
            for lead, bit in self._leads:
                if mask & bit:
                    mask |= self._phrases_in(text, lead)
        return mask & self._every

    def _phrases_in(self, text: str, lead: str) -> int:
        mask, rests, at = 0, self._rests[lead], text.find(lead)
        while at >= 0:
            at += len(lead)
            if text.startswith(rests, at):
                for rest, bit in self._phrases[lead].items():
                    if text.startswith(rest, at):
                        mask |= bit
            at = text.find(lead, at)
        return mask

    def _learn(self, memory: _Memory, piece: str) -> int:
        mask = 0
        if self._any.search(piece):  # numbers and names, which most strangers are, hold nothing
            for word, bit in self._in_pieces:
                if word in piece:
                    mask |= bit
        if len(piece) <= LONGEST_REMEMBERED:
            if mask:
                memory.masks[piece] = mask
                memory.telling.add(piece)
            memory.known.add(piece)  # last, since a thread that finds it here looks no further
        return mask


class _Memory(NamedTuple):
    """The pieces met so far, those of them that hold a word, and the masks of the latter."""

    known: set[str]
    telling: set[str]
    masks: dict[str, int]
