"""Lets PyPI's torch run without CUDA's libraries: torch_without_cuda.py SITE, where SITE is a folder of installed packages

PyPI's torch for Linux links CUDA's libraries, 2 GB beside the 1 GB of itself, and does not start without them. A training job on the CPU
calls none. So this replaces, in SITE/torch/lib, libtorch_cuda.so and those of NVIDIA's libraries that libtorch_python.so names, by small
ones with every symbol that libtorch_python.so takes from them. CUDA's runtime and CUPTI stay the real ones (`pip install --no-deps` of the
packages nvidia-cuda-runtime and nvidia-cuda-cupti): libtorch_cpu.so needs them too. What the symbols are, so that `import torch` gets
through:

- a function returns a pointer to zeroes; import calls some, which register things or return defaults;
- a typeinfo has a name of its own, for pybind11 keeps its classes by that;
- a constructor of options gives the object a vtable of functions that do nothing, for its base has a virtual destructor;
- any other object (a vtable) is zeroes.

torch.cuda.is_available() is then False, as on any machine without a GPU. Also dropped is what no run on a CPU reads: headers, protoc, the
rest of the GPU code, what CUPTI would load with a GPU, folders of tests, symbol tables. Needs nm, strip and gcc. A second run changes
nothing.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

BEGIN = """
extern char _ZTVN10__cxxabiv117__class_type_infoE[];
static char zeroes[4096];
struct two { void *first, *second; };
struct type { void *vtable; const char *name; void *rest[6]; };
static struct type type = {_ZTVN10__cxxabiv117__class_type_infoE + 16, "1Z"};
static void nothing(void) {}
static void *vtable[66] = {0, &type, [2 ... 65] = nothing};
"""
FUNCTION = "struct two %s(void) { return (struct two){zeroes, 0}; }\n"
CONSTRUCTOR = "void %s(void **self) { *self = vtable + 2; }\n"
TYPE = 'struct type %s = {_ZTVN10__cxxabiv117__class_type_infoE + 16, "%s"};\n'
OBJECT = "__attribute__((aligned(16))) char %s[512];\n"
NVIDIA = {"libnccl.so.2": "nccl", "libcudnn.so.9": "cudnn", "libcufile.so.0": "cuFile"}
GPU_ONLY = ["libtorch_cuda_linalg.so", "libcaffe2_nvrtc.so"]
RUNTIME = {"libcudart.so.13", "libcupti.so.13"}
UNREAD = ["include", "share", "bin/protoc", "bin/protoc-3.13.0.0", "lib/libshm", "lib/libshm_windows"]


def symbols(which, *libraries):
    """The names of what libraries define or lack. Versions are cut off."""
    lines = subprocess.run(["nm", "-D", which, *libraries], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    return {line.split()[-1].split("@")[0] for line in lines if re.search(r" [A-Za-z] \w", line)}


def source(name):
    if name.startswith("_ZTI"):
        return TYPE % (name, name[4:])
    if name.startswith("_ZT"):
        return OBJECT % name
    return (CONSTRUCTOR if "7OptionsC" in name else FUNCTION) % name


def write_stub(library, names, folder):
    code, built, versions = folder / "stub.c", folder / "stub.so", folder / "versions"
    code.write_text(BEGIN + "".join(map(source, sorted(names))))
    versions.write_text(f"{library.name} {{ global: *; }};")  # cuDNN's symbols are asked for with its version; others take them as well
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-nostdlib", "-w", "-s", "-Wl,--allow-shlib-undefined", f"-Wl,-soname,{library.name}",
                    f"-Wl,--version-script={versions}", "-o", built, code], check=True)
    library.unlink(missing_ok=True)  # pip and uv may have linked it to their cache
    shutil.copy(built, library)


def strip(library, folder):
    smaller = folder / "stripped.so"
    subprocess.run(["strip", "--strip-unneeded", "-o", smaller, library], check=True)
    library.unlink()
    shutil.copy(smaller, library)


torch = pathlib.Path(sys.argv[1]) / "torch"
lib = torch / "lib"
gpu = [lib / "libtorch_cuda.so", lib / "libtorch_nvshmem.so"]
if all(library.exists() for library in gpu):  # the second one goes last, so a run that was cut short is done again
    taken = symbols("--undefined-only", lib / "libtorch_python.so")
    stubs = {gpu[0]: taken & symbols("--defined-only", *gpu)}
    for name, prefix in NVIDIA.items():
        stubs[lib / name] = {symbol for symbol in taken if symbol.startswith(prefix)}
    with tempfile.TemporaryDirectory() as folder:
        for library, names in stubs.items():
            write_stub(library, names, pathlib.Path(folder))
        for name in ("libtorch_cpu.so", "libtorch_python.so"):
            strip(lib / name, pathlib.Path(folder))
    tests = [path for name in ("test", "tests") for path in torch.rglob(name)]
    nvidia = [path for path in (torch.parent / "nvidia").glob("cu*/lib/*") if path.name not in RUNTIME]
    for path in [torch / name for name in UNREAD] + tests + nvidia + list((torch.parent / "nvidia").glob("cu*/include")):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for name in GPU_ONLY:
        (lib / name).unlink(missing_ok=True)
    gpu[1].unlink(missing_ok=True)
