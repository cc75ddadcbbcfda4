"""Finding the modules of a project that declare jobs."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from importlib.util import find_spec


def import_modules_named(name: str, package: str) -> list[str]:
    """Import the modules with this name in a package and in the packages in it.

    Parameters
    ----------
    name:
        Name of the modules, such as ``tasks``.
    package:
        Name of the package.

    Returns
    -------
    list[str]
        The names of the modules that were found.

    Raises
    ------
    ImportError
        The package does not exist, or a module cannot be imported.
    """
    folders = getattr(import_module(package), "__path__", None)
    if folders is None:
        raise ImportError(f"{package!r} is a module, not a package; import it instead.")
    # walk_packages hides the error of its own import, so that a package that fails is imported once more.
    packages = [package]
    packages += [
        entry.name for entry in pkgutil.walk_packages(folders, f"{package}.", onerror=import_module) if entry.ispkg
    ]
    modules = [f"{folder}.{name}" for folder in packages if find_spec(f"{folder}.{name}") is not None]
    for module in modules:
        import_module(module)
    return modules
