"""The types of keys and values, as Python programs name them and as maps record them."""

from __future__ import annotations

from typing import Any, Callable, Optional, get_args, get_origin

from ._errors import InvalidError

Dumps = Callable[[Any], bytes]
Loads = Callable[[bytes], Any]

#: What a map records for the types of Python. An ``int`` is a signed integer of 64 bits unless another one is named.
_SCHEMAS = {str: "str", bytes: "bytes", int: "i64", float: "f64", bool: "bool"}

#: What a map records for values that a serializer makes.
_SERIALIZED = {"json": "json/1", "msgpack": "msgpack/1", "pickle": "pickle/1"}

#: What a map records for types that have a name of their own in Python.
_NAMED = {"any": "any/1"}


def schema_of(given: Any) -> str:
    """Return the schema of a type: of ``int``, ``"u64"``, ``(int, str)`` or ``tuple[int, str]``.

    >>> schema_of((int, "u8", str))
    '(i64,u8,str)'
    """
    if isinstance(given, str):
        return _NAMED.get(given, given)
    if given in _SCHEMAS:
        return _SCHEMAS[given]
    parts = given if isinstance(given, tuple) else get_args(given) if get_origin(given) is tuple else ()
    if parts:
        return f"({','.join(schema_of(part) for part in parts)})"
    raise InvalidError(f"{given!r} is not a type of a map: use str, bytes, int, float, bool, a tuple, or a name")


def value_schema_of(given: Any) -> str:
    """Return the schema of a type of values, which can also be the name of a serializer."""
    return _SERIALIZED.get(given, "") or schema_of(given) if isinstance(given, str) else schema_of(given)


def serializer_for(asked: Any) -> Callable[[str], tuple[Dumps, Loads]]:
    """Return a function that finds the serializer of a schema. ``asked`` is what the program wants the values to be."""

    def serializer(schema: str) -> tuple[Dumps, Loads]:
        # Modules are imported where they are needed: they take longer to import than all of outlast.
        if schema == "json/1":
            return _json()
        if schema == "msgpack/1":
            return _msgpack()
        if schema == "pickle/1":
            if asked != "pickle":
                raise InvalidError(
                    "the values of this map are pickled, and reading them can run any code; if you trust the file, "
                    'open the map with value="pickle"'
                )
            return _pickle()
        raise InvalidError(f"values of type {schema!r} cannot be read by Python; docs/python.md lists the types")

    return serializer


def _json() -> tuple[Dumps, Loads]:
    import json

    def dumps(value: Any) -> bytes:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

    return dumps, json.loads


def _pickle() -> tuple[Dumps, Loads]:
    import pickle

    def dumps(value: Any) -> bytes:
        return pickle.dumps(value, protocol=5)

    return dumps, pickle.loads


def _msgpack() -> tuple[Dumps, Loads]:
    try:
        import msgpack  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        raise InvalidError("the values of this map need msgpack: pip install outlast[msgpack]") from error
    return msgpack.packb, msgpack.unpackb


def describe(schema: Optional[str]) -> Optional[str]:
    """Return the name of the serializer of a schema, or the schema itself."""
    for name, serialized in (*_SERIALIZED.items(), *_NAMED.items()):
        if schema == serialized:
            return name
    return schema
