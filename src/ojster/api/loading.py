"""Loading applications and plug-ins by name."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from ojster.api.app import App
from ojster.core.errors import InvalidRequest
from ojster.handlers.discovery import import_modules_named


def load_plugin(where: str) -> Callable[[Any], object]:
    """Return the function at ``module:name``, a plug-in of a server.

    Raises
    ------
    InvalidRequest
        The module does not exist, or has no such function, or it does not take one argument.
    """
    module_name, _, name = where.partition(":")
    install = getattr(_import(module_name), name or "install", None)
    if not callable(install):
        raise InvalidRequest(f"{module_name!r} has no function named {name or 'install'!r}. Name it: MODULE:FUNCTION.")
    plugin: Callable[[Any], object] = install
    try:
        inspect.signature(plugin).bind(None)
    except TypeError:
        raise InvalidRequest(f"{where!r} does not take a service as its one argument, so it is no plug-in.") from None
    except ValueError:  # a function in C may not say what it takes
        pass
    return plugin


def _import(name: str) -> ModuleType:
    """Import a module; the working directory is searched, too."""
    module = name.removesuffix(".py").lstrip("./").replace("/", ".")
    if not name or name.startswith("."):
        example = module if "/" in name else "shop.jobs"
        raise InvalidRequest(f"{name!r} is no name of a module. Name one, such as {example}.")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            what = "Check the name." if module == name else f"Name the module, not its file: {module}."
            raise InvalidRequest(f"No module {name!r} in {os.getcwd()}. {what}") from None
        raise
    except ImportError as error:
        if "partially initialized" not in str(error):
            raise
        raise InvalidRequest(
            f"{name!r} cannot be imported, because modules import each other in a circle: {error}. Create the App in a "
            "module that imports none of those with its jobs, and name them with --include."
        ) from error


def load_app(where: str, include: Sequence[str] = ()) -> App:
    """Return the application at ``module:name``; without a name, the module's only ``App``.

    Parameters
    ----------
    include:
        Modules to import afterwards, which declare jobs of the application; ``shop.*`` stands for all modules named
        ``tasks`` in the package ``shop`` and the packages in it.

    Raises
    ------
    InvalidRequest
        A module does not exist, or has no such application.
    """
    module_name, _, name = where.partition(":")
    app = _app_in(_import(module_name), module_name, name)
    for other in include:
        package = other.removesuffix(".*")
        _import(package)
        if package == other:
            continue
        if not hasattr(sys.modules[package], "__path__"):
            raise InvalidRequest(f"{package!r} is a module, not a package. Include it without '.*'.")
        if not import_modules_named("tasks", package):
            raise InvalidRequest(f"The package {package!r} has no modules named 'tasks', in itself or its packages.")
    return app


def _app_in(module: ModuleType, module_name: str, name: str) -> App:
    if name:
        app = getattr(module, name, None)
        if not isinstance(app, App):
            raise InvalidRequest(f"{module_name!r} has no App named {name!r}. {_apps_of(module)}")
        return app
    apps = [value for value in vars(module).values() if isinstance(value, App)]
    if len(apps) != 1:
        raise InvalidRequest(
            f"{module_name!r} has {len(apps)} Apps, not one. {_apps_of(module)} Name one: {module_name}:NAME."
        )
    return apps[0]


def _apps_of(module: ModuleType) -> str:
    """Return a sentence about the applications that a module has."""
    names = [name for name, value in vars(module).items() if isinstance(value, App)]
    return (
        f"It has {', '.join(names)}."
        if names
        else f"Create one in {getattr(module, '__file__', None) or module.__name__}: app = App(…)."
    )
