"""Which worker has which episode: the first two hex digits of an id say so.

Ids are digests of the requests that make them, so every worker knows the owner of what a request will make. The members of a group
share its digits and a fork takes its source's, so that what belongs together lies together.
"""

from __future__ import annotations

_EPISODE = slice(len("episodes/"), len("episodes/") + 2)
_GROUP = slice(len("episodeGroups/"), len("episodeGroups/") + 2)


class Placing:
    """The episodes of `count` workers, as the worker `own` sees them. What is no name of ours is its own to refuse."""

    def __init__(self, own: int, count: int) -> None:
        self.own = own
        self.count = count
        self._owners = {f"{digits:02x}": digits % count for digits in range(256)}

    def of_id(self, id_: str) -> int:
        """The owner of an episode or group by its id."""
        return self._owners.get(id_[:2], self.own)

    def of_episode(self, name: str) -> int:
        """The owner of `episodes/{id}`."""
        return self._owners.get(name[_EPISODE], self.own)

    def of_group(self, name: str) -> int:
        """The owner of `episodeGroups/{id}` and its members."""
        return self._owners.get(name[_GROUP], self.own)
