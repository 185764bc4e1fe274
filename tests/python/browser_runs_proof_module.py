"""Runs the module that pages check proofs by in a headless Chromium.

Reads one JSON object: `module` and the list `inputs`, in base64. Prints the list of the texts that the module returns,
or the browser's words where it breaks off."""

import json
import sys

from browser import open_browser

# As `checkInPage` in the pages' script: room for the input, the check, and the text of its result.
RUN = """
const [module, inputs, done] = arguments;
const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
WebAssembly.compile(bytes(module)).then(async (compiled) => {
  const fresh = async () => (await WebAssembly.instantiate(compiled, {})).exports;
  let exports = await fresh();
  const found = [];
  for (const input of inputs.map(bytes)) {
    try {
      const at = exports.room(input.length) >>> 0;
      new Uint8Array(exports.memory.buffer).set(input, at);
      const length = exports.check() >>> 0;
      found.push(new TextDecoder().decode(new Uint8Array(exports.memory.buffer, exports.result() >>> 0, length)));
    } catch (error) {
      found.push(`broke off: ${error}`);
      exports = await fresh();
    }
  }
  done(found);
}).catch((error) => done([`not compiled: ${error}`]));
"""


def main():
    asked = json.load(sys.stdin)
    driver = open_browser()
    try:
        found = driver.execute_async_script(RUN, asked["module"], asked["inputs"])
    finally:
        driver.quit()
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
