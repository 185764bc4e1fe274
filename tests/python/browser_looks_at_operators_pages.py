"""A headless Chromium on the operators' pages of a validator and a miner: signs in with the token, looks at every page,
and signs out. Every page is checked as those of users are.

Usage: browser_looks_at_operators_pages.py VALIDATOR MINER VALIDATOR_TOKEN_FILE MINER_TOKEN_FILE SCREENSHOTS_FOLDER
Prints one JSON object with the pages that it checked."""

import json
import pathlib
import sys

from browser_uses_pages import Cockpit

VALIDATOR_PAGES = [("/", "Subnet"), ("/jobs", "Jobs"), ("/grading", "Grading"), ("/weights", "Weights"), ("/sessions", "Sessions"),
    ("/audits", "Audits")]
MINER_PAGES = [("/", "Executors"), ("/leases", "Leases"), ("/declines", "Declined offers"), ("/earnings", "Earnings"),
    ("/grades", "Grades")]


class OperatorsBrowser(Cockpit):
    def sign_in_with(self, base, token_file):
        self.base = base
        self.go("/")
        self.until("the sign-in", lambda: self.text("h1") == "Sign in")
        assert self.driver.current_url.endswith("/sign-in"), self.driver.current_url
        self.fill("#token", "0" * 64)
        self.one("button.main").click()
        self.until("the refusal", lambda: "not the operator's token" in self.text())
        # The answer 401 is an error to the browser's log.
        self.driver.get_log("browser")
        self.check("operator-sign-in")
        self.fill("#token", pathlib.Path(token_file).read_text(encoding="utf-8").strip())
        self.one("button.main").click()
        self.until("the first page", lambda: self.text("h1") not in ("", "Sign in"))
        cookie = {c["name"]: c for c in self.driver.get_cookies()}["muster_operator"]
        assert cookie["httpOnly"] and cookie["sameSite"] == "Strict", cookie
        assert self.driver.execute_script("return document.cookie") == ""

    def look(self, role, pages):
        for path, title in pages:
            self.go(path)
            assert self.text("h1") == title, (path, self.text("body"))
            assert not self.driver.find_elements("css selector", "main .problem"), (path, self.text())
            self.only_text(path)
            self.check(f"{role}-{title.lower().replace(' ', '-')}")
        self.no_complaints()

    def sign_out(self):
        self.one("form[action='/sign-out'] button").click()
        self.until("the sign-in", lambda: self.text("h1") == "Sign in")
        self.go("/jobs")
        assert "/sign-in" in self.driver.current_url, self.driver.current_url


def main():
    validator, miner, validator_token, miner_token, shots = sys.argv[1:6]
    browser = OperatorsBrowser(None, None, pathlib.Path(shots))
    try:
        browser.sign_in_with(validator, validator_token)
        assert "connected" in browser.text(), browser.text()
        # A cycle of the local chain takes seconds.
        browser.until("a scored cycle", lambda: browser.go("/weights") or "The score of cycle" in browser.text())
        browser.until("weights on the chain", lambda: browser.go("/weights") or "set" in browser.text("#cycles ~ .scroll"))
        browser.look("validator", VALIDATOR_PAGES)
        browser.go("/jobs")
        assert "failed" in browser.text() and "completed" in browser.text(), browser.text()
        assert "<script>alert(1)</script>" in browser.text(), browser.text()
        browser.one("th a[href^='/jobs/']").click()
        browser.until("the route", lambda: browser.text("h1") == "Route of a job")
        assert "asked" in browser.text("#attempt-1 ~ .scroll"), browser.text()
        browser.check("validator-route")
        browser.go("/jobs")
        browser.one("td a[href^='/miners/']").click()
        browser.until("the miner's page", lambda: browser.text("h1") == "Miner")
        browser.check("validator-miner")
        browser.go("/subnet")
        assert browser.text("h1") == "The subnet now", browser.text()
        browser.check("public-subnet")
        browser.go("/")
        browser.sign_out()
        browser.sign_in_with(miner, miner_token)
        browser.until("the executor", lambda: browser.go("/") or "box-1" in browser.text())
        browser.until("a grade", lambda: browser.go("/grades") or "Proven executors" in browser.text())
        browser.look("miner", MINER_PAGES)
        browser.go("/leases")
        assert "<script>alert(1)</script>" in browser.text(), browser.text()
        browser.go("/grades")
        assert "announced probes" in browser.text() and "of" in browser.text("tbody td"), browser.text()
        browser.go("/earnings")
        assert int(browser.text("tbody td")) >= 2, browser.text()
        assert len(browser.driver.find_elements("css selector", "#receipts ~ .scroll tbody tr")) >= 2, browser.text()
        browser.sign_out()
        print(json.dumps({"checked": browser.checked}))
    finally:
        browser.driver.quit()


if __name__ == "__main__":
    main()
