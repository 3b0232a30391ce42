"""Vega, Vega-Lite and Vega-Embed as one script for the page, bundled by vl-convert."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SNIPPET = "window.vegaEmbed = vegaEmbed;"
# Bundling takes seconds and holds the GIL, so a second process does it while this one computes the datasets.
PROGRAM = """
import sys, vl_convert
sys.stdout.buffer.write(vl_convert.javascript_bundle(*sys.argv[1:]).encode())
"""
_bundles: dict[str, str] = {}  # by version of Vega-Lite


def vega_lite_version() -> str:
    """Return the version of Vega-Lite that Altair writes specs for, as vl-convert names it."""
    import altair

    return str(altair.SCHEMA_VERSION).removeprefix("v").rpartition(".")[0]


@contextmanager
def bundle_in_background() -> Iterator[Callable[[], str]]:
    """Start bundling; the function that this yields waits for the script and returns it."""
    import vl_convert

    version = vega_lite_version()
    if version in _bundles:
        yield lambda: _bundles[version]
        return
    command = [sys.executable, "-c", PROGRAM, SNIPPET, version]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:

        def wait_for_bundle() -> str:
            output, _ = process.communicate()
            failed = process.returncode != 0
            script = vl_convert.javascript_bundle(SNIPPET, version) if failed else output.decode()
            _bundles[version] = script.replace("</script", "<\\/script").replace("<!--", "<\\!--")
            return _bundles[version]

        try:
            yield wait_for_bundle
        finally:
            process.kill()
