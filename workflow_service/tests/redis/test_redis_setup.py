"""What a Redis must be, whose keys are whose, how a store logs in, and what it says of the way that Redis is set up."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from workflow_service.__main__ import make_store, running
from workflow_service.domain.episode import EpisodeState
from workflow_service.settings import WorkflowSettings
from workflow_service.storage.base import Filter, StoreError, StoreRefused
from workflow_service.storage.redis import RedisStore
from workflow_service.storage.redis_address import RedisAddress, parse_address
from workflow_service.storage.redis_keys import Layout, tags
from workflow_service.storage.redis_link import Credentials
from workflow_service.storage.redis_server import check_server, read_schema, schema_text, warnings_for
from workflow_service.tests.redis.servers import HOST, Cluster, RedisPlace, Server, server
from workflow_service.tests.redis.test_redis_faults import calls
from workflow_service.tests.rows import LEASE, NOW, new, step_of
from workflow_service.tests.store_suite import WAIT_S, opened, pages


def keys_of(redis: Server, pattern: str = "*") -> dict[bytes, bytes]:
    """The dumps of all keys, by name."""
    with redis.client() as client:
        return {key: client.dump(key) or b"" for key in client.scan_iter(pattern, count=1000)}


# Addresses


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://h:1/2", RedisAddress("h", 1, 2)),
        ("redis://h", RedisAddress("h", 6379)),
        ("redis://h/", RedisAddress("h", 6379)),
        ("rediss://h:1", RedisAddress("h", 1, tls=True)),
        ("redis+cluster://h:1", RedisAddress("h", 1, cluster=True)),
        ("rediss+cluster://[::1]:7/0", RedisAddress("::1", 7, cluster=True, tls=True)),
    ],
)
def test_addresses(url: str, address: RedisAddress) -> None:
    """A URL says where Redis is; what is printed of it is read again as the same."""
    assert parse_address(url) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "url",
    [
        "redis:",
        "redis://",
        "redis://h:x",
        "redis://h:70000",
        "redis://h/a",
        "redis://h/-1",
        "redis://h/01",
        "redis://h/1/2",
        "redis://h?db=1",
        "redis://h/1#x",
        "redis:///1",
        "redis+cluster://h/1",
        "rediscluster://h",
        "unix://h",
        "http://h",
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    """Anything else is refused with what it must look like."""
    with pytest.raises(ValueError, match="must"):
        parse_address(url)


@pytest.mark.parametrize("url", ["redis://:geheim@h:1/0", "redis://me:geheim@h:1/0", "rediss://geheim@h"])
def test_a_password_in_an_address_is_refused_and_not_repeated(url: str) -> None:
    """A URL is seen by everybody who sees processes, so none with a password is taken, and the message does not hold it."""
    with pytest.raises(ValueError, match="must not hold a user or a password") as refused:
        parse_address(url)
    assert "geheim" not in str(refused.value)


def test_settings_make_the_store() -> None:
    """The settings' values reach the store; a password is never shown."""
    settings = WorkflowSettings(
        store="rediss+cluster://h:7", redis_username="me", redis_password="geheim", redis_namespace="gym", redis_ca_file="/ca.pem"
    )
    store = make_store(settings)
    assert isinstance(store, RedisStore)
    assert store._link.address == RedisAddress("h", 7, tls=True, cluster=True)
    assert store._link._credentials == Credentials("me", "geheim", "/ca.pem", "", "")
    assert store._namespace == "gym"
    assert "geheim" not in repr(settings) + repr(store._link._credentials) + str(store._link.address)


