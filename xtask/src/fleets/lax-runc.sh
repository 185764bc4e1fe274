#!/bin/sh
# An OCI runtime for machines on which no process may protect itself from the out-of-memory killer: the kubelet asks
# for that protection, and runc fails where the machine forbids it.
bundle=
previous=
for argument; do
  [ "$previous" = --bundle ] && bundle=$argument
  previous=$argument
done
config=$bundle/config.json
if [ -n "$bundle" ] && [ -f "$config" ]; then
  jq -c '.process.oomScoreAdj |= (if . == null or . < 0 then 0 else . end)' "$config" > "$config.new" &&
    mv "$config.new" "$config"
fi
exec runc "$@"
