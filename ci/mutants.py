#!/usr/bin/env python3
"""Makes random changes of the crate's code, each alone, and says which of them the tests notice.

usage: mutants.py SEED COUNT FOLDER...   (ci/mutants.sh sets the environment; OTTAVA_JOBS changes at a time)

Work is done in copies of the tree, one for each job, so that the tree itself may be edited meanwhile: after a
change the compiler keeps one core busy for most of the time. The library's own tests run first, those of the
changed module before the others; then the programs in INTEGRATION. The first failure ends a change's run. A
run that was stopped goes on where its record ends; a record is of one state of code and tests. An outcome is
one of

    caught      a test fails
    timeout     the tests take three times the processor time they take unchanged, or hang: caught, too
    unviable    the compiler refuses the change
    missed      all tests pass

Changes are drawn kind by kind, so that the many literals do not crowd out the rest. cargo-mutants is no
substitute: it draws no sample by a seed, stops at no first failure, and leaves constants and statements.
"""
import hashlib
import json
import os
import random
import re
import resource
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

# Programs that need no model, and no optimiser to be quick.
INTEGRATION = """tiny_model families model_parts weights odd_models split_models experts attention_scale vocabulary_without_pre
    bad_gguf sidecar kv_alloc no_allocation hugging_face hyperparameters""".split()
# Modules with tests of their own above the kernels: the kernels' tests, the slowest, are left out for them.
ABOVE_KERNELS = "api checkpoint engine graph ir kv model quant sample text".split()
# No test: compiled for another processor, or tests themselves.
LEFT_OUT = re.compile(r"(^|/)(tests|neon|.*_tests|tiles_emulated|neon_.*)(/|\.rs$)")
# Seconds of processor time that any run may take, beside three times what it takes unchanged. Processor
# time, not the clock's: what else runs on the machine must not decide what counts as caught.
GRACE = 30
# A program that uses no processor time for so many seconds hangs.
HANG = 60

# Cargo takes a package's settings from no variable.
SETTING = "profile.test.package.ottava"
QUICK = ["--config", SETTING + ".opt-level=0", "--config", SETTING + ".debug-assertions=true"]

WORD = r"(?<![\w.'])"
# Kind, what is found in code without comments and strings, and what it becomes.
KINDS = [
    ("comparison", r" (<|<=|>|>=|==|!=) (?=[^=])", {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}),
    ("both or one", r"(?<=[\w)\]}]) (&&|\|\|) ", {"&&": "||", "||": "&&"}),
    ("condition", r"\bif (?!let\b)([^{};]+?) (?=\{|=>)", "true"),
    ("condition", r"\bif (?!let\b)([^{};]+?) (?=\{|=>)", "false"),
    ("arithmetic", r"(?<=[\w)\]]) (\+|-|\*|/|%) (?=[\w(])", {"+": "-", "-": "+", "*": "/", "/": "*", "%": "*"}),
    ("assignment", r" (\+=|-=|\*=|\|=|<<=|>>=) ", {"+=": "-=", "-=": "+=", "*=": "/=", "|=": "&=", "<<=": ">>=", ">>=": "<<="}),
    ("shift or mask", r"(?<=[\w)\]]) (<<|>>|&|\||\^) (?=[\w(])", {"<<": ">>", ">>": "<<", "&": "|", "|": "&", "^": "&"}),
    ("negation", r"(?<=[\s(])(!)(?=[a-z(])", ""),
    ("literal", WORD + r"(\d[\d_]*)(?![\w.]|\s*\])", "+1"),
    ("literal", WORD + r"([1-9][\d_]*)(?![\w.]|\s*\])", "-1"),
    ("literal", WORD + r"(0x[\da-f_]+)(?!\w)", "+1"),
    ("float", WORD + r"(\d+\.\d+)(?![\w.])", "+1"),
    ("constant", r"\b(true|false)\b", {"true": "false", "false": "true"}),
    ("method", r"\.(min|max|any|all|first|last|is_some|is_none|is_some_and|is_none_or|is_ok|is_err|floor|ceil|skip|take)(?=\()",
     {"min": "max", "max": "min", "any": "all", "all": "any", "first": "last", "last": "first", "is_some": "is_none",
      "is_none": "is_some", "is_some_and": "is_none_or", "is_none_or": "is_some_and", "is_ok": "is_err",
      "is_err": "is_ok", "floor": "ceil", "ceil": "floor", "skip": "take", "take": "skip"}),
    ("order", r"(\.rev\(\))", ""),
    ("range", r"(\.\.=)(?=[\w(])", ".."),
    ("range", r"(?<=[\w)])(\.\.)(?=[\w(])", "..="),
    ("statement", r"(?<=[;{}])\s*\n[ \t]+((?!let\b|use\b|const\b|pub\b|type\b|static\b|mod\b|return\b)[a-z*(][^;{}]*;)", ""),
    ("statement", r"(?<=[;{}])\s*\n[ \t]+(return\b[^;{}]*;)(?=\s*\n\s*\}\s*\n\s*[a-z])", ""),
]


