"""What can go wrong between the proxy and a server. Each carries a reason fit for a log and a client."""


class UpstreamError(Exception):
    """Base of all; `reason` is one line without secrets."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class UpstreamUnreachable(UpstreamError):
    """No answer came. `sent` False: nothing left the proxy, another backend may be tried."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


class UpstreamBusy(UpstreamError):
    """Back-pressure (503 queue full, 429): nothing runs there, requeue within the deadline."""

    def __init__(self, reason: str, *, status: int) -> None:
        super().__init__(reason)
        self.status = status


class UpstreamBroken(UpstreamError):
    """The answer had begun and then failed: reset, cut short, or silent for too long."""


class BodyRefused(Exception):
    """The request body must not be forwarded: answer 400. `param` names the field, if one is to blame."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
