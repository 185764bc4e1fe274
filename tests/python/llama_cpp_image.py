"""What an image needs to run llama.cpp's server: llama_cpp_image.py GGUF

Prints which files of this machine go where, and how the server is started: the interpreter, every module and every library that is loaded
once xllamacpp is imported, and nothing else.
"""

import json
import os
import pathlib
import re
import subprocess
import sys

ENGINE, MODEL, LIBRARIES, PACKAGES = "/engine/serve.py", "/engine/model.gguf", "/engine/lib", "/engine/packages"
LOADED = """
import json, signal, sys, threading
sys.path.append(sys.argv[1])
import os, xllamacpp
modules = [module.__file__ for module in list(sys.modules.values()) if getattr(module, "__file__", None)]
mapped = [line.split(None, 5)[5].strip() for line in open("/proc/self/maps") if line.count("/")]
print(json.dumps([modules, mapped]))
"""


def names_of(library):
    """Programs ask for a library by a name with a version, which may be a link to it."""
    beside = library.parent.iterdir()
    return [file.name for file in beside if ".so." in file.name and file.resolve() == library]


def packages_of(module):
    """A package is found by the files of every package around it."""
    for folder in module.parents:
        if (folder / "__init__.py").exists():
            yield folder / "__init__.py"


interpreter = pathlib.Path(sys._base_executable).resolve()
site = next(path for path in sys.path if (pathlib.Path(path) / "xllamacpp").is_dir())
loaded = subprocess.run([interpreter, "-I", "-S", "-c", LOADED, site], stdout=subprocess.PIPE, check=True)
modules, mapped = ([pathlib.Path(path) for path in set(paths)] for paths in json.loads(loaded.stdout))

files = {str(interpreter): interpreter, ENGINE: pathlib.Path(__file__).with_name("llama_cpp_serves.py"), MODEL: pathlib.Path(sys.argv[1])}
loader = re.search(rb"/lib\w*/ld-[\w.-]+\.so\.\d", interpreter.read_bytes()).group().decode()
files[loader] = pathlib.Path(loader).resolve()
for module in modules:
    for file in [module, *packages_of(module)]:
        # Packages lie wherever this machine's user keeps them, which a job may find covered; the interpreter's own stay beside it.
        inside = file.is_relative_to(site)
        files[f"{PACKAGES}/{file.relative_to(site)}" if inside else str(file)] = file
for library in mapped:
    if library.is_file() and library not in modules and library != interpreter:
        files.update((f"{LIBRARIES}/{name}", library) for name in names_of(library))
print(json.dumps({
    "files": {path: os.fspath(file) for path, file in sorted(files.items())},
    "programs": [str(interpreter), loader],
    "environment": [f"LD_LIBRARY_PATH={LIBRARIES}"],
    "entrypoint": [str(interpreter), "-I", "-S", "-X", "utf8", ENGINE, PACKAGES, MODEL],
}))
