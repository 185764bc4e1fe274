"""The parts of `bench/gpu/run`. Each runs as a process of its own under its own limit, and prints what it finds as lines of JSON.

    parts.py PART PLACES        PLACES is the JSON of class Places

A part that fails prints what it has found and ends with one line on stderr. Nothing here needs more than Python's standard library.
"""

import concurrent.futures
import dataclasses
import importlib.util
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
LLM = HERE.parents[1] / "images/llm"
sys.path[:0] = [str(HERE), str(LLM / "measure")]

import calibration
import random_llama
from engine import Engine, EngineFailed

MODEL = str(LLM / "model")
GOLDEN = HERE / "golden.json"
# Upper bounds of what a card may differ by: the sums of f32 products in another order, as in docs/llm/torch.md.
LOGIT_BOUND = 1e-3
CARD_FIELDS = ["name", "uuid", "driver_version", "compute_cap", "memory.total", "memory.used", "utilization.gpu", "temperature.gpu", "power.draw"]
# As Llama 3.2 1B, with a vocabulary of 32,000 and a head of its own: 1.1 billion parameters.
BILLION = {"dim": 2048, "layers": 16, "heads": 32, "kv_heads": 8, "ffn": 8192, "vocabulary": 32_000}
REHEARSED = {"dim": 64, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 128, "vocabulary": 2_048}
NATS = 1.5
BATCHES = [1, 3, 8]


class PartFailed(Exception):
    """What a part needed and did not get."""


@dataclasses.dataclass
class Places:
    """The folder of programs, that of results, one that ends with the run, and whether a processor takes the card's place."""

    programs: str
    out: str
    work: str
    dry: bool

    def program(self, name):
        path = pathlib.Path(self.programs) / name
        if not path.is_file():
            raise PartFailed(f"{name} is not in {self.programs}; `bench/gpu/prepare` makes it")
        return str(path)

    def engine(self, arguments, folder=MODEL):
        """An engine on the card."""
        library = "candle" if self.dry else "torch-cuda"
        return Engine(self.program("muster-llm"), folder, ["--backend", library, *arguments], loader())

    def reference(self, folder=MODEL, threads=None):
        """The engine that scores: f32 on the processor."""
        return Engine(self.program("muster-llm"), folder, ["--threads", str(threads or os.cpu_count())], loader())

    def billion(self):
        return pathlib.Path(self.work) / "billion"


def loader():
    """The environment in which a program finds PyTorch's libraries."""
    spec = importlib.util.find_spec("torch")
    folders = [f"{place}/lib" for place in (spec.submodule_search_locations if spec else [])]
    return {"LD_LIBRARY_PATH": ":".join([*folders, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])}


def tell(**found):
    print(json.dumps(found), flush=True)


def said(*command):
    """What a program prints, or None if it is not there; its failure is the part's."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **loader()})
    except FileNotFoundError:
        return None
    if ended.returncode != 0:
        raise PartFailed(f"{pathlib.Path(command[0]).name} ended with {ended.returncode}: {' '.join((ended.stderr + ended.stdout).split())[-600:]}")
    return ended.stdout


def card():
    """The first card as nvidia-smi shows it; None without nvidia-smi."""
    shown = said("nvidia-smi", f"--query-gpu={','.join(CARD_FIELDS)}", "--format=csv,noheader,nounits")
    if shown is None:
        return None
    lines = shown.strip().splitlines()
    if not lines:
        raise PartFailed("nvidia-smi shows no card")
    return dict(zip(CARD_FIELDS, (field.strip() for field in lines[0].split(","))))


def machine(places):
    """Loader, driver and card, processor."""
    tell(processor=next((line.split(":", 1)[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "unknown"),
         cores=os.cpu_count(), glibc=os.confstr("CS_GNU_LIBC_VERSION"), python=sys.version.split()[0],
         memory_mib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20)
    tell(card=card())
    missing = {}
    for name in ("muster-llm", "muster-grader-cuda", "read_gpus"):
        path = pathlib.Path(places.programs) / name
        if not path.is_file():
            missing[name] = "not there"
            continue
        needed = subprocess.run(["ldd", path], capture_output=True, text=True, env={**os.environ, **loader()}).stdout
        missing |= {f"{name}: {line.split()[0]}": "not found by the loader" for line in needed.splitlines() if "not found" in line}
    tell(missing=missing, engine_id=said(places.program("muster-llm"), "id", "--model", MODEL).strip())
    asks = "import torch, json; c = torch.cuda; print(json.dumps([torch.__version__, torch.version.cuda, c.is_available() and c.get_device_name(0)]))"
    torch = importlib.util.find_spec("torch") and json.loads(said(sys.executable, "-c", asks))
    tell(torch=torch)
    if not places.dry and not (torch and torch[2]):
        raise PartFailed("PyTorch is not there or finds no card")


def golden_text():
    """The tokens of the golden file: a prompt and what follows, out of a text of this repository."""
    kept = json.loads(GOLDEN.read_text())
    return {"prompt_token_ids": kept["prompt_token_ids"], "token_ids": kept["token_ids"], "top_likely": 20, "seed": 1}


def likely(token):
    """The log-probabilities of the likeliest tokens, by their ids."""
    return dict(token["likely"])


def trained(places):
    """The trained model: logits against the processor's, and answers that the processor scores."""
    golden = json.loads(GOLDEN.read_text())["tokens"]
    answers = 4 if places.dry else 64
    with places.engine([]) as engine:
        scored = engine.post("/v1/score", golden_text())["tokens"]
        off = max(abs(there - likely(token)[int(id)]) for token, known in zip(scored, golden, strict=True)
                  for id, there in known["likely"].items() if int(id) in likely(token))
        same = sum(max(likely(token), key=likely(token).get) == int(max(known["likely"], key=known["likely"].get)) for token, known in zip(scored, golden))
        tell(golden_tokens=len(golden), same_likeliest=same, largest_logit_difference=off, bound=LOGIT_BOUND)
        if off > LOGIT_BOUND:
            raise PartFailed(f"a logit differs by {off} from the processor's, more than {LOGIT_BOUND}")
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            texts = list(pool.map(lambda n: calibration.answer(engine, n, ""), range(answers)))
    with places.reference() as reference:
        tell(answers=answers, **margins([reference.post("/v1/score", text)["tokens"] for text in texts]))