def code(text):
    """The text with comments, strings, characters and attributes blanked out, each byte in its place, and
    cut before its tests."""
    lexeme = re.compile(r"""//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?'(?:\\[^']+|[^'\\])'|#!?\[[^\n]*?\]\s*\n""", re.S)
    tests = re.search(r"^#\[cfg\(test\)\]\n(mod|use) ", text, re.M)
    blank = lambda found: re.sub(r"[^\n]", " ", found.group())
    return lexeme.sub(blank, text[: tests.start()] if tests else text)


def replaced(found, replacement):
    """What stands for the group that was found."""
    if isinstance(replacement, dict):
        return replacement[found]
    if replacement in ("+1", "-1"):
        if "." in found:
            return str(float(found) + 1)
        return hex(int(found, 16) + 1) if found.startswith("0x") else str(int(found.replace("_", "")) + int(replacement))
    return replacement


def sites(root, folders):
    """All changes by kind: (path, start, end, new text)."""
    kinds = {}
    for path in sorted(path for folder in folders for path in (root / "src" / folder).rglob("*.rs")):
        name = path.relative_to(root).as_posix()
        if LEFT_OUT.search(name):
            continue
        bare = code(path.read_text())
        for kind, pattern, replacement in KINDS:
            for found in re.finditer(pattern, bare):
                kinds.setdefault(kind, []).append((name, *found.span(1), replaced(found.group(1), replacement)))
    return kinds


def drawn(kinds, seed, count):
    """`count` different changes; each kind is as likely as the root of its size says."""
    chance, taken = random.Random(seed), []
    names = sorted(kinds)
    weights = [len(kinds[name]) ** 0.5 for name in names]
    while len(taken) < min(count, sum(map(len, kinds.values()))):
        kind = chance.choices(names, weights)[0]
        change = (kind, chance.choice(kinds[kind]))
        if change not in taken:
            taken.append(change)
    return taken


def copy(root, tree):
    """The tree as it is, without what git ignores; what has not changed keeps its time."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=root, capture_output=True, check=True)
    names = [name for name in listed.stdout.decode().split("\0") if name and (root / name).is_file()]
    for name in names:
        source, target = root / name, tree / name
        if not target.exists() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            shutil.copymode(source, target)
    for path in [path for path in tree.rglob("*") if path.is_file() and path.relative_to(tree).as_posix() not in set(names)]:
        path.unlink()


def state(tree):
    """A name for what decides outcomes: the library's code, its tests and its dependencies."""
    digest = hashlib.sha256()
    paths = [tree / "Cargo.toml", tree / "Cargo.lock", *(tree / "src").rglob("*"), *(tree / "tests").rglob("*")]
    for path in sorted(paths):
        if path.is_file():
            digest.update(f"{path.relative_to(tree)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def rest(module):
    """What selects the library's tests that a change of `module` may fail."""
    return ("--skip", "backend::cpu::") if module in ABOVE_KERNELS else ()


def bare_name(program):
    """A program's name without cargo's hash, which differs from tree to tree."""
    return Path(program).name.rpartition("-")[0]


class Tests:
    """Builds and runs the tests of a tree."""

    def __init__(self, tree):
        self.tree, self.usual = tree, {}
        self.environment = os.environ | {"CARGO_TARGET_DIR": str(tree.with_name(tree.name + ".target"))}

    def build(self, what):
        """The programs, or None if the compiler refuses."""
        command = ["cargo", "test", *QUICK, "-p", "ottava", "--features", "async", "--no-run", "--message-format=json",
                   "--quiet", *what]
        made = subprocess.run(command, cwd=self.tree, env=self.environment, capture_output=True, text=True)
        if made.returncode != 0:
            self.why = made.stderr
            return None
        messages = [json.loads(line) for line in made.stdout.splitlines() if line.startswith("{")]
        return [one["executable"] for one in messages if one.get("executable") and one["profile"]["test"]]

    def run(self, program, *names):
        """None if all pass, else the first test that fails."""
        limit = int(3 * self.usual.get((bare_name(program), names), 600) + GRACE)
        # Groups of their own, so that a test's own processes end with it.
        process = subprocess.Popen([program, *names], cwd=self.tree, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                   text=True, start_new_session=True)
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (limit, limit + 5))
        failed = self.first_failure(process)
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = code = os.waitstatus_to_exitcode(status)
        process.stdout.close()
        if failed is None and code not in (0, -signal.SIGKILL):
            failed = "timeout" if code == -signal.SIGXCPU else f"{Path(program).name} ends with {code}"
        self.last = used.ru_utime + used.ru_stime
        return failed

    def first_failure(self, process):
        """Reads until a failure, the end, or a hang."""
        with selectors.DefaultSelector() as ready:
            ready.register(process.stdout, selectors.EVENT_READ)
            pending, used = b"", -1
            while True:
                if not ready.select(HANG):
                    last, used = used, Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
                    if used == last:
                        return "timeout"
                    continue
                chunk = os.read(process.stdout.fileno(), 65536)
                if not chunk:
                    # It ends by itself: only its own end says how.
                    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
                    return None
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    found = re.match(rb"test (\S+).*\.\.\. FAILED", line)
                    if found:
                        return found.group(1).decode()

    def all(self, module):
        """The first failure of all tests, those of `module` first."""
        library = self.build(["--lib"])
        if not library:
            return "unviable"
        for names in [(module + "::",), rest(module)]:
            failed = self.run(library[0], *names)
            if failed:
                return failed
        programs = self.build([word for name in INTEGRATION for word in ("--test", name)])
        if programs is None:
            return "unviable"
        return next(filter(None, map(self.run, programs)), None)

    def all_programs(self):
        """The library's tests and the programs of the tree as it is."""
        library = self.build(["--lib"])
        programs = library and self.build([word for name in INTEGRATION for word in ("--test", name)])
        if not programs:
            sys.exit(f"the tree does not build:\n{self.why}")
        return library[0], programs

    def learn(self, modules, library, programs):
        """The times without a change; says what fails then."""
        runs = [(library, (module + "::",)) for module in modules]
        runs += [(library, names) for names in sorted(set(map(rest, modules)))] + [(one, ()) for one in programs]
        for program, names in runs:
            failed = self.run(program, *names)
            if failed:
                sys.exit(f"{failed} without any change")
            self.usual[bare_name(program), names] = self.last


