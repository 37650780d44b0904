"""Instruction counts of loops, from ci/sass.table: what ci/sass.sh holds the compiler's output against."""
import os

TABLE = os.path.join(os.path.dirname(__file__), "..", "..", "ci", "sass.table")
# A row of this architecture goes before one of all.
ARCH = "90a"


class Loops:
    def __init__(self, path=TABLE):
        self.path, self.rows = path, {}
        with open(path) as lines:
            for words in (line.split() for line in lines):
                if words[:1] == ["loop"] and words[2] in ("*", ARCH):
                    kernel, arch, name, body, turn = words[1:6]
                    if arch == ARCH or (kernel, name) not in self.rows:
                        self.rows[kernel, name] = {"body": int(body), "turn": int(turn)}

    def count(self, kernel, names, which="turn"):
        """Instructions of a kernel's loop that has one of the names."""
        for name in names:
            if (kernel, name) in self.rows:
                return self.rows[kernel, name][which]
        raise SystemExit(f"{self.path}: expected a loop row of {kernel} named {' or '.join(names)}, found none")
