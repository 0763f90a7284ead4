"""HTTPS: a server is believed only with a certificate that the usual authorities vouch for."""

import shutil
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest

from proxy.upstream.transport import Transport
from tests.upstream.scripted import HELLO, Scripted, always, fetch, serving

COMMAND = (
    *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
    *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
)

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost that nobody vouches for, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        [*COMMAND, "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )
    return certificate, key


@pytest.fixture
def context(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    """The server's side."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(*certificate)
    return made


def get(server: Scripted, host: str = "localhost", content: bytes | None = None) -> httpx.Request:
    return httpx.Request("POST" if content else "GET", f"https://{host}:{server.port}/", content=content)


async def test_a_certificate_nobody_vouches_for_is_refused(context: ssl.SSLContext) -> None:
    async with serving(always(HELLO), ssl=context) as server, Transport(keepalive_seconds=9) as transport:
        with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
            await transport.handle_async_request(get(server))


@pytest.fixture
def trusting(certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's certificate stands for the usual authorities."""
    made = ssl.create_default_context(cafile=str(certificate[0]))
    monkeypatch.setattr(httpx, "create_ssl_context", lambda **_: made)


@pytest.mark.usefixtures("trusting")
async def test_a_trusted_server_is_talked_to_on_one_connection(context: ssl.SSLContext) -> None:
    async with serving(always(HELLO), ssl=context) as server, Transport(keepalive_seconds=9) as transport:
        for _ in range(3):
            assert await fetch(transport, get(server, content=b"x" * 300_000)) == b"hello"
        assert server.connections == 1


@pytest.mark.usefixtures("trusting")
async def test_a_certificate_for_another_name_is_refused(context: ssl.SSLContext) -> None:
    async with serving(always(HELLO), ssl=context) as server, Transport(keepalive_seconds=9) as transport:
        with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
            await transport.handle_async_request(get(server, host="127.0.0.1"))
