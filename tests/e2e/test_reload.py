"""Limits, keys and servers change while requests run; a wrong file changes nothing."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from proxy.app import App
from proxy.backend_spec import BackendSpec
from proxy.settings import Settings, load_settings
from tests.e2e.holding import COMPLETIONS, Held, ids
from tests.fakes import FakeServer
from tests.proxies import USUAL, Running, proxy_before
from tests.raw_http import Reply, chat
from tests.waiting import eventually

RELOAD = "/admission/reload"
ADMIN = [("x-admin-key", "operator")]


@dataclass
class World:
    """A proxy whose settings stand in a file. `write` changes the file, `reload` has it read."""

    proxy: Running
    path: Path

    def write(self, **settings: str) -> None:
        lines = [f"PROXY_{name.upper()}={value}" for name, value in settings.items()]
        self.path.write_text("\n".join(lines))

    async def reload(self, **settings: str) -> dict[str, Any]:
        return await self._reload(200, settings)

    async def refused(self, **settings: str) -> dict[str, Any]:
        return await self._reload(409, settings)

    async def _reload(self, status: int, settings: dict[str, str]) -> dict[str, Any]:
        self.write(**settings)
        reply = await self.proxy.ask(b"", RELOAD)
        assert reply.status == status
        document: dict[str, Any] = reply.json()
        return document


@asynccontextmanager
async def world(*servers: FakeServer, path: Path, **settings: str) -> AsyncIterator[World]:
    """The proxy of these settings, before the servers that they name."""
    environ = {f"PROXY_{name.upper()}": str(value) for name, value in USUAL.items()}
    environ |= {"PROXY_SETTINGS_FILE": str(path)}
    path.write_text("\n".join(f"PROXY_{name.upper()}={value}" for name, value in settings.items()))

    def load() -> Settings:
        return load_settings(environ)

    usual = {name: value for name, value in load() if name not in USUAL}
    with loading(load):
        async with proxy_before(wait=False, **usual) as proxy:
            await eventually(lambda: len(proxy.app.gate.samples) >= len(servers))
            yield World(proxy, path)


@contextmanager
def loading(load: Any) -> Iterator[None]:
    """Proxies that are built inside read their settings again by `load`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(App.__init__, "__defaults__", (load,))
        yield


async def test_new_limits_count_for_who_waits_already_and_no_running_request_notices(
    fake: FakeServer, tmp_path: Path
) -> None:
    held = fake.answer = Held()
    servers = {"backends": fake.url}
    async with world(fake, path=tmp_path / "s", max_long_contexts="1", **servers) as w:
        first = asyncio.create_task(w.proxy.ask(ids(10_000, stream=True), COMPLETIONS))
        await eventually(lambda: held.running == 1)
        second = asyncio.create_task(w.proxy.ask(ids(10_000, stream=True), COMPLETIONS))
        await eventually(lambda: len(w.proxy.app.gate.controller.jobs) == 2)
        await asyncio.sleep(0.1)
        assert held.running == 1
        report = await w.reload(max_queue_seconds="90", mode="enforce", **servers)
        assert report["changed"] == [
            "PROXY_MAX_LONG_CONTEXTS: 1 -> unset",
            "PROXY_MAX_QUEUE_SECONDS: 60.0 -> 90.0",
        ]
        await eventually(lambda: held.running == 2)
        held.go.set()
        assert (await first).whole
        assert (await second).whole
        assert w.proxy.metric("reloads_total", outcome="changed") == 1
        assert w.proxy.metric("max_queue_seconds") == 90
        await w.proxy.settled()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"max_queue_seconds": "soon"}, "PROXY_MAX_QUEUE_SECONDS='soon': allowed is a number"),
        ({"api_keys_file": "/none"}, "PROXY_API_KEYS_FILE='/none'"),
        ({"backends": "ftp://x"}, "PROXY_BACKENDS="),
        ({"backends": '[{"url": "URL", "tier": "long"}]'}, "is described differently"),
    ],
)
async def test_a_wrong_file_changes_nothing_and_says_why(
    fake: FakeServer, tmp_path: Path, settings: dict[str, str], why: str
) -> None:
    async with world(fake, path=tmp_path / "s", backends=fake.url) as w:
        before = w.proxy.app.settings
        changes = {"express_share": "0.2", "backends": fake.url, **settings}
        changes["backends"] = changes["backends"].replace("URL", fake.url)
        report = await w.refused(**changes)
        assert why in report["error"]
        assert report["changed"] == []
        assert w.proxy.app.settings == before
        assert w.proxy.app.gate.controller.limits.express_share == 0.1
        assert w.proxy.metric("reloads_total", outcome="refused") == 1
        assert (await w.proxy.ask(chat())).status == 200


