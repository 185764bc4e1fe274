#!/usr/bin/env python3
"""Makes another text for a fine-tune, out of the documentation strings of Python's standard library.

    python3 other.py OUT

Source: the standard library of the interpreter that runs this (Python Software Foundation License 2). A module's name decides by
its hash whether it is held out. Writes OUT/train.txt, OUT/heldout.txt and OUT/sources.txt, as text.py does.
"""

import ast
import hashlib
import inspect
import pathlib
import sys
import sysconfig


def strings(path):
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text and len(text) > 60:
                name = getattr(node, "name", path.stem)
                yield f"{name}\n\n{inspect.cleandoc(text)}"


def main(out):
    library = pathlib.Path(sysconfig.get_path("stdlib"))
    parts, seen = {"train": [], "heldout": []}, set()
    for path in sorted(library.rglob("*.py")):
        relative = path.relative_to(library)
        if {"site-packages", "test", "tests", "idlelib"} & set(relative.parts):
            continue
        fresh = []
        for text in strings(path):
            digest = hashlib.sha256(text.encode()).digest()[:12]
            if digest not in seen:
                seen.add(digest)
                fresh.append(text)
        if fresh:
            held = hashlib.sha256(str(relative).encode()).digest()[0] < 10
            parts["heldout" if held else "train"].append("\n\n".join(fresh))
    out.mkdir(parents=True, exist_ok=True)
    lines = [f"Python {sys.version.split()[0]}, documentation strings of the standard library, PSF-2.0"]
    for part, texts in parts.items():
        text = "\n\n\n".join(texts) + "\n"
        (out / f"{part}.txt").write_text(text, encoding="utf-8")
        lines.append(f"{part}: {len(text.encode())} bytes of {len(texts)} modules")
    (out / "sources.txt").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
