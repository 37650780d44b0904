#!/usr/bin/env python3
"""Holds what the compiler made of the kernels against ci/sass.table, whose head says what the rows mean.

usage: sass.py TABLE USAGE SASS [--figures]

USAGE and SASS are what `cuobjdump --dump-resource-usage` and `cuobjdump -sass` print. Where the table holds,
it is broken in every way that should be noticed, since a gate that lets everything through would say the
same. `--figures` prints the table anew instead, with what was found: what it selects and forbids is the old
table's.
"""
import re
import sys
from functools import cached_property

from sass_loops import count, instruction, loops, tally

# Nowhere may a kernel use local memory, or atomic sums of floats, whose order is unknown.
FORBIDDEN = ["!LDL", "!STL", "!RED.F32", "!ATOMG.F32", "!ATOMS.F32"]
# What the row of a kernel that has none is written with.
NOTABLE = "HMMA HGMMA LDSM LDGSTS UTMALDG UBLKCP LDG.128 LDG.64 STG.128 ATOMG".split()
# What a loop may be told from others by.
SELECTIVE = "HMMA HGMMA LDG LDG.128 LDS LDSM LDGSTS UBLKCP".split()
# A kernel with one of these needs a row for a loop.
MATRIX = ("HMMA", "HGMMA")
# Shared memory that a card of 9.0 and later keeps of each block.
RESERVED = 1024


class Kernel:
    """A kernel for one architecture."""

    def __init__(self, name, arch):
        self.name, self.arch, self.code = name, arch, []
        self.registers = self.shared = self.spilled = 0

    @cached_property
    def tally(self):
        return tally(one.name for one in self.code)

    @cached_property
    def loops(self):
        return loops(self.code)

    def count(self, pattern):
        return count(self.tally, pattern)

    def __str__(self):
        return f"{self.name} sm_{self.arch}"


class LoopRow:
    """Selects a loop, and bounds it. `line` is where it stands in the table."""

    def __init__(self, line, words):
        self.line, (self.kernel, self.arch, self.name) = line, words[:3]
        self.body, self.turn = map(int, words[3:5])
        self.selectors = words[5:]
        exact = [word.split("=") for word in self.selectors if "=" in word]
        self.exact = {pattern: int(count) for pattern, count in exact}
        taken = [word.split(":") for word in self.selectors if ":" in word]
        self.taken = {pattern: int(count) for pattern, count in taken}

    def find(self, kernel):
        """The innermost loops of a kernel that are selected."""
        def selected(loop):
            exact = all(loop.count(pattern) == count for pattern, count in self.exact.items())
            return exact and all(loop.count(pattern) >= count for pattern, count in self.taken.items())

        found = [loop for loop in kernel.loops if selected(loop)]
        return [loop for loop in found if not any(other.members < loop.members for other in found)]


