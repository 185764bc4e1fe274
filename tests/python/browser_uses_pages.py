"""A headless Chromium on the facilitator's real pages: signs in, runs jobs, watches one live, cancels it, asks a model,
opens the proof, makes and revokes a key. Every page is checked by axe-core and for texts that overflow or overlap.

Usage: browser_uses_pages.py MUSTER STATE_FOLDER SCREENSHOTS_FOLDER
Prints one JSON object with what it measured."""

import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException, WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

PATIENCE = 90
MOST_WEIGHT = 150 * 1024
SIZES = [(1280, 800), (390, 844)]
SCHEMES = ["light", "dark"]
IMAGE = "muster/hello:latest"

# Elements that people read or press must not lie over one another, and nothing may be wider than the window.
OVERLAPS = """
const shown = [...document.querySelectorAll('h1,h2,p,a,button,input,select,textarea,th,td,dt,dd,label,summary')]
  .filter((e) => e.checkVisibility({checkOpacity: true, checkVisibilityCSS: true}) && !e.closest('.unseen,.skip'))
  .map((e) => [e, e.getBoundingClientRect()])
  .filter(([e, r]) => r.width > 1 && r.height > 1);
const clipped = (e) => { const s = e.closest('.scroll,.log'); return s && s.getBoundingClientRect(); };
const found = [];
for (let i = 0; i < shown.length; i += 1) for (let j = i + 1; j < shown.length; j += 1) {
  const [a, p] = shown[i], [b, q] = shown[j];
  if (a.contains(b) || b.contains(a) || clipped(a) !== clipped(b) && (clipped(a) || clipped(b))) continue;
  if (a.closest('.ask') !== b.closest('.ask')) continue; // the form of the chat stays above what scrolls below it
  const w = Math.min(p.right, q.right) - Math.max(p.left, q.left), h = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
  if (w > 2 && h > 2) found.push(`${a.tagName} "${a.textContent.slice(0, 30)}" over ${b.tagName} "${b.textContent.slice(0, 30)}"`);
}
if (document.documentElement.scrollWidth > document.documentElement.clientWidth) found.push('the page is wider than the window');
return found;
"""


def is_gone(error):
    """Whether an element is not there, or not any more: chromedriver has several ways to say that its page has changed."""
    known = (NoSuchElementException, StaleElementReferenceException)
    return isinstance(error, known) or "does not belong to the document" in str(error)