def test_without_the_client_the_store_is_refused_with_what_to_install() -> None:
    """Where the extra is not installed, the service starts with other stores, and with this one says what is missing."""
    script = (
        "import sys; sys.modules['redis'] = None; sys.argv[1:] = ['--store', 'redis://127.0.0.1:1/0', '--listen', '127.0.0.1:0']; "
        "from workflow_service.__main__ import main; main()"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 1
    assert "pip install 'trialgym[redis]'" in run.stderr
    assert "Traceback" not in run.stderr


# Servers


@pytest.mark.parametrize(
    ("info", "cluster", "message"),
    [
        ({"redis_version": "6.0.16"}, False, "needs 6.2 or newer"),
        ({"redis_version": "5.0.7"}, False, "is Redis 5.0.7"),
        ({}, False, "needs 6.2"),
        ({"redis_version": "7.0.15", "cluster_enabled": 1}, False, "is a node of a cluster; name it as redis\\+cluster://"),
        ({"redis_version": "7.0.15", "cluster_enabled": 0}, True, "is no node of a cluster"),
        ({"redis_version": "7.0.15", "role": "slave"}, False, "is a replica"),
        ({"redis_version": "7.0.15", "maxmemory": 100, "maxmemory_policy": "allkeys-lru"}, False, "throws keys away"),
    ],
)
def test_servers_that_cannot_hold_a_store(info: dict[str, Any], cluster: bool, message: str) -> None:
    """Each is refused with what is wrong and what to do."""
    with pytest.raises(StoreRefused, match=message):
        check_server("there", info, cluster=cluster)


@pytest.mark.parametrize(
    "info",
    [
        {"redis_version": "6.2.0"},
        {"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "8.0.1"},
        {"redis_version": "10.1.0", "role": "master", "maxmemory": 0, "maxmemory_policy": "allkeys-lru"},
        {"redis_version": "7.4.0", "maxmemory": 100, "maxmemory_policy": "volatile-lru"},
    ],
)
def test_servers_that_can(info: dict[str, Any]) -> None:
    """Versions are compared as numbers; policies that evict what expires touch none of our keys, which do not."""
    check_server("there", info, cluster=False)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"appendonly": "no"}, "keeps no append-only file"),
        ({"appendfsync": "no"}, "leaves it to the system"),
        ({"appendfsync": "everysec"}, None),
        ({"appendfsync": "always"}, None),
    ],
)
async def test_a_setup_that_may_lose_steps_is_told(settings: dict[str, str], said: str | None) -> None:
    """Opening says so where an append-only file is missing or is left to the system, and nothing where all is well."""
    with server(**settings) as redis:
        async with opened(RedisPlace(redis.address)) as store:
            assert isinstance(store, RedisStore)
            assert (said is None) is (store.warnings == ())
            assert said is None or (said in store.warnings[0] and str(redis.port) in store.warnings[0])


def test_an_unknown_fsync_is_no_warning() -> None:
    """Where the server may not be asked, as a managed one, nothing is guessed."""
    assert warnings_for("there", {"aof_enabled": 1}, None) == []


async def test_a_replica_and_an_evicting_server_are_refused(redis_server: Server, redis_cluster: Cluster) -> None:
    """The same, of real servers."""
    with server(replicaof=f"{HOST} {redis_server.port}") as replica, pytest.raises(StoreRefused, match="is a replica"):
        await RedisPlace(replica.address).handle().open()
    with server(maxmemory="100mb", maxmemory_policy="allkeys-lru") as evicting:
        with pytest.raises(StoreRefused, match="throws keys away"):
            await RedisPlace(evicting.address).handle().open()
        assert keys_of(evicting) == {}
    with pytest.raises(StoreRefused, match=r"redis\+cluster"):
        await RedisPlace(redis_cluster.nodes[0].address).handle().open()
    with pytest.raises(StoreError):
        await RedisPlace(RedisAddress(HOST, redis_server.port, cluster=True)).handle().open()


# Whose keys


