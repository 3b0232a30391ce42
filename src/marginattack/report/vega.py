"""Vega, Vega-Lite and Vega-Embed as one script for the page, bundled by vl-convert."""

import subprocess
import sys
from functools import cache

SNIPPET = "window.vegaEmbed = vegaEmbed;"
# Bundling takes seconds and holds the GIL, so another process does it.
PROGRAM = "import sys, vl_convert; sys.stdout.buffer.write(vl_convert.javascript_bundle(*sys.argv[1:]).encode())"


def vega_lite_version() -> str:
    """Return the version of Vega-Lite that Altair writes specs for, as vl-convert names it."""
    import altair

    return str(altair.SCHEMA_VERSION).removeprefix("v").rpartition(".")[0]


@cache
def bundle_script() -> str:
    """Bundle the script, escaped for a script element. It can run in a thread, since another process does the work."""
    import vl_convert

    version = vega_lite_version()
    done = subprocess.run([sys.executable, "-c", PROGRAM, SNIPPET, version], capture_output=True)
    script = vl_convert.javascript_bundle(SNIPPET, version) if done.returncode else done.stdout.decode()
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")
