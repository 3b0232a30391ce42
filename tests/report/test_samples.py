"""Samples, pictures, classes and features of the page in a real browser."""

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from browsing import open_page
from PIL import Image
from runs import made_up_run

from marginattack.report import pictures, write_report
from marginattack.report.datasets import WEAKEST, build_views
from marginattack.report.series import group_by_norm, read_runs
from marginattack.report.summary import summarize_classes

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytest_plugins = ["report_fixtures"]

PIXELS = """(canvas) => {
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", {willReadFrequently: true});
    copy.drawImage(canvas, 0, 0);
    return [...copy.getImageData(0, 0, canvas.width, canvas.height).data];
}"""
PAINTED = "document.querySelectorAll('dialog canvas').length === 3 && document.querySelector('dialog canvas').width > 1"


def test_the_dialog_amplifies_and_moves_on_by_keyboard(browser: "Browser", photos_page: Path) -> None:
    with open_page(browser, photos_page) as page:
        small = page.locator("#samples .trio canvas").first.bounding_box()
        assert small is not None
        assert small["width"] >= 96
        page.locator("#samples .item .name").first.focus()
        page.keyboard.press("Enter")
        dialog = page.locator("dialog[open]")
        page.wait_for_function(PAINTED)
        original, adversarial, difference = dialog.locator("canvas").all()
        page.wait_for_timeout(100)
        before, shifted, full = (canvas.evaluate(PIXELS) for canvas in (original, adversarial, difference))
        assert before != shifted
        red, blue = (sum(full[i] > full[i + 2] + 8 for i in range(0, len(full), 4)),
                     sum(full[i + 2] > full[i] + 8 for i in range(0, len(full), 4)))  # fmt: skip
        assert min(red, blue) > 200  # both signs, around white
        dialog.locator("#gain").focus()
        page.keyboard.press("Home")
        assert dialog.locator("#gain-text").inner_text() == "× 1"
        page.wait_for_timeout(100)
        assert sum(difference.evaluate(PIXELS)) > sum(full)  # paler
        dialog.locator("#map").select_option("channels")
        page.wait_for_timeout(100)
        grey = difference.evaluate(PIXELS)
        assert sum(abs(grey[i] - 127) < 20 for i in range(0, len(grey), 4)) > len(grey) / 8
        dialog.locator(".step").last.focus()
        title, text = dialog.locator(".title"), dialog.inner_text()
        assert all(word in text for word in ("photos/", "Label", "Adversarial class", "Margin, ℓ∞", "Passes"))
        first = title.inner_text()
        page.keyboard.press("ArrowRight")
        assert title.inner_text() != first
        page.keyboard.press("ArrowLeft")
        assert title.inner_text() == first
        page.keyboard.press("Escape")
        page.wait_for_function("!document.querySelector('dialog').open")
        assert page.evaluate("document.activeElement === document.querySelector('#samples .item .name')")


def test_samples_and_classes_have_names_and_are_found_by_them(browser: "Browser", photos_page: Path) -> None:
    with open_page(browser, photos_page) as page:
        table = page.locator("#samples table.samples").first
        assert table.locator("tbody tr").count() == 20
        row = table.locator("tbody tr").first
        assert row.locator(".name").inner_text().startswith("photos/00")
        assert row.locator(".copy").get_attribute("data-text") == row.locator(".name").inner_text()
        assert row.locator("td").nth(1).inner_text().startswith("animal ")
        assert "/255" in row.locator("td").nth(2).inner_text()
        csv = page.locator("#samples a[download]").first.get_attribute("href") or ""
        assert csv.count("photos%2F") + csv.count("photos/") == 20
        page.locator("#group").select_option("Misclassified")
        assert not row.is_visible()
        assert "misclassified with confidence" in page.locator("#samples table.samples:visible").inner_text()
        classes = page.locator("#classes table.by-class")
        assert classes.locator("tbody tr").count() == 20
        name = classes.locator("tbody tr").last.locator("th span").get_attribute("title") or ""
        page.locator(".class-search").fill(name.split(",")[0].upper() + ",")
        assert [text.split(",")[0] for text in classes.locator("tbody th").all_inner_texts()] == [name.split(",")[0]]
        assert page.locator(".search output").inner_text() == "1 class matches."
        page.locator(".class-search").fill("")
        assert classes.locator("tbody tr").count() == 20
        assert "which class is weakest is uncertain" in page.locator("#classes").inner_text()


