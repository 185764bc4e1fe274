#!/bin/sh
# Executors as pods, one for a lease, on a cluster whose nodes have a Docker engine beside their own. In miner.toml:
#   provision = ["/opt/muster/kubernetes.sh", "provision"]
#   release = ["/opt/muster/kubernetes.sh", "release"]
# MUSTER_NAMESPACE, MUSTER_IMAGE (an image with `muster`) and MUSTER_GPUS are set in the miner's environment.
set -eu
namespace=${MUSTER_NAMESPACE:-muster}

case $1 in
provision)
    # A bare pod: a Job makes a second pod for the same token when a node dies. The cluster ends the pod by itself at
    # activeDeadlineSeconds, should its miner never come back.
    kubectl --namespace "$namespace" create -f - <<EOF
apiVersion: v1
kind: Secret
metadata: {name: "$EXECUTOR_NAME", labels: {app: muster-executor}}
stringData: {MINER_ADDRESS: "$MINER_ADDRESS", EXECUTOR_TOKEN: "$EXECUTOR_TOKEN"}
---
apiVersion: v1
kind: Pod
metadata: {name: "$EXECUTOR_NAME", labels: {app: muster-executor}}
spec:
  restartPolicy: Never
  automountServiceAccountToken: false
  activeDeadlineSeconds: $EXECUTOR_LIFETIME_S
  containers:
    - name: executor
      image: "${MUSTER_IMAGE:?}"
      args: [executor]
      envFrom: [{secretRef: {name: "$EXECUTOR_NAME"}}]
      resources: {limits: {nvidia.com/gpu: "${MUSTER_GPUS:-0}"}}
      volumeMounts:
        - {name: docker, mountPath: /var/run/docker.sock}
        - {name: work, mountPath: /var/lib/muster}
  volumes:
    - {name: docker, hostPath: {path: /var/run/docker.sock, type: Socket}}
    - {name: work, hostPath: {path: /var/lib/muster, type: DirectoryOrCreate}}
EOF
    ;;
release)
    kubectl --namespace "$namespace" delete --ignore-not-found --wait=true \
        "pod/$EXECUTOR_NAME" "secret/$EXECUTOR_NAME"
    ;;
*)
    echo "usage: $0 provision|release" >&2
    exit 64
    ;;
esac
