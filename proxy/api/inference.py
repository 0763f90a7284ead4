"""Serves the inference endpoints: each request is one `Flow`, and is released exactly once.

`flow` is its way: `intake` reads and checks its body, `admission_request` says what the gate is
asked, `progress` tells those that wait, `streaming` passes the backend's answer on, `outgoing` is what
the client is sent, `record` what is logged and counted. `services` are what all requests share.
"""

import asyncio
import logging

from proxy.api import answers
from proxy.api.asgi import ClientGone, Receive, Scope, Send
from proxy.api.flow import Flow
from proxy.api.services import Services
from proxy.telemetry.metrics import Outcome
from proxy.tokens.shape import Api

logger = logging.getLogger("proxy.request")


async def serve(services: Services, api: Api, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer one request, whatever happens to it."""
    flow = Flow(services, api, scope, send)
    record, out = flow.record, flow.out
    try:
        await flow.run(receive)
    except ClientGone:
        record.outcome, record.status = Outcome.DISCONNECTED, 499
        services.metrics.disconnect(flow.left_in())
    except asyncio.CancelledError:
        # only shutting down does that, to those whose client does not read; the task ends here anyway
        record.outcome, record.reason = Outcome.BROKEN if out.started else Outcome.FAILED, "shutdown"
    except Exception:
        logger.exception("request %s failed inside the proxy", flow.rid)
        record.outcome = Outcome.BROKEN if out.started else Outcome.FAILED
        if not out.started:
            await out.whole(answers.upstream_error(api, 500, "internal error of the proxy"))
    finally:
        flow.release()
        flow.close()
