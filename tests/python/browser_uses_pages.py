"""A headless Chromium on the real pages of one subnet.

On the facilitator's it signs in, runs jobs, watches one live, cancels it, asks a model, opens the proof, makes and revokes
a key, works with the keyboard alone, and tries another account's ids. Then it reads the pages of the operators of the
validator and of the miner. Every page is checked by axe-core and for texts that overflow or overlap.

Usage: browser_uses_pages.py ARGUMENTS, one JSON object: `muster` (the program), `folder` (the subnet's), `validator` and
`miner` (each with `url` and `token`, a file), and `pictures` (a folder for pictures of the pages, or null).
Prints one JSON object with what it measured."""

import importlib.util
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from browser import PATIENCE, open_browser
from operators_pages import OperatorsPages
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException, WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

MOST_WEIGHT = 150 * 1024
SIZES = [(1280, 800), (390, 844)]
SCHEMES = ["light", "dark"]
# More than the executors of the subnet.
MANY = 4
IMAGE = "muster/hello:latest"
# Markup, an escape sequence that colours, one that renames a window, a turn of direction, and a word wider than windows.
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31mred\x1b[0m\x1b]0;t\x07\u202egnp.exe" + "W" * 300

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
    def __init__(self, muster, folder, pictures):
        self.muster, self.folder, self.pictures = muster, folder, pictures
        # Each size and each scheme once; with a folder for pictures, as the soak has one, every pair of them.
        self.looks = list(itertools.product(SIZES, SCHEMES) if pictures else zip(SIZES, SCHEMES, strict=True))
        self.driver = open_browser()
        package = importlib.util.find_spec("axe_playwright_python")
        axe = pathlib.Path(next(iter(package.submodule_search_locations))) / "axe.min.js"
        self.axe = axe.read_text(encoding="utf-8")
        self.checked = []
        self.begun = time.monotonic()
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
        begun = reported = time.monotonic()
        while (now := time.monotonic()) < begun + PATIENCE:
            if now >= reported + 30:
                reported = now
                print(f"after {now - begun:.0f} s still waiting: {what}", file=sys.stderr)
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

    def run_muster(self, *args, folder=None):
        """What a command of the user's prints."""
        place = ["--dir", folder or self.folder]
        done = subprocess.run([self.muster, *args[:2], *place, *args[2:]], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def only_text(self, path):
        """Nothing of what strangers wrote has become an element, or a character that a terminal obeys."""
        made = self.driver.find_elements(By.CSS_SELECTOR, "main img, main script, main iframe, main style")
        assert not made, (path, [element.get_attribute("outerHTML") for element in made])
        assert not {"\u001b", "\u0007", "\u202e"} & set(self.driver.page_source), path

    def check(self, name):
        """Looks at the page in each size and in each scheme: axe-core, overflow, overlap, and a picture of it."""
        if not self.driver.execute_script("return 'axe' in window"):
            self.driver.execute_script(self.axe)
        for (width, height), scheme in self.looks:
            self.view(width, height, scheme)
            bad = self.driver.execute_script(OVERLAPS)
            assert not bad, f"{name}, {width} pixels: {bad}"
            # Lines of output are alike: the first forty are enough.
            found = self.driver.execute_async_script(
                "const done = arguments[0]; axe.run({exclude: [['.line:nth-child(n+40)']]}, {resultTypes: ['violations']}).then(done)"
            )
            serious = [
                f"{v['id']} ({v['impact']}): {v['help']}: {v['nodes'][0]['html'][:200]} {v['nodes'][0].get('failureSummary', '')}"
                for v in found["violations"]
                if v["impact"] in ("serious", "critical")
            ]
            assert not serious, f"{name}, {width} pixels, {scheme}: {serious}"
            if self.pictures:
                self.driver.save_screenshot(f"{self.pictures}/{name}-{width}-{scheme}.png")
        self.view(*SIZES[0], "light")
        self.checked.append(name)
        # A walk that is stopped shows how far it was.
        print(f"{time.monotonic() - self.begun:.1f} s: {name} is checked", file=sys.stderr)

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
        self.until("the end of the job", lambda: "done" in self.text("#head h1"))
        self.until("the output", lambda: "plum" in self.text("#log"))
        self.until("the receipts", lambda: "both signatures hold" in self.text("#side"))
        side = self.text("#side")
        for words in ["Steps", "words.json", "Receipts", "both signatures hold", "Artifacts"]:
            assert words in side, f"{words}: {side}"
        # The stages within the second level are folded.
        assert "Way" in self.text("#way-of-job") and "executor run" not in self.text("#way-of-job")
        self.one("#way-of-job summary").click()
        self.until("the folded stages", lambda: "executor run" in self.text("#way-of-job"))
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

    def hostile_words(self):
        """A pasted specification whose words are no text of ours: they stay words, live and after the end."""
        self.go("/jobs/new")
        validator, executor_class = self.one("#target").get_attribute("value").split("/")
        spec = {
            "target_validator_hotkey": validator, "executor_class": executor_class, "docker_image": IMAGE,
            "args": ["probe", "say", "3000", HOSTILE], "env": {"A": HOSTILE}, "use_gpu": False, "artifacts_dir": "/artifacts",
            "on_trusted_miner": False, "download_time_limit": PATIENCE, "execution_time_limit": PATIENCE,
            "streaming_start_time_limit": PATIENCE, "upload_time_limit": PATIENCE,
        }
        self.one("details.spec summary").click()
        self.fill("#spec", json.dumps(spec))
        self.one("details.spec button").click()
        self.until("its words live", lambda: "alert(1)" in self.text("#log") and "running" in self.text("#head h1"))
        self.only_text("a running job")
        job = self.driver.current_url.rsplit("/", 1)[-1]
        self.run_muster("job", "cancel", job)
        self.until("its end", lambda: "cancelled" in self.text("#head h1"))
        for place in ["#log", "#side"]:
            self.until(f"its words in {place}", lambda place=place: "<script>alert(1)</script><img src=x" in self.text(place))
        self.only_text("a job that has ended")
        self.check("job-hostile-words")
        return job

    def fail_by_own_fault(self):
        """A program that fails, and prints more than a page holds."""
        failed = self.run_muster("job", "run", IMAGE, "--detach", "--", "probe", "exit", "3")
        self.go(f"/jobs/{failed}")
        self.until("its end", lambda: "failed" in self.text("#head h1"))
        failure = self.text(".failure")
        assert "exit code 3" in failure and "At fault: user" in failure, failure
        self.until("its route", lambda: all(words in self.text("#route ~ ol") for words in ["Asked", "could be asked"]))
        self.check("job-failed")
        talkative = self.run_muster("job", "run", IMAGE, "--detach", "--", "probe", "print", "250000")
        self.go(f"/jobs/{talkative}")
        self.until("its end", lambda: "done" in self.text("#head h1"))
        self.until("the end of its output", lambda: self.text("#log").rstrip().endswith("end"))
        self.go(f"/jobs/{talkative}")
        assert "are left out here" in self.driver.find_element(By.ID, "log").get_attribute("textContent")
        self.check("job-long-output")
        self.go("/jobs")
        self.one(".choices a[href$='failed']").click()
        self.until("the failed jobs", lambda: failed[:8] in self.text("table"))
        assert talkative[:8] not in self.text("table"), self.text("table")

    def wait_in_the_queue(self):
        """More jobs than executors: the page of the last one tells its place and the reason."""
        jobs = [self.run_muster("job", "run", IMAGE, "--detach", "--", "probe", "sleep", "3000") for _ in range(MANY)]
        self.go(f"/jobs/{jobs[-1]}")
        self.until("its place", lambda: "Waits for an executor: place" in self.text("#head"))
        self.check("job-waiting")
        for job in reversed(jobs):
            self.run_muster("job", "cancel", job)
        self.until("its end", lambda: "cancelled" in self.text("#head h1"))

    def chat(self):
        self.go("/chat")
        self.fill("#message", "one two three")
        self.one("#message").send_keys(Keys.ENTER)
        self.until("a proof", lambda: self.driver.find_elements(By.CSS_SELECTOR, ".proof"))
        assert "three" in self.text(".turn.model .words"), self.text("#talk")
        self.one(".proof summary").click()
        proof = self.text(".proof")
        for words in ["Proven", "Miner", "the digest is the signed one", "Checked in this page", "byte for byte"]:
            assert words in proof, f"{words}: {proof}"
        self.check("chat")
        # An answer that somebody between has altered, and then a browser that runs no modules.
        for alter, words in [
            ("const read = Response.prototype.text; Response.prototype.text = async function () { const t = await read.call(this);"
             " return t.replace(/attestation&quot;:&quot;.{40}/, (m) => m.slice(0, -1) + (m.endsWith('A') ? 'B' : 'A')); };", "Not proven"),
            ("WebAssembly.instantiateStreaming = () => Promise.reject(new Error('none'));", "not in this page"),
        ]:
            self.go("/chat")
            self.driver.execute_script(alter)
            self.fill("#message", "one two three")
            self.one("#message").send_keys(Keys.ENTER)
            self.until("a proof", lambda: self.driver.find_elements(By.CSS_SELECTOR, ".proof"))
            self.one(".proof summary").click()
            assert words in self.text(".proof"), self.text(".proof")

    def keys(self):
        def status(key):
            request = urllib.request.Request(self.base + "/api/v1/jobs/", headers={"Authorization": f"Bearer {key}"})
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
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

    def tab_to(self, what, is_there):
        """Presses the tabulator until the focus is there. Every stop on the way is in sight and framed."""
        for _ in range(60):
            self.driver.switch_to.active_element.send_keys(Keys.TAB)
            focused = self.driver.switch_to.active_element
            seen = self.driver.execute_script(
                "const e = arguments[0], r = e.getBoundingClientRect(), s = getComputedStyle(e);"
                "return r.width > 1 && r.height > 1 && r.bottom > 0 && r.top < innerHeight && s.outlineStyle !== 'none';", focused
            )
            assert seen, f"the focus cannot be seen: {focused.get_attribute('outerHTML')[:200]}"
            if is_there(focused):
                return focused
        raise AssertionError(f"the keyboard never comes to {what}")

    def keyboard(self):
        """The first stop of the tabulator leads past the navigation. A job is started, cancelled and run again without a
        pointer."""
        self.go("/")
        body = self.one("body")
        body.send_keys(Keys.TAB)
        focused = self.driver.switch_to.active_element
        assert focused.text == "Skip to content", focused.text
        focused.send_keys(Keys.ENTER)
        assert self.driver.execute_script("return location.hash") == "#main"
        self.tab_to("New job", lambda e: e.text == "New job").send_keys(Keys.ENTER)
        self.until("the form", lambda: self.text("h1") == "New job")
        self.tab_to("the image", lambda e: e.get_attribute("id") == "image").send_keys(IMAGE)
        self.tab_to("the command", lambda e: e.get_attribute("id") == "command").send_keys("probe sleep 3000")
        self.tab_to("Start", lambda e: e.text == "Start").send_keys(Keys.ENTER)
        self.until("the job", lambda: "running" in self.text("#head h1"))
        cancel = self.tab_to("Cancel", lambda e: e.text == "Cancel")
        cancel.send_keys(Keys.ENTER)
        self.until("the question", lambda: "Cancel the job" in self.text("details.confirm"))
        cancel.send_keys(Keys.ESCAPE)
        self.until("no question", lambda: "Cancel the job" not in self.text("details.confirm"))
        assert self.driver.switch_to.active_element.text == "Cancel"
        self.driver.switch_to.active_element.send_keys(Keys.ENTER)
        self.tab_to("the answer", lambda e: e.text == "Cancel the job").send_keys(Keys.ENTER)
        self.until("the end", lambda: "cancelled" in self.text("#head h1"))
        self.one("body").send_keys(Keys.TAB)
        self.tab_to("Run again", lambda e: e.text == "Run again").send_keys(Keys.ENTER)
        self.until("the form of the same job", lambda: self.one("#command").get_attribute("value") == "probe sleep 3000")

    def other_account(self, job):
        """Another account finds nothing of the first one, whatever it asks for."""
        with tempfile.TemporaryDirectory() as home:
            def muster(*args):
                done = subprocess.run([self.muster, *args], capture_output=True, text=True, cwd=home, env={"HOME": home, "PATH": "/usr/bin:/bin"})
                assert done.returncode == 0, done
                return done.stdout

            wallets = ["--wallets", f"{home}/wallets"]
            muster("wallet", "new", "other", *wallets)
            muster("login", "--facilitator", self.base, "--wallet", "other", *wallets)
            link = json.loads(muster("login", "--web", "--json"))["url"]
        self.driver.get(link)
        self.one("button.main").click()
        self.until("the overview", lambda: self.text("h1") == "Overview")
        assert job[:8] not in self.text("main"), self.text("main")
        for path in [f"/jobs/{job}", f"/jobs/new?from={job}"]:
            self.go(path)
            assert "Not found" in self.text("h1") and "probe" not in self.driver.page_source, self.text("body")
        for path in ["events", "output/stdout", "artifacts/0"]:
            status = self.driver.execute_async_script(
                "const done = arguments[1]; fetch(arguments[0]).then((a) => done(a.status))", f"/jobs/{job}/{path}"
            )
            assert status == 404, (path, status)
        self.go("/jobs")
        assert "No jobs" in self.text("main"), self.text("main")

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
        hostile = self.hostile_words()
        self.fail_by_own_fault()
        self.wait_in_the_queue()
        self.chat()
        self.keys()
        self.go("/usage")
        self.check("usage")
        self.go("/")
        self.check("overview")
        self.keyboard()
        self.no_complaints()
        self.sign_out()
        self.other_account(hostile)
        return {"weight": weight}


def main():
    arguments = json.loads(sys.argv[1])
    cockpit = Cockpit(arguments["muster"], arguments["folder"], arguments["pictures"])
    try:
        told = cockpit.run()
        operators = OperatorsPages(cockpit)
        operators.run(arguments["validator"], arguments["miner"])
        print(json.dumps(told | {"checked": cockpit.checked, "operators": operators.checked}))
    finally:
        cockpit.driver.quit()


if __name__ == "__main__":
    main()
