"""Writes the parts of the package that follow from others, or with `--check` says which of them are out of date.

    python generate.py [--check]

`models.py` follows from docs/openapi.json, `_sync/` from `_async/` (by the package unasync).
"""

from __future__ import annotations

import json
import sys
import tempfile
import textwrap
from pathlib import Path

import unasync

HERE = Path(__file__).parent
PACKAGE = HERE / "src" / "muster_client"
OPENAPI = HERE.parents[1] / "docs" / "openapi.json"
WIDTH = 120
SYNC_NAMES = {
    "AsyncClient": "Client",
    "AsyncFacilitator": "Facilitator",
    "AsyncIterator": "Iterator",
    "AsyncGenerator": "Generator",
    "asynccontextmanager": "contextmanager",
    "aclosing": "closing",
    "aclose": "close",
    "aread": "read",
    "aiter_bytes": "iter_bytes",
    "aiter_sse": "iter_sse",
    "_async": "_sync",
    "sleep_async": "sleep_sync",
    "call_in_thread": "call_here",
}
HEADER = '"""The objects of a facilitator\'s interface, made from docs/openapi.json by generate.py."""\n'
# Words of Python that are names of fields.
RENAMED = {"class": "class_"}
# Properties that people ask an object for.
BASES = {"JobView": "JobResult"}
PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}


def type_of(schema: dict) -> tuple[str, bool]:
    """The type of a value in Python, and whether it may be null."""
    if "$ref" in schema:
        return named(schema["$ref"]), False
    if "oneOf" in schema:
        others = [one for one in schema["oneOf"] if one.get("type") != "null"]
        is_optional = len(others) < len(schema["oneOf"])
        return (type_of(others[0])[0] if len(others) == 1 else "Any"), is_optional
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    is_optional = "null" in kinds
    kinds = [kind for kind in kinds if kind != "null"]
    if len(kinds) != 1:
        return "Any", is_optional
    kind = kinds[0]
    if kind == "array":
        return f"list[{type_of(schema['items'])[0]}]", is_optional
    if kind == "object":
        values = schema.get("additionalProperties")
        item = type_of(values)[0] if isinstance(values, dict) else "Any"
        return f"dict[str, {item}]", is_optional
    if schema.get("format") == "date-time":
        return "datetime", is_optional
    return PLAIN[kind], is_optional


def named(reference: str) -> str:
    """The type of a reference: a dataclass, or a plain one for texts and for objects of several forms."""
    name = reference.rsplit("/", 1)[1]
    schema = SCHEMAS[name]
    if "properties" in schema:
        return name
    if schema.get("type") == "string":
        return "str"
    forms = schema.get("oneOf", [])
    return "dict[str, Any]" if forms and all("allOf" in form for form in forms) else "Any"


def doc(text: str, indent: str) -> str:
    """A docstring of this text."""
    plain = text.replace("[`", "`").replace("`]", "`").replace("\\", "\\\\")
    paragraphs = [" ".join(part.split()) for part in plain.split("\n\n")]
    # The quotation marks stand on the first line.
    lines = "\n\n".join(textwrap.fill("......" + part, WIDTH - len(indent)) for part in paragraphs if part)
    lines = lines.replace("......", "", 1).replace("\n\n......", "\n\n")
    if "\n" in lines:
        lines += "\n"
    return textwrap.indent(f'"""{lines}"""', indent, lambda line: bool(line.strip())) + "\n"


def model(name: str, schema: dict) -> str:
    """The dataclass of an object."""
    base = f"({BASES[name]})" if name in BASES else ""
    text = "\n\n@dataclass(frozen=True, kw_only=True)\n" + f"class {name}{base}:\n"
    text += doc(schema["description"], "    ") + "\n"
    required = schema.get("required", [])
    for key, value in schema["properties"].items():
        kind, is_optional = type_of(value)
        metadata = f'metadata={{"json": "{key}"}}' if key in RENAMED else ""
        default = ""
        if key not in required:
            # A list that is absent is an empty one, unless the interface tells the two apart.
            factory = "list" if kind.startswith("list") else "dict" if kind.startswith("dict") else ""
            if factory and not is_optional:
                default = f"default_factory={factory}"
            else:
                default, is_optional = "default=None", True
        arguments = ", ".join(part for part in (default, metadata) if part)
        tail = f" = field({arguments})" if arguments else ""
        tail = " = None" if arguments == "default=None" else tail
        text += f"    {RENAMED.get(key, key)}: {kind}{' | None' if is_optional else ''}{tail}\n"
        description = value.get("description") or next(
            (one["description"] for one in value.get("oneOf", []) if "description" in one), ""
        )
        if description:
            text += doc(description, "    ")
    return text


def models() -> str:
    """The file of all objects."""
    head = HEADER + "\nfrom __future__ import annotations\n\nfrom dataclasses import dataclass, field\n"
    head += "from datetime import datetime\nfrom typing import Any\n\nfrom ._job_result import JobResult\n"
    objects = {name: schema for name, schema in SCHEMAS.items() if "properties" in schema}
    names = "".join(f'    "{name}",\n' for name in sorted(objects))
    head += f"\n__all__ = [\n{names}]\n"
    return head + "".join(model(name, schema) for name, schema in objects.items())


def sync() -> dict[Path, str]:
    """The files of `_sync`."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = PACKAGE / "_async", Path(folder) / "_sync"
        rule = unasync.Rule(str(source), str(target), additional_replacements=SYNC_NAMES)
        unasync.unasync_files([str(path) for path in sorted(source.glob("*.py"))], [rule])
        made = {path.name: path.read_text() for path in target.glob("*.py")}
    notice = "# Made from _async/ by generate.py: change that.\n"
    return {PACKAGE / "_sync" / name: notice + text for name, text in made.items()}


def main() -> int:
    """Writes or compares every file."""
    wanted = {PACKAGE / "models.py": models(), **sync()}
    old = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv:
        for path in old:
            print(f"{path} is out of date: python {__file__}")
        return 1 if old else 0
    for path in old:
        path.parent.mkdir(exist_ok=True)
        path.write_text(wanted[path])
    return 0


SCHEMAS = json.loads(OPENAPI.read_text())["components"]["schemas"]

if __name__ == "__main__":
    sys.exit(main())
