# Sourced by scripts that compile for other targets. Their standard library comes from rustup if it can download;
# otherwise cargo builds it from Debian's rust-src of the same version.

# Prints the folder of a rust-src that matches rustc, taken from a later Debian suite without
# touching the system's own package lists.
rust_source() {
    local tools=$PWD/target/rust-src
    mkdir -p "$tools"
    local version
    version=$(rustc --version | cut -d' ' -f2)
    local source="$tools/rust-src/usr/src/rustc-$version"
    if [ ! -d "$source" ]; then
        local sources
        sources=$(grep -lE '^Suites: bookworm( |$)' /etc/apt/sources.list.d/*.sources | head -n 1)
        local apt=(-o "Dir::Etc::SourceList=$tools/backports.sources" -o Dir::Etc::SourceParts=/dev/null
            -o "Dir::State::Lists=$tools/lists" -o "Dir::Cache::Archives=$tools")
        mkdir -p "$tools/lists/partial" "$tools/partial"
        sed -nE '1,/^$/ s/^Suites: .*/Suites: trixie-backports/; 1,/^$/p' "$sources" > "$tools/backports.sources"
        apt-get "${apt[@]}" update -qq >&2
        local package
        package=$(apt-cache "${apt[@]}" madison rust-src | awk -v v="$version" 'index($3, v) == 1 {print $3; exit}')
        [ -n "$package" ] || { echo "no rust-src $version in Debian's backports" >&2; return 1; }
        (cd "$tools" && apt-get "${apt[@]}" download -qq "rust-src=$package" >&2)
        dpkg -x "$tools"/rust-src_*.deb "$tools/rust-src"
    fi
    echo "$source"
}

# Sets `build_std` to cargo's arguments for the target `$1`: none if its standard library is installed.
prepare_std() {
    build_std=()
    if rustup target list --installed 2> /dev/null | grep -qx "$1"; then return; fi
    if rustup target add "$1" > /dev/null 2>&1; then return; fi
    local place
    place=$(rustc --print sysroot)/lib/rustlib/src
    if [ ! -e "$place/rust/library/Cargo.lock" ]; then
        mkdir -p "$place"
        ln -sfn "$(rust_source)" "$place/rust"
    fi
    export RUSTC_BOOTSTRAP=1
    build_std=(-Zbuild-std)
}
