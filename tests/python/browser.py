"""A headless Chromium, and the patience of tests."""

import os

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

# In seconds, as all tests have it.
PATIENCE = int(os.environ.get("MUSTER_TEST_PATIENCE", "240"))


def open_browser():
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    # Chromium's own sandbox does not run as root; the pages are our own.
    for argument in ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)
    # axe-core takes its time on a machine that does other work.
    driver.set_script_timeout(PATIENCE)
    return driver