def margins(scored):
    """What a reference says of answers: tokens, tokens off, margins in nats."""
    numbers = [token["margin"] for tokens in scored for token in tokens]
    known = [number for number in numbers if number != "impossible"]
    return {"tokens": len(numbers), "tokens_off": sum(number == "impossible" or number > 0 for number in numbers),
            "impossible": len(numbers) - len(known), "largest_margin": max(known, default=0), "mean_margin": sum(known) / max(1, len(known))}


def prompt(n, vocabulary):
    return [(n * 7919 + place * 104_729) % (vocabulary - 1) + 1 for place in range(16)]


def written(engine, n, vocabulary, length):
    """An answer of so many tokens by the random model, and the question by which it is scored."""
    asked = {"seed": n, "temperature": 1.0, "logit_bias": {"0": -100}}
    choice = engine.post("/v1/completions", asked | {"prompt": prompt(n, vocabulary), "max_tokens": length, "return_token_ids": True})["choices"][0]
    return asked | {"prompt_token_ids": choice["prompt_token_ids"], "token_ids": choice["token_ids"]}


def resident(process):
    """The most memory that a process has had, in MiB."""
    text = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", text)[1]) // 1024


def billion(places):
    """A random model of a billion parameters in bf16: its speed, its memory, and what scoring costs."""
    sizes = REHEARSED if places.dry else BILLION
    length = 16 if places.dry else 64
    began = time.monotonic()
    parameters = random_llama.make(places.billion(), MODEL, sizes, NATS)
    tell(parameters=parameters, made_s=time.monotonic() - began)
    before, began = card(), time.monotonic()
    with places.engine(["--rounding", "bf16", "--streams", str(max(BATCHES)), "--kept", "1"], str(places.billion())) as engine:
        tell(started_s=time.monotonic() - began)
        written(engine, 0, sizes["vocabulary"], length)
        texts, speeds = [], {}
        for batch in BATCHES:
            first = len(texts) + 1
            began = time.monotonic()
            with concurrent.futures.ThreadPoolExecutor(batch) as pool:
                new = list(pool.map(lambda n: written(engine, n, sizes["vocabulary"], length), range(first, first + 2 * batch)))
            speeds[batch] = sum(len(text["token_ids"]) for text in new) / (time.monotonic() - began)
            texts += new
        tell(tokens_a_second=speeds)
        # A prefix that is kept would spare the score some of its work: the last answers come first.
        began = time.monotonic()
        scored = [engine.post("/v1/score", text)["tokens"] for text in reversed(texts[:2])]
        of_score, of_writing = time.monotonic() - began, sum(len(text["token_ids"]) for text in texts[:2]) / speeds[1]
        entropies = [token["entropy"] for tokens in scored for token in tokens]
        tell(score_over_generation=of_score / of_writing, mean_entropy_nats=statistics.mean(entropies), **margins(scored))
        after = card()
        tell(engine_memory_mib=resident(engine.process),
             card_memory_mib=after and int(float(after["memory.used"])) - int(float(before["memory.used"])))
    (places.billion() / "answers.json").write_text(json.dumps(texts[:4 if places.dry else 16]))


