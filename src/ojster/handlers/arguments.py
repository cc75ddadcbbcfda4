"""Arguments and results of handlers: JSON in the database, and what the annotations of the handler say in Python."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, Final, Optional

import msgspec

from ojster.core.references import may_hold_references
from ojster.handlers.injection import declared_in
from ojster.handlers.named_arguments import POSITIONAL, CallArguments, NamedParameters, with_lists

_ANY: Final = (inspect.Parameter.empty, Any, object)
"""Annotations that leave a value as it is in JSON."""


class InvalidArguments(TypeError):
    """The arguments of a job are not what the annotations of its handler say."""


def converted_to(type: Any, value: Any) -> Any:
    """Return a JSON value as a type.

    Raises
    ------
    msgspec.ValidationError
        The value is not of the type.
    """
    return msgspec.convert(value, type, dec_hook=from_json, str_keys=True)


def converter_to(type: Any) -> Callable[[Any], Any] | None:
    """Return what makes values of a type of JSON values; ``None`` if they stay as they are."""
    return None if type is Any else partial(converted_to, type)


class HandlerTypes:
    """Converts the arguments and the result of a handler as its annotations say.

    The annotations are read when they are needed first, so that they may name classes that are defined later.

    Parameters
    ----------
    type:
        The job type, for errors.
    function, signature:
        The handler.
    skipped:
        The number of parameters that the worker fills in.
    """

    def __init__(self, type: str, function: Callable[..., Any], signature: inspect.Signature, skipped: int) -> None:
        self._type = type
        self._function = function
        parameters = list(signature.parameters.values())[skipped:]
        self.named = NamedParameters(parameters)
        self._positional = [parameter for parameter in parameters if parameter.kind in POSITIONAL]
        self._variable = [parameter for parameter in parameters if parameter.kind is inspect.Parameter.VAR_POSITIONAL]
        self._return = signature.return_annotation
        self._decoders: dict[int, msgspec.json.Decoder[Any]] = {}

    def resolve(self) -> None:
        """Read the annotations.

        Raises
        ------
        TypeError
            An annotation names something that does not exist at run time, or is one that msgspec cannot tell apart in
            JSON, such as a union of two dataclasses.
        """
        _ = self._result
        _ = self._named_types, self._more_named
        self._decoder(len(self._positional))

    def check(self, encoded: bytes, count: int) -> None:
        """Check the arguments of a job that is to be enqueued.

        Parameters
        ----------
        encoded:
            The arguments as a JSON array. Those with references, for which a server puts in values, are not checked.
        count:
            The number of arguments.

        Raises
        ------
        InvalidArguments
            An argument is not what its annotation says.
        """
        if self._is_plain or may_hold_references(encoded):
            return
        try:
            if self.named:
                self._converted(self.named.divided(msgspec.json.decode(encoded)))
            else:
                self._decoder(count).decode(encoded)
        except msgspec.ValidationError as error:
            raise self._refusal(error) from None

    def read(self, envelope: bytes) -> Sequence[Any] | None:
        """Return the arguments in the JSON object of a job; ``None``: ``convert`` has to do it, or to refuse them.

        It does at once what decoding and ``convert`` do, for handlers whose arguments have a place and a simple type.
        """
        if self._reader is None:
            return None
        try:
            values = msgspec.structs.astuple(self._reader(envelope).args)
        except msgspec.ValidationError:
            return None
        return values[: values.index(msgspec.UNSET)] if msgspec.UNSET in values else values

    @cached_property
    def _reader(self) -> Callable[[bytes], Any] | None:
        if self.named or self.takes_more or not all(map(_is_simple, self._arguments)):
            return None
        fields: list[Any] = []
        for number, (parameter, kind) in enumerate(self.positional):
            may_lack = parameter.default is not parameter.empty
            fields.append((f"a{number}", kind | msgspec.UnsetType, msgspec.UNSET) if may_lack else (f"a{number}", kind))
        args = msgspec.defstruct("Args", fields, array_like=True, forbid_unknown_fields=True)
        return msgspec.json.Decoder(msgspec.defstruct("Envelope", [("args", args)])).decode

    def convert(self, args: Sequence[Any]) -> CallArguments:
        """Return the arguments for the handler, from JSON values.

        Raises
        ------
        InvalidArguments
            An argument is not what its annotation says.
        """
        try:
            arguments = self.named.divided(args)
        except TypeError as error:
            raise InvalidArguments(f"The arguments are not those of the handler of {self._type}: {error}.") from None
        if self._is_plain:
            return arguments
        try:
            return self._converted(arguments)
        except msgspec.ValidationError as error:
            try:  # with lists: the result of a group or a map, to which a step refers, is an object
                return self._converted(with_lists(arguments))
            except msgspec.ValidationError:
                raise self._refusal(error) from None

    def _converted(self, arguments: CallArguments) -> CallArguments:
        args, by_name = arguments
        positional: Sequence[Any] = msgspec.convert(
            args, self._decoder(len(args)).type, dec_hook=from_json, str_keys=True
        )
        return CallArguments(positional, {name: self._named_value(name, value) for name, value in by_name.items()})

    def _named_value(self, name: str, value: Any) -> Any:
        kind = self._named_types.get(name, self._more_named)
        try:
            return value if kind in _ANY else msgspec.convert(value, kind, dec_hook=from_json, str_keys=True)
        except msgspec.ValidationError as error:
            said = str(error)
            where = f"{name}{said.partition('`$')[2].rstrip('`')}"
            raise msgspec.ValidationError(f"{said.partition(' - at ')[0]} - at `{where}`") from None

    def convert_result(self, result: Any) -> Any:
        """Return a result, from a JSON value.

        Raises
        ------
        TypeError
            It is not what the return annotation says.
        """
        if self._result in _ANY or result is None:
            return result
        try:
            return converted_to(self._result, result)
        except msgspec.ValidationError as error:
            raise TypeError(
                f"The result of {self._type} is not what its handler's return annotation says: {_said(error)}."
            ) from None
        except TypeError:  # msgspec knows no way, such as for a union of two dataclasses
            return result

    def check_each(self, encoded: Sequence[bytes], args: Sequence[Sequence[Any]]) -> None:
        """Check the arguments of many jobs. See ``check``."""
        if not self._is_plain:
            for raw, values in zip(encoded, args, strict=True):
                self.check(raw, len(values))

    def check_result(self, result: Any, encoded: bytes) -> None:
        """Check the result of the handler, which ``convert_result`` is to convert for callers.

        Parameters
        ----------
        result:
            What the handler has returned.
        encoded:
            The same as JSON.

        Raises
        ------
        TypeError
            It is not what the return annotation says.
        """
        if self._result in _ANY or type(result) is self._result:  # such as a text: no need to read its JSON
            return
        self.convert_result(msgspec.json.decode(encoded))

    @property
    def positional(self) -> list[tuple[inspect.Parameter, Any]]:
        """The positional parameters with their types."""
        return list(zip(self._positional, self._arguments, strict=True))

    @property
    def keyword_only(self) -> list[tuple[inspect.Parameter, Any]]:
        """The parameters whose arguments have names, with their types."""
        return [(parameter, self._named_types[parameter.name]) for parameter in self.named.keyword_only]

    @property
    def takes_more(self) -> bool:
        """Whether the handler takes any number of positional arguments, or named ones of any name."""
        return bool(self._variable) or self.named.more is not None

    @cached_property
    def _arguments(self) -> list[Any]:
        """The types of the positional parameters."""
        return list(map(self._type_of, self._positional))

    @cached_property
    def _more_arguments(self) -> Any:
        """The type of further arguments, if the handler takes any."""
        return self._type_of(self._variable[0]) if self._variable else Any

    @cached_property
    def _named_types(self) -> dict[str, Any]:
        """The types of the named arguments."""
        return {parameter.name: self._type_of(parameter) for parameter in self.named.keyword_only}

    @cached_property
    def _more_named(self) -> Any:
        """The type of further named arguments, if the handler takes any."""
        return Any if self.named.more is None else self._type_of(self.named.more)

    @cached_property
    def _result(self) -> Any:
        return self._resolved("its result", self._return)

    @cached_property
    def _is_plain(self) -> bool:
        return all(
            kind in _ANY
            for kind in (*self._arguments, self._more_arguments, *self._named_types.values(), self._more_named)
        )

    def _type_of(self, parameter: inspect.Parameter) -> Any:
        annotation = self._resolved(f"the argument {parameter.name!r}", parameter.annotation)
        if declared_in(annotation) is not None:
            raise TypeError(
                f"{self._type}: the annotation of {parameter.name!r} has Depends(…) and names a class that is defined "
                "after the handler. Define the class before."
            )
        if parameter.default is None and annotation not in _ANY:
            return Optional[annotation]  # noqa: UP045  (``|`` does not take all types); such as ``day: date = None``
        return Any if annotation in _ANY else annotation

    def _resolved(self, what: str, annotation: Any) -> Any:
        """Return an annotation that may be a string."""
        holder = type("holder", (), {"__annotations__": {"it": annotation}})
        names = getattr(inspect.unwrap(self._function), "__globals__", {})
        try:
            hint = typing.get_type_hints(holder, names, include_extras=True)["it"]
        except (NameError, AttributeError, SyntaxError) as error:
            raise TypeError(
                f"{self._type}: the annotation {annotation!r} of {what} cannot be resolved ({error}). Import what it "
                "names at run time, not under TYPE_CHECKING, or annotate with Any to get plain JSON."
            ) from None
        return None if hint is type(None) else hint

    def _decoder(self, count: int) -> msgspec.json.Decoder[Any]:
        """Return the decoder of so many arguments."""
        if count not in self._decoders:
            types = [*self._arguments, *[self._more_arguments] * (count - len(self._arguments))][:count]
            try:
                self._decoders[count] = msgspec.json.Decoder(tuple[tuple(types)], dec_hook=from_json)  # type: ignore[misc]
            except TypeError as error:
                raise TypeError(
                    f"{self._type}: JSON cannot be converted to what the annotations of the handler say. {error}"
                ) from None
            if len(self._decoders) > _MAX_DECODERS:
                self._decoders = {count: self._decoders[count]}
        return self._decoders[count]

    def _refusal(self, error: msgspec.ValidationError) -> InvalidArguments:
        """Return the error for arguments, which names the parameter in place of its position."""
        said = _said(error)
        for number, parameter in enumerate(self._positional):
            said = said.replace(f"`$[{number}]", f"`{parameter.name}")
        return InvalidArguments(f"The arguments are not what the handler of {self._type} says: {said}.")


def _is_simple(kind: Any) -> bool:
    """Return whether JSON becomes the same value of a type at once as by way of the value that it is without a type.

    Decimal numbers do not: they would get digits that a float has not.
    """
    if kind in _SIMPLE:
        return True
    return typing.get_origin(kind) in _OF_SIMPLE and all(map(_is_simple, typing.get_args(kind)))


_SIMPLE: Final = (Any, None, type(None), str, int, float, bool)
_OF_SIMPLE: Final = (list, dict, typing.Union, types.UnionType)

_MAX_DECODERS: Final = 64
"""Maximum number of decoders kept for a handler with any number of arguments."""


def _pydantic_model(kind: Any, value: Any) -> Any:
    """Return a pydantic model; its errors are put as msgspec puts its own."""
    try:
        return kind.model_validate_json(msgspec.json.encode(value))
    except ValueError as error:
        wrong: list[dict[str, Any]] = error.errors() if hasattr(error, "errors") else [{"loc": (), "msg": str(error)}]
        raise ValueError(
            "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in wrong)
        ) from None


def _said(error: msgspec.ValidationError) -> str:
    return " ".join(str(error).split()).rstrip(".")


def from_json(kind: Any, value: Any) -> Any:
    """Return an object of a class that msgspec does not know, from a JSON value."""
    if hasattr(kind, "__pydantic_validator__"):
        return _pydantic_model(kind, value)
    known = typing.get_origin(kind) or kind
    if isinstance(known, type) and isinstance(value, known):
        return value
    raise TypeError(f"JSON cannot be converted to {getattr(kind, '__name__', kind)}")
