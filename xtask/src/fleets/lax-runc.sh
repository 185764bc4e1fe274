#!/bin/sh
# An OCI runtime for machines on which no process may protect itself from the out-of-memory killer: the kubelet asks
# for that protection, and a privileged container for the capability that allows it. runc fails where the machine
# forbids them, so both are left out.
bundle=
process=
previous=
for argument; do
  case $previous in
    --bundle | -b) bundle=$argument ;;
    --process | -p) process=$argument ;;
  esac
  previous=$argument
done
lax='.oomScoreAdj |= (if . == null or . < 0 then 0 else . end) | .capabilities |= (if . == null then . else map_values(. - ["CAP_SYS_RESOURCE"]) end)'
config=$bundle/config.json
if [ -n "$bundle" ] && [ -f "$config" ]; then
  jq -c ".process |= ($lax)" "$config" > "$config.new" && mv "$config.new" "$config"
fi
if [ -f "$process" ]; then
  jq -c "$lax" "$process" > "$process.new" && mv "$process.new" "$process"
fi
exec runc "$@"
