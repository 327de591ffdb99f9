"""Where things are kept in Redis: buckets of episodes, and the names of their keys.

Every episode belongs to a bucket, by a digest of its id. All keys of a bucket carry the bucket's hash tag, so they are in one
hash slot: an episode's head, log and start, and the indexes that list it. One script can therefore change an episode and its
indexes in one go, in a cluster, too. A single server needs one bucket; in a cluster the buckets are what is spread over nodes, at
even distances over the slots. How many there are is fixed when a store is made, for it decides where everything is.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from dataclasses import dataclass
from functools import cache

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from workflow_service.domain.episode import EpisodeStart

MAX_BUCKETS = 1024
_NAMESPACE = re.compile(
    r"[A-Za-z0-9_.:-]{1,64}"
)  # no brace, which would be taken for a hash tag, and nothing that scans read as a pattern

_LAST_MS = 2**48 - 1
"""Times in the indexes are written as the distance to this one, in twelve hex digits, so that the newest come first."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """One bucket's keys. `base` is what all of them begin with."""

    index: int
    base: str

    @property
    def common(self) -> tuple[str, str, str, str]:
        """What every script that writes is given first: the bucket's last position, its events, active and ended episodes."""
        return f"{self.base}at", f"{self.base}events", f"{self.base}active", f"{self.base}ended"

    @property
    def at(self) -> str:
        """The position of the bucket's last event."""
        return f"{self.base}at"

    @property
    def events(self) -> str:
        """The bucket's events, a stream of chunks; the id of a chunk is the position of its last event."""
        return f"{self.base}events"

    @property
    def active(self) -> str:
        """Ids of active episodes by an instant before which their leases do not end."""
        return f"{self.base}active"

    @property
    def ended(self) -> str:
        """Ids of ended and deleted episodes by the instant of their removal."""
        return f"{self.base}ended"

    @property
    def listed(self) -> str:
        """Members of the list of all episodes."""
        return f"{self.base}listed"

    @property
    def pending(self) -> str:
        """What is being created together with episodes of other buckets: the plan of each such creation by its token."""
        return f"{self.base}pending"

    @property
    def decided(self) -> str:
        """Creations that this bucket decided, until all their buckets have them."""
        return f"{self.base}decided"

    def head(self, episode_id: str) -> str:
        """The episode's head."""
        return f"{self.base}head:{episode_id}"

    def start(self, episode_id: str) -> str:
        """What was fixed at the episode's start."""
        return f"{self.base}start:{episode_id}"

    def log(self, episode_id: str) -> str:
        """The episode's steps, a list that begins with step 1."""
        return f"{self.base}log:{episode_id}"

    def promise(self, episode_id: str) -> str:
        """The head that an episode will have once the creation it is part of is decided."""
        return f"{self.base}promise:{episode_id}"

    def document(self, key: str) -> str:
        """A document of the service, its revision before its text."""
        return f"{self.base}document:{key}"

    def by_group(self, group_id: str) -> str:
        """Members of the list of a group's episodes."""
        return f"{self.base}group:{_short(group_id)}"

    def by_label(self, key: str, value: str) -> str:
        """Members of the list of the episodes that carry a label."""
        return f"{self.base}label:{_short(f'{len(key)}:{key}={value}')}"

    def indexes(self, start: EpisodeStart) -> list[str]:
        """The lists, but for that of all, that an episode is in."""
        groups = [self.by_group(start.group_id)] if start.group_id else []
        return groups + [self.by_label(key, value) for key, value in dict.fromkeys(start.labels)]


class Layout:
    """A store's buckets. `namespace` keeps several stores in one Redis apart."""

    def __init__(self, namespace: str, buckets: int) -> None:
        self.namespace = check_namespace(namespace)
        self.buckets = [Bucket(index, f"{namespace}:{{{tag}}}:") for index, tag in enumerate(tags(buckets))]

    def bucket(self, episode_id: str) -> Bucket:
        """The bucket of an episode. Raises UnicodeEncodeError where the id is no text that can be stored."""
        return self.buckets[zlib.crc32(episode_id.encode()) % len(self.buckets)]


def check_namespace(namespace: str) -> str:
    """The namespace as it is. Raises ValueError where it could not begin a key."""
    if not _NAMESPACE.fullmatch(namespace):
        raise ValueError(f"must be 1 to 64 letters, digits, or any of _ . : -, not {namespace!r}")
    return namespace


def schema_key(namespace: str) -> str:
    """The key that says whose the namespace is, and in which version."""
    return f"{namespace}:schema"


@cache
def tags(count: int) -> tuple[str, ...]:
    """Hash tags whose slots lie in as many equal parts of the slots as there are tags, one in each."""
    if not 1 <= count <= MAX_BUCKETS:
        raise ValueError(f"must be 1 to {MAX_BUCKETS} buckets, not {count}")
    found: dict[int, str] = {}
    number = 0
    while len(found) < count:
        found.setdefault(key_slot(str(number).encode()) * count // REDIS_CLUSTER_HASH_SLOTS, str(number))
        number += 1
    return tuple(found[part] for part in range(count))


def member(create_ms: int, episode_id: str) -> bytes:
    """An episode's member in the lists: its place in their order, newest first, those of one instant by id. Its id follows."""
    if not 0 <= create_ms <= _LAST_MS:
        raise ValueError(f"the time of creation {create_ms} is out of range")
    return f"{_LAST_MS - create_ms:012x}{episode_id}".encode()


def id_of(member_: bytes) -> str:
    """The id in a member."""
    return member_[12:].decode()


def _short(text: str) -> str:
    # Groups and labels are the users' words, as long as they like; what a list shows is compared with the words themselves.
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