def shown(text, start, end, new):
    """The line of a change, before and after."""
    first = text.rfind("\n", 0, start) + 1
    last = text.find("\n", end)
    squeeze = lambda line: " ".join(line.split())
    return squeeze(text[first:last]), squeeze(text[first:start] + new + text[end:last])


def outcome_of(tests, kind, name, start, end, new):
    """Makes a change, runs the tests, takes the change back; the record's entry for it."""
    path, begun = tests.tree / name, time.monotonic()
    text = path.read_text()
    before, after = shown(text, start, end, new)
    try:
        path.write_text(text[:start] + new + text[end:])
        by = tests.all(name.split("/")[1])
    finally:
        path.write_text(text)
    outcome = {None: "missed", "timeout": "timeout", "unviable": "unviable"}.get(by, "caught")
    return dict(outcome=outcome, file=name, line=text.count("\n", 0, start) + 1, start=start, kind=kind, before=before,
                after=after, by=by, seconds=round(time.monotonic() - begun))


def main():
    seed, count, folders = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    root, target = Path.cwd(), Path(os.environ["CARGO_TARGET_DIR"])
    trees = [target / f"tree-{job}" for job in range(int(os.environ.get("OTTAVA_JOBS", 2)))]
    for tree in trees:
        copy(root, tree)
    changes = drawn(sites(trees[0], folders), seed, count)
    record = target / f"seed-{seed}-{state(trees[0])}.jsonl"
    started = time.monotonic()
    jobs = [Tests(tree) for tree in trees]
    with ThreadPoolExecutor(len(jobs)) as pool:
        built = list(pool.map(Tests.all_programs, jobs))
        jobs[0].learn(sorted({name.split("/")[1] for _, (name, *_) in changes}), *built[0])
        free = SimpleQueue()
        for job in jobs:
            job.usual = jobs[0].usual
            free.put(job)
        print(f"{len(changes)} changes; without any, building and testing took {time.monotonic() - started:.0f} s", flush=True)
        known = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
        known = {(entry["file"], entry["start"], entry["after"]): entry for entry in known}
        printing = threading.Lock()

        def one(numbered):
            number, (kind, (name, start, end, new)) = numbered
            after = shown(texts[name], start, end, new)[1]
            if entry := known.get((name, start, after)):
                return entry
            tests = free.get()
            try:
                entry = outcome_of(tests, kind, name, start, end, new)
            finally:
                free.put(tests)
            with printing, record.open("a") as out:
                out.write(json.dumps(entry) + "\n")
                print(f"{number:4} {entry['outcome']:9} {name}:{entry['line']} ({kind}) {entry['seconds']} s  {entry['by'] or ''}",
                      flush=True)
            return entry

        texts = {name: (trees[0] / name).read_text() for _, (name, *_) in changes}
        entries = list(pool.map(one, enumerate(changes, 1)))
    outcomes = [entry["outcome"] for entry in entries]
    summary = ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in sorted(set(outcomes)))
    print(f"{summary} in {time.monotonic() - started:.0f} s")
    for entry in entries:
        if entry["outcome"] == "missed":
            print(f"missed {entry['file']}:{entry['line']} ({entry['kind']})\n    - {entry['before']}\n    + {entry['after']}")
    print(f"record: {record}")


main()
