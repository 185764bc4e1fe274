// The pages work without this script. It keeps times and statuses current, follows a running job, searches its output,
// holds a conversation, and uploads files. All text from the server is set as text, never as markup.
"use strict";
(() => {
  const one = (choose, within = document) => within.querySelector(choose);
  const all = (choose, within = document) => [...within.querySelectorAll(choose)];
  const say = (words) => { const place = one("#say"); if (place) place.textContent = words; };
  const make = (name, kind, words) => {
    const made = document.createElement(name);
    if (kind) made.className = kind;
    if (words !== undefined) made.textContent = words;
    return made;
  };

  // === Times ===

  const relative = (at, now) => {
    const seconds = Math.floor(Math.abs(now - at) / 1000);
    const [count, unit] = seconds < 60 ? [seconds, "s"] : seconds < 3600 ? [Math.floor(seconds / 60), "min"]
      : seconds < 86400 ? [Math.floor(seconds / 3600), "h"] : [Math.floor(seconds / 86400), "d"];
    return at > now ? `in ${count} ${unit}` : `${count} ${unit} ago`;
  };
  const refreshTimes = () => {
    for (const time of all("time[data-relative]")) {
      const words = relative(Date.parse(time.dateTime), Date.now());
      if (time.textContent !== words) time.textContent = words;
    }
  };
  setInterval(refreshTimes, 1000);

  // The same as `text::span` of the server.
  const span = (milliseconds) => {
    const seconds = Math.max(0, Math.floor(milliseconds / 1000)), two = (n) => String(n).padStart(2, "0");
    if (seconds < 60) return `${seconds} s`;
    if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${two(seconds % 60)} s`;
    if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${two(Math.floor(seconds / 60) % 60)} min`;
    return `${Math.floor(seconds / 86400)} d ${Math.floor(seconds / 3600) % 24} h`;
  };
  setInterval(() => {
    for (const place of all("[data-since]")) place.textContent = span(Date.now() - Date.parse(place.dataset.since));
  }, 1000);

  // === The status of jobs in lists ===

  const parsePage = (text) => new DOMParser().parseFromString(text, "text/html");
  const followList = (table) => {
    const open = all("tr[data-open]", table).map((row) => row.dataset.job);
    if (!open.length) return;
    const source = new EventSource(`/jobs/events?${open.map((id) => `uuid=${id}`).join("&")}`);
    source.addEventListener("job", (event) => {
      const news = JSON.parse(event.data);
      const row = all("tr[data-job]", table).find((row) => row.dataset.job === news.uuid);
      if (!row) return;
      showStatus(one("[data-status]", row), news);
      one("[data-took]", row).textContent = news.took;
      if (news.ended) {
        one("[data-took]", row).removeAttribute("data-since");
        row.removeAttribute("data-open");
        say(`Job ${news.uuid.slice(0, 8)}: ${news.word}`);
      }
      if (!all("tr[data-open]", table).length) source.close();
    });
  };
  const showStatus = (badge, news) => {
    badge.className = `status ${news.kind}`;
    one("[data-word]", badge).textContent = news.word;
    one("path", badge).setAttribute("d", news.shape);
  };

  // === Output as lines ===

  // The same as `text::plain` of the server: colours go, other control characters are seen.
  const plain = (text) => text
    .replace(/\x1b\[[0-9;:]*m/g, "")
    .replace(/\r\n/g, "\n").replace(/\r/g, "\n")
    .replace(/[\x00-\x08\x0b-\x1f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
    .replace(/\x7f/g, "\u2421")
    .replace(/[\x80-\x9f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");

  const MOST_LINES = 5000;
  class Output {
    constructor(box) {
      this.box = box;
      this.pieces = one("[data-pieces]", box);
      this.find = one("#find");
      this.found = one("#found");
      this.follow = one("#follow");
      this.ends = new Map();
      this.open = new Map();
      this.whole = true;
      this.splitStreams();
      this.find.addEventListener("input", () => this.search());
      this.find.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); this.next(); } });
      box.addEventListener("scroll", () => {
        const atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 24;
        if (this.follow.checked !== atEnd && !this.moving) this.follow.checked = atEnd;
        this.moving = false;
      });
      this.follow.addEventListener("change", () => this.toEnd());
      this.toEnd();
    }
    splitStreams() {
      for (const stream of all("pre[data-lines]", this.pieces)) {
        const lines = stream.textContent.replace(/\n$/, "").split("\n").slice(-MOST_LINES);
        stream.replaceChildren(...lines.map((line) => make("span", "line", line)));
        stream.dataset.split = "";
      }
    }
    pane() {
      let pane = one("pre.live", this.pieces);
      if (!pane) {
        pane = make("pre", "live");
        pane.dataset.split = "";
        this.pieces.replaceChildren(pane);
      }
      return pane;
    }
    note(words) { this.pane().append(make("span", "line note", words)); this.open.clear(); }
    // A piece of live output. Pieces can be missing, can come again, and begin anew on another miner.
    add(log) {
      const last = this.ends.get(log.stream);
      const length = new TextEncoder().encode(log.text).length;
      if (last && log.offset <= last.start && Date.parse(log.at) <= last.at) return;
      if (last && log.offset <= last.start) {
        this.note("The program was started again on another miner. The result has what it prints from here on.");
      } else if (log.offset > (last ? last.end : 0)) {
        this.note(`${log.offset - (last ? last.end : 0)} bytes did not come live.`);
      }
      this.ends.set(log.stream, { start: log.offset, end: log.offset + length, at: Date.parse(log.at) });
      const pane = this.pane();
      const parts = plain(log.text).split("\n");
      parts.forEach((part, at) => {
        let line = this.open.get(log.stream);
        if (!line) {
          if (at === parts.length - 1 && part === "") return;
          line = make("span", `line${log.stream === "stderr" ? " stderr" : ""}`, "");
          pane.append(line);
        }
        line.append(part);
        if (at < parts.length - 1) this.open.delete(log.stream); else this.open.set(log.stream, line);
      });
      while (pane.childElementCount > MOST_LINES) pane.firstElementChild.remove();
      if (this.find.value) this.search();
      if (this.follow.checked) this.toEnd();
    }
    replace(pieces) {
      this.pieces.replaceWith(pieces);
      this.pieces = pieces;
      this.splitStreams();
      if (this.find.value) this.search();
      this.toEnd();
    }
    toEnd() { if (this.follow.checked) { this.moving = true; this.box.scrollTop = this.box.scrollHeight; } }
    search() {
      const wanted = this.find.value.toLowerCase();
      let hits = 0;
      for (const line of all(".line", this.pieces)) {
        const hit = wanted !== "" && line.textContent.toLowerCase().includes(wanted);
        line.classList.toggle("hit", hit);
        if (hit) hits += 1;
      }
      this.found.textContent = wanted === "" ? "" : hits === 1 ? "1 line" : `${hits} lines`;
      this.at = -1;
      if (hits) { this.follow.checked = false; this.next(); }
    }
    next() {
      const hits = all(".line.hit", this.pieces);
      if (!hits.length) return;
      this.at = ((this.at ?? -1) + 1) % hits.length;
      this.moving = true;
      hits[this.at].scrollIntoView({ block: "center" });
    }
  }

  // === One job ===

  const followJob = (page) => {
    const output = new Output(one("#log"));
    if (!page.hasAttribute("data-open")) return;
    const id = page.dataset.jobPage;
    const source = new EventSource(`/jobs/${id}/events`);
    let seen = 0, waiting = null, statusChanged = false;
    // A part that is in use stays as it is, or its button would go from under the pointer.
    const inUse = (part) => part.contains(document.activeElement) || one("details.confirm[open]", part);
    const refresh = async () => {
      const afterStatus = statusChanged;
      statusChanged = false;
      waiting = null;
      const answer = await fetch(location.href, { headers: { accept: "text/html" } });
      if (!answer.ok || answer.redirected) return;
      const fresh = parsePage(await answer.text());
      const now = one("[data-job-page]", fresh);
      if (!now) return;
      const ended = !now.hasAttribute("data-open");
      for (const part of all(afterStatus || ended ? "[data-swap]" : "#metrics[data-swap]", page)) {
        const other = one(`#${part.id}`, fresh);
        if (other && (ended || !inUse(part))) part.replaceWith(document.adoptNode(other));
      }
      if (!afterStatus && !ended) return;
      page.dataset.statuses = now.dataset.statuses;
      const word = one("#head [data-word]").textContent;
      document.title = `${word} · Job ${id.slice(0, 8)} · Muster`;
      if (ended) {
        page.removeAttribute("data-open");
        output.replace(document.adoptNode(one("[data-pieces]", fresh)));
        say(`The job has ended: ${word}`);
        source.close();
      } else say(word);
    };
    const soon = () => { if (!waiting) waiting = setTimeout(refresh, 120); };
    const soonAfterStatus = () => { statusChanged = true; soon(); };
    source.addEventListener("status", () => {
      seen += 1;
      one("[data-progress]").hidden = true;
      if (seen > Number(page.dataset.statuses)) soonAfterStatus();
    });
    source.addEventListener("queued", soonAfterStatus);
    // Curves come with the page; a program reports every ten seconds at most.
    source.addEventListener("metrics", soon);
    source.addEventListener("log", (event) => output.add(JSON.parse(event.data)));
    source.addEventListener("progress", (event) => {
      const news = JSON.parse(event.data);
      const place = one("[data-progress]");
      const unit = (amount) => news.stage === "execution" ? `${amount} s` : `${(amount / 1048576).toFixed(1)} MiB`;
      const layers = news.layers ? `, ${news.layers.done} of ${news.layers.total} layers` : "";
      place.textContent = `${news.stage.replace("_", " ")}: ${unit(news.done)}${news.total ? ` of ${unit(news.total)}` : ""}${layers}`;
      place.hidden = false;
    });
  };

  // === A conversation ===

  const digestOf = async (bytes) => {
    if (!crypto.subtle) return null;
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
    return [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  };
  const readEvents = async (body, take) => {
    const reader = body.getReader(), decoder = new TextDecoder(), pieces = [];
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (value) pieces.push(value);
      rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
      const lines = rest.split(/\r?\n/);
      rest = done ? "" : lines.pop();
      for (const line of lines) if (line.startsWith("data:")) take(line.slice(5).trim());
      if (done) return new Uint8Array(await new Blob(pieces).arrayBuffer());
    }
  };
  // The module that checks proofs, once it is needed. It imports nothing.
  let proofModule = null;
  const checkInPage = async (address, head, request, response) => {
    proofModule ??= WebAssembly.instantiateStreaming(fetch(address), {});
    const { exports } = (await proofModule).instance;
    const text = new TextEncoder().encode(JSON.stringify({ ...head, request_bytes: request.length }));
    const length = new Uint8Array(4);
    new DataView(length.buffer).setUint32(0, text.length, true);
    const parts = [length, text, request, response];
    let at = exports.room(parts.reduce((sum, part) => sum + part.length, 0)) >>> 0;
    for (const part of parts) {
      new Uint8Array(exports.memory.buffer).set(part, at);
      at += part.length;
    }
    const told = exports.check() >>> 0;
    return JSON.parse(new TextDecoder().decode(new Uint8Array(exports.memory.buffer, exports.result() >>> 0, told)));
  };
  const converse = (place) => {
    const form = one("#ask"), talk = one("#talk"), stop = one("#stop"), message = one("#message");
    const send = one("button[type=submit]", form), said = [];
    const headers = { "content-type": "application/json", "muster-form-token": place.dataset.formToken };
    let asked = null;
    const turn = (kind, by) => {
      const box = make("div", `turn ${kind}`), words = make("div", "words");
      box.append(make("div", "by", by), words);
      const empty = one("[data-empty]", talk);
      if (empty) empty.remove();
      talk.append(box);
      box.scrollIntoView({ block: "nearest" });
      return { box, words };
    };
    // Checks a proof in the page. Where the browser runs no module, the server's check stands, and the page says so.
    const checkAgain = async (proof, head, request, response) => {
      let checked;
      try {
        checked = await checkInPage(place.dataset.module, { ...head, proof: JSON.parse(proof.dataset.signed) }, request, response);
      } catch {
        // The next answer tries to load it again.
        proofModule = null;
        return;
      }
      one("[data-checked-by]", proof).textContent = "Checked in this page, by a module of this facilitator: the signatures of the "
        + "miner and of the session, and that they bind what this page sent and what it got, byte for byte.";
      if (checked.defect) {
        const word = one("summary span", proof);
        word.className = "bad";
        word.textContent = "Not proven";
        one("summary", proof).after(make("p", "", checked.defect));
      }
    };
    const showProof = async (box, { id, digest, status, type, request, response }) => {
      for (let look = 0; look < 20; look += 1) {
        const answer = await fetch(`/chat/proofs/${encodeURIComponent(id)}`);
        if (answer.ok) {
          const proof = one(".proof", parsePage(await answer.text()));
          const sent = one("[data-sent]", proof);
          if (digest && proof.dataset.input) {
            sent.textContent = digest === proof.dataset.input
              ? "This page has hashed what it sent: the digest is the signed one."
              : "The digest of what this page sent is not the signed one.";
            if (digest !== proof.dataset.input) {
              const word = one("summary span", proof);
              word.className = "bad";
              word.textContent = "Proof of another request";
            }
          }
          await checkAgain(proof, { id, status, content_type: type }, request, response);
          box.append(document.adoptNode(proof));
          return;
        }
        if (answer.status !== 404) break;
        await new Promise((go) => setTimeout(go, 250));
      }
      box.append(make("p", "dim", "No proof was found for this answer."));
    };
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const words = message.value.trim();
      if (!words || asked) return;
      said.push({ role: "user", content: words });
      turn("user", "You").words.textContent = words;
      message.value = "";
      const model = one("#model").value, answer = turn("model", model);
      asked = new AbortController();
      send.disabled = true;
      stop.hidden = false;
      let text = "", exchange = null;
      try {
        const body = new TextEncoder().encode(JSON.stringify({
          model, messages: said, stream: true, max_tokens: Number(one("#max-tokens").value),
          stream_options: { include_usage: true },
        }));
        const response = await fetch("/chat/completions", { method: "POST", headers, body, signal: asked.signal });
        if (!response.ok) {
          const told = await response.json().catch(() => null);
          throw new Error(told?.error?.message ?? `The server answered ${response.status}.`);
        }
        const got = await readEvents(response.body, (data) => {
          if (data === "[DONE]") return;
          const piece = JSON.parse(data);
          if (piece.error) throw new Error(piece.error.message);
          text += piece.choices?.[0]?.delta?.content ?? "";
          answer.words.textContent = text;
        });
        said.push({ role: "assistant", content: text });
        const id = response.headers.get("x-request-id"), type = response.headers.get("content-type");
        if (!id) answer.box.append(make("p", "dim", "The answer came without an id, so no proof of it can be looked up."));
        exchange = id && { id, digest: await digestOf(body), status: response.status, type, request: body, response: got };
      } catch (error) {
        said.pop();
        answer.box.append(make("p", "problem", error.name === "AbortError" ? "Stopped." : error.message));
      }
      asked = null;
      send.disabled = false;
      stop.hidden = true;
      message.focus();
      if (exchange) await showProof(answer.box, exchange);
    });
    stop.addEventListener("click", () => asked?.abort());
    message.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); form.requestSubmit(); }
    });
  };

  // === Files ===

  const upload = (form) => {
    const bar = one("#upload-progress"), button = one("button", form);
    const put = (url, file, before, total) => new Promise((done, fail) => {
      const request = new XMLHttpRequest();
      request.open("PUT", url);
      request.upload.onprogress = (event) => { bar.value = (before + event.loaded) / Math.max(total, 1); };
      request.onload = () => request.status < 300 ? done() : fail(new Error(`${file.name}: the store answered ${request.status}.`));
      request.onerror = () => fail(new Error(`${file.name}: the connection broke.`));
      request.send(file);
    });
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const files = [...one("#file").files];
      if (!files.length) return;
      button.disabled = true;
      bar.hidden = false;
      const total = files.reduce((sum, file) => sum + file.size, 0);
      let before = 0;
      try {
        for (const file of files) {
          const answer = await fetch("/files", {
            method: "POST", headers: { "content-type": "application/json", "muster-form-token": form.dataset.formToken },
            body: JSON.stringify({ name: file.name, size: file.size }),
          });
          const told = await answer.json();
          if (!answer.ok) throw new Error(told.problem ?? "The server refused the file.");
          await put(told.upload, file, before, total);
          before += file.size;
        }
        location.reload();
      } catch (error) {
        form.after(make("p", "problem", error.message));
        button.disabled = false;
        bar.hidden = true;
      }
    });
  };

  // === Small things ===

  document.addEventListener("click", async (event) => {
    const copy = event.target.closest("[data-copy]"), add = event.target.closest("[data-add-input]");
    if (copy) {
      await navigator.clipboard.writeText(one(`#${copy.dataset.copy}`).textContent);
      copy.textContent = "Copied";
      say("Copied");
    }
    if (add) {
      const inputs = one("#inputs");
      inputs.value = `${inputs.value.trimEnd()}${inputs.value.trim() ? "\n" : ""}${add.dataset.addInput}\n`;
      say(`Added ${add.dataset.addInput}`);
    }
    for (const open of all("details.confirm[open]")) if (!open.contains(event.target)) open.removeAttribute("open");
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const open of all("details.confirm[open]")) { open.removeAttribute("open"); one("summary", open).focus(); }
  });
  for (const table of all("[data-live-jobs]")) followList(table);
  for (const page of all("[data-job-page]")) followJob(page);
  for (const place of all("[data-chat]")) converse(place);
  for (const form of all("[data-upload]")) upload(form);
})();
