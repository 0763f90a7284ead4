from proxy.admission.job import Job
from proxy.admission.queue import Charges, FairQueue
from proxy.admission.types import Lane, Request


def job(rid: str, tenant: str = "a", tokens: int = 100) -> Job:
    return Job(Request(rid, tokens, tenant=tenant), 0.0, 60.0, Lane.SHORT, tokens)


def filled(*jobs: Job) -> tuple[FairQueue, Charges]:
    charges = Charges()
    queue = FairQueue(charges)
    for each in jobs:
        queue.push(each)
    return queue, charges


def test_one_tenant_is_served_first_come_first_served() -> None:
    jobs = [job(f"r{i}") for i in range(5)]
    queue, _ = filled(*jobs)
    assert list(queue.in_order()) == jobs
    assert [queue.position(each) for each in jobs] == [0, 1, 2, 3, 4]


def test_the_least_charged_tenant_goes_first() -> None:
    first, second = job("r1", "heavy"), job("r2", "light")
    queue, charges = filled(first, second)
    charges.charge("heavy", 1000.0, 1.0)
    assert queue.head() is second
    assert queue.position(first) == 1


def test_a_heavier_weight_is_charged_less() -> None:
    first, second = job("r1", "a"), job("r2", "b")
    queue, charges = filled(first, second)
    charges.charge("a", 1000.0, 4.0)
    charges.charge("b", 500.0, 1.0)
    assert queue.head() is first


def test_a_tenant_that_was_idle_is_lifted_to_the_least_charged_of_those_waiting() -> None:
    queue, charges = filled(job("r1", "busy"))
    charges.charge("busy", 5000.0, 1.0)
    queue.push(job("r2", "back"))
    assert charges.of("back") == 5000.0


def test_a_requeued_job_is_first_again() -> None:
    jobs = [job("r1"), job("r2")]
    queue, _ = filled(*jobs)
    queue.remove(jobs[1])
    queue.push(jobs[1], front=True)
    assert queue.head() is jobs[1]


def test_counts_follow_what_comes_and_goes() -> None:
    jobs = [job("r1", tokens=10), job("r2", "b", tokens=20)]
    queue, _ = filled(*jobs)
    assert (len(queue), queue.tokens) == (2, 30)
    for each in jobs:
        queue.remove(each)
    assert (len(queue), queue.tokens, queue.head(), queue.tenant_count) == (0, 0, None, 0)


def test_idle_tenants_are_forgotten_and_busy_ones_kept() -> None:
    charges = Charges()
    for number in range(100):
        charges.charge(f"t{number}", float(number), 1.0)
    charges.forget_idle({"t0"}, keep=10)
    assert len(charges) == 10
    assert charges.of("t99") == 99.0
