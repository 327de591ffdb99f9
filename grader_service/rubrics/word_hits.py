"""Which words of a fixed list occur in a text, as substrings of it.

Answer sheets repeat themselves and each other, so what a piece of text between blanks holds is remembered: reading a sheet is
then one look-up a piece rather than one scan a word, with the same outcome.
"""

from __future__ import annotations

from collections.abc import Iterable

LONGEST_REMEMBERED = 32
"""Pieces with more characters are rare and not remembered."""

MOST_REMEMBERED = 65_536
"""The memory is emptied when it holds as many pieces; each takes about 150 bytes."""

LONGEST_SPLIT = 8_192
"""Longer texts are scanned for each word: their many pieces may all be new, and a scan's cost is known."""


class WordHits:
    """Finds words in texts. Bit i of a mask stands for the i-th word; words that occur twice in the list share their place."""

    def __init__(self, words: Iterable[str]) -> None:
        self._bits = {word: 1 << place for place, word in enumerate(dict.fromkeys(words))}
        self._every = (1 << len(self._bits)) - 1
        self._singles = [(word, bit) for word, bit in self._bits.items() if " " not in word]
        # A phrase needs a piece that ends with its first word; those bits stand above the words' own.
        self._leads: list[tuple[str, int]] = []
        self._phrases: list[tuple[str, int, int]] = []
        for word, bit in self._bits.items():
            if " " in word:
                lead = 1 << (len(self._bits) + len(self._leads))
                self._leads.append((word.split(" ")[0], lead))
                self._phrases.append((word, bit, lead))
        self._known: dict[str, int] = {}

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
        known = self._known
        for piece in text.split():
            found = known.get(piece)
            mask |= self._learn(piece) if found is None else found
        for phrase, bit, lead in self._phrases:
            if mask & lead and phrase in text:
                mask |= bit
        return mask & self._every

    def _learn(self, piece: str) -> int:
        mask = 0
        for word, bit in self._singles:
            if word in piece:
                mask |= bit
        for word, bit in self._leads:
            if piece.endswith(word):
                mask |= bit
        if len(piece) <= LONGEST_REMEMBERED:
            if len(self._known) >= MOST_REMEMBERED:
                self._known.clear()
            self._known[piece] = mask
        return mask