def test_tables_show_which_features_change(browser: "Browser", table_page: Path) -> None:
    with open_page(browser, table_page) as page:
        assert page.locator("#features tbody tr").count() == 12
        assert page.locator("input[name=unit]").count() == 0  # there are no pixels
        page.locator("#samples .item .name").first.click()
        dialog = page.locator("dialog[open]")
        assert dialog.locator("tbody tr").count() > 1
        assert "feature_" in dialog.locator("tbody th").first.inner_text()
        assert not dialog.locator(".controls").is_visible()
        page.keyboard.press("Escape")


def test_sounds_are_drawn_as_waveforms(browser: "Browser", waves_page: Path) -> None:
    path = "all => all.map(svg => [...svg.querySelectorAll('path')].map(p => p.getAttribute('d').split('L').length))"
    with open_page(browser, waves_page) as page:
        page.evaluate("report.pictured")
        small = page.locator("#samples svg.wave:visible").evaluate_all(path)
        assert len(small) == 20
        assert all(len(lines) == 2 and min(lines) == 400 for lines in small)  # input and adversarial example
        assert page.locator("input[name=unit]").count() == 0  # there are no pixels
        page.locator("#samples .item .name").first.focus()
        page.keyboard.press("Enter")
        dialog = page.locator("dialog[open]")
        assert dialog.locator("figcaption").all_inner_texts() == ["Input", "Adversarial example", "Difference"]
        assert not dialog.locator("#map").is_visible()
        line = dialog.locator("svg").last.locator("path")
        before = line.get_attribute("d")
        dialog.locator("#gain").focus()
        page.keyboard.press("Home")
        assert dialog.locator("#gain-text").inner_text() == "× 1"
        assert line.get_attribute("d") != before
        page.keyboard.press("Escape")


def test_photographs_are_shown_at_their_size(browser: "Browser", tmp_path: Path) -> None:
    """Images of 224² are not scaled down, and a page of many stays small."""
    run = made_up_run(tmp_path / "run", 80, norms=("l2",), shape=(3, 224, 224))
    write_report([run], tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 3_000_000  # of random pixels, the worst case
    smooth = np.linspace(0, 1, 3 * 300 * 200).reshape(3, 300, 200)
    picture = pictures._make_image(smooth, np.clip(smooth + 0.01, 0, 1), pictures.SIDES[0])
    image = Image.open(io.BytesIO(base64.b64decode(picture["difference"].split(",")[1])))
    assert max(image.size) == 224
    with open_page(browser, tmp_path / "report.html", width=360) as page:
        boxes = [each.bounding_box() for each in page.locator("#samples .trio").first.locator("canvas").all()]
        assert len({box["y"] for box in boxes if box}) == 1  # all three, side by side
        assert all(box and box["width"] >= 90 for box in boxes)


def test_every_run_shows_its_own_weakest_classes(tmp_path: Path) -> None:
    runs = [made_up_run(tmp_path / name, 400, norms=("l2",), classes=60, model=name, seed=seed)
            for seed, name in enumerate("ab")]  # fmt: skip
    (view,) = build_views(group_by_norm(read_runs(runs)))
    strips = view.datasets["strips"].columns
    for number, series in enumerate(view.group):
        drawn = {name for name, of in zip(strips["from"], strips["series"], strict=True) if of == number}
        ordered = sorted(summarize_classes(series), key=lambda row: row.median)
        assert drawn == {row.number for row in ordered[:WEAKEST]}
    assert len(view.shown) > view.strips == WEAKEST