def cheats(places):
    """The trained model as honest and as cheaper engines on the card hold it: margins, and the rows of a calibration."""
    answers = 4 if places.dry else 64
    shown = card()
    gpu = shown["name"] if shown else "a processor, rehearsed"
    honest = {f"{gpu}, f32": [], f"{gpu}, bf16": ["--weights", "bf16", "--rounding", "bf16"]}
    cheaper = {"int8": ["--weights", "q8_0"], "int4": ["--weights", "q4_0"]}
    rows = {}
    with places.reference() as reference:
        digest = reference.get("/v1/models")["data"][0]["digest"]
        for place, (name, arguments) in enumerate({**honest, **cheaper}.items()):
            with places.engine(arguments) as engine, concurrent.futures.ThreadPoolExecutor(8) as pool:
                texts = list(pool.map(lambda n: calibration.answer(engine, n, name), range(place * 100_000, place * 100_000 + answers)))
            scored = [reference.post("/v1/score", text)["tokens"] for text in texts]
            rows[name] = {"margin": [calibration.row(tokens, "margin") for tokens in scored]}
            tell(engines={name: margins(scored)})
    machines = [(name, gpu, rows[name]) for name in honest]
    calibration.write(pathlib.Path(places.out) / "calibration.json", "margin", digest, machines, [(name, rows[name]) for name in cheaper])


def processor(places):
    """Answers of the billion by the card, scored in f32 by the processor."""
    kept = places.billion() / "answers.json"
    if not kept.is_file():
        raise PartFailed("the part `billion` left no answers")
    texts, began = json.loads(kept.read_text()), time.monotonic()
    with places.reference(str(places.billion())) as reference:
        tell(started_s=time.monotonic() - began)
        began, scored = time.monotonic(), []
        for text in texts:
            scored.append(reference.post("/v1/score", text)["tokens"])
            # A processor may be too slow for all of them: what it has scored counts.
            tell(answers=len(scored), scored_s=time.monotonic() - began, **margins(scored))


class Busy:
    """The billion at work on the card, eight texts at once, for as long as the block lasts."""

    def __init__(self, places):
        if not (places.billion() / "config.json").is_file():
            raise PartFailed("the part `billion` left no model")
        self.vocabulary = (REHEARSED if places.dry else BILLION)["vocabulary"]
        self.engine = places.engine(["--rounding", "bf16", "--streams", "8", "--kept", "1"], str(places.billion()))
        self.over, self.tokens = threading.Event(), 0

    def _write(self, number):
        while not self.over.is_set():
            number += 8
            self.tokens += len(written(self.engine, number, self.vocabulary, 32)["token_ids"])

    def __enter__(self):
        self.pool = concurrent.futures.ThreadPoolExecutor(8)
        self.writers = [self.pool.submit(self._write, 1000 + number) for number in range(8)]
        written(self.engine, 1, self.vocabulary, 32)
        return self

    def __exit__(self, *_):
        self.over.set()
        self.pool.shutdown()
        self.engine.__exit__()
        for writer in self.writers:
            writer.result()


def nvml(places):
    """What the executor reads of the card beside nvidia-smi, idle and busy."""
    def both():
        return {"executor": json.loads(said(places.program("read_gpus"))), "nvidia_smi": card()}
    tell(idle=both())
    with Busy(places):
        tell(busy=both())


def grader(places):
    """The prover of hardware: golden vectors and conversations, and a batch beside a working engine."""
    program = places.program("muster-grader-cuda")
    tell(check=said(program, "check").splitlines())
    batch = [program, "bench", "--log2-n", "8" if places.dry else "13", "--memory-gib", "1", "--rounds", "8", "--repeat", "2"]
    tell(alone=said(*batch).splitlines())
    with Busy(places) as busy:
        began, before = time.monotonic(), busy.tokens
        beside = said(*batch).splitlines()
        tell(beside=beside, engine_tokens_a_second=(busy.tokens - before) / (time.monotonic() - began))


# The parts in their order, and the seconds that each may take: eight minutes together.
PARTS = {machine: 20, trained: 40, billion: 90, cheats: 90, processor: 150, nvml: 30, grader: 60}


def write_golden(program):
    """Writes golden.json by an engine on the processor."""
    with Engine(program, MODEL, []) as engine:
        text = (LLM / "README.md").read_text()[:900]
        choice = engine.post("/v1/completions", {"prompt": text, "max_tokens": 1, "return_token_ids": True, "seed": 1})["choices"][0]
        ids = choice["prompt_token_ids"]
        asked = {"prompt_token_ids": ids[:16], "token_ids": ids[16:], "top_likely": 20, "seed": 1}
        scored = engine.post("/v1/score", asked)["tokens"]
    tokens = [{"entropy": round(token["entropy"], 6), "likely": {id: round(logprob, 6) for id, logprob in list(likely(token).items())[:5]}} for token in scored]
    GOLDEN.write_text(json.dumps({"prompt_token_ids": ids[:16], "token_ids": ids[16:], "tokens": tokens}, separators=(",", ":")) + "\n")


def main():
    if sys.argv[1] == "golden":
        return write_golden(sys.argv[2])
    part = next(part for part in PARTS if part.__name__ == sys.argv[1])
    try:
        part(Places(**json.loads(sys.argv[2])))
    except (PartFailed, EngineFailed, OSError, subprocess.TimeoutExpired) as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
