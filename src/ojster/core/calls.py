"""Declarations of calls: one for the service in the process, the endpoint of a server, and the client of a server.

A capability declares its calls as methods of a class in its module ``calls``. Its service derives from the class and
implements them. The client derives from it, too, and inherits them: they send the call to the server, which reads from
the same declaration what it needs for an endpoint.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import cached_property, wraps
from typing import (
    Any,
    Concatenate,
    Final,
    Generic,
    NamedTuple,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    get_origin,
    get_type_hints,
)
from urllib.parse import quote

import msgspec
from msgspec import Struct

from ojster.core.access import Operation
from ojster.core.errors import InvalidRequest
from ojster.core.json_objects import read_members
from ojster.core.parsing import check_bounds, choices_of, has_bounds, read_value
from ojster.core.timestamps import format_optional, parse_moment
from ojster.core.wire import NumberedPaginationBody, PaginationBody

P = ParamSpec("P")
R = TypeVar("R")
V = TypeVar("V", covariant=True)

_NAME: Final = re.compile(r"\{(\w+)\}")
_DECLARED: Final = "__declared_call__"

SET_BY_SERVICE: Final = "set by the service"
"""Annotation of members of an argument that no request has, because the service sets them: the tenant of its caller."""

MOMENT: Final = "moment"
"""Annotation of times, in microseconds since the epoch; a query has a time stamp, or a duration from now."""


class Readable(Protocol[V]):
    """An answer from which a client reads the value that a call returns."""

    def value(self) -> V:
        """Return the value that the answer shows."""


class Shown(Readable[R], Protocol[R]):
    """An answer that shows the value that a call returns, and nothing else."""

    @classmethod
    def of(cls, value: R, /) -> Self:
        """Return the answer that shows a value."""


class ShownPage(Readable[R], Protocol[R]):
    """An answer with a page of the list that a call returns."""

    pagination: PaginationBody

    @classmethod
    def of(cls, values: R, pagination: PaginationBody, /) -> Self:
        """Return the answer that shows a page."""


class ShownNumberedPage(Readable[R], Protocol[R]):
    """An answer with a page of the list that a call returns, for operators."""

    pagination: NumberedPaginationBody

    @classmethod
    def of(cls, values: R, pagination: NumberedPaginationBody, /) -> Self:
        """Return the answer that shows a page."""


class _First(Struct, Generic[R]):
    """An answer whose first member is the value itself."""

    def value(self) -> R:
        """Return the value that the answer shows."""
        shown: R = getattr(self, self.__struct_fields__[0])
        return shown


class Single(_First[R], Generic[R]):
    """An answer whose first member is the value itself."""

    @classmethod
    def of(cls, value: R, /) -> Self:
        """Return the answer that shows a value."""
        return cls(value)


class SinglePage(_First[R], Generic[R]):
    """An answer whose first member is a page of a list, and whose second is its ``pagination``."""

    @classmethod
    def of(cls, values: R, pagination: Any, /) -> Self:
        """Return the answer that shows a page."""
        return cls(values, pagination)


class Whole(Struct):
    """An answer that is itself what the call returns."""

    @classmethod
    def of(cls, value: Self, /) -> Self:
        """Return the answer that shows a value."""
        return value

    def value(self) -> Self:
        """Return the value that the answer shows."""
        return self


class Arguments(Struct):
    """A request body with arguments of a call: by default, those with the names of its members."""

    @classmethod
    def of(cls, *args: Any, **arguments: Any) -> Self:
        """Return the body for the arguments of a call, without those in its path."""
        return cls(*args, **arguments)

    def arguments(self, now: int) -> Mapping[str, Any]:
        """Return the arguments in the body. Times may be relative to ``now``, in microseconds since the epoch."""
        return {name: getattr(self, name) for name in self.__struct_fields__}


class Request(Arguments):
    """A request body that is itself an argument of the call, called ``body``."""

    @classmethod
    def of(cls, body: Self) -> Self:
        """Return the body."""
        return body

    def arguments(self, now: int) -> Mapping[str, Any]:
        """Return the body as the argument."""
        return {"body": self}


class Options(Struct, kw_only=True):
    """What a declaration may say beside the path and the answer.

    Parameters
    ----------
    also:
        Further paths of the same endpoint.
    body:
        Type of the request body; ``None``: the call has none.
    documented:
        Type of the answer in OpenAPI, if the answer is written in another way.
    may_be_empty:
        Whether the body may be missing; its arguments then have their defaults.
    status:
        Status of the answer.
    more, query:
        Further statuses and query parameters of an endpoint that is written by hand.
    needs, for_all, configures, large, recent:
        As in ``ojster.server.route.Route``.
    once:
        Whether the client never repeats a request that may have arrived.
    wait:
        Time that the answer may take beyond the usual, in seconds.
    """

    also: tuple[str, ...] = ()
    body: type[Struct] | None = None
    documented: type[Struct] | None = None
    may_be_empty: bool = False
    status: int = 200
    more: tuple[int, ...] = ()
    query: tuple[str, ...] = ()
    needs: tuple[Operation, ...] = ()
    for_all: bool = False
    configures: bool = False
    large: bool = False
    recent: bool = False
    once: bool = False
    wait: float = 0.0


class Declaration(Options, Generic[R]):
    """Declares the method that it decorates as a call.

    The first parameters of the method are those in the path, in the same order. If there is a body, it has the others;
    without one, they are query parameters. If the first parameter is a struct, its members are meant, except those
    that are ``SET_BY_SERVICE``.

    Parameters
    ----------
    method, path:
        Method and path of the request; the path without the prefix that all share.
    id:
        Name of the endpoint in OpenAPI, metrics and audit log.
    tag:
        Section in OpenAPI.
    answer:
        Type of the answer.
    """

    method: str
    path: str
    id: str
    tag: str
    answer: Any

    def __call__(
        self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]
    ) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
        """Declare a method. Its docstring describes the endpoint in OpenAPI."""
        declared = Declared(self, function)

        @wraps(function)
        async def make(capability: Any, /, *args: P.args, **arguments: P.kwargs) -> R:
            result: R = await capability.make(declared, declared.bind(capability, *args, **arguments))
            return result

        setattr(make, _DECLARED, declared)
        return make


class Call(Declaration[R], Generic[R]):
    """A call whose answer shows what the method returns."""

    answer: type[Shown[R]]


class Handled(Declaration[R], Generic[R]):
    """A call whose endpoint is written by hand: it does more than to make the call and to show what that returns."""

    answer: type[Readable[R]]


class Listing(Declaration[R], Generic[R]):
    """A call that returns a list, which a server answers in pages.

    Parameters
    ----------
    page_size:
        Number of entries of a page whose request does not say it.
    """

    answer: type[ShownPage[R]]
    page_size: int = 50


class NumberedListing(Declaration[R], Generic[R]):
    """A call that returns a list, which a server answers in numbered pages. Spec: ojs-admin-api 7.1"""

    answer: type[ShownNumberedPage[R]]


class Deletion(Declaration[None]):
    """A call that returns nothing. Its answer repeats the parameters in the path."""

    answer: type[Struct]


class Parameter(NamedTuple):
    """A parameter of a request: one of a method, or a member of a struct that is one.

    Attributes
    ----------
    name:
        Its name in the query.
    type:
        Its type.
    is_required:
        Whether it has no default.
    """

    name: str
    type: Any
    is_required: bool

    def has(self, annotation: str) -> bool:
        """Return whether its type has an annotation."""
        return annotation in getattr(self.type, "__metadata__", ())

    def read(self, text: str, clock: Callable[[], int]) -> Any:
        """Return its value in a query.

        Raises
        ------
        InvalidRequest
            It is malformed.
        """
        if self.has(MOMENT):
            try:
                return parse_moment(text, clock())
            except InvalidRequest as error:
                raise InvalidRequest(f"The parameter {self.name!r}: {error.message}", field=self.name) from None
        if get_origin(self.type) is dict:
            members = read_members(text.encode(), f"The parameter {self.name!r}")
            return {name: read_value(raw, self.name) for name, raw in members.items()}
        try:
            return msgspec.convert(text, self.type, strict=False)
        except msgspec.ValidationError as error:
            message = f"The parameter {self.name!r} is {text[:40]!r}: {error}.{choices_of(self.type)}"
            raise InvalidRequest(message, field=self.name) from None

    def shown(self, value: Any) -> Any:
        """Return a value as ``read`` reads it."""
        if self.has(MOMENT):
            return format_optional(value)
        if isinstance(value, dict):
            return msgspec.json.encode(value).decode() if value else None
        return value


class Declared:
    """A declaration and the method that it decorates.

    Attributes
    ----------
    call:
        The declaration.
    name:
        The name of the method.
    description:
        What the call does.
    body:
        Type of a body that is made of arguments.
    """

    def __init__(self, call: Declaration[Any], function: Callable[..., Any]) -> None:
        self.call = call
        self.name = function.__name__
        self.description = function.__doc__
        self._function = function
        self._signature = inspect.signature(function)
        self.body = call.body if call.body is not None and issubclass(call.body, Arguments) else None

    @cached_property
    def _types(self) -> dict[str, Any]:
        hints = get_type_hints(self._function, include_extras=True)
        return {name: hints[name] for name in list(self._signature.parameters)[1:]}

    @cached_property
    def _struct(self) -> str | None:
        """Name of the first parameter, if it is a struct: its members are those of a request."""
        name, kind = next(iter(self._types.items()), (None, None))
        is_struct = isinstance(kind, type) and issubclass(kind, Struct) and kind is not self.call.body
        return name if is_struct else None

    @cached_property
    def _parameters(self) -> dict[str, Parameter]:
        """The parameters of a request."""
        parameters: dict[str, Parameter] = {}
        for name, kind in self._types.items():
            if name == self._struct:
                fields = msgspec.structs.fields(kind)
                members = {field.name: Parameter(field.encode_name, field.type, field.required) for field in fields}
                parameters |= {name: member for name, member in members.items() if not member.has(SET_BY_SERVICE)}
            else:
                default = self._signature.parameters[name].default
                parameters[name] = Parameter(name, kind, default is inspect.Parameter.empty)
        return parameters

    @cached_property
    def in_path(self) -> list[str]:
        """Names of the parameters in the path."""
        return list(self._parameters)[: len(_NAME.findall(self.call.path))]

    @cached_property
    def _queried(self) -> dict[str, Parameter]:
        if self.call.body is not None:
            return {}
        return {name: parameter for name, parameter in self._parameters.items() if name not in self.in_path}

    @property
    def in_query(self) -> list[str]:
        """Names of the query parameters."""
        return [parameter.name for parameter in self._queried.values()]

    @cached_property
    def decoder(self) -> msgspec.json.Decoder[Arguments] | None:
        """Reads the body, if it is made of arguments."""
        return None if self.body is None else msgspec.json.Decoder(self.body)

    def bind(self, *args: Any, **arguments: Any) -> dict[str, Any]:
        """Return all parameters of a request by name; the first positional one is the object that is called."""
        bound = self._signature.bind(*args, **arguments)
        bound.apply_defaults()
        parameters = dict(list(bound.arguments.items())[1:])
        if self._struct is not None:
            members = msgspec.structs.asdict(parameters.pop(self._struct))
            parameters |= {name: value for name, value in members.items() if name in self._parameters}
        return parameters

    @cached_property
    def bounds(self) -> dict[str, Any]:
        """The types of the arguments in which something is bounded, or one of a few values."""
        return {name: kind for name, kind in self._types.items() if has_bounds(kind)}

    def checked(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> Any:
        """Return a method that implements the call, and raises ``InvalidRequest`` for arguments out of bounds."""

        @wraps(method)
        async def check(capability: Any, /, *args: P.args, **arguments: P.kwargs) -> R:
            if self.bounds:
                bound = self._signature.bind_partial(capability, *args, **arguments).arguments
                for name in self.bounds.keys() & bound.keys():
                    check_bounds(name, bound[name], self.bounds[name])
            return await method(capability, *args, **arguments)

        return check

    def folded(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the method for the parameters of a request."""
        arguments = dict(parameters)
        if self._struct is not None:
            kind = self._types[self._struct]
            members = [name for name in kind.__struct_fields__ if name in arguments]
            arguments[self._struct] = kind(**{name: arguments.pop(name) for name in members})
        return arguments

    def path_of(self, parameters: Mapping[str, Any]) -> str:
        """Return the path of a request with these parameters."""
        values = iter([quote(parameters[name], safe="") for name in self.in_path])
        return _NAME.sub(lambda _: next(values), self.call.path)

    def query_of(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the query of a request with these parameters."""
        return {shown.name: shown.shown(parameters[name]) for name, shown in self._queried.items()}

    def body_of(self, parameters: Mapping[str, Any]) -> Struct | None:
        """Return the body of a request with these parameters."""
        if self.body is None:
            return None
        return self.body.of(**{name: value for name, value in parameters.items() if name not in self.in_path})

    def read_query(self, query: Mapping[str, str], clock: Callable[[], int]) -> dict[str, Any]:
        """Return the parameters in the query of a request.

        Raises
        ------
        InvalidRequest
            A parameter is missing, or is malformed.
        """
        parameters: dict[str, Any] = {}
        for name, parameter in self._queried.items():
            if parameter.name in query:
                parameters[name] = parameter.read(query[parameter.name], clock)
            elif parameter.is_required:
                raise InvalidRequest(f"The parameter {parameter.name!r} is missing.", field=parameter.name)
        return parameters


class Calls:
    """Calls of a capability. The methods that implement them refuse arguments out of bounds, as endpoints do."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for declaring in cls.__mro__[1:]:
            for declared in calls_of(declaring):
                method = vars(cls).get(declared.name)
                if method is not None and not hasattr(method, _DECLARED):
                    setattr(cls, declared.name, declared.checked(method))

    async def make(self, declared: Declared, arguments: Mapping[str, Any]) -> Any:
        """Make a call that the class does not implement."""
        raise NotImplementedError(f"{type(self).__name__}.{declared.name}")


def calls_of(capability: type) -> Iterator[Declared]:
    """Yield the calls that a class declares."""
    yield from (value.__dict__[_DECLARED] for value in vars(capability).values() if hasattr(value, _DECLARED))


def declared_by(method: Callable[..., Any]) -> Declared:
    """Return the call that a method declares."""
    declared: Declared = getattr(method, _DECLARED)
    return declared