class Table:
    """ci/sass.table, parsed."""

    def __init__(self, text):
        self.rows, self.loops, self.lines = {}, {}, text.splitlines()
        for number, line in enumerate(self.lines, 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            try:
                if words[0] == "loop":
                    row = LoopRow(number, words[1:])
                    self.loops.setdefault((row.kernel, row.name), {})[row.arch] = row
                else:
                    self.rows[words[0], words[1]] = (int(words[2]), int(words[3]), words[4:])
            except (ValueError, IndexError):
                sys.exit(f"ci/sass.table:{number}: expected a row as its head describes, found: {line}")

    def row(self, kernel):
        """A kernel's key: its architecture's own, or that of all others."""
        own = (kernel.name, kernel.arch)
        return own if own in self.rows else (kernel.name, "*")

    def loop_rows(self, kernel):
        of_kernel = [rows for (name, _), rows in self.loops.items() if name == kernel.name]
        applying = (rows.get(kernel.arch, rows.get("*")) for rows in of_kernel)
        return [row for row in applying if row]


def parse(usage, sass):
    """All kernels of both dumps, which say before each image which architecture it is for."""
    kernels, arch, kernel = {}, None, None

    def of(name):
        return kernels.setdefault((name, arch), Kernel(name, arch))

    for line in usage:
        words = line.split()
        if line.startswith("arch = "):
            arch = words[2][3:]
        elif words[:1] == ["Function"]:
            kernel = of(words[1].rstrip(":"))
        elif " REG:" in line:
            figures = {name: int(count) for name, count in re.findall(r"(\w+):(\d+)", line)}
            reserved = RESERVED if int(re.match(r"\d+", arch)[0]) >= 90 else 0
            kernel.registers, kernel.shared = figures["REG"], figures["SHARED"] - reserved
            kernel.spilled = figures["STACK"] + figures["LOCAL"]
    line_of_code = re.compile(r"\s+/\*([0-9a-f]+)\*/\s+(.*?)\s*;")
    for line in sass:
        if line.startswith("arch = "):
            arch = line.split()[2][3:]
        elif "Function :" in line:
            kernel = of(line.split()[-1])
        elif code := line_of_code.match(line):
            kernel.code.append(instruction(int(code[1], 16), code[2]))
    return list(kernels.values())


def check_pattern(kernel, pattern):
    """`NAME`, `NAME:N` for at least N of them, `!NAME` for none."""
    name, _, least = pattern.lstrip("!").partition(":")
    found = kernel.count(name)
    if pattern.startswith("!"):
        return [f"found {found} {name}, expected none"] if found else []
    return [] if found >= int(least or 1) else [f"found {found} {name}, expected at least {least or 1}"]


def check_loop(kernel, row):
    found = row.find(kernel)
    if len(found) != 1:
        return [f"{len(found)} loops are {row.name} ({' '.join(row.selectors)}), expected one"]
    body, turn = found[0].size, found[0].turn(row.taken)
    if turn is None:
        return [f"no turn of the loop {row.name} has {' '.join(row.selectors)}"]
    wrong = []
    if body > row.body:
        wrong.append(f"{body} instructions in the loop {row.name}, expected at most {row.body}")
    if turn > row.turn:
        wrong.append(f"{turn} instructions in a turn of the loop {row.name}, expected at most {row.turn}")
    return wrong


def check_kernel(table, kernel):
    if not kernel.code:
        return ["no disassembly"]
    if table.row(kernel) not in table.rows:
        return ["no row in ci/sass.table"]
    registers, shared, patterns = table.rows[table.row(kernel)]
    wrong = []
    if kernel.registers > registers:
        wrong.append(f"{kernel.registers} registers, expected at most {registers}")
    if kernel.shared > shared:
        wrong.append(f"{kernel.shared} bytes of shared memory, expected at most {shared}")
    if kernel.spilled:
        wrong.append(f"{kernel.spilled} bytes of stack and local memory, expected none")
    for pattern in patterns + FORBIDDEN:
        wrong += check_pattern(kernel, pattern)
    rows = table.loop_rows(kernel)
    if not rows and any(kernel.count(name) for name in MATRIX):
        wrong.append("no loop row in ci/sass.table")
    return wrong + [reason for row in rows for reason in check_loop(kernel, row)]


def check(table, kernels):
    """What does not hold, a line each."""
    if not kernels:
        return ["no kernels found"]
    wrong = [f"{kernel}: {reason}" for kernel in kernels for reason in check_kernel(table, kernel)]
    used = {table.row(kernel) for kernel in kernels}
    wrong += [f"{name} {arch}: a row of ci/sass.table and no kernel"
              for name, arch in table.rows if (name, arch) not in used]
    used = {row.line for kernel in kernels for row in table.loop_rows(kernel)}
    rows = [row for rows in table.loops.values() for row in rows.values()]
    return wrong + [f"loop {row.kernel} {row.arch} {row.name}: a row of ci/sass.table and no kernel"
                    for row in rows if row.line not in used]


def figures(table, kernels):
    """The table's lines with what was found in place of its figures; rows that lack are at the end."""
    by_row, by_loop = {}, {}
    for kernel in kernels:
        by_row.setdefault(table.row(kernel), []).append(kernel)
        for row in table.loop_rows(kernel):
            by_loop.setdefault(row.line, []).append(kernel)
    loop_rows = {row.line: row for rows in table.loops.values() for row in rows.values()}
    for number, line in enumerate(table.lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            yield line
        elif words[0] == "loop":
            yield loop_figures(loop_rows[number], by_loop.get(number, []))
        elif (words[0], words[1]) in by_row:
            yield row_figures(words[0], words[1], by_row[words[0], words[1]], words[4:])
    for (name, arch), of_row in by_row.items():
        if (name, arch) not in table.rows:
            found = [pattern for pattern in NOTABLE if all(kernel.count(pattern) for kernel in of_row)]
            yield row_figures(name, arch, of_row, [f"{pattern}:{1 << 30}" for pattern in found])
        if any(kernel.count(pattern) for kernel in of_row for pattern in MATRIX) and not table.loop_rows(of_row[0]):
            yield from candidates(of_row)


def row_figures(name, arch, kernels, patterns):
    def counted(pattern):
        operation, _, least = pattern.partition(":")
        found = min(kernel.count(operation) for kernel in kernels)
        return f"{operation}:{min(found, int(least))}" if least else pattern

    registers = -(-max(kernel.registers for kernel in kernels) // 8) * 8
    shared = max(kernel.shared for kernel in kernels)
    return f"{name:22} {arch:4} {registers:4} {shared:6}  {' '.join(map(counted, patterns))}".rstrip()


def loop_line(kernel, arch, name, body, turn, selectors):
    return f"loop {kernel:24} {arch:3} {name:9} {body:5} {turn:5}  {' '.join(selectors)}"


def loop_figures(row, kernels):
    found = [row.find(kernel) for kernel in kernels]
    if not found or any(len(loops) != 1 or loops[0].turn(row.taken) is None for loops in found):
        lines = [f"# {row.kernel}: no loop, or several, are {row.name} ({' '.join(row.selectors)})"]
        return "\n".join(lines + list(candidates(kernels)))
    body = max(loops[0].size for loops in found)
    turn = max(loops[0].turn(row.taken) for loops in found)
    return loop_line(row.kernel, row.arch, row.name, body, turn, row.selectors)


def candidates(kernels):
    """Innermost loops that multiply, of a kernel that does not those that load 16 bytes: as rows that lack a
    name. Those of several architectures are one where they are made of the same."""
    wanted = MATRIX if any(kernel.count(name) for kernel in kernels for name in MATRIX) else ("LDG.128",)
    alike = {}
    for kernel in kernels:
        inner = [loop for loop in kernel.loops
                 if not any(other.members < loop.members for other in kernel.loops)]
        for loop in (loop for loop in inner if any(loop.count(name) for name in wanted)):
            mix = tuple(f"{name}={loop.count(name)}" for name in SELECTIVE if loop.count(name))
            alike.setdefault(mix, []).append((loop.size, loop.turn({})))
    for mix, found in alike.items():
        body, turn = map(max, zip(*found))
        yield "# " + loop_line(kernels[0].name, "*", "NAME", body, turn, mix)


def broken_tables(text):
    """Tables that must not hold: what is wrong, the table, and what the check must say."""
    loop = re.search(r"^loop \S+ +\S+ +\S+ +(\d+) +(\d+).*$", text, re.M)

    def with_loop(at, figure):
        start, end = loop.span(at)
        return text[:start] + str(figure) + text[end:]

    yield "too many registers", re.sub(r"(?m)^(rms_norm +\S+ +)\d+", r"\g<1>8", text), "rms_norm.* registers"
    yield "a kernel without a row", re.sub(r"(?m)^rms_norm .*\n", "", text), "rms_norm.* no row"
    yield "a missing instruction", re.sub(r"(?m)^(rms_norm .*)", r"\1 HGMMA", text), "rms_norm.* HGMMA"
    yield "a forbidden instruction", re.sub(r"(?m)^(rms_norm .*)", r"\1 !MUFU", text), "rms_norm.* MUFU"
    yield "a row without a kernel", text + "\ngone * 8 0\n", "gone.* no kernel"
    yield "a longer loop", with_loop(1, int(loop[1]) - 1), f"{loop[1]} instructions in the loop"
    yield "a longer turn", with_loop(2, int(loop[2]) - 1), f"{loop[2]} instructions in a turn"
    yield "a loop that is not there", text.replace(loop[0], loop[0] + " HGMMA=999"), "0 loops are"
    yield "a kernel of products without a loop row", re.sub(r"(?m)^loop .*\n", "", text), "no loop row"


def controls(text, kernels):
    wrong = []
    for what, broken, expected in broken_tables(text):
        found = check(Table(broken), kernels)
        if not any(re.search(expected, line) for line in found):
            wrong += [f"the gate does not say so: {what}"] + found
    return wrong


def fail(wrong, what):
    if wrong:
        sys.exit("\n".join(wrong + [what]))


def main(table, usage, sass, mode=None):
    with open(table) as lines:
        text = lines.read()
    with open(usage) as usage_lines, open(sass) as sass_lines:
        kernels = parse(usage_lines, sass_lines)
    if mode == "--figures":
        return print("\n".join(figures(Table(text), kernels)))
    wrong = check(Table(text), kernels)
    fail(wrong, f"{len(wrong)} of the figures in {table} do not hold")
    fail(controls(text, kernels), "the gate lets through what it should stop")
    print(f"{table} holds for {len(kernels)} kernels, all architectures counted")


if __name__ == "__main__":
    if not 4 <= len(sys.argv) <= 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
