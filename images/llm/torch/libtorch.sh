#!/usr/bin/env bash
# A libtorch for the feature `torch`, out of packages of the Python index: libtorch.sh OUT
#
# The wheel is the one for CUDA; for the processor a few of its libraries suffice. libtorch.so itself would pull in the CUDA ones,
# so a library of that name that asks for libtorch_cpu.so stands in for it. About 600 MB are downloaded, 500 MB are kept.
# Needs python3 with venv, and gcc.
set -euo pipefail
version=2.11.0
out=$(realpath -m "${1:?where libtorch shall lie}")
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT

python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --no-input --disable-pip-version-check --quiet --no-deps \
    "torch==$version" nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85
site=$(echo "$work"/venv/lib/python3*/site-packages)

mkdir -p "$out/lib"
cp -r "$site/torch/include" "$out/"
for name in libtorch_cpu.so libc10.so libtorch_global_deps.so libgomp.so.1; do
    cp "$site/torch/lib/$name" "$out/lib/"
done
find "$site/nvidia" -name 'libcudart.so.13*' -exec cp {} "$out/lib/" \;
find "$site/nvidia" -name 'libcupti.so.13*' -exec cp {} "$out/lib/" \;
echo 'void muster_stands_in_for_libtorch(void) {}' | gcc -shared -fPIC -x c - -o "$out/lib/libtorch.so" \
    -Wl,-soname,libtorch.so -Wl,--no-as-needed -L"$out/lib" -ltorch_cpu -Wl,--allow-shlib-undefined
echo "$version" > "$out/build-version"
echo "export LIBTORCH=$out LD_LIBRARY_PATH=$out/lib"
