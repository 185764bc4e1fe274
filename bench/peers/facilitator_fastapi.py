"""The peer of `cargo xtask bench facilitator`: what one writes first for the same thing. FastAPI, asyncpg, PostgreSQL, one process.

    pip install fastapi==0.165.0 uvicorn==0.54.0 asyncpg==0.32.0 uvloop==0.23.0 httptools==0.9.0
    uvicorn facilitator_fastapi:app   (DOOR_DATABASE names the database)

`MUSTER_BENCH_FASTAPI_PYTHON` tells the bench which Python has these.

A job is made durable with its first status in one transaction, as the facilitator does it. Nothing is signed, nothing is checked
beyond the body's types, nobody is told: it is a floor for the work, not a replacement.
"""

import asyncio
import json
import os
import uuid
from contextlib import asynccontextmanager

import asyncpg
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

SCHEMA = """
DROP TABLE IF EXISTS peer_statuses;
DROP TABLE IF EXISTS peer_jobs;
CREATE TABLE peer_jobs (
    uuid TEXT PRIMARY KEY, account TEXT NOT NULL, validator TEXT NOT NULL, request TEXT NOT NULL, created_at BIGINT NOT NULL
);
CREATE INDEX peer_jobs_by_account ON peer_jobs (account, created_at, uuid);
CREATE TABLE peer_statuses (
    job TEXT NOT NULL REFERENCES peer_jobs (uuid), position BIGINT NOT NULL, status TEXT NOT NULL, metadata TEXT NOT NULL,
    created_at BIGINT NOT NULL, PRIMARY KEY (job, position)
);
"""
ACCOUNT = "user"


class Job(BaseModel):
    target_validator_hotkey: str
    executor_class: str
    docker_image: str
    args: list[str] = []
    env: dict[str, str] = {}
    use_gpu: bool = True
    download_time_limit: int
    execution_time_limit: int
    streaming_start_time_limit: int
    upload_time_limit: int


@asynccontextmanager
async def lifespan(app: FastAPI):
    app.state.pool = await asyncpg.create_pool(os.environ["DOOR_DATABASE"], min_size=10, max_size=10)
    async with app.state.pool.acquire() as connection:
        await connection.execute(SCHEMA)
    yield
    await app.state.pool.close()


app = FastAPI(lifespan=lifespan)


@app.get("/health")
async def health():
    return {"status": "ok"}


@app.post("/jobs", status_code=201)
async def create(job: Job):
    name, now = str(uuid.uuid4()), int(asyncio.get_running_loop().time() * 1e6)
    async with app.state.pool.acquire() as connection, connection.transaction():
        await connection.execute(
            "INSERT INTO peer_jobs VALUES ($1, $2, $3, $4, $5)",
            name, ACCOUNT, job.target_validator_hotkey, job.model_dump_json(), now,
        )
        await connection.execute("INSERT INTO peer_statuses VALUES ($1, 0, 'sent', 'null', $2)", name, now)
    return {"uuid": name, "status": "Sent", **job.model_dump()}


@app.post("/seed/{count}")
async def seed(count: int):
    """The same rows as the facilitator's list has, made by the database itself."""
    request = json.dumps({"docker_image": "alpine", "args": [], "env": {"B": "1", "A": "2"}})
    async with app.state.pool.acquire() as connection, connection.transaction():
        await connection.execute(
            "INSERT INTO peer_jobs SELECT 'seed-' || i, $1, 'v', $2, i FROM generate_series(1, $3::bigint) AS i",
            "lister", request, count,
        )
        await connection.execute(
            "INSERT INTO peer_statuses SELECT 'seed-' || i, 0, 'sent', 'null', i FROM generate_series(1, $1::bigint) AS i", count
        )
    return {"seeded": count}


@app.get("/jobs")
async def jobs(page: int = 1, page_size: int = 10):
    async with app.state.pool.acquire() as connection:
        count = await connection.fetchval("SELECT count(*) FROM peer_jobs WHERE account = 'lister'")
        rows = await connection.fetch(
            "SELECT j.uuid, j.request, j.created_at, s.status FROM peer_jobs j JOIN peer_statuses s ON s.job = j.uuid "
            "WHERE account = 'lister' ORDER BY j.created_at DESC, j.uuid DESC LIMIT $1 OFFSET $2",
            page_size, (page - 1) * page_size,
        )
    return {"count": count, "results": [{**json.loads(row["request"]), "uuid": row["uuid"], "status": row["status"]} for row in rows]}


@app.get("/events")
async def events():
    async def stream():
        yield "event: status\ndata: {\"status\": \"sent\"}\n\n"
        await asyncio.Event().wait()

    return StreamingResponse(stream(), media_type="text/event-stream")
