#!/usr/bin/env bash
# Writes the program's software bill of materials in CycloneDX's JSON: `ci/sbom.sh [FILE [TARGET]]`. It has every crate
# that the program is built from, with all features, for one target or for all; crates of tests alone are left out.
# FILE is target/sbom.cdx.json by default. Equal sources give equal bytes.
set -euo pipefail
cd "$(dirname "$0")/.."
file=${1:-target/sbom.cdx.json}
mkdir -p "$(dirname "$file")"
metadata=$(mktemp)
trap 'rm -f "$metadata"' EXIT
cargo metadata --locked --format-version 1 --all-features ${2:+--filter-platform "$2"} > "$metadata"
python3 - "$metadata" "$file" << 'PYTHON'
import hashlib, json, re, sys, tomllib, uuid

metadata = json.load(open(sys.argv[1]))
with open("Cargo.lock", "rb") as lock:
    checksums = {(p["name"], p["version"]): p.get("checksum") for p in tomllib.load(lock)["package"]}
packages = {package["id"]: package for package in metadata["packages"]}
nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
root = next(p["id"] for p in metadata["packages"] if p["name"] == "ottava-cli" and p["source"] is None)


def used(node):
    """Dependencies of a crate, its build script included."""
    kinds = lambda dep: {kind["kind"] for kind in dep["dep_kinds"]}
    return sorted(dep["pkg"] for dep in nodes[node]["deps"] if kinds(dep) - {"dev"})


def purl(id):
    return f"pkg:cargo/{packages[id]['name']}@{packages[id]['version']}"


def component(id):
    package = packages[id]
    found = {
        "type": "application" if id == root else "library",
        "bom-ref": purl(id),
        "name": package["name"],
        "version": package["version"],
        "purl": purl(id),
    }
    if package["license"]:
        # Older crates separate a choice by a slash.
        found["licenses"] = [{"expression": re.sub(r"\s*/\s*", " OR ", package["license"])}]
    checksum = checksums.get((package["name"], package["version"]))
    if checksum:
        found["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package["repository"]:
        found["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return found


reached, queue = set(), [root]
while queue:
    if (id := queue.pop()) not in reached:
        reached.add(id)
        queue.extend(used(id))
ids = sorted(reached, key=purl)
bom = {
    "bomFormat": "CycloneDX",
    "specVersion": "1.5",
    "version": 1,
    "metadata": {"component": component(root)},
    "components": [component(id) for id in ids if id != root],
    "dependencies": [{"ref": purl(id), "dependsOn": sorted(map(purl, used(id)))} for id in ids],
}
digest = hashlib.sha256(json.dumps(bom, sort_keys=True).encode()).digest()
bom["serialNumber"] = uuid.UUID(bytes=digest[:16], version=4).urn
without = [c["name"] for c in bom["components"] if "licenses" not in c]
assert not without, f"expected a licence of each crate, found none of {without}"
with open(sys.argv[2], "w") as out:
    json.dump(bom, out, indent=1)
    out.write("\n")
print(f"{sys.argv[2]}: {len(bom['components'])} crates")
PYTHON
