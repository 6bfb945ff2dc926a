"""Chromium without a window: opens pages one after the other, and says what it saw."""

import html
import json
import re
import shutil
import subprocess

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((path for path in map(shutil.which, NAMES) if path), None)
# a page that shows every other page in a frame of the window's width, and writes down what it finds
TOUR = """<!doctype html><meta charset="utf-8"><body style="margin:0"><script>
const pages = %s, seen = [];
const frame = document.body.appendChild(document.createElement("iframe"));
frame.style = "border:0;width:%dpx;height:900px";
async function look(page) {
  const errors = [];
  await new Promise((done) => {
    frame.onload = done;
    frame.src = page;
  });
  const inside = frame.contentWindow, body = frame.contentDocument;
  inside.addEventListener("error", (event) => errors.push(event.message));
  for (const image of body.images) {
    image.loading = "eager";
    if (!image.complete)  // decode() would wait for a frame, which virtual time does not bring
      await new Promise((done) => { image.onload = image.onerror = done; });
  }
  await new Promise((done) => setTimeout(done, 50));
  const broken = [...body.images].filter((image) => image.naturalWidth === 0);
  const missing = broken.map((image) => image.src);
  const wide = body.documentElement.scrollWidth - inside.innerWidth;
  seen.push({page, title: body.title, errors, missing, wide, images: body.images.length,
             text: body.body.innerText.length});
}
(async () => {
  for (const page of pages)
    await look(page).catch((error) => seen.push({page, errors: [String(error)]}));
  document.body.innerHTML = "<pre id=seen></pre>";
  document.getElementById("seen").textContent = JSON.stringify(seen);
})();
</script>"""


def run(url, folder, *options, seconds=600):
    """Open an address from disk; return the page as the browser has it, and its console."""
    command = [
        str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
        "--allow-file-access-from-files", f"--user-data-dir={folder / 'profile'}", *options,
        "--dump-dom", url,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def open_all(pages, folder, *, width):
    """Open every page at one width; return what was seen of each, and the console."""
    tour = folder / "tour.html"
    tour.write_text(TOUR % (json.dumps([page.as_uri() for page in pages]), width))
    budget = 2000 * len(pages)
    size = f"--window-size={max(width, 600)},1000"
    shown, console = run(tour.as_uri(), folder, size, f"--virtual-time-budget={budget}")
    found = re.search(r'<pre id="seen">(.*?)</pre>', shown, re.DOTALL)
    assert found, "the browser did not finish"
    return json.loads(html.unescape(found[1])), console
