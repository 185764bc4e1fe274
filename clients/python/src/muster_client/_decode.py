"""JSON into dataclasses and back. Fields that a newer facilitator adds are passed over."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from datetime import datetime
from typing import Any, TypeVar

from .errors import Unreadable

T = TypeVar("T")


@functools.cache
def _fields(kind: type) -> list[tuple[str, str, Any, bool]]:
    """Name in Python, name in JSON, type and whether it is required, of each field of a dataclass."""
    hints = typing.get_type_hints(kind)
    return [
        (
            field.name,
            field.metadata.get("json", field.name),
            hints[field.name],
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(kind)
    ]


def decode(kind: type[T], value: object, where: str = "the answer") -> T:
    """Reads a value of JSON as `kind`: a dataclass of `muster_client.models`.

    Raises `Unreadable` if a required field is missing or a value has another type.
    """
    return typing.cast(T, _decode(kind, value, where))


def _decode(kind: Any, value: object, where: str) -> Any:
    origin = typing.get_origin(kind)
    if kind is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        (inner,) = (one for one in typing.get_args(kind) if one is not types.NoneType)
        return _decode(inner, value, where)
    if origin is list and isinstance(value, list):
        (item,) = typing.get_args(kind)
        return [_decode(item, one, f"{where}[{at}]") for at, one in enumerate(value)]
    if origin is dict and isinstance(value, dict):
        item = typing.get_args(kind)[1]
        return {str(name): _decode(item, one, f"{where}.{name}") for name, one in value.items()}
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        found = {}
        for name, key, hint, is_required in _fields(typing.cast(type, kind)):
            if key in value:
                found[name] = _decode(hint, value[key], f"{where}.{key}")
            elif is_required:
                raise Unreadable(f"{where} has no {key}")
        return typing.cast(type, kind)(**found)
    if kind is datetime and isinstance(value, str):
        try:
            return datetime.fromisoformat(value)
        except ValueError as error:
            raise Unreadable(f"{where} is no time: {value[:40]!r}") from error
    # JSON does not tell 1 from 1.0, and a boolean is no number there.
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind in (str, int, float, bool) and type(value) is kind:
        return value
    raise Unreadable(f"{where} is {type(value).__name__}, not {getattr(kind, '__name__', kind)}")


def encode(value: Any) -> Any:
    """Writes a value as JSON: dataclasses as objects, without the fields that are None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        members = (
            (field.metadata.get("json", field.name), getattr(value, field.name)) for field in dataclasses.fields(value)
        )
        return {name: encode(member) for name, member in members if member is not None}
    if isinstance(value, dict):
        return {name: encode(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(member) for member in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return value
