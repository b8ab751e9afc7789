"""``python -m fedjax_drag`` is the command line, as ``fedjax-drag`` is."""

from fedjax_drag.cli.main import main

if __name__ == "__main__":
    main()