@pytest.mark.parametrize(
    ("put", "message"),
    [
        (lambda client, key: client.set(key, "theirs 1 1"), "another program"),
        (lambda client, key: client.set(key, b"\xff\xfe"), "another program"),
        (lambda client, key: client.hset(key, "a", "b"), "another program"),
        (lambda client, key: client.set(key, "trialgym 2 1"), "store version 2, this server reads 1"),
        (lambda client, key: client.set(key, "trialgym 0 1"), "store version 0"),
        (lambda client, key: client.set(key, "trialgym 1"), "store version 1"),
    ],
)
async def test_a_namespace_of_others_is_refused_and_left_as_it_is(redis_server: Server, put: Any, message: str) -> None:
    """What another program or version wrote is named as such, and not a key changes."""
    place = RedisPlace(redis_server.address)
    with redis_server.client() as client:
        put(client, f"{place.options['namespace']}:schema")
    before = keys_of(redis_server, f"{place.options['namespace']}*")
    with pytest.raises(StoreRefused, match=message):
        await place.handle().open()
    assert keys_of(redis_server, f"{place.options['namespace']}*") == before


def test_a_schema_reads_back() -> None:
    """The number of buckets is kept with the store."""
    assert read_schema("there", "n", schema_text(12)) == 12


async def test_an_existing_store_keeps_its_buckets(redis_server: Server) -> None:
    """Where everything is does not change with a setting."""
    place = RedisPlace(redis_server.address, buckets=3)
    async with opened(place) as store:
        await store.create([new(f"e{k}") for k in range(20)])
    place.options["buckets"] = 9
    async with opened(place) as store:
        assert isinstance(store, RedisStore)
        assert len(store._open.layout.buckets) == 3
        assert len(await pages(store, Filter(), 7)) == 20


async def test_namespaces_share_a_redis_and_see_nothing_of_each_other(redis_server: Server) -> None:
    """Two stores with the same ids go their own ways, also where one's name begins as the other's."""
    one_place, two_place = RedisPlace(redis_server.address), RedisPlace(redis_server.address)
    two_place.options["namespace"] = one_place.options["namespace"] + ":x"
    async with opened(one_place) as one, opened(two_place) as two:
        assert await one.create([new("e"), new("only")])
        assert await two.create([new("e")])
        assert await one.append([step_of("e", 1)]) == [True]
        assert await two.append([step_of("e", 1)]) == [True]
        assert await one.delete("e", now_ms=NOW, expire_ms=NOW)
        assert await one.purge(now_ms=NOW, limit=10) == 1
        assert [e.step for e in await two.entries("e")] == [1]
        assert await pages(two, Filter(), 10) == ["e"]
        assert await two.position() == 2


@pytest.mark.parametrize("namespace", ["", "a{b}", "a b", "a*", "x" * 65, "ü"])
def test_namespaces_that_are_none(namespace: str) -> None:
    """A namespace has no braces, which say where a key is, and nothing that patterns read."""
    with pytest.raises(ValueError, match="must be 1 to 64"):
        RedisStore(RedisAddress("h"), namespace=namespace)


async def test_all_keys_begin_with_the_namespace_and_all_go_with_the_episodes(redis_server: Server) -> None:
    """Nothing is written elsewhere, and once all is purged, what is left does not depend on how much there was."""
    before = set(keys_of(redis_server))
    for buckets in (1, 4):
        place = RedisPlace(redis_server.address, buckets=buckets)
        async with opened(place) as store:
            for turn in range(3):
                ids = [f"{turn}-{k}" for k in range(40)]
                await store.create([new(i, group_id=f"g{turn}", labels=(("k", i),), inherited=2) for i in ids])
                await store.append([step_of(i, 3) for i in ids])
                for i in ids[::2]:
                    await store.delete(i, now_ms=NOW, expire_ms=NOW)
                for i in ids[1::2]:
                    await store.finish(i, EpisodeState.FAILED, now_ms=NOW, expire_ms=NOW)
                while await store.purge(now_ms=NOW, limit=7):
                    pass
        left = set(keys_of(redis_server)) - before
        assert all(key.startswith(place.options["namespace"].encode() + b":") for key in left)
        # The schema, the last positions and the events' streams, which hold the positions and are empty or nearly so.
        kinds = {key.rpartition(b"}:")[2].rpartition(b"feed:")[2] for key in left}
        assert kinds <= {b"at", b"events", b"through", b"moved", place.options["namespace"].encode() + b":schema"}
        before |= left


