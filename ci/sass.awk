# ci/sass.sh's checker: reads ci/sass.table, then cuobjdump's resource usage, then its disassembly.

function fail(text) {
    print text
    failures++
}

# Whether an instruction has the operation and all modifiers of a pattern: LDG.E.NA.128 is an LDG.128.
function is_a(instruction, pattern,    parts, count, i) {
    count = split(pattern, parts, ".")
    if (index(instruction ".", parts[1] ".") != 1) return 0
    for (i = 2; i <= count; i++)
        if (!index(instruction ".", "." parts[i] ".")) return 0
    return 1
}

# How many instructions of a kernel are of a pattern.
function count_of(id, pattern,    names, count, i, total) {
    count = split(operations[id], names, " ")
    for (i = 1; i <= count; i++)
        if (is_a(names[i], pattern)) total += instructions[id, names[i]]
    return total + 0
}

# Checks one pattern of a row: `NAME`, `NAME:N` for at least N of them, `!NAME` for none.
function check_pattern(id, where, pattern,    parts, found) {
    if (pattern ~ /^!/) {
        found = count_of(id, substr(pattern, 2))
        if (found) fail(where ": " found " " substr(pattern, 2) ", expected none")
        return
    }
    split(pattern ":1", parts, ":")
    found = count_of(id, parts[1])
    if (found < parts[2]) fail(where ": " found " " parts[1] ", expected at least " parts[2])
}

function check(id,    parts, where, row, patterns, count, i) {
    split(id, parts, SUBSEP)
    where = parts[1] " sm_" parts[2]
    row = id in registers_max ? id : parts[1] SUBSEP "*"
    if (!(row in registers_max)) {
        fail(where ": no row in ci/sass.table")
        return
    }
    used[row] = 1
    if (registers[id] > registers_max[row])
        fail(where ": " registers[id] " registers, expected at most " registers_max[row])
    if (shared[id] > shared_max[row])
        fail(where ": " shared[id] " bytes of shared memory, expected at most " shared_max[row])
    if (spilled[id]) fail(where ": " spilled[id] " bytes of stack and local memory, expected none")
    count = split(wanted[row] " !LDL !STL !RED.F32 !ATOMG.F32 !ATOMS.F32", patterns, " ")
    for (i = 1; i <= count; i++) check_pattern(id, where, patterns[i])
}

# What a row would be written from: the figures, and how often the instructions that matter occur.
function print_figures(id,    parts, names, count, i, found) {
    split(id, parts, SUBSEP)
    printf "%-24s %-5s %3d %6d", parts[1], parts[2], registers[id], shared[id]
    count = split("HMMA HGMMA LDSM LDGSTS UTMALDG UBLKCP LDG.128 LDG.64 LDG STG.128 STG ATOMG LDL STL", names, " ")
    for (i = 1; i <= count; i++) {
        found = count_of(id, names[i])
        if (found) printf " %s:%d", names[i], found
    }
    print ""
}

FNR == 1 { part++ }

part == 1 && !/^#/ && NF {
    if (NF < 4 || $3 $4 ~ /[^0-9]/) fail("ci/sass.table:" FNR ": expected a kernel, an architecture and two numbers")
    registers_max[$1, $2] = $3
    shared_max[$1, $2] = $4
    for (i = 5; i <= NF; i++) wanted[$1, $2] = wanted[$1, $2] " " $i
}

# Both dumps say before each image which architecture it is for.
part > 1 && /^arch = / { arch = substr($3, 4) }

part == 2 && $1 == "Function" { kernel = substr($2, 1, length($2) - 1) }
part == 2 && /REG:/ {
    match($0, /REG:[0-9]+/); registers[kernel, arch] = substr($0, RSTART + 4, RLENGTH - 4) + 0
    match($0, /SHARED:[0-9]+/); shared[kernel, arch] = substr($0, RSTART + 7, RLENGTH - 7) - (arch + 0 >= 90 ? 1024 : 0)
    match($0, /STACK:[0-9]+/); spilled[kernel, arch] = substr($0, RSTART + 6, RLENGTH - 6) + 0
    match($0, /LOCAL:[0-9]+/); spilled[kernel, arch] += substr($0, RSTART + 6, RLENGTH - 6)
}

part == 3 && $1 == "Function" { kernel = $3 }
part == 3 && $1 ~ /^\/\*[0-9a-f]+\*\/$/ && NF > 2 {
    operation = $2 ~ /^@/ ? $3 : $2
    sub(/;$/, "", operation)
    if (!instructions[kernel, arch, operation]++) operations[kernel, arch] = operations[kernel, arch] " " operation
}

END {
    for (id in registers) {
        kernels++
        if (!(id in operations)) {
            split(id, parts, SUBSEP)
            fail(parts[1] " sm_" parts[2] ": no disassembly")
        }
        if (figures)
            print_figures(id)
        else
            check(id)
    }
    if (figures) exit
    for (row in registers_max)
        if (!(row in used)) {
            split(row, parts, SUBSEP)
            fail(parts[1] " " parts[2] ": a row of ci/sass.table and no kernel")
        }
    if (!kernels) fail("no kernels found")
    if (failures) {
        print failures " of the figures in ci/sass.table do not hold"
        exit 1
    }
    print "ci/sass.table holds for " kernels " kernels, all architectures counted"
}
