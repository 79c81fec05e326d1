"""Fan out and join: three steps read one text at the same time, and the last one begins when all of them are done."""

import time
from datetime import timedelta

from pydantic import BaseModel

from examples import ledger
from squid_dagster import Retry, StepContext, Workflow


class Document(BaseModel):
    title: str
    seconds: float = 0.2  # of the model


digest = Workflow("digest", payload=Document)


@digest.step(output="text")
def fetch(title: str) -> str:
    return f"{title}: a long text about {title.lower()}"


@digest.step(output="summary", retry=Retry(max_attempts=3, initial=timedelta(milliseconds=50), jitter=0.5))
def summarise(ctx: StepContext, text: str, seconds: float) -> str:
    """Simulate a call of a language model: slow, and refused at times."""
    ledger.call(ctx)
    time.sleep(seconds)
    if ctx.attempt == 1 and len(text) % 4 == 0:
        raise ConnectionError("the model is overloaded")
    ledger.act(ctx)
    return text[:12]


@digest.step(output="translation")
async def translate(text: str) -> str:
    return text.upper()


@digest.step(output="tags")
def tag(text: str) -> list[str]:
    return sorted(set(text.lower().split()))[:3]


@digest.step
def publish(ctx: StepContext, summary: str, translation: str, tags: list[str]) -> dict[str, str]:
    ledger.call(ctx)
    ledger.act(ctx)
    return {"summary": summary, "translation": translation, "tags": ",".join(tags)}
