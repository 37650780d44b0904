"""The loops of a kernel's machine code, and what a turn of one takes: for ci/sass.py.

The code's basic blocks and jumps make a graph. A jump back to a block that all ways to the jump pass is a
loop's end, and the loop is every block from which that end can be reached without leaving. Reads no file.
"""
import re
from collections import Counter, namedtuple
from functools import cached_property

# `conditional` is true where some threads may not take part, `rest` has the operands.
Instruction = namedtuple("Instruction", "address conditional name rest")
# Where code goes on that runs only when lanes of a warp have parted, and that returns by a jump.
RARE = ("BRA.DIV", "BRA.CONV", "CALL")


def instruction(address, text):
    """One line of cuobjdump's disassembly, without its address."""
    words = text.split()
    conditional = words[0].startswith("@")
    name, *rest = words[1:] if conditional else words
    return Instruction(address, conditional, name, " ".join(rest))


def is_a(name, pattern):
    """Whether an instruction has the operation and all modifiers of a pattern: LDG.E.NA.128 is an LDG.128."""
    operation, *modifiers = name.split(".")
    wanted, *all_of = pattern.split(".")
    return operation == wanted and all(modifier in modifiers for modifier in all_of)


def tally(names):
    """How often each instruction occurs."""
    return Counter(names)


def count(tally, pattern):
    return sum(times for name, times in tally.items() if is_a(name, pattern))


class Flow:
    """Which instruction may follow which. Instructions are indices into the code."""

    def __init__(self, code):
        self.code = code
        self.at = {instruction.address: index for index, instruction in enumerate(code)}
        self.next = [self.following(index) for index in range(len(code))]
        self.follow_indirect_jumps()
        self.reached = self.walk()

    def target(self, index):
        found = re.search(r"0x([0-9a-f]+)\)?$", self.code[index].rest)
        return self.at.get(int(found[1], 16)) if found else None

    def following(self, index):
        one = self.code[index]
        operation = one.name.split(".")[0]
        after = [index + 1] if index + 1 < len(self.code) else []
        if operation == "BRA" and not one.name.startswith(RARE):
            # A predicate may stand among the operands, too: `BRA P1, 0x40`.
            always = not one.conditional and one.rest.startswith("0x")
            return [self.target(index)] + ([] if always else after)
        if operation in ("EXIT", "RET", "KILL"):
            return after if one.conditional else []
        return [] if operation == "BRX" else after

    def follow_indirect_jumps(self):
        """The table of a `BRX` is not in the dump: it may lead wherever nothing else does."""
        jumps = [index for index, one in enumerate(self.code) if one.name == "BRX"]
        known = {index for following in self.next for index in following}
        known |= {self.target(index) for index, one in enumerate(self.code)
                  if one.name.startswith(RARE + ("BSSY", "WARPSYNC"))}
        heads = [index for index in range(1, len(self.code)) if index not in known]
        for jump in jumps:
            self.next[jump] = heads

    def walk(self):
        """Those that can be reached. A BSYNC goes on where the BSSY before it says."""
        reached, open_ends = set(), [(0, {})]
        while open_ends:
            index, meetings = open_ends.pop()
            while index not in reached:
                reached.add(index)
                one = self.code[index]
                if one.name == "BSSY":
                    meetings = meetings | {one.rest.split(",")[0]: self.target(index)}
                if one.name == "BSYNC" and meetings.get(one.rest) is not None:
                    self.next[index] = [meetings[one.rest]] + (self.next[index] if one.conditional else [])
                if not self.next[index]:
                    break
                open_ends += [(other, meetings) for other in self.next[index][1:]]
                index = self.next[index][0]
        return reached


