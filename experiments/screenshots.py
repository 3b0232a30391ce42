"""Take the screenshots of the report for the documentation, from a stored run of digits.

marginattack measure --model zoo:mnist-cnn --data samples:mnist --limit 500 --norm l2 --norm linf --out runs/digits
python experiments/screenshots.py runs/digits
"""

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from marginattack.report import write_report

IMAGES = Path(__file__).parents[1] / "docs/img"
CHROMIUM = "/usr/bin/chromium"


def open_page(browser: Browser, page: Path, width: int, height: int, scheme: str) -> Page:
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
    tab = context.new_page()
    tab.goto(page.as_uri())
    tab.evaluate("report.ready.then(() => null)")
    return tab


def save(tab: Page, name: str, section: str | None = None) -> None:
    """Save the screen, or the screen from a section on, with few colours for a small file."""
    if section is not None:
        tab.evaluate(f"document.querySelector('{section}').scrollIntoView()")
    tab.wait_for_timeout(500)
    image = Image.open(io.BytesIO(tab.screenshot())).convert("RGB")
    small = image.quantize(128, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    small.save(IMAGES / f"{name}.png", optimize=True)


def main(run: str) -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = Path(folder) / "report.html"
        write_report([run], page)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--headless=new", "--no-sandbox"])
        tab = open_page(browser, page, 1400, 1320, "light")
        for norm, level in (("l2", "1"), ("linf", "0.08")):
            field = tab.locator(f"input.pin[data-norm={norm}]")
            field.fill(level)
            field.press("Enter")
        tab.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
        save(tab, "report")
        tab.set_viewport_size({"width": 1400, "height": 1500})
        tab.locator("#class-order").select_option("median")
        save(tab, "report-classes", "#margins")
        tab = open_page(browser, page, 1400, 1100, "dark")
        save(tab, "report-gallery-dark", "#gallery")
        save(tab, "report-convergence-dark", "#convergence")
        save(open_page(browser, page, 400, 1200, "light"), "report-narrow")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
