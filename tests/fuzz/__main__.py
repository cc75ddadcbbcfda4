"""Fuzz the parsers or a running server, print what is found, and exit with status 1 if there is anything."""

from __future__ import annotations

import argparse
import sys

from tests.fuzz.report import Report


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    parsers = kinds.add_parser("parsers", help="feed random inputs to the parsers")
    parsers.add_argument("targets", nargs="*", metavar="TARGET", help="parsers to fuzz (default: all)")
    parsers.add_argument("--seconds", type=float, default=60, help="time for each parser (default 60)")
    parsers.add_argument("--inputs", type=int, help="maximum number of inputs for each parser, with --by-chance")
    parsers.add_argument("--by-chance", action="store_true", help="use no atheris, although it is installed")
    parsers.add_argument("--seed", type=int, default=0, help="for the same inputs again, with --by-chance")
    parsers.add_argument("--list", action="store_true", help="only show the names of the parsers")
    http = kinds.add_parser("http", help="make random calls of a server that is started for it")
    http.add_argument("--seconds", type=float, default=60, help="time for all calls (default 60)")
    http.add_argument(
        "--database", help="URL of the database, or 'postgres' for a new server (default: a new SQLite file)"
    )
    http.add_argument("--roles", action="store_true", help="require tokens, and call with one of each role")
    http.add_argument("--seed", type=int, default=0)
    http.add_argument("--only", metavar="PART", help="call only paths with this in them")
    chosen = parser.parse_args()
    report = Report()
    if chosen.kind == "parsers":
        _fuzz_parsers(chosen, report)
    else:
        from tests.fuzz.http import fuzz_http

        fuzz_http(
            chosen.seconds, chosen.database, roles=chosen.roles, seed=chosen.seed, only=chosen.only, report=report
        )
    print(f"\n{report}")
    sys.exit(bool(report))


def _fuzz_parsers(chosen: argparse.Namespace, report: Report) -> None:
    from tests.fuzz.parsers import TARGETS
    from tests.fuzz.supervisor import fuzz_parsers

    if unknown := [name for name in chosen.targets if name not in TARGETS]:
        sys.exit(f"There is no parser {unknown[0]!r}. There are {', '.join(TARGETS)}.")
    if chosen.list:
        print("\n".join(TARGETS))
        return
    names = chosen.targets or list(TARGETS)
    fuzz_parsers(names, chosen.seconds, by_chance=chosen.by_chance, most=chosen.inputs, seed=chosen.seed, report=report)


if __name__ == "__main__":
    main()
