"""Does a job fit into a pool? Three ledgers have to say yes: memory, the engine's own formula, slots."""

from math import inf

from proxy.admission.job import ENGINE_CLIP_TOKENS, Job
from proxy.admission.ledgers import Ledgers
from proxy.admission.types import Lane

EXACT_ROOM_SHARE = 0.9


class Fitting(Ledgers):
    """The rules of what fits beside what is there already."""

    def fits(self, job: Job, reserve_tokens: int) -> bool:
        """C, E and S together; an empty pool takes anything the engine itself would take."""
        if self.empty:
            return True
        need = self.need_tokens(job, reserve_tokens)
        lent = self._lent_tokens(job)
        return (
            self._fits_resident(job, need, lent)
            and self._fits_engine(job, need - min(reserve_tokens, need), lent)
            and self._fits_slots(job)
        )

    def lacks(self, job: Job, reserve_tokens: int) -> str:
        """Which ledgers say no, by their symbols: "" when it fits, "C", "ES", ..."""
        if self.fits(job, reserve_tokens):
            return ""
        need = self.need_tokens(job, reserve_tokens)
        lent = self._lent_tokens(job)
        found = "" if self._fits_resident(job, need, lent) else "C"
        found += "" if self._fits_engine(job, need - min(reserve_tokens, need), lent) else "E"
        return found + ("" if self._fits_slots(job) else "S")

    def misfits(self, job: Job, reserve_tokens: int) -> list[str]:
        """`fits` in words: what is short, and which number says so."""
        others = (
            f"; traffic that bypasses the proxy takes {self.foreign_tokens}" if self.foreign_tokens else ""
        )
        need = self.need_tokens(job, reserve_tokens)
        words = {
            "C": f"{need} KV tokens are needed, {self.free_tokens} are free{others}",
            "E": "the server would queue it: its own reserve for running outputs is too large",
            "S": f"{self.running_slots} of {self.facts.max_running_requests} running slots are taken",
        }
        return [words[ledger] for ledger in self.lacks(job, reserve_tokens)]

    @property
    def empty(self) -> bool:
        """Is there nothing, neither ours nor anybody else's?"""
        return not self.jobs and self.foreign_tokens == 0 and not self.prefix.held_tokens

    @property
    def alone(self) -> bool:
        """Does the prompt in slices have the pool to itself?"""
        return len(self.jobs) == 1 and self.foreign_tokens == 0 and not self.prefix.held_tokens

    @property
    def only_shorts(self) -> bool:
        """Is everything that holds a place here a short, ours and nobody else's?"""
        return (
            self.foreign_tokens == 0
            and not self.held_tokens
            and not any(job.long for job in self.jobs.values())
        )

    @property
    def short_room_tokens(self) -> float:
        """No short fits that brings more than this."""
        if self.empty:
            return inf
        return self.short_ceiling_tokens + self._lendable_tokens - self.effective_tokens

    @property
    def long_room_tokens(self) -> float:
        """No long fits that brings more than this; a giant may."""
        return inf if self.empty else self.budget_tokens - self.unused_express_tokens - self.effective_tokens

    def _lent_tokens(self, job: Job) -> int:
        """What a short may borrow of it: half, so that most of it is back when the slices get there.

        Slices wait for the rest (`slice_fits`); meanwhile nothing stalls the decodes they wait for.
        """
        return 0 if job.long else self._lendable_tokens

    @property
    def _lendable_tokens(self) -> int:
        return max(0, self.unfilled_tokens // 2 - self.facts.chunk_tokens)

    def slice_fits(self, tokens: int) -> bool:
        """Is there room for the next slice, whatever was lent meanwhile?"""
        filled = self.effective_tokens - self.unfilled_tokens
        return filled + tokens <= max(self.short_ceiling_tokens, self.budget_tokens) or self.alone

    def _fits_resident(self, job: Job, need: int, lent: int) -> bool:
        if job.lane is Lane.LONG:
            return self.effective_tokens + need + self.unused_express_tokens <= self.budget_tokens
        if job.lane is Lane.GIANT:
            return self.effective_tokens + need <= need + self.short_room_beside(
                need, exact=job.ids_tokens is not None
            )
        return self.effective_tokens + need <= self.short_ceiling_tokens + lent

    @property
    def short_ceiling_tokens(self) -> int:
        """B, or a little of the headroom where a giant would leave shorts no room at all."""
        giant = self.giant
        if giant is None:
            return self.budget_tokens
        held = self.own_tokens(giant)
        return max(
            self.budget_tokens, held + self.short_room_beside(held, exact=giant.ids_tokens is not None)
        )

    def short_room_beside(self, giant_tokens: int, *, exact: bool) -> int:
        """What shorts may hold beside a giant: what it leaves of B, or a little of the headroom.

        The headroom is there for wrong counts: beside a giant whose ids are known most of it is room.
        """
        roof = self.facts.pool_tokens - 2 * self.facts.page_tokens - giant_tokens
        wanted = self.limits.min_short_room_tokens
        if exact:
            wanted = max(wanted, int(EXACT_ROOM_SHARE * roof))
        least = max(0, min(wanted, roof))
        return max(self.budget_tokens - giant_tokens, least)

    def _fits_engine(self, job: Job, prompt_tokens: int, lent: int) -> bool:
        most = job.request.max_tokens
        job_output = ENGINE_CLIP_TOKENS if most is None else min(most, ENGINE_CLIP_TOKENS)
        asked = prompt_tokens + job_output * job.request.sequences + self.facts.page_tokens
        return self.engine_tokens + self.foreign_tokens + asked <= self.facts.pool_tokens + lent

    def _fits_slots(self, job: Job) -> bool:
        slots = self.facts.max_running_requests
        if slots is None:
            return True
        if job.long:
            slots -= max(1, int(slots * self.limits.short_slot_share))
        return self.running_slots + job.request.sequences <= slots or self.running_slots == 0

    @property
    def lent_tokens(self) -> int:
        """What shorts use at present of the charge of the prompt in slices."""
        over = self.effective_tokens - self.short_ceiling_tokens
        return max(0, min(over, self.unfilled_tokens))

    def committed_by_lane(self) -> dict[Lane, int]:
        """C by lane, what is lent counted once: with the shorts that use it."""
        by_lane = dict.fromkeys(Lane, 0)
        by_lane[Lane.SHORT] = self._short_tokens
        rest = self.committed_tokens - self._short_tokens - self.lent_tokens
        giants = sum(self.own_tokens(job) for job in self.jobs.values() if job.lane is Lane.GIANT)
        by_lane[Lane.GIANT] = min(giants, rest)
        by_lane[Lane.LONG] = rest - by_lane[Lane.GIANT]
        return by_lane
