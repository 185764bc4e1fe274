"""What an image needs to train with PyTorch, Hugging Face's Trainer and Lightning: training_image.py VENV [ROOT] [--load NAME]

VENV has requirements.txt installed (`pip install --no-deps --no-compile -r requirements.txt`), and torch_without_cuda.py was run on its
packages. ROOT is the repository. Prints which files of this machine go where, and how the interpreter is started: the interpreter with its
standard library and the packages, without tests; every library that one of them is linked with; the scripts, the model and the text that
they train on. A job's arguments are a script and its own arguments, as in `/train/plain_torch.py --steps 20`. With --load the image goes
into this machine's Docker engine under that name instead.

Python compiles at every start what has no compiled file, which here takes nine seconds. So compiled files of all modules that the scripts
load go along, made in VENV/compiled; they are believed without a look at the time of their source, for images do not keep that.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import py_compile
import re
import subprocess
import sys
import tarfile

PYTHON, LIBRARIES, TRAIN = "/engine/python", "/engine/lib", "/train"
UNUSED = {
    "test", "tests", "__pycache__", "ensurepip", "idlelib", "lib2to3", "tkinter", "turtledemo",
    "pip", "setuptools", "pkg_resources", "_distutils_hack", "distutils-precedence.pth",
}
UNUSED_PREFIXES = ("config-", "pip-", "setuptools-", "_tkinter", "_testbuffer", "_testcapi", "_testinternalcapi")
LOADED = """
import json, sys
import fsspec.implementations.chained, lightning.pytorch.callbacks, torch.utils.serialization.config, transformers
from transformers import LlamaForCausalLM, Trainer
modules = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
print(json.dumps([sys._base_executable, json.__file__, torch.__file__, [file for file in modules if file and file.endswith(".py")]]))
"""


def used(folder):
    """The files of a package folder or of the standard library."""
    for path in folder.iterdir():
        if path.name in UNUSED or path.name.startswith(UNUSED_PREFIXES):
            continue
        if path.is_dir():
            yield from used(path)
        else:
            yield path


def compiled(source, place):
    """The compiled file of a module that will lie at a place."""
    file = venv / "compiled" / pathlib.Path(importlib.util.cache_from_source(place)).relative_to("/")
    if not file.exists() or file.read_bytes()[8:16] != importlib.util.source_hash(source.read_bytes()):
        how = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(source, file, place, doraise=True, invalidation_mode=how)
    return file


def load(recipe, name):
    """Makes the image in the engine."""
    changes = [f"--change=ENTRYPOINT {json.dumps(recipe['entrypoint'])}", *(f"--change=ENV {line}" for line in recipe["environment"])]
    importing = subprocess.Popen(["docker", "import", *changes, "-", name], stdin=subprocess.PIPE)
    with importing.stdin, tarfile.open(fileobj=importing.stdin, mode="w|", dereference=True) as tar:
        for place, path in recipe["files"].items():
            entry = tar.gettarinfo(path, place.lstrip("/"))
            entry.mode = 0o755 if place in recipe["programs"] else 0o644
            with open(path, "rb") as file:
                tar.addfile(entry, file)
        entry = tarfile.TarInfo("tmp")
        entry.type, entry.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(entry)
    sys.exit(importing.wait())


train = pathlib.Path(__file__).absolute().parent
parser = argparse.ArgumentParser()
parser.add_argument("venv", type=pathlib.Path)
parser.add_argument("root", type=pathlib.Path, nargs="?", default=train.parents[1])
parser.add_argument("--load", metavar="NAME")
args = parser.parse_args()
venv, root = args.venv.absolute(), args.root.absolute()
ask = [venv / "bin/python", "-I", "-X", f"pycache_prefix={venv}/imported", "-c", LOADED]
loaded = subprocess.run(ask, stdout=subprocess.PIPE, check=True)
interpreter, standard, torch, modules = json.loads(loaded.stdout)
interpreter, standard, site = pathlib.Path(interpreter).resolve(), pathlib.Path(standard).parents[1], pathlib.Path(torch).parents[1]
program = f"{PYTHON}/bin/{interpreter.name}"
library = f"{PYTHON}/lib/{standard.name}"

files = {program: interpreter}
for folder, place in ((standard, library), (site, f"{library}/site-packages")):
    inside = [path for path in used(folder) if not path.is_relative_to(folder / "site-packages")]
    files.update((f"{place}/{path.relative_to(folder)}", path) for path in inside)
places = {path: place for place, path in files.items()}
for module in map(pathlib.Path, modules):
    if module in places:
        files[importlib.util.cache_from_source(places[module])] = compiled(module, places[module])

objects = [interpreter] + [path for path in files.values() if ".so" in path.suffixes]
linked = subprocess.run(["ldd", *objects], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
for name, path in re.findall(r"^\t(\S+) => (/\S+) \(", linked, re.MULTILINE):
    if not pathlib.Path(path).resolve().is_relative_to(site):
        files[f"{LIBRARIES}/{name}"] = pathlib.Path(path).resolve()
loader = re.search(rb"/lib\w*/ld-[\w.-]+\.so\.\d", interpreter.read_bytes()).group().decode()
files[loader] = pathlib.Path(loader).resolve()

files.update((f"{TRAIN}/{name}", train / name) for name in ("plain_torch.py", "huggingface.py", "lightning_fit.py"))
files.update((f"{TRAIN}/model/{path.name}", path) for path in (root / "images/llm/model").iterdir())
files.update((f"{TRAIN}/text/{path.name}", path) for path in (root / "docs").glob("*.md"))
recipe = {
    "files": {path: os.fspath(file) for path, file in sorted(files.items())},
    "programs": [program, loader],
    "environment": [
        f"LD_LIBRARY_PATH={LIBRARIES}", "PYTHONDONTWRITEBYTECODE=1", "PYTHONUTF8=1", "PYTHONUNBUFFERED=1", "OMP_NUM_THREADS=1",
        "HF_HUB_OFFLINE=1", "HF_HUB_DISABLE_TELEMETRY=1", "HOME=/tmp", "USER=train",
    ],
    "entrypoint": [program],
}
if args.load:
    load(recipe, args.load)
print(json.dumps(recipe))