def test_buckets_are_spread_evenly_over_the_slots() -> None:
    """The slots of a store's buckets, in order, lie one in each of as many equal parts."""
    for count in (1, 3, 16, 100):
        assert len(set(tags(count))) == count
    with pytest.raises(ValueError, match="buckets"):
        tags(0)
    assert len({Layout("n", 16).bucket(f"e{k}").index for k in range(300)}) == 16


# Logging in


async def test_a_password_is_asked_for_and_given() -> None:
    """Without it, or with a wrong one, opening is refused and says what to give; with it the store works."""
    with server(requirepass="geheim") as redis:
        for credentials in (Credentials(), Credentials(password="falsch")):
            with pytest.raises(StoreRefused, match="password") as refused:
                await RedisPlace(redis.address, credentials=credentials).handle().open()
            assert "falsch" not in str(refused.value)
        async with opened(RedisPlace(redis.address, credentials=Credentials(password="geheim"))) as store:
            assert await store.create([new("e")])


async def test_a_user_who_may_use_the_namespace_only_is_enough(redis_server: Server) -> None:
    """The store needs its own keys and a few commands, no more; a user who may not is refused."""
    place = RedisPlace(redis_server.address)
    namespace = place.options["namespace"]
    with redis_server.client() as client:
        client.acl_setuser(
            "gym",
            enabled=True,
            passwords=["+pw"],
            keys=[f"{namespace}:*"],
            categories=["+@read", "+@write", "+@scripting", "+@connection", "-@dangerous"],
            commands=["+info"],
        )
        client.acl_setuser("other", enabled=True, passwords=["+pw"], keys=["other:*"], categories=["+@all"])
    place.options["credentials"] = Credentials("other", "pw")
    with pytest.raises(StoreRefused, match="give the user"):
        await place.handle().open()
    place.options["credentials"] = Credentials("gym", "pw")
    async with opened(place) as store:
        await store.create([new("e")])
        for call in calls(store).values():
            await call()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, and a certificate of it for the loopback address."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is needed to make certificates")
    folder = tmp_path_factory.mktemp("certificates")
    (folder / "extensions").write_text(f"subjectAltName=IP:{HOST}\n")
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    signing = ["-req", "-in", "redis.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "extensions"]
    for command in (
        ["req", "-x509", *new_key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=ca"],
        ["req", "-x509", *new_key, "-keyout", "other.key", "-out", "other.pem", "-days", "2", "-subj", "/CN=other"],
        ["req", *new_key, "-keyout", "redis.key", "-out", "redis.csr", "-subj", "/CN=redis"],
        ["x509", *signing, "-days", "2", "-out", "redis.pem"],
    ):
        subprocess.run([openssl, *command], cwd=folder, check=True, capture_output=True)
    return folder


async def test_tls_is_spoken_and_both_ends_are_checked(certificates: Path) -> None:
    """Over TLS the store works, with certificates on both sides; a server of an unknown authority is not talked to."""
    with server(tls=certificates) as redis:
        ca, cert, key = (str(certificates / name) for name in ("ca.pem", "redis.pem", "redis.key"))
        address = replace(redis.address, tls=True)
        for wrong in (Credentials(ca_file=str(certificates / "other.pem"), cert_file=cert, key_file=key), Credentials(ca_file=ca)):
            with pytest.raises(StoreError):
                await RedisPlace(address, credentials=wrong).handle().open()
        both = Credentials(ca_file=ca, cert_file=cert, key_file=key)
        async with opened(RedisPlace(address, credentials=both)) as store:
            assert await store.create([new("e")])
            assert await store.append([step_of("e", 1)]) == [True]


# The store in the service


async def test_the_service_runs_on_redis_and_says_what_may_be_lost() -> None:
    """With --store redis:// the service starts, and logs the warnings of its store."""
    with server(appendonly="no") as redis:
        settings = WorkflowSettings(listen="127.0.0.1:0", store=str(redis.address), redis_timeout_s=10)
        with capture_logs() as logs:
            async with running(settings) as started:
                assert started.address
        assert [line for line in logs if "append-only" in str(line.get("cause"))]
        redis.kill()
        with pytest.raises(StoreError):
            async with running(settings):
                pass
        await asyncio.to_thread(redis.start)


async def test_a_closed_store_says_so(redis_server: Server) -> None:
    """Every call to a store that is closed, or was never opened, raises StoreError at once."""
    store = RedisPlace(redis_server.address).handle()
    for _ in range(2):
        for call in calls(store).values():
            with pytest.raises(StoreError, match="not open"):
                await call()
        await store.open()
        await store.close()


async def test_a_wait_on_a_store_that_closes_ends(redis_server: Server) -> None:
    """Whoever waits for an event while the store is closed is not left waiting."""
    store = RedisPlace(redis_server.address).handle()
    await store.open()
    waiter = asyncio.create_task(store.wait_past(0, 3600))
    await asyncio.sleep(0.05)
    await store.close()
    with pytest.raises(StoreError):
        await asyncio.wait_for(waiter, WAIT_S)


async def test_a_wait_outlasts_a_restart_of_redis() -> None:
    """A waiter is woken by an event that comes after Redis was away for a while."""
    with server() as redis:
        place = RedisPlace(redis.address)
        async with opened(place) as store, opened(place) as other:
            waiter = asyncio.create_task(store.wait_past(0, 3600))
            await asyncio.sleep(0.1)
            redis.kill()
            await asyncio.sleep(0.2)
            await asyncio.to_thread(redis.start)
            assert await other.create([new("e")])
            await asyncio.wait_for(waiter, WAIT_S)


async def test_memory_of_an_episode(redis_server: Server) -> None:
    """An idle episode, its start and indexes included, takes less than 3 KiB of Redis; a step less than 200 B beside its bytes."""
    with server() as redis, redis.client() as client:

        def used() -> int:
            return int(client.info("memory")["used_memory"])

        async with opened(RedisPlace(redis.address)) as store:
            count, steps = 2000, 20
            await store.create([new("warm")])
            before = used()
            ids = [f"{k:032x}" for k in range(count)]
            for at in range(0, count, 100):
                labels = (("run", "7"), ("user", "someone"))
                await store.create([new(i, labels=labels, group_id=i[:31]) for i in ids[at : at + 100]])
            idle = (used() - before) / count
            before = used()
            for step in range(1, steps + 1):
                for at in range(0, count, 100):
                    assert all(await store.append([step_of(i, step) for i in ids[at : at + 100]]))
            step_bytes = (used() - before) / count / steps
        print(f"{idle:.0f} B an idle episode, {step_bytes:.0f} B a step of 60 B and its event")
        assert idle < 3 * 1024
        assert step_bytes < 260


async def test_a_lease_is_held_by_the_store_and_not_by_a_process(redis_server: Server) -> None:
    """An episode whose process is gone is found overdue by any other, at its time."""
    place = RedisPlace(redis_server.address)
    async with opened(place) as store:
        await store.create([new("e")])
    async with opened(place) as store:
        assert await store.overdue(now_ms=NOW + LEASE - 1, limit=10) == []
        assert await store.overdue(now_ms=NOW + LEASE, limit=10) == ["e"]
        assert await store.expire("e", now_ms=NOW + LEASE, expire_ms=NOW + LEASE + 1)
        assert await store.purge(now_ms=NOW + LEASE + 1, limit=10) == 1