class Cockpit:
    def __init__(self, muster, folder, shots):
        self.muster, self.folder, self.shots = muster, folder, shots
        options = webdriver.ChromeOptions()
        options.binary_location = "/usr/bin/chromium"
        # Chromium's own sandbox does not run as root; the pages are our own.
        for argument in ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]:
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)
        package = importlib.util.find_spec("axe_playwright_python")
        axe = pathlib.Path(next(iter(package.submodule_search_locations))) / "axe.min.js"
        self.axe = axe.read_text(encoding="utf-8")
        self.checked = []
        self.view(*SIZES[0], "light")

    def view(self, width, height, scheme):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)

    def link(self):
        command = [self.muster, "login", "--web", "--json", "--dir", self.folder]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)["url"]

    def one(self, choose):
        return self.driver.find_element(By.CSS_SELECTOR, choose)

    def text(self, choose="main"):
        """The text of an element; nothing while its page is being exchanged."""
        try:
            return self.one(choose).text
        except WebDriverException as error:
            if not is_gone(error):
                raise
            return ""

    def until(self, what, ask):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                found = ask()
            except WebDriverException as error:
                if not is_gone(error):
                    raise
                found = None
            if found:
                return found
            time.sleep(0.05)  # polls until it is there; PATIENCE is the deadline
        raise AssertionError(f"{what} never came; the page says: {self.text('body')}")

    def fill(self, choose, words):
        field = self.one(choose)
        field.clear()
        field.send_keys(words)

    def go(self, path):
        self.driver.get(self.base + path)

    def check(self, name):
        """Looks at the page in every size and scheme: axe-core, overflow, overlap, and a picture of it."""
        for width, height in SIZES:
            for scheme in SCHEMES:
                self.view(width, height, scheme)
                bad = self.driver.execute_script(OVERLAPS)
                assert not bad, f"{name}, {width} pixels: {bad}"
                self.driver.execute_script(self.axe)
                found = self.driver.execute_async_script(
                    "const done = arguments[0]; axe.run(document, {resultTypes: ['violations']}).then(done)"
                )
                serious = [
                    f"{v['id']} ({v['impact']}): {v['help']}: {v['nodes'][0]['html'][:200]} {v['nodes'][0].get('failureSummary', '')}"
                    for v in found["violations"]
                    if v["impact"] in ("serious", "critical")
                ]
                assert not serious, f"{name}, {width} pixels, {scheme}: {serious}"
                self.driver.save_screenshot(str(self.shots / f"{name}-{width}-{scheme}.png"))
        self.view(*SIZES[0], "light")
        self.checked.append(name)

    def no_complaints(self):
        """The browser has seen no violation of the policy and no error of the script."""
        # A request that was answered 404 while a proof was not there yet is no error.
        bad = [e["message"] for e in self.driver.get_log("browser") if "/chat/proofs/" not in e["message"]]
        assert not bad, bad

    # === What a user does ===

    def sign_in(self):
        link = self.link()
        self.base = link.split("/sign-in")[0]
        self.go("/jobs?status=open")
        assert "/sign-in?next=" in self.driver.current_url
        self.check("sign-in")
        self.driver.get(link)
        self.one("button.main").click()
        self.until("the overview", lambda: self.text("h1") == "Overview")
        cookies = {c["name"]: c for c in self.driver.get_cookies()}
        session = cookies["muster_session"]
        assert session["httpOnly"] and session["sameSite"] == "Strict", session
        assert self.driver.execute_script("return document.cookie") == ""
        self.driver.get(link)
        assert "has been used" in self.text(), self.text()
        # The answer 410 is an error to the browser's log.
        self.driver.get_log("browser")

    def weigh(self):
        """The bytes of the first load: the page, the styles, the script and the icon."""
        self.driver.execute_cdp_cmd("Network.enable", {})
        self.driver.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": True})
        self.go("/")
        self.until("the styles and the script", lambda: self.driver.execute_script(
            "return performance.getEntriesByType('resource').filter((e) => e.transferSize > 0).length >= 2"))
        weight = self.driver.execute_script(
            "return [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]"
            ".reduce((sum, e) => sum + e.transferSize, 0)"
        )
        self.driver.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": False})
        assert 20_000 < weight <= MOST_WEIGHT, weight
        return weight

    def offers(self):
        """A validator tells what its miners offer some seconds after the start."""
        def told():
            self.go("/")
            return "always_on.test" in self.text()

        self.until("an offer of the subnet", told)

    def upload(self):
        self.go("/files")
        with tempfile.NamedTemporaryFile("w", suffix=".txt", prefix="words-") as file:
            file.write("plum apple plum")
            file.flush()
            self.one("#file").send_keys(file.name)
            self.one("#upload button").click()
            name = pathlib.Path(file.name).name
            self.until("the file", lambda: name in self.text("main") and "complete" in self.text("main"))
        self.check("files")
        return name

    def run_with_input(self, file):
        self.go("/jobs/new")
        self.fill("#image", IMAGE)
        self.fill("#command", "words")
        self.one("main details summary").click()
        self.one("[data-add-input]").click()
        assert file in self.one("#inputs").get_attribute("value")
        self.fill("#outputs", "words.json")
        self.check("new-job")
        self.one("form.job-form button.main").click()
        # The page is never loaded again: the script brings the end.
        self.until("the end of the job", lambda: "completed" in self.text("#head h1"))
        self.until("the output", lambda: "plum" in self.text("#log"))
        side = self.text("#side")
        for words in ["Steps", "Way", "executor run", "words.json", "Receipts", "both signatures hold", "Artifacts"]:
            assert words in side, f"{words}: {side}"
        assert "of executor time" in self.text("#head"), self.text("#head")
        self.one("#find").send_keys("plum")
        self.until("a hit", lambda: self.text("#found") == "1 line")
        self.check("job")
        output = self.one("#side a[href$='/download']").get_attribute("href")
        told = self.driver.execute_async_script(
            "const done = arguments[1]; fetch(arguments[0]).then((a) => a.text()).then(done)", output
        )
        assert json.loads(told)["words"] == 3, told

    def watch_and_cancel(self):
        self.go("/jobs/new")
        self.fill("#image", IMAGE)
        self.fill("#command", "probe train 3000")
        self.one("form.job-form button.main").click()
        self.until("live output", lambda: "step 1: accuracy" in self.text("#log"))
        self.until("its status", lambda: "running" in self.text("#head h1"))
        # The program reports itself, and the page shows it without being loaded again.
        self.until("the program's report", lambda: "of 3000" in self.text("#metrics"))
        self.until("its curve", lambda: self.one("#metrics .curve polyline").get_attribute("points"))
        job = self.driver.current_url
        self.check("job-running")
        self.go("/jobs")
        self.until("the job in the list", lambda: "running" in self.text("table"))
        listed = self.driver.current_window_handle
        self.driver.switch_to.new_window("tab")
        self.view(*SIZES[0], "light")
        self.driver.get(job)
        self.until("output from before", lambda: "step 1: accuracy" in self.text("#log"))
        self.until("its metrics", lambda: "loss" in self.text("#metrics"))
        # A status that was on its way may exchange the head before the click.
        self.until("the question", lambda: self.one(".confirm summary").click() or True)
        self.one(".confirm button.danger").click()
        self.until("the end", lambda: "cancelled" in self.text("#head h1"))
        self.until("the party at fault", lambda: "At fault: user" in self.text("#head"))
        self.driver.close()
        self.driver.switch_to.window(listed)
        # The list follows without being loaded again.
        self.until("the end in the list", lambda: "cancelled" in self.text("table"))
        self.check("jobs")

    def chat(self):
        self.go("/chat")
        self.fill("#message", "one two three")
        self.one("#message").send_keys(Keys.ENTER)
        self.until("a proof", lambda: self.driver.find_elements(By.CSS_SELECTOR, ".proof"))
        assert "three" in self.text(".turn.model .words"), self.text("#talk")
        self.one(".proof summary").click()
        proof = self.text(".proof")
        for words in ["Proven", "Miner", "the digest is the signed one", "Checked by the facilitator\u2019s server, not in this page"]:
            assert words in proof, f"{words}: {proof}"
        self.check("chat")

    def keys(self):
        def status(key):
            request = urllib.request.Request(self.base + "/api/v1/jobs/", headers={"Authorization": f"Bearer {key}"})
            try:
                with urllib.request.urlopen(request, timeout=20) as answer:
                    return answer.status
            except urllib.error.HTTPError as refused:
                return refused.code

        self.go("/keys")
        self.fill("#key-name", "from the browser")
        self.one("form[action='/keys'] button.main").click()
        key = self.until("the key", lambda: self.text("#made-key"))
        assert status(key) == 200
        self.go("/keys")
        assert key not in self.driver.page_source
        self.check("keys")
        self.one("form[action$='/revoke']").find_element(By.XPATH, "..").find_element(By.CSS_SELECTOR, "summary").click()
        self.one("form[action$='/revoke'] button").click()
        self.until("the list without it", lambda: "has no API key" in self.text("main"))
        assert status(key) == 401

    def keyboard(self):
        """The first stop of the tabulator leads past the navigation, and every further one is seen."""
        self.go("/")
        body = self.one("body")
        body.send_keys(Keys.TAB)
        focused = self.driver.switch_to.active_element
        assert focused.text == "Skip to content", focused.text
        focused.send_keys(Keys.ENTER)
        assert self.driver.execute_script("return location.hash") == "#main"

    def sign_out(self):
        self.go("/")
        self.one("form[action='/sign-out'] button").click()
        self.until("the sign-in", lambda: self.text("h1") == "Sign in")
        self.go("/jobs")
        assert "/sign-in" in self.driver.current_url

    def run(self):
        self.sign_in()
        weight = self.weigh()
        self.offers()
        file = self.upload()
        self.run_with_input(file)
        self.watch_and_cancel()
        self.chat()
        self.keys()
        self.go("/usage")
        self.check("usage")
        self.go("/")
        self.check("overview")
        self.keyboard()
        self.no_complaints()
        self.sign_out()
        return {"weight": weight, "checked": self.checked}


def main():
    muster, folder, shots = sys.argv[1:4]
    cockpit = Cockpit(muster, folder, pathlib.Path(shots))
    try:
        print(json.dumps(cockpit.run()))
    finally:
        cockpit.driver.quit()


if __name__ == "__main__":
    main()
