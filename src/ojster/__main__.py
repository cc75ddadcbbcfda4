"""``python -m ojster`` is the ``ojster`` command."""

from ojster.cli.main import main

if __name__ == "__main__":
    main()
