"""Where the ``fedjax-drag`` command begins: signals are taken over before anything that takes time is imported."""

from fedjax_drag import stopping
from fedjax_drag.cli.ending import exit_now, last_words


def main() -> None:
    """Runs the command line and exits."""
    stopping.listen(last_words)
    from fedjax_drag.cli.app import app

    try:
        app(prog_name="fedjax-drag")
    except SystemExit as ended:
        exit_now(ended.code)
        raise
