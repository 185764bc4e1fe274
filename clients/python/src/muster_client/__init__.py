"""Runs jobs on a Muster subnet, and checks the signed answers of its models.

    from muster_client import Client

    with Client("https://facilitator.example.org", api_key="msk_…") as muster:
        job = muster.run(image="registry.example.org/train:2", args=["--epochs", "3"], outputs=["model.bin"])
        print(muster.output(job).decode())
        muster.fetch_outputs(job, into="results")

`AsyncClient` has the same calls with `await`. `muster_client.models` has the objects of the interface,
`muster_client.proofs` the proofs of models' answers, `muster_client.webhooks` the check of messages about ends of jobs,
and `muster_client.errors` what may be raised.
"""

from . import errors, events, models, proofs, webhooks
from ._async.client import AsyncClient
from ._requests import JobSpec
from ._sync.client import Client

__all__ = [
    "AsyncClient",
    "Client",
    "JobSpec",
    "errors",
    "events",
    "models",
    "proofs",
    "webhooks",
]