class Blocks:
    """Basic blocks by their first instruction, in an order in which only jumps back lead backwards."""

    def __init__(self, flow):
        before = {}
        for index in flow.reached:
            for other in flow.next[index]:
                before.setdefault(other, set()).add(index)
        first = {0} | {index for index in flow.reached if before.get(index, set()) != {index - 1}
                       or flow.next[index - 1] != [index]}
        self.code, self.end, self.next = flow.code, {}, {}
        for start in first:
            end = start
            while flow.next[end] == [end + 1] and end + 1 not in first:
                end += 1
            self.end[start], self.next[start] = end, list(dict.fromkeys(flow.next[end]))
        self.order = self.sorted()
        self.rank = {block: rank for rank, block in enumerate(self.order)}
        self.before = {block: [] for block in self.order}
        for block in self.order:
            for other in self.next[block]:
                self.before[other].append(block)
        self.dominator = self.dominators()

    def sorted(self):
        order, seen, stack = [], {0}, [(0, iter(self.next[0]))]
        while stack:
            block, others = stack[-1]
            other = next((other for other in others if other not in seen), None)
            if other is None:
                order.append(block)
                stack.pop()
            else:
                seen.add(other)
                stack.append((other, iter(self.next[other])))
        return order[::-1]

    def dominators(self):
        """Of each block the nearest one that all ways to it pass (Cooper, Harvey, Kennedy 2001)."""
        dominator, changed = {0: 0}, True
        while changed:
            changed = False
            for block in self.order[1:]:
                known = [other for other in self.before[block] if other in dominator]
                nearest = known[0]
                for other in known[1:]:
                    while other != nearest:
                        if self.rank[other] > self.rank[nearest]:
                            other = dominator[other]
                        else:
                            nearest = dominator[nearest]
                changed |= dominator.get(block) != nearest
                dominator[block] = nearest
        return dominator

    def dominates(self, block, other):
        while other not in (0, block):
            other = self.dominator[other]
        return other == block

    def size(self, block):
        return self.end[block] + 1 - block

    def tally(self, block):
        return tally(one.name for one in self.code[block:self.end[block] + 1])


class Loop:
    """A loop: its first block, and all of its blocks."""

    def __init__(self, blocks, head):
        self.blocks, self.head, self.members = blocks, head, {head}
        self.address = blocks.code[head].address

    @cached_property
    def size(self):
        return sum(map(self.blocks.size, self.members))

    @cached_property
    def tally(self):
        return sum(map(self.blocks.tally, self.members), Counter())

    def count(self, pattern):
        return count(self.tally, pattern)

    def turn(self, wanted):
        """The fewest instructions of a turn with so many of each pattern; None if no turn has them. A loop
        within counts as passed once."""
        patterns, enough = list(wanted), list(wanted.values())

        def step(block, counts, length):
            names = self.blocks.tally(block)
            found = (count(names, pattern) for pattern in patterns)
            return tuple(map(min, map(sum, zip(counts, found)), enough)), length + self.blocks.size(block)

        counts, length = step(self.head, [0] * len(enough), 0)
        best = {self.head: {counts: length}}
        least = None
        for block in sorted(self.members, key=self.blocks.rank.get):
            for counts, length in best.get(block, {}).items():
                for other in self.blocks.next[block]:
                    if other == self.head and list(counts) == enough:
                        least = min(length, least or length)
                    if other in self.members and self.blocks.rank[other] > self.blocks.rank[block]:
                        after, longer = step(other, counts, length)
                        ways = best.setdefault(other, {})
                        ways[after] = min(longer, ways.get(after, longer))
        return least


def loops(code):
    """All loops of a kernel, by address."""
    blocks, found = Blocks(Flow(code)), {}
    for block in blocks.order:
        for head in blocks.next[block]:
            if not blocks.dominates(head, block):
                continue
            loop = found.setdefault(head, Loop(blocks, head))
            waiting = [block]
            while waiting:
                member = waiting.pop()
                if member not in loop.members:
                    loop.members.add(member)
                    waiting += blocks.before[member]
    return sorted(found.values(), key=lambda loop: loop.address)
