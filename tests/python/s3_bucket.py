"""A bucket named `jobs` of an independent S3 server (moto): s3_bucket.py

Prints the server's address, and for each line of input, which is a prefix, the number of objects below it.
"""

import sys

import boto3
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
endpoint = "http://%s:%d" % server.get_host_and_port()
s3 = boto3.client("s3", endpoint_url=endpoint, aws_access_key_id="a", aws_secret_access_key="b", region_name="us-east-1")
s3.create_bucket(Bucket="jobs")
print(endpoint, flush=True)
for line in sys.stdin:
    print(s3.list_objects_v2(Bucket="jobs", Prefix=line.strip()).get("KeyCount"), flush=True)
