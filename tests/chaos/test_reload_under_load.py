"""Settings are read again, good ones and bad ones, while clients of every kind are served."""

import asyncio
from pathlib import Path

from tests.chaos import faults
from tests.chaos.crowd import crowd, statuses
from tests.chaos.rest import check_at_rest
from tests.e2e.holding import COMPLETIONS, ids
from tests.e2e.test_reload import world
from tests.fakes import FakeServer


async def test_no_request_notices_a_reload_and_the_next_decision_goes_by_it(
    fake: FakeServer, tmp_path: Path
) -> None:
    fake.answer = faults.drip
    servers = {"backends": fake.url}
    async with world(fake, path=tmp_path / "s", **servers) as w:
        clients = asyncio.create_task(crowd(w.proxy, 60, over_seconds=0.8))
        for share in ("0.2", "0.05", "0.15"):
            await asyncio.sleep(0.1)
            await w.reload(express_share=share, **servers)
            await w.refused(express_share="much", **servers)
            assert w.proxy.app.gate.controller.limits.express_share == float(share)
        await w.reload(max_prompt_tokens="5000", **servers)
        assert (await w.proxy.ask(ids(5001), COMPLETIONS)).status == 400
        await w.reload(**servers)
        assert (await w.proxy.ask(ids(5001), COMPLETIONS)).status == 200
        found = statuses(await clients)
        assert set(found) <= {200, 400}
        assert found.count(200) >= 50  # long ones that came while 5,000 tokens were the most
        assert w.proxy.metric("reloads_total", outcome="refused") == 3
        await check_at_rest(w.proxy)
