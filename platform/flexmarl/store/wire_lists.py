"""Sequences of what nodes send: they arrive as lists and are read as such.

Pydantic reads a `Sequence` through a function in Python, which takes most of the time of reading a group of episodes;
a list it reads by itself. Items are checked alike.
"""

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

T = TypeVar("T")


class ReadAsList:
    """Annotates a `Sequence`, or a union that begins with one: off the wire it is a list of the same items."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        sequence = source if get_origin(source) is Sequence else get_args(source)[0]
        (item,) = get_args(sequence)
        return core_schema.list_schema(handler.generate_schema(item))


Listed = Annotated[Sequence[T], ReadAsList()]
