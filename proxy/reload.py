"""Settings read again while the proxy runs: all that can change at once changes, or nothing does."""

import asyncio
import logging
from collections.abc import Callable

from proxy.api.keys import Door, Keys, KeysError, read_keys
from proxy.api.own import Reloaded
from proxy.fleet import Fleet
from proxy.settings import Settings, SettingsError, unknown_variables
from proxy.settings_sections import LaneSettings, MemorySettings, QueueSettings
from proxy.settings_text import variable
from proxy.telemetry.metrics import Metrics

logger = logging.getLogger("proxy")

#: What counts from the next decision on. The size of the pool does not: backends are told it at their start.
LIMITS = frozenset(
    {*MemorySettings.model_fields, *LaneSettings.model_fields, *QueueSettings.model_fields} - {"pool_tokens"}
)
RELOADED = LIMITS | {"backends", "api_keys_file"}


class Reloader:
    """Reads the settings by `load`; `adopt` hands those that count now to whoever goes by them."""

    def __init__(
        self,
        settings: Settings,
        load: Callable[[], Settings],
        adopt: Callable[[Settings], None],
        *,
        door: Door,
        fleet: Fleet,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._load = load
        self._adopt = adopt
        self._door = door
        self._fleet = fleet
        self._metrics = metrics
        self._one_at_a_time = asyncio.Lock()

    async def reload(self) -> Reloaded:
        """Never raises for what an operator wrote: the answer says it."""
        async with self._one_at_a_time:
            try:
                new, keys = self._read()
            except SettingsError as error:
                logger.error("reload: nothing is changed: %s", error)
                self._metrics.reloaded("refused")
                return Reloaded(error=str(error))
            return await self._change(new, keys)

    def _read(self) -> tuple[Settings, Keys | None]:
        """Everything is read and checked here, before anything changes. Raises SettingsError."""
        new = self._load()
        keys = keys_of(new)
        if keys is None and self._door.keys is not None:
            raise SettingsError(
                "PROXY_API_KEYS_FILE is not set any more: only a restart opens a proxy that has keys"
            )
        try:
            self._fleet.check(new.backend_specs())
        except ValueError as error:
            raise SettingsError(f"PROXY_BACKENDS: {error}") from None
        return new, keys

    async def _change(self, new: Settings, keys: Keys | None) -> Reloaded:
        old = self._settings
        different = [name for name in Settings.model_fields if getattr(old, name) != getattr(new, name)]
        limits = [name for name in different if name in LIMITS]
        changed = [
            f"{variable(name)}: {_shown(getattr(old, name))} -> {_shown(getattr(new, name))}"
            for name in limits
        ]
        changed += _keys_changed(self._door.keys, keys)
        now = self._settings = old.model_copy(update={name: getattr(new, name) for name in RELOADED})
        self._door.keys = keys
        if limits:
            self._adopt(now)
        changed += await self._fleet.change(new.backend_specs())
        rest = tuple(variable(name) for name in different if name not in RELOADED)
        for line in changed:
            logger.info("reload: %s", line)
        for name in rest:
            logger.warning("reload: %s has changed, which needs a restart", name)
        ignored = tuple(unknown_variables())
        for warning in ignored:
            logger.warning("reload: %s", warning)
        if not changed:
            logger.info("reload: nothing has changed")
        self._metrics.reloaded("changed" if changed else "unchanged")
        return Reloaded(tuple(changed), rest, ignored)


def keys_of(settings: Settings) -> Keys | None:
    """The clients' keys; None without a file. Raises SettingsError where it cannot be used."""
    path = settings.api_keys_file
    if path is None:
        return None
    try:
        return read_keys(path)
    except KeysError as error:
        raise SettingsError(f"PROXY_API_KEYS_FILE={str(path)!r}: {error}") from None


def _keys_changed(old: Keys | None, new: Keys | None) -> list[str]:
    if old == new:
        return []
    before, after = (keys.tenants if keys is not None else {} for keys in (old, new))
    lines = [f"tenant {name} is gone" for name in before.keys() - after.keys()]
    lines += [f"tenant {name} is new" for name in after.keys() - before.keys()]
    lines += [
        f"tenant {name} has other limits"
        for name in before.keys() & after.keys()
        if before[name] != after[name]
    ]
    return sorted(lines) or ["keys of known tenants have changed"]


def _shown(value: object) -> str:
    return "unset" if value is None else str(value)
