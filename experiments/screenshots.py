"""Take the pictures of the report for README and docs, from the runs that experiments/page_runs.py measures.

python experiments/screenshots.py FOLDER [SECTION…]

Writes docs/img/report*.png and .webp, and docs/img/report/SECTION.webp: each section in both themes, at 1,280 and at
360 pixels.
"""

import io
import os
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from marginattack.report import write_report

IMAGES = Path(__file__).parents[1] / "docs/img"
CHROMIUM = "/usr/bin/chromium"
PAGES = {"compared": ("plain", "trained")}  # the others are of one run
SECTIONS = {  # name: page and section
    "headline": ("digits", "#headline"), "findings": ("compared", "#findings"), "comparison": ("compared", "#compare"),
    "robust-accuracy": ("digits", "#curves"), "several-runs": ("compared", "#curves"), "bands": ("bounded", "#curves"),
    "margins": ("digits", "#margins"), "brackets": ("bounded", "#brackets"), "classes": ("plain", "#classes"),
    "many-classes": ("photographs", "#classes"), "samples": ("plain", "#samples"),
    "photographs": ("photographs", "#samples"), "waveforms": ("tones", "#samples"),
    "features": ("table", "#features"), "rows": ("table", "#samples"), "convergence": ("digits", "#convergence"),
    "provenance": ("digits", "#provenance"),
}  # fmt: skip
PINNED = {"margins": (("l2", "1.2"), ("linf", "24/255"))}  # sections whose charts show a pinned ε
WIDTHS, MAX_HEIGHT, GAP = (1280, 360), 1150, 24
STATIC = ".toolbar { position: static !important } html { scroll-padding-top: 1rem !important }"


def main(folder: str, *wanted: str) -> None:
    os.chdir(folder)  # so that pages show short paths
    runs = {name for name, _ in SECTIONS.values()} | {"digits", "photographs"}
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        pages = {name: Path(scratch) / f"{name}.html" for name in runs}
        for name, page in pages.items():
            write_report(list(PAGES.get(name, (name,))), page)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--headless=new", "--no-sandbox"])
        take_screens(browser, pages)
        (IMAGES / "report").mkdir(exist_ok=True)
        for section in wanted or SECTIONS:
            name, selector = SECTIONS[section]
            take_section(browser, pages[name], section, selector)
        if not wanted:
            take_dialogs(browser, {"lightbox": pages["photographs"], "waveform": pages["tones"]})
        browser.close()


def open_page(browser: Browser, page: Path, width: int, height: int, scheme: str) -> Page:
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
    tab = context.new_page()
    tab.goto(page.as_uri())
    tab.evaluate("report.pictured.then(() => null)")
    tab.add_style_tag(content=STATIC)
    return tab


def pin(tab: Page, *levels: tuple[str, str]) -> None:
    for norm, level in levels:
        field = tab.locator(f"input.pin[data-norm={norm}]")
        field.fill(level)
        field.press("Enter")
    tab.evaluate("document.activeElement.blur(); scrollTo(0, 0)")


def take_screens(browser: Browser, pages: dict[str, Path]) -> None:
    """The pictures that README and docs show."""
    tab = open_page(browser, pages["digits"], 1400, 1400, "light")
    pin(tab, ("l2", "1"), ("linf", "20/255"))
    save(tab, "report")
    tab.set_viewport_size({"width": 1400, "height": 1060})
    tab.locator("#class-order").select_option("median")
    pin(tab, ("l2", ""), ("linf", ""))
    save(tab, "report-classes", "#classes")
    save(open_page(browser, pages["digits"], 1460, 1140, "dark"), "report-convergence-dark", "#convergence")
    save(open_page(browser, pages["compared"], 1400, 900, "light"), "report-compare", "#compare")
    save(open_page(browser, pages["photographs"], 1400, 900, "light"), "report-samples", "#samples", exact=True)
    tab = open_page(browser, pages["photographs"], 1050, 800, "dark")
    tab.locator("#samples .name").nth(6).click()
    save(tab, "report-lightbox-dark", exact=True)
    save(open_page(browser, pages["digits"], 360, 900, "light"), "report-narrow")


def save(tab: Page, name: str, section: str | None = None, *, exact: bool = False) -> None:
    """Save the screen, or the screen from a section on; with few colours, unless it has photographs."""
    if section is not None:
        tab.evaluate(f"document.querySelector('{section}').scrollIntoView()")
    tab.wait_for_timeout(800)
    image = shot(tab)
    if exact:
        image.save(IMAGES / f"{name}.webp", quality=85, method=6)
    else:
        few = image.quantize(128, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        few.save(IMAGES / f"{name}.png", optimize=True)


def shot(tab: Page, selector: str | None = None) -> Image.Image:
    content = tab.screenshot() if selector is None else tab.locator(selector).screenshot()
    return Image.open(io.BytesIO(content)).convert("RGB")


def take_section(browser: Browser, page: Path, name: str, selector: str) -> None:
    """A section in both themes and widths, side by side, from its top."""
    parts = []
    for width in WIDTHS:
        for scheme in ("light", "dark"):
            tab = open_page(browser, page, width, 900, scheme)
            pin(tab, *PINNED.get(name, ()))
            tab.evaluate("report.settled()")
            parts.append(shot(tab, selector))
            tab.context.close()
    beside(name, parts)


def take_dialogs(browser: Browser, pages: dict[str, Path]) -> None:
    for name, page in pages.items():
        parts = []
        for width in WIDTHS:
            for scheme in ("light", "dark"):
                tab = open_page(browser, page, width, 900, scheme)
                tab.locator("#samples .name").nth(6).click()
                tab.wait_for_timeout(500)
                parts.append(shot(tab, "dialog"))
                tab.context.close()
        beside(name, parts)


def beside(name: str, parts: list[Image.Image]) -> None:
    """Save pictures side by side."""
    parts = [part.crop((0, 0, part.width, min(part.height, MAX_HEIGHT))) for part in parts]
    size = sum(part.width + GAP for part in parts) - GAP, max(part.height for part in parts)
    sheet, left = Image.new("RGB", size, (128, 128, 128)), 0
    for part in parts:
        sheet.paste(part, (left, 0))
        left += part.width + GAP
    sheet.save(IMAGES / "report" / f"{name}.webp", quality=50, method=6)


if __name__ == "__main__":
    main(*sys.argv[1:])
