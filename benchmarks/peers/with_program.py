"""A peer in another language: a program with the commands ``clear``, ``enqueue``, ``bulk``, ``probe`` and ``work``.

``PEERS_PROGRAM`` is its command as a JSON list, ``PEERS_SETTINGS`` its settings: the number of processes and the
arguments of ``work``, by name. ``enqueue COUNT PRODUCERS`` and ``bulk COUNT`` warm up, then print the time in seconds;
``probe`` enqueues a probe for each line of its input. ``workflows`` starts, for each line, ``chains COUNT LENGTH
PRODUCERS`` or ``fanOut WIDTH``.
"""

import json
import os
import subprocess
import sys

from common import PRODUCERS, Workers

PROGRAM = json.loads(os.environ["PEERS_PROGRAM"])
SETTINGS = json.loads(os.environ["PEERS_SETTINGS"])
_talking = {}


def run(*arguments):
    done = subprocess.run([*PROGRAM, *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{arguments[0]}: {done.stdout[-300:]} {done.stderr[-600:]}")
    return done.stdout.strip()


def clear():
    run("clear")


def enqueue(count):
    return float(run("enqueue", count, PRODUCERS))


def bulk(count):
    return float(run("bulk", count))


def tell(command, line):
    if command not in _talking:
        _talking[command] = subprocess.Popen([*PROGRAM, command], stdin=subprocess.PIPE, text=True, bufsize=1)
    _talking[command].stdin.write(f"{line}\n")


def probe_once(now):
    tell("probe", "")


def start_chains(count, length):
    tell("workflows", f"chains {count} {length} {PRODUCERS}")


def start_fan_out(width):
    tell("workflows", f"fanOut {width}")


WORKERS = {
    name: Workers([[*PROGRAM, "work", *arguments]] * processes, processes)
    for name, (processes, arguments) in SETTINGS.items()
}