async def test_what_needs_a_restart_is_named_and_stays_as_it_was(fake: FakeServer, tmp_path: Path) -> None:
    async with world(fake, path=tmp_path / "s", backends=fake.url) as w:
        report = await w.reload(backends=fake.url, port="9999", express_share="0.2")
        assert report["needs_restart"] == ["PROXY_PORT"]
        assert report["changed"] == ["PROXY_EXPRESS_SHARE: 0.1 -> 0.2"]
        assert w.proxy.app.settings.port == 8080
        again = await w.reload(backends=fake.url, express_share="0.2")
        assert again["changed"] == again["needs_restart"] == []
        assert w.proxy.metric("reloads_total", outcome="unchanged") == 1


async def test_a_name_that_is_none_is_pointed_out(
    fake: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(fake, path=tmp_path / "s", backends=fake.url) as w:
        assert (await w.reload(backends=fake.url))["ignored"] == []
        monkeypatch.setenv("PROXY_SETTINGS_FILE", str(w.path))
        (ignored,) = (await w.reload(backends=fake.url, max_queue_secods="5"))["ignored"]
        assert "'PROXY_MAX_QUEUE_SECODS' is ignored; the nearest known is PROXY_MAX_QUEUE_SECONDS" in ignored


async def test_keys_come_and_go_with_the_file_and_the_door_never_opens_by_itself(
    fake: FakeServer, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text("[tenants.a]\nkeys = ['one']")
    settings = {"backends": fake.url, "api_keys_file": str(keys)}
    async with world(fake, path=tmp_path / "s", **settings) as w:
        assert (await asked(w, "one")).status == 200
        keys.write_text("[tenants.a]\nkeys = ['two']\nconcurrent_requests = 5\n[tenants.b]\nkeys = ['three']")
        report = await w.reload(**settings)
        assert report["changed"] == ["tenant a has other limits", "tenant b is new"]
        assert [(await asked(w, key)).status for key in ("one", "two", "three")] == [401, 200, 200]
        keys.write_text(
            "[tenants.a]\nkeys = ['four']\nconcurrent_requests = 5\n[tenants.b]\nkeys = ['three']"
        )
        assert (await w.reload(**settings))["changed"] == ["keys of known tenants have changed"]
        keys.write_text("[tenants.a]\nkeys = ['four'")
        assert "not valid TOML" in (await w.refused(**settings))["error"]
        assert (await asked(w, "four")).status == 200
        assert "only a restart opens" in (await w.refused(backends=fake.url))["error"]
        assert (await w.proxy.ask(chat())).status == 401


async def asked(w: World, key: str) -> Reply:
    return await w.proxy.ask(chat(), headers=[("authorization", f"Bearer {key}")])


async def test_a_server_is_added_and_another_one_drained_under_load(fake: FakeServer, tmp_path: Path) -> None:
    other = await FakeServer().start()
    held = fake.answer = Held()
    try:
        async with world(fake, path=tmp_path / "s", backends=fake.url) as w:
            controller = w.proxy.app.gate.controller
            running = asyncio.create_task(w.proxy.ask(ids(100, stream=True), COMPLETIONS))
            await eventually(lambda: held.running == 1)
            report = await w.reload(backends=other.url)
            done = sorted(line.split(" ", 2)[2] for line in report["changed"])
            assert done == ["is new", "leaves when it has ended what it has"]
            await eventually(lambda: len(controller.lines) == 2)
            for _ in range(5):
                assert (await w.proxy.ask(ids(100), COMPLETIONS)).status == 200
            assert len(other.posts()) == 5
            assert len(controller.lines) == 2  # its stream goes on
            held.go.set()
            assert (await running).whole
            await eventually(lambda: len(controller.lines) == 1)
            await eventually(lambda: len(w.proxy.app.fleet) == 1)
            assert (await w.proxy.ask(chat())).status == 200
            await w.proxy.settled()
    finally:
        await other.stop()


async def test_a_server_named_again_before_it_is_gone_stays(fake: FakeServer, tmp_path: Path) -> None:
    other = await FakeServer().start()
    held = fake.answer = Held()
    both = f"{fake.url},{other.url}"
    try:
        async with world(fake, other, path=tmp_path / "s", backends=both) as w:
            running = [asyncio.create_task(w.proxy.ask(ids(100, stream=True), COMPLETIONS)) for _ in range(4)]
            await eventually(lambda: held.running >= 1)
            await w.reload(backends=other.url)
            report = await w.reload(backends=both)
            assert len(report["changed"]) == 1
            assert report["changed"][0].endswith(" stays")
            held.go.set()
            await asyncio.gather(*running)
            await asyncio.sleep(0.3)
            assert len(w.proxy.app.fleet) == 2
            assert all(line.pool.open for line in w.proxy.app.gate.controller.lines.values())
    finally:
        await other.stop()


async def test_a_reload_needs_the_admin_key_where_there_is_one(fake: FakeServer) -> None:
    settings = {"backends": (BackendSpec(fake.url, "b0"),), "admin_key": "operator", **USUAL}
    with loading(lambda: Settings(**settings)):
        async with proxy_before(fake, admin_key="operator") as proxy:
            assert (await proxy.ask(b"", RELOAD)).status == 401
            assert (await proxy.get(RELOAD, ADMIN)).status == 405
            assert proxy.metric("reloads_total", outcome="unchanged") == 0
            reply = await proxy.ask(b"", RELOAD, headers=ADMIN)
            assert (reply.status, reply.json()["changed"]) == (200, [])
            assert proxy.metric("reloads_total", outcome="unchanged") == 1


# --- tiers and models over real sockets -----------------------------------------------------------


async def test_long_prompts_go_to_the_long_tier_and_models_to_who_serves_them(
    fake: FakeServer, tmp_path: Path
) -> None:
    large = await FakeServer().start()
    large.pool_tokens, large.info = 1_000_000, {"served_model_name": "other"}
    large.missing.add("/v1/models")
    names = f'[{{"url": "{fake.url}"}}, {{"url": "{large.url}", "name": "large", "tier": "long"}}]'
    try:
        async with world(fake, large, path=tmp_path / "s", backends=names) as w:
            unknown = await w.proxy.ask(chat(model="none"))
            assert (unknown.status, unknown.json()["error"]["code"]) == (404, "model_not_found")
            assert unknown.header("x-should-retry") == "false"
            assert (await w.proxy.ask(ids(100, model="other"), COMPLETIONS)).status == 200
            assert (len(fake.posts()), len(large.posts())) == (0, 1)
            assert (await w.proxy.ask(chat())).status == 200
            assert (len(fake.posts()), len(large.posts())) == (1, 1)
            tiers = {pool["name"]: pool["tier"] for pool in (await status(w))["pools"]}
            assert tiers["large"] == "long"
            await w.proxy.settled()
    finally:
        await large.stop()


async def status(w: World) -> dict[str, Any]:
    document: dict[str, Any] = (await w.proxy.get("/admission/status")).json()
    return document


# --- the process ----------------------------------------------------------------------------------


async def test_sighup_reads_the_settings_again_and_ends_nothing(fake: FakeServer, tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text(f"PROXY_BACKENDS={fake.url}\nPROXY_PORT=0")
    environ = {**os.environ, "PROXY_SETTINGS_FILE": str(path)}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proxy", "serve"), env=environ, stderr=asyncio.subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(30):
            await said(process.stderr, "listening on")
            path.write_text(f"PROXY_BACKENDS={fake.url}\nPROXY_PORT=0\nPROXY_EXPRESS_SHARE=0.2")
            process.send_signal(signal.SIGHUP)
            await said(process.stderr, "PROXY_EXPRESS_SHARE: 0.1 -> 0.2")
            path.write_text("PROXY_EXPRESS_SHARE=much")
            process.send_signal(signal.SIGHUP)
            await said(process.stderr, "nothing is changed: PROXY_EXPRESS_SHARE='much'")
            assert process.returncode is None
    finally:
        process.terminate()
        await process.communicate()


async def said(log: asyncio.StreamReader, text: str) -> None:
    while line := await log.readline():
        if text in line.decode():
            return
    raise AssertionError(f"the proxy ended and never said {text!r}")
