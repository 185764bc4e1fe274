#!/bin/sh
# Executors as machines of a Terraform module, one state for a lease. In miner.toml:
#   provision = ["/opt/muster/terraform.sh", "provision", "/opt/muster/module", "/var/lib/muster/terraform"]
#   release = ["/opt/muster/terraform.sh", "release", "/opt/muster/module", "/var/lib/muster/terraform"]
# Run `terraform init` in the module once. It declares the variables name, class, miner_address, executor_token (sensitive)
# and lifetime_s; the folder of states is for the miner's user alone, because a state holds the token.
set -eu
action=$1
module=$2
states=$3
umask 077
mkdir -p "$states"
state=$states/$EXECUTOR_NAME.tfstate
export TF_IN_AUTOMATION=1 TF_INPUT=0
export TF_VAR_name="$EXECUTOR_NAME" TF_VAR_class="$EXECUTOR_CLASS"

case $action in
provision)
    export TF_VAR_miner_address="$MINER_ADDRESS" TF_VAR_executor_token="$EXECUTOR_TOKEN"
    export TF_VAR_lifetime_s="$EXECUTOR_LIFETIME_S"
    terraform -chdir="$module" apply -auto-approve -lock-timeout=60s -state="$state"
    ;;
release)
    [ -e "$state" ] || exit 0
    # The module's other variables are of no use to the destruction.
    export TF_VAR_miner_address= TF_VAR_executor_token= TF_VAR_lifetime_s=0
    terraform -chdir="$module" destroy -auto-approve -lock-timeout=60s -state="$state"
    rm -f "$state" "$state".backup*
    ;;
*)
    echo "usage: $0 provision|release MODULE STATES" >&2
    exit 64
    ;;
esac
