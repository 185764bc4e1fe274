#!/bin/bash
# Builds the control plane and the kubelet of the distribution's source package of Kubernetes.
#   build-kubernetes.sh FOLDER: programs go to FOLDER/bin; sources and the compiler's cache lie in FOLDER/build, which
#   is removed at the end.
# The package still holds the whole source of 1.20.2 with its dependencies, so nothing else is downloaded.
set -euo pipefail
target=$1
build=$target/build
mkdir -p "$build/lists/partial" "$build/archives/partial" "$build/home" "$target/bin"

# A list of sources of our own: the machine's stay as they are.
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
cat > "$build/sources.list" <<LIST
deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $suite main
LIST
cat > "$build/apt.conf" <<CONF
Dir::Etc::sourcelist "$build/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State::lists "$build/lists";
Dir::Cache "$build";
CONF
[ "$(id -u)" != 0 ] || echo 'APT::Sandbox::User "root";' >> "$build/apt.conf"
cd "$build"
APT_CONFIG=$build/apt.conf apt-get update -qq
APT_CONFIG=$build/apt.conf apt-get source -qq kubernetes
cd "$build"/kubernetes-1.20*/

# Its makefiles ask git for the version unless a file says it.
cat > "$build/version" <<VERSION
KUBE_GIT_COMMIT='faecb196815e248d3ecfb03c680a4507229c2a56'
KUBE_GIT_TREE_STATE='archive'
KUBE_GIT_VERSION='v1.20.2'
KUBE_GIT_MAJOR='1'
KUBE_GIT_MINOR='20'
VERSION
# The makefiles expect the tree below a GOPATH.
mkdir -p .go/src/k8s.io
ln -sfn ../../.. .go/src/k8s.io/kubernetes
export KUBE_GIT_VERSION_FILE=$build/version HOME=$build/home GOPATH=$build/go GOCACHE=$build/compiled
export GOFLAGS=-mod=vendor CGO_ENABLED=0
make WHAT="cmd/kube-apiserver cmd/kube-controller-manager cmd/kube-scheduler cmd/kubelet" GOGCFLAGS=
for program in kube-apiserver kube-controller-manager kube-scheduler kubelet; do
  install -s "_output/bin/$program" "$target/bin/"
done
# The container that holds the network of a pod. It ends at once when it is told to, unlike a shell.
gcc -Os -static -o "$target/bin/pause" build/pause/linux/pause.c
# Go's caches are read-only, which keeps them from being removed.
chmod -R u+w "$build"
rm -rf "$build"
