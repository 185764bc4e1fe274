"""What an image needs to run Python as a plain `python` beside a shell: python_image.py

Prints which files of this machine go where: its interpreter with the standard library, every library that one of them is linked with, and
busybox as the shell. The image has no entry point, as the registry's image of Python has none.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import sysconfig

UNUSED = {"test", "tests", "__pycache__", "ensurepip", "idlelib", "lib2to3", "tkinter", "turtledemo", "site-packages", "dist-packages"}
PROGRAM, SHELL, LIBRARIES = "/usr/bin/python", "/bin/sh", "/usr/lib/python-libraries"


def used(folder):
    """The files of the standard library that run without a compiler and a screen."""
    for path in folder.iterdir():
        if path.name in UNUSED or path.name.startswith("config-"):
            continue
        if path.is_dir():
            yield from used(path)
        else:
            yield path


interpreter = pathlib.Path(sys._base_executable).resolve()
standard = pathlib.Path(sysconfig.get_path("stdlib"))
files = {PROGRAM: interpreter} | {str(path): path for path in used(standard)}
objects = [interpreter, *(path for path in files.values() if ".so" in path.suffixes)]
linked = subprocess.run(["ldd", *objects], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
for name, path in re.findall(r"^\t(\S+) => (/\S+) \(", linked, re.MULTILINE):
    files[f"{LIBRARIES}/{name}"] = pathlib.Path(path).resolve()
loader = re.search(rb"/lib\w*/ld-[\w.-]+\.so\.\d", interpreter.read_bytes()).group().decode()
files[loader] = pathlib.Path(loader).resolve()
files[SHELL] = next(path for path in map(pathlib.Path, ("/bin/busybox", "/usr/bin/busybox")) if path.is_file())
print(json.dumps({
    "files": {place: os.fspath(path) for place, path in sorted(files.items())},
    "programs": [PROGRAM, SHELL, loader],
    "environment": [f"LD_LIBRARY_PATH={LIBRARIES}", f"PYTHONHOME={standard.parents[1]}", "PYTHONDONTWRITEBYTECODE=1", "PATH=/usr/bin:/bin"],
    "entrypoint": [],
}))
