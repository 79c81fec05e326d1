"""Claimers in processes of their own, some of which are killed: `python -m tests.backlog.claimers <url> <schema> <n>`.

A parent process forks them, repeatedly kills one at random, and forks another in its place. Prints how many were
killed once all cards are done.
"""

import os
import random
import signal
import sys
import time
from datetime import timedelta

from squid_dagster.backlog import Backlog
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol.errors import ExpiredClaim, StaleClaim

TTL = timedelta(seconds=1)
KILL_EVERY, MOST_KILLS = 0.15, 40  # seconds; on a slow machine they would never end otherwise
IDLE = 0.1  # seconds between claims while all cards that are left wait for others


def work(url: str, schema: str, rng: random.Random) -> None:
    """Claim and complete until every card is done; some of them with a renewal or a failure on the way."""
    storage = PostgresStorage(url, schema)
    backlog, owner = Backlog(storage, strict=True), f"pid-{os.getpid()}"
    while True:
        card = backlog.claim(owner, ttl=TTL)
        if card is None:
            counts = backlog.stats().counts
            if counts["done"] == sum(counts.values()):
                break
            time.sleep(IDLE)
            continue
        time.sleep(rng.random() * 0.01)
        try:
            chance = rng.random()
            if chance < 0.05:
                backlog.renew(card.id, ttl=TTL, token=card.claim_token)
            if chance > 0.95:
                backlog.fail(card.id, token=card.claim_token, error="bad luck")
            else:
                backlog.complete(card.id, token=card.claim_token)
        except (StaleClaim, ExpiredClaim):
            continue  # too slow: another process has it
    storage.close()


def fork(url: str, schema: str, seed: int) -> int:
    """Start a claimer; return its process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work(url, schema, random.Random(seed))
        os._exit(0)
    except BaseException as error:  # noqa: BLE001  whatever it is, the parent must not go on in here
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.stderr.flush()
        os._exit(1)


def main(url: str, schema: str, count: int, seed: int) -> int:
    """Keep so many claimers alive until one of them reports that all cards are done; return how many failed."""
    rng = random.Random(seed)
    herd = {fork(url, schema, rng.randrange(10**9)) for _ in range(count)}
    killed = failed = 0
    done = False
    next_kill = time.monotonic() + KILL_EVERY
    while herd:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            herd.discard(pid)
            if os.WIFSIGNALED(status):
                killed += 1
                herd.add(fork(url, schema, rng.randrange(10**9)))
            else:
                done = True
                failed += os.WEXITSTATUS(status)
        elif not done and killed < MOST_KILLS and time.monotonic() > next_kill:
            os.kill(rng.choice(sorted(herd)), signal.SIGKILL)
            next_kill = time.monotonic() + KILL_EVERY
        else:
            time.sleep(0.01)
    sys.stdout.write(f"{killed}\n")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
