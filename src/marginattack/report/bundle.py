"""Vega, Vega-Lite and Vega-Embed as one script, from vl-convert: nothing of theirs is kept in the tree."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Putting it together takes seconds in which Python cannot go on, so another process does it meanwhile.
PROGRAM = """
import sys, vl_convert
sys.stdout.buffer.write(vl_convert.javascript_bundle(*sys.argv[1:]).encode())
"""
SNIPPET = "window.vegaEmbed = vegaEmbed;"
_known: dict[str, str] = {}


def vega_lite() -> str:
    """The version of Vega-Lite that the charts are written for."""
    import altair

    return str(altair.SCHEMA_VERSION).removeprefix("v").rpartition(".")[0]


@contextmanager
def script() -> Iterator[Callable[[], str]]:
    """Begin to put the script together; the value waits for it."""
    version = vega_lite()
    if version in _known:
        yield lambda: _known[version]
        return
    command = [sys.executable, "-c", PROGRAM, SNIPPET, version]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:

        def text() -> str:
            import vl_convert

            told, _ = process.communicate()
            failed = process.returncode != 0
            known = vl_convert.javascript_bundle(SNIPPET, version) if failed else told.decode()
            _known[version] = known.replace("</script", "<\\/script").replace("<!--", "<\\!--")
            return _known[version]

        try:
            yield text
        finally:
            process.kill()
