r"""Take the screenshots of the report for the documentation, from stored runs.

marginattack measure --model zoo:mnist-cnn --data samples:mnist --limit 100 --norm l2 --norm linf --budget 200 \
    --out digits
marginattack measure --model zoo:cifar10-resnet32 --data samples:cifar10 --limit 60 --norm l2 --norm linf \
    --budget 40 --out plain
marginattack measure --model zoo:cifar10-resnet32-adv --data samples:cifar10 --limit 60 --norm l2 --norm linf \
    --budget 40 --out adv
python experiments/screenshots.py digits plain adv
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


def save(tab: Page, name: str, section: str | None = None, *, exact: bool = False) -> None:
    """Save the screen, or the screen from a section on, with few colours for a small file."""
    if section is not None:
        tab.add_style_tag(
            content=".toolbar { position: static !important } html { scroll-padding-top: 1rem !important }"
        )
        tab.evaluate(f"document.querySelector('{section}').scrollIntoView()")
    tab.wait_for_timeout(800)
    image = Image.open(io.BytesIO(tab.screenshot())).convert("RGB")
    few = image.quantize(128, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    small = image if exact else few
    small.save(IMAGES / f"{name}.png", optimize=True)


def main(digits: str, plain: str, adversarial: str) -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        pages = {name: Path(folder) / f"{name}.html" for name in ("digits", "compared", "plain")}
        write_report([digits], pages["digits"])
        write_report([plain, adversarial], pages["compared"])
        write_report([plain], pages["plain"])
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--headless=new", "--no-sandbox"])
        tab = open_page(browser, pages["digits"], 1400, 1160, "light")
        for norm, level in (("l2", "1"), ("linf", "20/255")):
            field = tab.locator(f"input.pin[data-norm={norm}]")
            field.fill(level)
            field.press("Enter")
        tab.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
        save(tab, "report")
        tab.set_viewport_size({"width": 1400, "height": 960})
        tab.locator("#class-order").select_option("median")
        save(tab, "report-classes", "#classes")
        tab = open_page(browser, pages["digits"], 1400, 1100, "dark")
        save(tab, "report-convergence-dark", "#convergence")
        save(open_page(browser, pages["compared"], 1400, 980, "light"), "report-compare", "#compare")
        tab = open_page(browser, pages["plain"], 1400, 900, "light")
        save(tab, "report-samples", "#samples")
        tab = open_page(browser, pages["plain"], 1050, 760, "dark")
        tab.locator("#samples .name").nth(3).click()
        save(tab, "report-lightbox-dark", exact=True)  # few colours would turn red into brown
        save(open_page(browser, pages["digits"], 360, 900, "light"), "report-narrow")
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
