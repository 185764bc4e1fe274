"""What a browser does on the pages of the operators of a validator and of a miner: it signs in with the token, looks at every
page, and signs out. Every page is checked as those of users are."""

import pathlib
import subprocess
import tarfile
import tempfile

VALIDATOR_PAGES = [("/", "Subnet"), ("/jobs", "Jobs"), ("/grading", "Grading"), ("/weights", "Weights"), ("/sessions", "Sessions"),
    ("/audits", "Audits")]
MINER_PAGES = [("/", "Executors"), ("/leases", "Leases"), ("/declines", "Declined offers"), ("/earnings", "Earnings"),
    ("/grades", "Grades")]
# The name of a program: markup that is wider than any window.
HOSTILE_PROGRAM = "<script>alert(1)</script><img/src=x/onerror=alert(2)>" + "W" * 200
# An image without any file, so that no program is in it.
EMPTY_IMAGE = "muster/empty-test:1"


class OperatorsPages:
    def __init__(self, browser):
        self.browser = browser
        self.checked = []

    def check(self, name):
        self.browser.check(name)
        self.checked.append(self.browser.checked.pop())

    def run_hostile_job(self):
        """The failure repeats the name of the program, so the words come to the miner, the validator and the user."""
        browser = self.browser
        with tempfile.NamedTemporaryFile(suffix=".tar") as empty:
            tarfile.open(empty.name, "w").close()
            subprocess.run(["docker", "import", empty.name, EMPTY_IMAGE], check=True, capture_output=True)
        command = [browser.muster, "job", "run", "--dir", browser.folder, EMPTY_IMAGE, "--", HOSTILE_PROGRAM]
        ran = subprocess.run(command, capture_output=True, text=True)
        assert ran.returncode != 0, ran

    def sign_in_with(self, operated):
        browser = self.browser
        browser.base = operated["url"]
        browser.go("/")
        browser.until("the sign-in", lambda: browser.text("h1") == "Sign in")
        assert browser.driver.current_url.endswith("/sign-in"), browser.driver.current_url
        browser.fill("#token", "0" * 64)
        browser.one("button.main").click()
        browser.until("the refusal", lambda: "not the operator's token" in browser.text())
        # The answer 401 is an error to the browser's log.
        browser.driver.get_log("browser")
        self.check("operator-sign-in")
        browser.fill("#token", pathlib.Path(operated["token"]).read_text(encoding="utf-8").strip())
        browser.one("button.main").click()
        browser.until("the first page", lambda: browser.text("h1") not in ("", "Sign in"))
        cookie = {c["name"]: c for c in browser.driver.get_cookies()}["muster_operator"]
        assert cookie["httpOnly"] and cookie["sameSite"] == "Strict", cookie
        assert browser.driver.execute_script("return document.cookie") == ""

    def look(self, role, pages):
        browser = self.browser
        for path, title in pages:
            browser.go(path)
            assert browser.text("h1") == title, (path, browser.text("body"))
            assert not browser.driver.find_elements("css selector", "main .problem"), (path, browser.text())
            browser.only_text(path)
            self.check(f"{role}-{title.lower().replace(' ', '-')}")
        browser.no_complaints()

    def sign_out(self):
        browser = self.browser
        browser.one("form[action='/sign-out'] button").click()
        browser.until("the sign-in", lambda: browser.text("h1") == "Sign in")
        browser.go("/jobs")
        assert "/sign-in" in browser.driver.current_url, browser.driver.current_url

    def of_validator(self, operated):
        browser = self.browser
        self.sign_in_with(operated)
        assert "connected" in browser.text(), browser.text()
        # A cycle of the local chain takes seconds.
        browser.until("a scored cycle", lambda: browser.go("/weights") or "The score of cycle" in browser.text())
        browser.until("weights on the chain", lambda: browser.go("/weights") or "set" in browser.text("#cycles ~ .scroll"))
        self.look("validator", VALIDATOR_PAGES)
        browser.go("/jobs")
        assert "failed" in browser.text() and "completed" in browser.text(), browser.text()
        assert "<script>alert(1)</script>" in browser.text(), browser.text()
        browser.one("th a[href^='/jobs/']").click()
        browser.until("the route", lambda: browser.text("h1") == "Route of a job")
        assert "asked" in browser.text("#attempt-1 ~ .scroll"), browser.text()
        self.check("validator-route")
        browser.go("/jobs")
        browser.one("td a[href^='/miners/']").click()
        browser.until("the miner's page", lambda: browser.text("h1") == "Miner")
        self.check("validator-miner")
        browser.go("/subnet")
        assert browser.text("h1") == "The subnet now", browser.text()
        self.check("public-subnet")
        browser.go("/")
        self.sign_out()

    def is_graded(self):
        """Has the miner graded, and reads its page. A miner reads the statements of this cycle and of the one before, so one
        that is busy may miss a grade of two cycles ago."""
        browser = self.browser
        subprocess.run([browser.muster, "grade", "run", "--dir", browser.folder], capture_output=True)
        browser.go("/grades")
        return "Proven executors" in browser.text()

    def of_miner(self, operated):
        browser = self.browser
        self.sign_in_with(operated)
        browser.until("the executor", lambda: browser.go("/") or "box-1" in browser.text())
        browser.until("a grade", self.is_graded)
        self.look("miner", MINER_PAGES)
        browser.go("/leases")
        assert "<script>alert(1)</script>" in browser.text(), browser.text()
        browser.go("/grades")
        assert "announced probes" in browser.text() and "of" in browser.text("tbody td"), browser.text()
        browser.go("/earnings")
        assert int(browser.text("tbody td")) >= 2, browser.text()
        assert len(browser.driver.find_elements("css selector", "#receipts ~ .scroll tbody tr")) >= 2, browser.text()
        self.sign_out()

    def run(self, validator, miner):
        self.run_hostile_job()
        self.of_validator(validator)
        self.of_miner(miner)
