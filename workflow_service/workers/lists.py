"""Pages of episodes from several workers made one page, the newest first."""

from __future__ import annotations

from collections.abc import Sequence

from trialgym.v1 import episode_pb2
from trialgym.v1 import workflow_service_pb2 as pb

Key = tuple[int, str]


def merged(pages: Sequence[pb.ListEpisodesResponse], size: int, limit_bytes: int) -> tuple[list[episode_pb2.Episode], bool]:
    """The first episodes of all pages together, at most `size` and `limit_bytes`; and whether more follow.

    Each page has the order of the list and begins after the same place. What follows a page that goes on cannot be placed yet.
    """
    episodes = sorted(((_key(episode), episode) for page in pages for episode in page.episodes), key=lambda each: each[0])
    ends = [_key(page.episodes[-1]) for page in pages if page.next_page_token and page.episodes]
    known = min(ends, default=None)
    shown: list[episode_pb2.Episode] = []
    shown_bytes = 0
    for key, episode in episodes:
        shown_bytes += episode.ByteSize() + 8
        if len(shown) == size or shown_bytes > limit_bytes or (known is not None and key > known):
            break
        shown.append(episode)
    return shown, len(shown) < len(episodes) or bool(ends)


def _key(episode: episode_pb2.Episode) -> Key:
    return -create_ms(episode), episode.name


def create_ms(episode: episode_pb2.Episode) -> int:
    """When an episode was created, in milliseconds since the epoch."""
    return episode.create_time.seconds * 1000 + episode.create_time.nanos // 1_000_000
