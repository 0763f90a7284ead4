"""What tests of doctor share."""

from collections.abc import Awaitable, Callable

from proxy.doctor.examination import Examination

Examine = Callable[..., Awaitable[Examination]]
